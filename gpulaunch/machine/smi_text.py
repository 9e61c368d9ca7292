"""The matrix that `nvidia-smi topo -m` prints, saved or pasted from a web page.

The columns are GPUs, network adapters, and up to three titles: CPU Affinity, NUMA Affinity (since
about 2020) and GPU NUMA ID. A text may since have got spaces for tabs, or none at all in its
header, prompts and legends around it, and empty cells where a cgroup hides the CPUs. What can be
read in two ways is an error, never a guess.

Source: outputs of drivers from about 2016 to 2026, as people publish them.
"""
# pure: decides on plain values

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, pairwise, takewhile

from gpulaunch.errors import quoted
from gpulaunch.machine.cpuset import parse_cpuset
from gpulaunch.machine.link_bandwidth import PCIE_PATHS
from gpulaunch.records import Record

MAX_NVLINKS = 18
"""Most NVLinks of one GPU so far (H100, B200).

More in one row must end in a switch that all share.
"""


_TITLES = {"cpu": "CPU Affinity", "numa": "NUMA Affinity", "own": "GPU NUMA ID"}
_MAX_SHOWN = 40

# Newer drivers underline the header, even when they write into a pipe.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,2})")
_COLUMN = re.compile(
    r"\s*(?:(?P<cpu>CPU\s*Affinity)|(?P<numa>NUMA\s*Affinity)|(?P<own>GPU\s*NUMA\s*ID)"
    r"|(?P<gpu>GPU(?:0|[1-9][0-9]{0,2}))(?=\s|$|GPU|NIC|mlx|CPU|NUMA)"
    r"|(?P<device>(?:NIC[0-9]+|mlx[0-9]+_[0-9]+)(?=\s|$|GPU|NIC|mlx|CPU|NUMA)"
    r"|(?!(?i:GPU)|NV[0-9])[A-Za-z][A-Za-z0-9_.-]*[0-9](?=\s|$)))"
)
_WORD = re.compile(r"\S+")
_CONNECTION = re.compile(r"X|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC")
_AFFINITY = re.compile(r"[0-9][0-9,-]*|N/A")

Pair = tuple[int, int]


class TextError(ValueError):
    """The text is no complete matrix of nvidia-smi topo -m; the caller adds the file's name.

    Args:
        line: line number, from 1.
        message: the mistake in that line.
    """

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


class SmiMatrix(Record):
    """The contents of a matrix; GPUs are numbered by position, from 0.

    Attributes:
        gpus: number of each GPU in the text, ascending; the first need not be 0, gaps are possible.
        cells: for every two positions a < b "NV1" to "NV99" or a PCIe path type; its old name SOC
            is replaced by SYS.
        cpusets: CPUs next to each GPU; empty if the text does not say.
        numa_nodes: NUMA node of each GPU; None if the text names none or several.
    """

    gpus: tuple[int, ...]
    cells: Mapping[Pair, str]
    cpusets: tuple[frozenset[int], ...]
    numa_nodes: tuple[int | None, ...]


class _Header(Record):
    """The line of column names: of GPUs and adapters in order, of GPUs alone, and the titles."""

    line: int
    columns: tuple[str, ...]
    gpus: tuple[str, ...]
    titles: tuple[str, ...]


class _Row(Record):
    """One GPU's row: its cell for each column, by the column's name."""

    line: int
    cells: Mapping[str, str]
    cpuset: frozenset[int]
    numa_node: int | None


def looks_like_topology_text(text: str) -> bool:
    """Return whether a text is meant as such a matrix: a line begins like its header or a row."""
    try:
        return any(
            _read_header(number, line) or _is_row(line) for number, line in _plain_lines(text)
        )
    except TextError:
        return True


def parse_topology_text(text: str) -> SmiMatrix:
    """Read the one matrix in the text; text before and after it is skipped.

    Raises:
        TextError: there is no matrix, it is incomplete, or it contradicts itself.
    """
    header: _Header | None = None
    rows: dict[str, _Row] = {}
    for number, line in _plain_lines(text):
        found = _read_header(number, line)
        if found and not header:
            header = found
        elif found and len(found.columns + found.titles) > 1:
            raise TextError(number, "a second matrix begins here: one text describes one machine")
        elif _belongs_to_matrix(line, header, rows):
            name = line.split(None, 1)[0]
            if not header:
                raise TextError(number, f"row {name} stands before any line of column names")
            if name in rows:
                raise TextError(number, f"row {name} stands here and in line {rows[name].line}")
            rows[name] = _read_row(number, line, header)
    if not header:
        raise TextError(1, "no line of column names such as 'GPU0 GPU1 CPU Affinity', so no matrix")
    return _build_matrix(header, rows)


def _plain_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers, without terminal escape sequences."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        plain = _ESCAPES.sub("", line)
        if plain.strip():
            yield number, plain


def _read_header(number: int, line: str) -> _Header | None:
    """Read a line as column names, which may have run together; None if it is anything else."""
    text = line.strip()
    columns: dict[str, bool] = {}  # name -> whether it is a GPU
    titles: list[str] = []
    place = 0
    while place < len(text):
        match = _COLUMN.match(text, place)
        if not match and len(columns) > 1:
            word = text[place:].split(None, 1)[0]
            raise TextError(number, f"column {_shorten(word)} is none that nvidia-smi prints")
        if not match or not (columns or match.lastgroup == "gpu"):
            return None
        place = match.end()
        title = _TITLES.get(match.lastgroup or "")
        name = title or match[match.lastgroup or 0]
        if name in columns or name in titles:
            raise TextError(number, f"column {_shorten(name)} stands twice")
        if titles and not title:
            raise TextError(number, f"column {_shorten(name)} stands after {titles[-1]!r}")
        if title:
            titles.append(title)
        else:
            columns[name] = match.lastgroup == "gpu"
    gpus = [name for name, is_gpu in columns.items() if is_gpu]
    for before, gpu in pairwise(gpus):
        if _gpu_number(gpu) < _gpu_number(before):
            raise TextError(number, f"column {gpu} stands after {before}: they must ascend")
    return _Header(number, tuple(columns), tuple(gpus), tuple(titles))


def _gpu_number(name: str) -> int:
    return int(name.removeprefix("GPU"))


def _shorten(word: str) -> str:
    return quoted(word if len(word) <= _MAX_SHOWN else f"{word[:_MAX_SHOWN]}...")


def _is_row(line: str) -> bool:
    words = line.split(None, 2)
    return len(words) > 1 and bool(_GPU.fullmatch(words[0]) and _CONNECTION.fullmatch(words[1]))


def _belongs_to_matrix(line: str, header: _Header | None, rows: Mapping[str, _Row]) -> bool:
    """Return whether a line is a row, however damaged.

    Outside the matrix a sentence may begin with a GPU's name, so there it must look like a row.
    """
    inside = header is not None and len(rows) < len(header.gpus)
    return _is_row(line) or (inside and bool(_GPU.fullmatch(line.split(None, 1)[0])))


def _read_row(number: int, line: str, header: _Header) -> _Row:
    name, *words = line.split()
    if name not in header.gpus:
        raise TextError(number, f"row {name} has no column")
    cells = _read_cells(number, name, words, header)
    for column, cell in cells.items():
        if cell == "X" and column != name:
            raise TextError(
                number,
                f"row {name} has 'X' under {_shorten(column)}: a GPU has that under itself only",
            )
        if cell != "X" and column == name:
            raise TextError(number, f"row {name} has {cell!r} under itself, not 'X'")
    return _Row(
        number,
        cells,
        *_read_affinity(number, name, _rest_after(line, 1 + len(cells)), header.titles),
    )


def _read_cells(number: int, name: str, words: Sequence[str], header: _Header) -> dict[str, str]:
    """Return the connections that begin a row, by column, never an affinity for a missing cell."""
    count = len(header.columns)
    cells = list(takewhile(lambda word: not _AFFINITY.fullmatch(word), words))[:count]
    wrong = next((word for word in cells if not _CONNECTION.fullmatch(word)), None)
    if wrong:
        known = f"X, NV1 to NV99, {', '.join(PCIE_PATHS)}, SOC"
        raise TextError(number, f"row {name}: {_shorten(wrong)} is none of {known}")
    if len(cells) < count:
        kind = "GPU" if header.gpus == header.columns else "GPU and adapter"
        stop = f", then {_shorten(words[len(cells)])}" if len(words) > len(cells) else ""
        raise TextError(number, f"row {name} has {len(cells)} of {count} {kind} cells{stop}")
    return dict(zip(header.columns, cells, strict=True))


def _rest_after(line: str, words: int) -> str:
    """Return the rest of a line after this many words, with its tabs."""
    end = 0
    for match in islice(_WORD.finditer(line), words):
        end = match.end()
    return line[end:]


def _read_affinity(
    number: int, name: str, tail: str, titles: Sequence[str]
) -> tuple[frozenset[int], int | None]:
    """Read the CPUs and the NUMA node behind the connections of a row.

    Tabs around an empty cell show that it is there. A value narrower than its title may have a
    second tab after it: so only the first column can contain the first value, and any other value
    may belong further left than it stands.
    """
    pieces = tail.split("\t")
    tabbed = not pieces[0].strip() and all(len(piece.split()) < 2 for piece in pieces)
    values = [(place, piece.strip()) for place, piece in enumerate(pieces[1:]) if piece.strip()]
    if not tabbed:
        values = [(-1, word) for word in tail.split()]
    sets = [_read_cpus(number, name, word) for _, word in values]
    if len(values) > len(titles):
        extra = " ".join(word for _, word in values)
        raise TextError(
            number,
            f"row {name} has {_shorten(extra)} after its connections, for {len(titles)} columns",
        )

    def fits(place: int, column: int) -> bool:
        return (
            not tabbed
            or len(values) == len(titles)
            or (column <= place and (column == 0) == (place == 0))
        )

    places = [place for place, _ in values]
    readings = set()
    for columns in combinations(range(len(titles)), len(values)):
        if all(map(fits, places, columns)):
            names = [titles[column] for column in columns]
            readings.add(_interpret_affinity(dict(zip(names, sets, strict=True))))
    if len(readings) != 1:
        cells = _shorten(" ".join(word for _, word in values))
        raise TextError(
            number, f"row {name}: which of {', '.join(titles)} {cells} is cannot be told"
        )
    return readings.pop()


def _read_cpus(number: int, name: str, word: str) -> frozenset[int]:
    try:
        if _AFFINITY.fullmatch(word):
            return frozenset() if word == "N/A" else parse_cpuset(word)
    except ValueError:
        pass
    raise TextError(
        number,
        f"row {name}: {_shorten(word)} after its connections is no list such as 0-19,40-59, "
        "nor N/A",
    )


def _interpret_affinity(cells: Mapping[str, frozenset[int]]) -> tuple[frozenset[int], int | None]:
    nodes = cells.get(_TITLES["numa"], frozenset())
    return cells.get(_TITLES["cpu"], frozenset()), min(nodes) if len(nodes) == 1 else None


def _build_matrix(header: _Header, rows: Mapping[str, _Row]) -> SmiMatrix:
    for name in header.gpus:
        if name not in rows:
            raise TextError(header.line, f"column {name} has no row")
    cells: dict[Pair, str] = {}
    for (i, a), (j, b) in combinations(enumerate(header.gpus), 2):
        there, back = (cell.replace("SOC", "SYS") for cell in (rows[a].cells[b], rows[b].cells[a]))
        if there != back:
            line = max(rows[a].line, rows[b].line)
            raise TextError(
                line, f"row {a} has {there!r} under {b}, row {b} has {back!r} under {a}"
            )
        cells[i, j] = there
    return SmiMatrix(
        tuple(map(_gpu_number, header.gpus)),
        cells,
        tuple(rows[name].cpuset for name in header.gpus),
        tuple(rows[name].numa_node for name in header.gpus),
    )
