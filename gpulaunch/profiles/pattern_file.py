"""Communication patterns by name, or from a file with the edges of a graph."""

import os

from gpulaunch.errors import FieldError, UsageError, did_you_mean, excerpt, quoted
from gpulaunch.files.document import read_text
from gpulaunch.profiles.pattern import PATTERNS, Edge, Pattern, given_pattern

GRAPH_ENDINGS = (".txt", ".edges", ".edgelist", ".csv", ".tsv")
"""Endings of graph files; anything that contains a slash is a file, too."""

MOST_BYTES = 4 << 20
"""Largest graph file; a complete graph of 576 ranks takes 3 MiB."""

_MOST_DIGITS = 9  # of a rank


def load_pattern(text: str) -> Pattern:
    """Return the pattern with this name, or of the graph in this file.

    A file is an edge list: each line has two ranks and, if it is not 1, a weight, separated by
    blanks or commas; "#" begins a comment. "0 1" and "1 0" are the directions of one edge and add
    up.

    Args:
        text: a name, such as "ring", "all-to-all" or "all_to_all", or a path.

    Raises:
        UsageError: the name is unknown, or the file cannot be read or is no graph of ranks; with
            path and line where there is one.

    Cost: a file of 1,000 lines about 3 ms.
    """
    known = PATTERNS.get(text.replace("-", "_"))
    if known is not None:
        return known
    if os.sep not in text and not text.lower().endswith(GRAPH_ENDINGS):
        file = f"./{text}" if os.path.isfile(text) else "a file"
        names = [name.replace("_", "-") for name in PATTERNS]
        raise UsageError(
            f"unknown pattern {quoted(text)}{did_you_mean(text, names)}",
            f"known are {', '.join(names)}, or give {file}",
        )
    name, content = os.path.basename(text), read_text(text, MOST_BYTES).removeprefix("\ufeff")
    lines = read_edges(text, content)
    try:
        return given_pattern(name, [edge for _, edge in lines])
    except FieldError as problem:
        where = f"{text}:{lines[int(problem.path[0])][0]}" if problem.path else text
        raise UsageError(f"{where}: {problem.message}") from None


def read_edges(path: str, content: str) -> list[tuple[int, Edge]]:
    """Return the directed edges of an edge list as they stand there, each with its line.

    Raises:
        UsageError: a line is no edge, or an edge stands twice. Ranks and weights are not checked
            any further.
    """
    lines: dict[tuple[int, int], int] = {}
    edges = []
    for number, line in enumerate(content.split("\n"), 1):
        stated = line.partition("#")[0].strip()
        if stated:
            try:
                a, b, weight = _read_edge(stated)
            except FieldError as problem:
                raise UsageError(f"{path}:{number}: {problem.message}") from None
            if (a, b) in lines:
                raise UsageError(
                    f"{path}:{number}: edge {a} {b} stands in line {lines[a, b]} already"
                )
            lines[a, b] = number
            edges.append((number, (a, b, weight)))
    return edges


def _read_edge(line: str) -> tuple[int, int, float]:
    fields = [field.strip() for field in line.split(",")] if "," in line else line.split()
    if len(fields) not in (2, 3):
        raise FieldError(
            (),
            f"{quoted(excerpt(line))} is no edge: two ranks and perhaps a weight, such as "
            "'0 1 2.5'",
        )
    a, b = map(_read_rank, fields[:2])
    try:
        return a, b, float(fields[2].replace("_", "no digit")) if len(fields) == 3 else 1.0
    except ValueError:
        raise FieldError(
            (), f"edge {a}-{b}: weight: {quoted(excerpt(fields[2]))} is not a number"
        ) from None


def _read_rank(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise FieldError((), f"{quoted(excerpt(text))} is no rank: ranks are 0, 1, 2 ...")
    return int(text)
