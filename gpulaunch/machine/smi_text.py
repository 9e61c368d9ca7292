"""A machine from the matrix that `nvidia-smi topo -m` prints: read exactly, or refused.

The columns are GPUs, network adapters, and up to three titles: CPU Affinity, NUMA Affinity (since
about 2020) and GPU NUMA ID. Lines above and below the matrix, such as a prompt and the legend, are
skipped, and what adapters are connected to is not read. What can be read in two ways is an error,
never a guess.

Source: outputs of drivers from about 2016 to 2026.
"""
# pure: decides on plain values

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

from gpulaunch.errors import excerpt, quoted
from gpulaunch.machine.gpu import Gpu, parse_cpuset
from gpulaunch.machine.link import PCIE_PATHS, PathType, Wiring, nvlink_version, wired
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

MAX_NVLINKS = 18
"""Most NVLinks of one GPU so far (H100, B200).

More in one row must end in a switch that all share.
"""

MAX_NVLINKS_3 = 12
"""Most NVLinks of a GPU before Hopper; A100 has them."""

ASSUMED_NVLINK_VERSION = 3
"""NVLink version that is assumed where the text does not tell it.

Versions 2, 3 and 4 all carry 25 GB/s per link and direction.
"""

WANTED = "save what 'nvidia-smi topo -m' prints on that machine"

_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")

# Newer drivers underline the header, even when they write into a pipe.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
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
    for number, line in enumerate(_plain_lines(text.removeprefix("\ufeff")), 1):
        first, *others = line.split()[:2] or [""]
        if not _GPU.fullmatch(first):
            continue
        is_row = bool(others) and bool(_CONNECTION.fullmatch(others[0]))
        is_header = not others or bool(_COLUMN.fullmatch(others[0]))
        if header is None and is_row:
            raise TextError(number, f"row {first} is before any line of column names")
        if is_header and (header is None or others):
            if header:
                message = "a second matrix begins here: save each in a file of its own"
                raise TextError(number, message)
            header = _read_header(number, line)
        elif header and (is_row or len(rows) < len(header.gpus)):
            if first in rows:
                message = f"row {first} is here and in line {rows[first].line}"
                raise TextError(number, message)
            rows[first] = _read_row(number, line, header)
    if header is None:
        message = "no line of column names such as 'GPU0 GPU1 CPU Affinity', so no matrix"
        raise TextError(1, message)
    return _build_matrix(header, rows)


def _plain_lines(text: str) -> list[str]:
    return [line.rstrip("\r") for line in _ESCAPES.sub("", text).split("\n")]


def _read_header(number: int, line: str) -> _Header:
    columns: list[str] = []
    titles: list[str] = []
    for found in _NAME.findall(line):
        name = " ".join(found.split())
        title = name in _TITLES
        if not title and not (_GPU.fullmatch(name) or _ADAPTER.fullmatch(name)):
            message = f"column {quoted(excerpt(name))} is not one that nvidia-smi prints"
            raise TextError(number, message)
        if name in (*columns, *titles):
            raise TextError(number, f"column {quoted(excerpt(name))} is there twice")
        if titles and not title:
            raise TextError(number, f"column {quoted(excerpt(name))} is after {titles[-1]!r}")
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
            raise TextError(number, f"row {name}: {quoted(excerpt(word))} is not one of {known}")
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

    A cgroup may hide the CPUs, the node or both; the tabs then tell which column is empty.
    """
    words = tail.split()
    if not words:
        return frozenset(), None
    if "\t" in tail and len(words) < len(titles):
        words = [cell.strip() for cell in tail.split("\t")[1:]]
        if len(words) == len(titles) + 1:  # the last column is behind two tabs
            del words[-2]
    sets = [_read_cpus(number, name, word) for word in words]
    if len(sets) != len(titles):
        found = f"{quoted(excerpt(' '.join(tail.split())))} after its connections"
        raise TextError(number, f"row {name} has {found}, for {len(titles)} columns")
    known = dict(zip(titles, sets, strict=True))
    cpus = known.get(_TITLES[0], frozenset())
    nodes = known.get(_TITLES[1], frozenset())
    if not nodes:
        return cpus, None
    # On Grace the list has the node of the CPUs, which is the lowest, and those of GPU memory,
    # which are apart from it or named by the last column. Any other list is of several nodes.
    lowest = min(nodes)
    has_memory_nodes = bool(known.get(_TITLES[2])) or lowest + 1 not in nodes
    return cpus, lowest if len(nodes) == 1 or has_memory_nodes else None


def _read_cpus(number: int, name: str, word: str) -> frozenset[int]:
    try:
        if not word or _AFFINITY.fullmatch(word):
            return frozenset() if word == "N/A" else parse_cpuset(word)
    except ValueError:
        pass
    found = f"row {name}: {quoted(excerpt(word))} after its connections"
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
    counted = nodes_by_cpus(cpusets, far) if set(named) == {None} else named
    gpus = tuple(map(_gpu_number, header.gpus))
    return SmiMatrix(gpus, cells, cpusets, counted, nodes_counted=counted != named)


def nodes_by_cpus(cpusets: Sequence[frozenset[int]], far: Sequence[Pair]) -> tuple[int | None, ...]:
    """Return the NUMA node of each GPU of a text that names none, as of old drivers.

    GPUs with equal CPU lists are in one node. The lists are counted from 0 in the order of their
    CPUs; if they overlap or contradict the connections, all nodes are unknown.

    Args:
        cpusets: CPUs next to each GPU; empty if unknown.
        far: pairs of GPUs whose connection crosses NUMA nodes.
    """
    lists = sorted({cpus for cpus in cpusets if cpus}, key=min)
    overlap = any(a & b for a, b in combinations(lists, 2))
    contradicted = any(cpusets[a] and cpusets[a] == cpusets[b] for a, b in far)
    if overlap or contradicted or len(cpusets) == 1:
        return (None,) * len(cpusets)
    return tuple(lists.index(cpus) if cpus else None for cpus in cpusets)


def _gpu_number(name: str) -> int:
    return int(name.removeprefix("GPU"))


def text_topology(matrix: SmiMatrix, name: str, source: str, digest: str) -> Topology:
    """Return the machine that the matrix describes.

    Its links are exactly the text's. What the text does not tell is left unknown, or assumed; two
    GPUs that NVLinks join meet over PCIe in their NUMA node, if it is the same, else through SYS.

    Args:
        source: origin of the text; the assumptions are added to it.
    """
    counts = {pair: int(cell[2:]) for pair, cell in matrix.cells.items() if cell.startswith("NV")}
    totals: Counter[int] = Counter()
    for (a, b), count in counts.items():
        totals.update({a: count, b: count})
    ports = _switch_ports(counts, totals)
    most = max([*counts.values(), *(n for n in totals.values() if n <= MAX_NVLINKS)], default=0)
    capability = None
    assumptions = [source]
    if most:
        if most > MAX_NVLINKS_3:
            capability = "9.0"
            assumptions.append(
                f"NVLink 4 of Hopper is assumed, as {most} NVLinks of a GPU are more than NVLink 3 "
                "has (25 GB/s per link and direction)"
            )
        else:
            assumptions.append(
                f"NVLink {ASSUMED_NVLINK_VERSION} is assumed (25 GB/s per link and direction), "
                "as the text does not tell"
            )
    assumptions.append("PCIe 3.0 with 16 lanes is assumed")
    if matrix.nodes_counted:
        assumptions.append("its NUMA nodes are counted from its CPU lists")
    if matrix.gpus != tuple(range(len(matrix.gpus))):
        numbers = ", ".join(map(str, matrix.gpus))
        assumptions.append(f"its GPUs {numbers} are counted from 0 here")
    version = nvlink_version(capability) or ASSUMED_NVLINK_VERSION
    gpus = [
        Gpu(
            index=i,
            uuid=f"GPU-{name}-{i}",
            model="GPU",
            memory_bytes=0,
            numa_node=matrix.numa_nodes[i],
            cpuset=matrix.cpusets[i],
            compute_capability=capability,
            pcie_generation=3,
            pcie_width=16,
            nvlink_version=version if i in totals else 0,
            nvswitch_links=ports.get(i, 0),
        )
        for i in range(len(matrix.gpus))
    ]

    def wire(a: int, b: int) -> Wiring:
        direct = 0 if a in ports and b in ports else counts.get((a, b), 0)
        return _pcie_path(matrix, a, b), direct, None, None

    return Topology(name, tuple(gpus), wired(gpus, wire), "; ".join(assumptions), digest)


def _switch_ports(counts: Mapping[Pair, int], totals: Mapping[int, int]) -> dict[int, int]:
    """Return the NVLinks into a switch of GPUs with more of them than one GPU has.

    It is {} if no switch explains the matrix. GPUs with fewer may be linked directly or through a
    switch: the text does not tell, and both give the same matrix.
    """
    inside = sorted(i for i, total in totals.items() if total > MAX_NVLINKS)
    among = {pair: counts.get(pair, 0) for pair in combinations(inside, 2)}
    ports = {
        i: max((count for pair, count in among.items() if i in pair), default=0) for i in inside
    }
    fits = all(count == min(ports[a], ports[b]) for (a, b), count in among.items())
    return ports if fits else {}


def _pcie_path(matrix: SmiMatrix, a: int, b: int) -> PathType:
    """Return the PCIe path of two GPUs, the farthest that there can be where NVLinks hide it."""
    for path in PCIE_PATHS:
        if matrix.cells[a, b] == path:
            return path
    node = matrix.numa_nodes[a]
    return "NODE" if node is not None and node == matrix.numa_nodes[b] else "SYS"
