"""The line of column names above a matrix of nvidia-smi, which may have run together or wrapped."""
# pure: decides on plain values

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from gpulaunch.machine.pasted_text import TextError, TextLine
from gpulaunch.machine.smi_affinity import TITLES, shorten
from gpulaunch.records import Record

MAX_PIECES = 3
"""Most lines behind a row's first that a narrow terminal makes of it."""

GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,2})")
_COLUMN = re.compile(
    r"\s*(?:(?P<cpu>CPU\s*Affinity)|(?P<numa>NUMA(?:\s*Affinity|(?![A-Za-z0-9])(?!\s*ID)))|(?P<own>GPU\s*NUMA\s*ID)"
    r"|(?P<gpu>GPU(?:0|[1-9][0-9]{0,2}))(?=\s|$|GPU|NIC|mlx|CPU|NUMA)"
    r"|(?P<device>(?:NIC[0-9]+|mlx[0-9]+_[0-9]+)(?=\s|$|GPU|NIC|mlx|CPU|NUMA)"
    r"|(?!(?i:GPU)|NV[0-9])[A-Za-z][A-Za-z0-9_.-]*[0-9](?=\s|$)))"
)
CONNECTION = re.compile(r"X|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC")


class ColumnNames(Record):
    """The line of column names: of GPUs and adapters in order, of GPUs alone, and the titles."""

    line: int
    columns: tuple[str, ...]
    gpus: tuple[str, ...]
    titles: tuple[str, ...]


def header_at(lines: Sequence[TextLine]) -> tuple[ColumnNames | None, int]:
    """Read column names that begin in the first line, which a terminal may have wrapped.

    Returns:
        The column names, or None; and how many lines they take, or 1.

    Raises:
        TextError: the line begins as column names and ends as none.
    """
    first, *following = lines
    pieces = [first.text]
    readable: list[tuple[ColumnNames, int]] = []
    problem: TextError | None = None
    try:
        found = read_header(first.number, first.text)
        readable = [(found, 1)] if found else []
    except TextError as caught:
        problem, found = caught, None
    if not found and not problem:
        return None, 1
    for line in following:
        begins_anew = line.text.split(None, 1)[0] == first.text.split(None, 1)[0]
        if line.number != first.number + len(pieces) or is_row(line.text) or begins_anew:
            break
        pieces.append(line.text)
        readable += _joined_headers(first.number, pieces)
    if not readable and problem:
        raise problem
    return readable[-1]


def _joined_headers(number: int, pieces: Sequence[str]) -> list[tuple[ColumnNames, int]]:
    """Return the one header that these lines are, with their number, or []."""
    found: dict[ColumnNames, None] = {}
    for text in joined(pieces):
        try:
            header = read_header(number, text)
        except TextError:
            continue
        if header:
            found[header] = None
    return [(header, len(pieces)) for header in found] if len(found) == 1 else []


def joined(pieces: Sequence[str]) -> Iterator[str]:
    """Yield a wrapped line's pieces joined, with and without a blank at each join."""
    for blanks in product(("", " "), repeat=len(pieces) - 1):
        yield "".join(blank + piece for blank, piece in zip(("", *blanks), pieces, strict=True))


def read_header(number: int, line: str) -> ColumnNames | None:
    """Read a line as column names, which may have run together; None if it is anything else.

    Raises:
        TextError: it begins as column names and ends as none.
    """
    text = line.strip()
    columns: dict[str, bool] = {}  # name -> whether it is a GPU
    titles: list[str] = []
    place = 0
    while place < len(text):
        match = _COLUMN.match(text, place)
        if not match and len(columns) > 1:
            word = text[place:].split(None, 1)[0]
            raise TextError(number, f"column {shorten(word)} is none that nvidia-smi prints")
        if not match or not (columns or match.lastgroup == "gpu"):
            return None
        place = match.end()
        title = TITLES.get(match.lastgroup or "")
        name = title or match[match.lastgroup or 0]
        if name in columns or name in titles:
            raise TextError(number, f"column {shorten(name)} stands twice")
        if titles and not title:
            raise TextError(number, f"column {shorten(name)} stands after {titles[-1]!r}")
        if title:
            titles.append(title)
        else:
            columns[name] = match.lastgroup == "gpu"
    gpus = [name for name, is_gpu in columns.items() if is_gpu]
    for before, gpu in pairwise(gpus):
        if gpu_number(gpu) < gpu_number(before):
            raise TextError(number, f"column {gpu} stands after {before}: they must ascend")
    return ColumnNames(number, tuple(columns), tuple(gpus), tuple(titles))


def gpu_number(name: str) -> int:
    """Return the number in a GPU's name."""
    return int(name.removeprefix("GPU"))


def is_row(line: str) -> bool:
    """Return whether a line begins as the row of a GPU."""
    words = line.split(None, 2)
    return len(words) > 1 and bool(GPU.fullmatch(words[0]) and CONNECTION.fullmatch(words[1]))
