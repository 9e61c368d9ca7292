"""The machine that a matrix of `nvidia-smi topo -m` describes."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.link_bandwidth import PCIE_PATHS, PathType
from gpulaunch.machine.smi_text import MAX_NVLINKS, Pair, SmiMatrix
from gpulaunch.machine.topology import Topology
from gpulaunch.machine.write_description import machine_document
from gpulaunch.typing import Any

ASSUMED_NVLINK_VERSION = 3
"""NVLink version that is assumed, since the text does not tell it.

Versions 2, 3 and 4 all carry 25 GB/s per link and direction.
"""


def text_document(matrix: SmiMatrix, name: str, source: str) -> dict[str, Any]:
    """Return the machine that the matrix describes, as described_topology reads it.

    Its links are exactly the text's. Models, memory and PCIe slots, which the text does not tell,
    are left unknown; NVLinks are of ASSUMED_NVLINK_VERSION; and two GPUs that NVLinks join meet
    over PCIe no further apart than any third GPU and their NUMA node prove, else through SYS.

    Args:
        matrix: the matrix.
        name: name of the machine.
        source: origin of the text; the assumptions are added to it.
    """
    counts = {pair: int(cell[2:]) for pair, cell in matrix.cells.items() if cell.startswith("NV")}
    ports = _switch_ports(counts)
    linked = {i for pair in counts for i in pair}
    gpus = tuple(
        Gpu(
            index=i,
            uuid="",
            model="GPU",
            memory_bytes=0,
            numa_node=matrix.numa_nodes[i],
            cpuset=matrix.cpusets[i],
            nvlink_version=ASSUMED_NVLINK_VERSION if i in linked else 0,
            nvswitch_links=ports.get(i, 0),
        )
        for i in range(len(matrix.gpus))
    )

    paths = _find_pcie_paths(matrix)

    def wire(a: int, b: int) -> Wire:
        return Wire(paths[a, b], 0 if a in ports and b in ports else counts.get((a, b), 0))

    told = "; ".join([source, *_list_assumptions(matrix, bool(counts))])
    return machine_document(Topology(name, gpus, wired(gpus, wire), told))


def _switch_ports(counts: Mapping[Pair, int]) -> dict[int, int]:
    """Return the NVLinks into a switch of GPUs with more of them than one GPU has.

    It is {} if no switch explains the matrix. GPUs with fewer may be linked directly or through a
    switch: the text does not tell, and both give the same matrix.
    """
    totals: Counter[int] = Counter()
    for (a, b), count in counts.items():
        totals.update({a: count, b: count})
    inside = sorted(i for i, total in totals.items() if total > MAX_NVLINKS)
    among = {pair: counts.get(pair, 0) for pair in combinations(inside, 2)}
    ports = {
        i: max((count for pair, count in among.items() if i in pair), default=0) for i in inside
    }
    fits = all(count == min(ports[a], ports[b]) for (a, b), count in among.items())
    return ports if fits else {}


def _find_pcie_paths(matrix: SmiMatrix) -> dict[Pair, PathType]:
    """Return the PCIe path of every two GPUs: as in the text, else the nearest that is certain."""
    told = {
        pair: PCIE_PATHS.index(cell) for pair, cell in matrix.cells.items() if cell in PCIE_PATHS
    }
    told |= {(b, a): level for (a, b), level in told.items()}
    nodes = matrix.numa_nodes

    def sure(a: int, b: int) -> int:
        others = [c for c in range(len(nodes)) if (a, c) in told and (b, c) in told]
        same_node = nodes[a] is not None and nodes[a] == nodes[b]
        own = PCIE_PATHS.index("NODE" if same_node else "SYS")
        return min([own, *(max(told[a, c], told[b, c]) for c in others)])

    return {pair: PCIE_PATHS[told[pair] if pair in told else sure(*pair)] for pair in matrix.cells}


def _list_assumptions(matrix: SmiMatrix, nvlinks: bool) -> Iterator[str]:
    if nvlinks:
        yield (
            f"NVLink {ASSUMED_NVLINK_VERSION} is assumed (25 GB/s per link and direction), "
            "as the text does not tell"
        )
    yield "PCIe 3.0 with 16 lanes is assumed"
    if matrix.gpus != tuple(range(len(matrix.gpus))):
        yield f"its GPUs {', '.join(map(str, matrix.gpus))} are counted from 0 here"
