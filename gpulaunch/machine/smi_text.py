"""The matrix that `nvidia-smi topo -m` prints, read exactly or refused with its line.

The columns are GPUs, network adapters, and up to three titles: CPU Affinity, NUMA Affinity (since
about 2020) and GPU NUMA ID. Lines above and below the matrix, such as a prompt and the legend, are
skipped, and what adapters are connected to is not read. Colour codes are passed over, also where
the escape character before them was lost. What can be read in two ways is an error, never a guess.

Source: outputs of drivers from about 2016 to 2026.
"""
# pure: decides on plain values

import re
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

from gpulaunch.errors import quoted
from gpulaunch.machine.cpuset import parse_cpuset
from gpulaunch.machine.link_bandwidth import PCIE_PATHS
from gpulaunch.records import Record

MAX_NVLINKS = 18
"""Most NVLinks of one GPU so far (H100, B200).

More in one row must end in a switch that all share.
"""

WANTED = "save what 'nvidia-smi topo -m' prints on that machine"

_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_MAX_SHOWN = 40

# Newer drivers underline the header, even when they write into a pipe. Web forms and terminals drop
# the escape character before a colour code, or show it as two characters or a symbol.
_ESCAPES = re.compile(r"(?:\x1b|\^\[|\u241b)?\[[0-9;]*m")
_GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,2})")
_ADAPTER = re.compile(r"(?!GPU|NV[0-9])[A-Za-z][A-Za-z0-9_.-]*[0-9]")
_COLUMN = re.compile(rf"{_GPU.pattern}|{_ADAPTER.pattern}|CPU|NUMA|GPU")
_CONNECTION = re.compile(r"X|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC")
_NAME = re.compile(r"CPU +Affinity|NUMA +Affinity|GPU +NUMA +ID|\S+")
_AFFINITY = re.compile(r"[0-9][0-9,-]*|N/A")

Pair = tuple[int, int]


class TextError(ValueError):
    """The text is not one complete matrix; the caller adds the file's name.

    Args:
        line: line number, from 1.
        message: the mistake in that line.
        hint: what to do about it, or None.
    """

    def __init__(self, line: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.hint = hint


class SmiMatrix(Record):
    """The contents of a matrix; GPUs are numbered by position, from 0.

    Attributes:
        gpus: number of each GPU in the text, ascending; the first need not be 0, gaps are possible.
        cells: for every two positions a < b "NV1" to "NV99" or a PCIe path type; its old name SOC
            is replaced by SYS.
        cpusets: CPUs next to each GPU; empty if the text does not say.
        numa_nodes: NUMA node of each GPU; None if the text does not tell.
        nodes_counted: whether these numbers are counted from the CPU lists.
    """

    gpus: tuple[int, ...]
    cells: Mapping[Pair, str]
    cpusets: tuple[frozenset[int], ...]
    numa_nodes: tuple[int | None, ...]
    nodes_counted: bool = False


class _Header(Record):
    """The line of column names: those of GPUs and adapters in order, and the titles behind them."""

    line: int
    columns: tuple[str, ...]
    titles: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The columns of GPUs."""
        return tuple(name for name in self.columns if _GPU.fullmatch(name))


class _Row(Record):
    """One GPU's row: its cell for each GPU's column, by the column's name."""

    line: int
    cells: Mapping[str, str]
    cpuset: frozenset[int]
    numa_node: int | None


def looks_like_matrix(text: str) -> bool:
    """Return whether a line of the text begins like the matrix's column names or a GPU's row."""
    return any(_GPU.match(line.lstrip()) for line in _plain_lines(text))


def parse_topology_text(text: str) -> SmiMatrix:
    """Read the matrix of one machine.

    Raises:
        TextError: there is no matrix or a second one, it is incomplete, or it contradicts itself.
    """
    header: _Header | None = None
    rows: dict[str, _Row] = {}
    for number, line in enumerate(_plain_lines(text), 1):
        first, *others = line.split()[:2] or [""]
        if not _GPU.fullmatch(first):
            continue
        is_row = bool(others) and bool(_CONNECTION.fullmatch(others[0]))
        is_header = not others or bool(_COLUMN.fullmatch(others[0]))
        if header is None and is_row:
            raise TextError(number, f"row {first} is before any line of column names", WANTED)
        if is_header and (header is None or others):
            if header:
                message = "a second matrix begins here: save each in a file of its own"
                raise TextError(number, message, WANTED)
            header = _read_header(number, line)
        elif header and (is_row or len(rows) < len(header.gpus)):
            if first in rows:
                message = f"row {first} is here and in line {rows[first].line}"
                raise TextError(number, message)
            rows[first] = _read_row(number, line, header)
    if header is None:
        message = "no line of column names such as 'GPU0 GPU1 CPU Affinity', so no matrix"
        raise TextError(1, message, WANTED)
    return _build_matrix(header, rows)


def _plain_lines(text: str) -> list[str]:
    text = _ESCAPES.sub("", text.removeprefix("\ufeff")).replace("\xa0", " ")
    return [line.rstrip("\r") for line in text.split("\n")]


def _read_header(number: int, line: str) -> _Header:
    columns: list[str] = []
    titles: list[str] = []
    for found in _NAME.findall(line):
        name = " ".join(found.split())
        title = name in _TITLES
        if not title and not (_GPU.fullmatch(name) or _ADAPTER.fullmatch(name)):
            message = f"column {_shorten(name)} is not one that nvidia-smi prints"
            raise TextError(number, message, WANTED)
        if name in (*columns, *titles):
            raise TextError(number, f"column {_shorten(name)} is there twice")
        if titles and not title:
            raise TextError(number, f"column {_shorten(name)} is after {titles[-1]!r}")
        (titles if title else columns).append(name)
    header = _Header(number, tuple(columns), tuple(titles))
    for before, gpu in pairwise(header.gpus):
        if _gpu_number(gpu) < _gpu_number(before):
            raise TextError(number, f"column {gpu} is after {before}: they must ascend")
    return header


def _read_row(number: int, line: str, header: _Header) -> _Row:
    name, *words = line.split()
    if name not in header.columns:
        raise TextError(number, f"row {name} has no column")
    # The rest of the row is about adapters: it may be short of cells, and is passed over.
    until = header.columns.index(header.gpus[-1]) + 1
    cells: dict[str, str] = {}
    for column, word in zip(header.columns[:until], words, strict=False):
        if _AFFINITY.fullmatch(word):
            break
        if not _CONNECTION.fullmatch(word):
            known = f"X, NV1 to NV99, {', '.join(PCIE_PATHS)}, SOC"
            raise TextError(number, f"row {name}: {_shorten(word)} is not one of {known}")
        if (word == "X") != (column == name):
            found = f"row {name} has {word!r} under {column}"
            raise TextError(number, f"{found}: a GPU has 'X' under itself and nowhere else")
        cells[column] = word
    if len(cells) < until:
        raise TextError(number, f"row {name} has {len(cells)} of {until} cells")
    used = until
    while used < min(len(words), len(header.columns)) and not _AFFINITY.fullmatch(words[used]):
        used += 1
    tail = re.split(r"\S+", line, maxsplit=used + 1)[-1]
    gpus = {gpu: cells[gpu] for gpu in header.gpus}
    return _Row(number, gpus, *_read_affinity(number, name, tail, header.titles))


def _read_affinity(
    number: int, name: str, tail: str, titles: Sequence[str]
) -> tuple[frozenset[int], int | None]:
    """Read the CPUs and the NUMA node behind the connections of a row.

    A cgroup may hide the CPUs, the node or both; the tabs then tell which column is empty. Every
    driver that prints the column GPU NUMA ID fills it.
    """
    words = tail.split()
    sets = [_read_cpus(number, name, word) for word in words]
    if len(words) > len(titles):
        found = f"{_shorten(' '.join(words))} after its connections"
        raise TextError(number, f"row {name} has {found}, for {len(titles)} columns")
    if not any(sets):
        return frozenset(), None
    left = list(titles)
    if len(words) < len(titles):
        has_own = titles[-1] == _TITLES[2]
        if not tail.startswith("\t") or (has_own and words[-1] != "N/A"):
            cells = _shorten(" ".join(words))
            message = f"row {name}: which of {', '.join(titles)} {cells} is cannot be told"
            raise TextError(number, message)
        if has_own:  # the column behind both, which is never empty
            sets.pop()
        if left[0] == _TITLES[0] and not tail.split("\t")[1].strip():
            del left[0]
    known = dict(zip(left, sets, strict=False))
    nodes = known.get(_TITLES[1], frozenset())
    cpus = known.get(_TITLES[0], frozenset())
    if not nodes:
        return cpus, None
    # On Grace the list has the node of the CPUs, which is the lowest, and those of GPU memory,
    # which are apart from it or named by the last column. Any other list is of several nodes.
    lowest = min(nodes)
    has_memory_nodes = bool(known.get(_TITLES[2])) or lowest + 1 not in nodes
    return cpus, lowest if len(nodes) == 1 or has_memory_nodes else None


def _read_cpus(number: int, name: str, word: str) -> frozenset[int]:
    try:
        if _AFFINITY.fullmatch(word):
            return frozenset() if word == "N/A" else parse_cpuset(word)
    except ValueError:
        pass
    found = f"row {name}: {_shorten(word)} after its connections"
    raise TextError(number, f"{found} is neither a list such as 0-19,40-59 nor N/A")


def _build_matrix(header: _Header, rows: Mapping[str, _Row]) -> SmiMatrix:
    for name in header.gpus:
        if name not in rows:
            raise TextError(header.line, f"column {name} has no row")
    cells: dict[Pair, str] = {}
    for (i, a), (j, b) in combinations(enumerate(header.gpus), 2):
        there = rows[a].cells[b].replace("SOC", "SYS")
        back = rows[b].cells[a].replace("SOC", "SYS")
        if there != back:
            line = max(rows[a].line, rows[b].line)
            raise TextError(
                line, f"row {a} has {there!r} under {b}, row {b} has {back!r} under {a}"
            )
        cells[i, j] = there
    cpusets = tuple(rows[name].cpuset for name in header.gpus)
    named = tuple(rows[name].numa_node for name in header.gpus)
    far = [pair for pair, cell in cells.items() if cell == "SYS"]
    nodes = nodes_by_cpus(cpusets, named, far)
    gpus = tuple(map(_gpu_number, header.gpus))
    return SmiMatrix(gpus, cells, cpusets, nodes, nodes_counted=nodes != named)


def nodes_by_cpus(
    cpusets: Sequence[frozenset[int]],
    nodes: Sequence[int | None],
    far: Sequence[Pair],
) -> tuple[int | None, ...]:
    """Return the NUMA node of each GPU, also of those whose node the text does not name.

    GPUs with equal CPU lists are in one node. If the text names no node at all, the lists are
    counted from 0 in the order of their CPUs, unless they overlap or contradict the connections.

    Args:
        cpusets: CPUs next to each GPU; empty if unknown.
        nodes: node that the text names for each GPU, or None.
        far: pairs of GPUs whose connection crosses NUMA nodes.
    """
    named: dict[frozenset[int], set[int]] = {}
    for cpus, node in zip(cpusets, nodes, strict=True):
        if cpus and node is not None:
            named.setdefault(cpus, set()).add(node)
    if any(node is not None for node in nodes):
        only = {cpus: min(found) for cpus, found in named.items() if len(found) == 1}
        return tuple(
            only.get(cpus) if node is None else node
            for cpus, node in zip(cpusets, nodes, strict=True)
        )
    lists = sorted({cpus for cpus in cpusets if cpus}, key=min)
    overlap = any(a & b for a, b in combinations(lists, 2))
    contradicted = any(cpusets[a] and cpusets[a] == cpusets[b] for a, b in far)
    if overlap or contradicted or len(cpusets) == 1:
        return tuple(nodes)
    return tuple(lists.index(cpus) if cpus else None for cpus in cpusets)


def _gpu_number(name: str) -> int:
    return int(name.removeprefix("GPU"))


def _shorten(word: str) -> str:
    """Return a word of the text between quotes, or its beginning."""
    return quoted(word if len(word) <= _MAX_SHOWN else f"{word[:_MAX_SHOWN]}...")
