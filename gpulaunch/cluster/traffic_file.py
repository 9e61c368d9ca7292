"""Traffic between ranks from files: a matrix, an edge list or GraphML."""

from collections.abc import Iterable, Iterator
from math import isfinite

from gpulaunch.cluster.rank_traffic import RankTraffic, summed
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.document import read_text
from gpulaunch.profiles.pattern import Edge
from gpulaunch.profiles.pattern_file import read_edges

MOST_BYTES = 1 << 28
"""Largest file: a matrix of 4,096 ranks with up to 16 characters a figure."""

_MOST_WEIGHT = 1e18


def read_traffic_file(path: str, ranks: int) -> RankTraffic:
    """Read the traffic of this many ranks from a file.

    A line of more than three figures is one of a matrix: what a rank sends to each rank. Anything
    else is an edge list as of docs/reference/patterns.md, or GraphML. Here the graph need not be
    connected.

    Raises:
        UsageError: the file cannot be read, or is wrong; with path and line.
    """
    text = read_text(path, MOST_BYTES).removeprefix("\ufeff")
    if text.lstrip().startswith("<") or path.lower().endswith(".graphml"):
        return _read_graphml(path, text, ranks)
    first = next((_fields(line) for line in text.split("\n") if _fields(line)), [])
    if not first:
        raise UsageError(f"{path}: no traffic is in it")
    if len(first) > 3:
        return summed(ranks, _read_matrix(path, text, ranks))
    return summed(ranks, _checked(path, read_edges(path, text), ranks))


def _fields(line: str) -> list[str]:
    stated = line.partition("#")[0]
    return stated.replace(",", " ").split()


def _read_matrix(path: str, text: str, ranks: int) -> Iterator[Edge]:
    """Yield what each rank sends to each other one; what it sends to itself goes nowhere."""
    row = 0
    for number, line in enumerate(text.split("\n"), 1):
        fields = _fields(line)
        if not fields:
            continue
        if row == ranks or len(fields) != ranks:
            found = f"{len(fields)} figures" if row < ranks else f"more than {ranks} rows"
            raise UsageError(
                f"{path}:{number}: {found}: a matrix of {ranks} ranks has {ranks} rows and columns"
            )
        for column, field in enumerate(fields):
            if field != "0":
                weight = _read_figure(path, number, field)
                if weight and column != row:
                    yield row, column, weight
        row += 1
    if row < ranks:
        raise UsageError(
            f"{path}: {row} rows: a matrix of {ranks} ranks has {ranks} rows and columns"
        )


def _read_figure(path: str, number: int, field: str) -> float:
    try:
        weight = float(field)
    except ValueError:
        weight = float("nan")
    if not isfinite(weight) or not 0 <= weight <= _MOST_WEIGHT:
        shown = printable(field[:40])
        raise UsageError(f"{path}:{number}: '{shown}' is no traffic: a number from 0 to 1e18")
    return weight


def _checked(path: str, edges: Iterable[tuple[int, Edge]], ranks: int) -> Iterator[Edge]:
    """Yield the edges after checking their ranks and weights."""
    for number, (a, b, weight) in edges:
        where = f"{path}:{number}" if number else path
        if max(a, b) >= ranks:
            raise UsageError(f"{where}: rank {max(a, b)}: {ranks} ranks are 0 to {ranks - 1}")
        if a == b:
            raise UsageError(f"{where}: edge {a}-{b}: it joins a rank to itself")
        if not isfinite(weight) or not 1e-9 <= weight <= _MOST_WEIGHT:
            raise UsageError(
                f"{where}: edge {a}-{b}: {weight:g} is no traffic above 0, 1e18 at most"
            )
        yield a, b, weight


def _read_graphml(path: str, text: str, ranks: int) -> RankTraffic:
    from gpulaunch.machine.graph import read_graphml, read_weights  # late: it costs 0.2 s

    try:
        nodes, edges = read_weights(read_graphml(text, path))
    except UsageError as problem:
        where = "" if problem.message.startswith(path) else f"{path}: "
        raise UsageError(f"{where}{problem.message}") from None
    most = max(nodes, default=0)
    if most >= ranks:
        raise UsageError(f"{path}: rank {most}: {ranks} ranks are 0 to {ranks - 1}")
    figures = ((0, (a, b, _as_figure(weight))) for a, b, weight in edges)
    return summed(ranks, _checked(path, figures, ranks))


def _as_figure(weight: object) -> float:
    """Return a weight of GraphML as a number; NaN if it is none."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return float(weight) if is_number else float("nan")  # type: ignore[arg-type]
