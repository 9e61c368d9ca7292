"""The matrix that `nvidia-smi topo -m` prints, saved or pasted from a web page.

The columns are GPUs, network adapters, and up to three titles: CPU Affinity, NUMA Affinity (since
about 2020) and GPU NUMA ID. A text may since have got spaces for tabs, or none at all in its
header, prompts and legends around it, lines wrapped by a terminal, and empty cells where a cgroup
hides the CPUs. Beside the matrix there may be those of `topo -mp` and `topo -p2p`. What can be read
in two ways is an error, never a guess; what adapters are connected to is not read.

Source: outputs of drivers from about 2016 to 2026, as people publish them.
"""
# pure: decides on plain values

import re
from collections.abc import Mapping, Sequence
from itertools import combinations, islice, takewhile

from gpulaunch.machine.link_bandwidth import PCIE_PATHS
from gpulaunch.machine.pasted_text import WANTED, TextError, TextLine, name_other_text, readings
from gpulaunch.machine.smi_affinity import (
    AFFINITY,
    Affinity,
    nodes_by_cpus,
    read_affinity,
    shorten,
)
from gpulaunch.machine.smi_header import (
    CONNECTION,
    GPU,
    MAX_PIECES,
    ColumnNames,
    gpu_number,
    header_at,
    is_row,
    joined,
    read_header,
)
from gpulaunch.records import Record, replace

MAX_NVLINKS = 18
"""Most NVLinks of one GPU so far (H100, B200).

More in one row must end in a switch that all share.
"""

_WORD = re.compile(r"\S+")
_STATE = re.compile(r"OK|CNS|GNS|TNS|NS|DR|U")
_PIECE = re.compile(r"[A-Z0-9][A-Za-z0-9,/-]*")
_P2P_COMMAND = re.compile(r"topo\s+-p2p\s+([rwnap]+)")

_NO_MATRIX = "no line of column names such as 'GPU0 GPU1 CPU Affinity', so no matrix"

Pair = tuple[int, int]


class SmiMatrix(Record):
    """The contents of a matrix; GPUs are numbered by position, from 0.

    Attributes:
        gpus: number of each GPU in the text, ascending; the first need not be 0, gaps are possible.
        cells: for every two positions a < b "NV1" to "NV99" or a PCIe path type; its old name SOC
            is replaced by SYS.
        cpusets: CPUs next to each GPU; empty if the text does not say.
        numa_nodes: NUMA node of each GPU; None if the text does not tell.
        nodes_counted: whether these numbers are counted from the CPU lists.
        pcie_cells: PCIe path types of pairs with NVLinks, if a second matrix has them.
        peer_to_peer: whether GPUs without NVLinks between them can read each other's memory; None
            if the text does not tell.
    """

    gpus: tuple[int, ...]
    cells: Mapping[Pair, str]
    cpusets: tuple[frozenset[int], ...]
    numa_nodes: tuple[int | None, ...]
    nodes_counted: bool = False
    pcie_cells: Mapping[Pair, str] = {}
    peer_to_peer: bool | None = None


class _Row(Record):
    """One GPU's row: its cell for each GPU's column, by the column's name."""

    line: int
    cells: Mapping[str, str]
    cpuset: frozenset[int]
    numa_node: int | None


class _Block(Record):
    """A header, the lines of its rows by the GPU's name, each with its wrapped pieces, and above.

    Attributes:
        header: column names.
        rows: the row's line, and the lines that continue it.
        command: kinds of peer-to-peer states that the command above asked for, such as "r"; empty
            if it was another command or is not there.
    """

    header: ColumnNames
    rows: dict[str, list[TextLine]]
    command: str


def looks_like_topology_text(text: str) -> bool:
    """Return whether a text is meant as such a matrix: a line begins like its header or a row."""
    try:
        return any(
            read_header(line.number, line.text) or is_row(line.text)
            for lines in readings(text)
            for line in lines
        )
    except TextError:
        return True


def parse_topology_text(text: str) -> SmiMatrix:
    """Read the matrix of one machine; text before and after it is skipped.

    Raises:
        TextError: there is no matrix, it is incomplete, or it contradicts itself or another one.
    """
    try:
        return _read_blocks(next(filter(None, map(_split_blocks, readings(text))), []))
    except TextError as problem:
        other = name_other_text(text)
        if not other:
            raise
        found, hint = other
        message = f"{problem.message}; this looks like {found}"
        if problem.message == _NO_MATRIX:
            message = f"this is {found}, and no matrix of links"
        raise TextError(problem.line, message, hint) from None


def _split_blocks(lines: Sequence[TextLine]) -> list[_Block]:
    """Find each header with the lines of its rows."""
    blocks: list[_Block] = []
    command = ""
    place = 0
    last: list[TextLine] = []  # the row that the next line may continue
    while place < len(lines):
        line = lines[place]
        asked = _P2P_COMMAND.search(line.text)
        command = asked[1] if asked else "" if "nvidia-smi" in line.text else command
        header, used = header_at(lines[place : place + 1 + MAX_PIECES])
        block = blocks[-1] if blocks else None
        place += used
        if header and (not block or len(header.columns + header.titles) > 1):
            blocks.append(_Block(header, {}, command))
            command, last = "", []
        elif _belongs_to_matrix(line.text, block):
            name = line.text.split(None, 1)[0]
            if not block:
                raise TextError(line.number, f"row {name} stands before any line of column names")
            if name in block.rows:
                first = block.rows[name][0].number
                raise TextError(line.number, f"row {name} stands here and in line {first}")
            last = block.rows[name] = [line]
        elif 0 < len(last) <= MAX_PIECES and _continues(last[-1], line, block):
            last.append(line)
        else:
            last = []
    return blocks


def _continues(before: TextLine, line: TextLine, block: _Block | None) -> bool:
    """Return whether a line can be the rest of the row before it."""
    words = line.text.split()
    names = block.header.columns if block else ()
    return (
        line.number == before.number + 1
        and words[0] not in names
        and all(map(_PIECE.fullmatch, words))
    )


def _belongs_to_matrix(line: str, block: _Block | None) -> bool:
    """Return whether a line is a row, however damaged.

    Outside the matrix a sentence may begin with a GPU's name, so there it must look like a row.
    """
    inside = block is not None and len(block.rows) < len(block.header.gpus)
    return is_row(line) or (inside and bool(GPU.fullmatch(line.split(None, 1)[0])))


def _read_blocks(blocks: Sequence[_Block]) -> SmiMatrix:
    """Read all matrices of one machine as one.

    Raises:
        TextError: there is none of links, one is wrong, or two contradict each other.
    """
    if not blocks:
        raise TextError(1, _NO_MATRIX, WANTED)
    links = [block for block in blocks if not _has_states(block)]
    if not links:
        message = "a matrix of peer-to-peer states (nvidia-smi topo -p2p), and none of links"
        raise TextError(blocks[0].header.line, message, WANTED)
    first, *others = links
    matrix = _build_matrix(first)
    for block in others:
        matrix = _with_second(matrix, _build_matrix(block), block.header.line)
    for block in blocks:
        if _has_states(block) and set(block.command) & {"r", "w"}:
            matrix = _with_states(matrix, block)
    return matrix


def _has_states(block: _Block) -> bool:
    words = {word for lines in block.rows.values() for word in lines[0].text.split()[1:]}
    return bool(block.command) or any(map(_STATE.fullmatch, words))


def _with_second(matrix: SmiMatrix, other: SmiMatrix, line: int) -> SmiMatrix:
    """Return the matrix with what another one adds: that of `topo -mp` has PCIe paths alone."""
    by_nvlink, by_pcie = matrix.cells, other.cells
    if any(cell.startswith("NV") for cell in by_pcie.values()):
        by_nvlink, by_pcie = by_pcie, by_nvlink
    pairs = {pair for pair, cell in by_nvlink.items() if cell.startswith("NV")}
    same = matrix.gpus == other.gpus and all(
        pair in pairs or cell == by_pcie[pair] for pair, cell in by_nvlink.items()
    )
    under = {pair: by_pcie[pair] for pair in pairs} if same else {}
    if by_nvlink == by_pcie:
        return matrix
    if not same or not all(cell in PCIE_PATHS for cell in under.values()):
        sizes = f"{len(other.gpus)} GPUs, after one of {len(matrix.gpus)}"
        message = f"a second matrix begins here, of {sizes}, and they differ"
        raise TextError(line, message, "one text describes one machine: save each in its own file")
    return replace(matrix, cells=by_nvlink, pcie_cells=under)


def _with_states(matrix: SmiMatrix, block: _Block) -> SmiMatrix:
    """Return the matrix with whether GPUs that PCIe alone joins can read each other's memory."""
    numbers = tuple(map(gpu_number, block.header.gpus))
    if numbers != matrix.gpus or tuple(block.rows) != block.header.gpus:
        raise TextError(block.header.line, "this matrix of peer-to-peer states has other GPUs")
    places = [(a, b) for (a, b), cell in matrix.cells.items() if cell in PCIE_PATHS]
    rows = [lines[0].text.split()[1:] for lines in block.rows.values()]
    if any(len(row) < len(numbers) for row in rows):
        raise TextError(block.header.line, "a row of these peer-to-peer states is short of cells")
    states = {rows[a][b] for a, b in places} | {rows[b][a] for a, b in places}
    if not states or (len(states) > 1 and "OK" in states):
        return matrix
    return replace(matrix, peer_to_peer=states == {"OK"})


def _read_wrapped_row(lines: Sequence[TextLine], header: ColumnNames) -> _Row:
    """Read a row of one or several lines, if the pieces can be joined in one way only."""
    first = lines[0]
    if len(lines) == 1:
        return _read_row(first.number, first.text, header)
    found: list[_Row] = []
    problem: TextError | None = None
    for text in joined([line.text for line in lines]):
        try:
            row = _read_row(first.number, text, header)
        except TextError as caught:
            problem = problem or caught
        else:
            found += [] if row in found else [row]
    if len(found) > 1:
        name = first.text.split(None, 1)[0]
        message = f"row {name} is wrapped, and its pieces can be joined in two ways"
        raise TextError(first.number, message, "widen the terminal, or save the output in a file")
    if problem and not found:
        raise problem
    return found[0]


def _read_row(number: int, line: str, header: ColumnNames) -> _Row:
    name, *words = line.split()
    if name not in header.gpus:
        raise TextError(number, f"row {name} has no column")
    cells, used = _read_cells(number, name, words, header)
    for column, cell in cells.items():
        if cell == "X" and column != name:
            raise TextError(
                number,
                f"row {name} has 'X' under {shorten(column)}: a GPU has that under itself only",
            )
        if cell != "X" and column == name:
            raise TextError(number, f"row {name} has {cell!r} under itself, not 'X'")
    affinity: Affinity = read_affinity(number, name, _rest_after(line, 1 + used), header.titles)
    return _Row(number, cells, *affinity)


def _read_cells(
    number: int, name: str, words: Sequence[str], header: ColumnNames
) -> tuple[dict[str, str], int]:
    """Return the connections to GPUs that begin a row, by column; and how many words it has.

    Those to adapters behind the last GPU may have run together, and are passed over.
    """
    until = header.columns.index(header.gpus[-1]) + 1
    found = list(takewhile(lambda word: not AFFINITY.fullmatch(word), words))
    cells = found[:until]
    wrong = next((word for word in cells if not CONNECTION.fullmatch(word)), None)
    if wrong:
        known = f"X, NV1 to NV99, {', '.join(PCIE_PATHS)}, SOC"
        raise TextError(number, f"row {name}: {shorten(wrong)} is none of {known}")
    if len(cells) < until:
        kind = "GPU" if header.gpus == header.columns[:until] else "GPU and adapter"
        stop = f", then {shorten(words[len(cells)])}" if len(words) > len(cells) else ""
        raise TextError(number, f"row {name} has {len(cells)} of {until} {kind} cells{stop}")
    by_column = dict(zip(header.columns, cells, strict=False))
    used = min(len(found), len(header.columns))
    return {gpu: by_column[gpu] for gpu in header.gpus}, used


def _rest_after(line: str, words: int) -> str:
    """Return the rest of a line after this many words, with its tabs."""
    end = 0
    for match in islice(_WORD.finditer(line), words):
        end = match.end()
    return line[end:]


def _build_matrix(block: _Block) -> SmiMatrix:
    header = block.header
    rows = {name: _read_wrapped_row(lines, header) for name, lines in block.rows.items()}
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
    cpusets = tuple(rows[name].cpuset for name in header.gpus)
    named = tuple(rows[name].numa_node for name in header.gpus)
    far = [pair for pair, cell in cells.items() if cell == "SYS"]
    nodes = nodes_by_cpus(cpusets, named, far)
    gpus = tuple(map(gpu_number, header.gpus))
    return SmiMatrix(gpus, cells, cpusets, nodes, nodes_counted=nodes != named)
