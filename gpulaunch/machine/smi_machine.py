"""The machine that a matrix of `nvidia-smi topo -m` describes."""
# pure: decides on plain values

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from gpulaunch.errors import UsageError, printable
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_model import GpuModel
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.link_bandwidth import PCIE_PATHS, PathType
from gpulaunch.machine.nvidia.nvlink import version_by_capability
from gpulaunch.machine.smi_text import MAX_NVLINKS, Pair, SmiMatrix
from gpulaunch.machine.topology import Topology
from gpulaunch.machine.write_description import machine_document
from gpulaunch.typing import Any

ASSUMED_NVLINK_VERSION = 3
"""NVLink version that is assumed where the text does not tell it.

Versions 2, 3 and 4 all carry 25 GB/s per link and direction.
"""

MAX_NVLINKS_3 = 12
"""Most NVLinks of a GPU before Hopper; A100 has them."""


_ASSUMED_HOPPER = "9.0"


def choose_gpu_model(text: str, models: Sequence[GpuModel]) -> GpuModel:
    """Return the one GPU model that a text names, by its name or a part of it in whole words.

    Raises:
        UsageError: there is none, or there are several.
    """
    wanted = text.lower().split()

    def is_named(name: str) -> bool:
        words = re.split(r"[\s-]+", name.lower())
        return name.lower().split() == wanted or (bool(wanted) and set(wanted) <= set(words))

    exact = [m for m in models if text.lower() in {name.lower() for name in (m.name, *m.models)}]
    found = exact or [m for m in models if any(map(is_named, (m.name, *m.models)))]
    if len(found) == 1:
        return found[0]
    names = ", ".join(model.name for model in found or models)
    if not found:
        raise UsageError(f"unknown GPU model {printable(text)!r}", f"known are {names}")
    raise UsageError(
        f"GPU model {printable(text)!r} can be {len(found)} models", f"name one: {names}"
    )


def text_document(
    matrix: SmiMatrix, name: str, source: str, model: GpuModel | None = None
) -> dict[str, Any]:
    """Return the machine that the matrix describes, as described_topology reads it.

    Its links are exactly the text's. What neither the text nor `model` tells is left unknown; the
    version of NVLinks follows from the compute capability, else from their number; and two GPUs
    that NVLinks join meet over PCIe no further apart than any third GPU or their NUMA node prove,
    else through SYS.

    Args:
        matrix: the matrix.
        name: name of the machine.
        source: origin of the text; the assumptions are added to it.
        model: model of the GPUs; None if unknown.
    """
    counts = {pair: int(cell[2:]) for pair, cell in matrix.cells.items() if cell.startswith("NV")}
    ports = _switch_ports(counts)
    most = _most_links(counts, ports)
    linked = {i for pair in counts for i in pair}
    known = model.compute_capability if model else None
    hopper = most > MAX_NVLINKS_3 and not known
    gpus = []
    for i in range(len(matrix.gpus)):
        capability = _ASSUMED_HOPPER if hopper and i in linked else known
        version = version_by_capability(capability) or ASSUMED_NVLINK_VERSION
        gpu = Gpu(
            index=i,
            uuid="",
            model=model.models[0] if model else "GPU",
            memory_bytes=0,
            numa_node=matrix.numa_nodes[i],
            cpuset=matrix.cpusets[i],
            compute_capability=capability,
            nvlink_version=version if i in linked else 0,
            nvswitch_links=ports.get(i, 0),
        )
        gpus.append(gpu)
    paths = _find_pcie_paths(matrix)

    def wire(a: int, b: int) -> Wire:
        direct = 0 if a in ports and b in ports else counts.get((a, b), 0)
        return Wire(paths[a, b], direct)

    assumptions = [source]
    if linked and not version_by_capability(known):
        assumptions.append(_nvlink_assumption(most, hopper=hopper))
    assumptions.append("PCIe 3.0 with 16 lanes is assumed")
    told = "; ".join([*assumptions, *_list_remarks(matrix)])
    return machine_document(Topology(name, tuple(gpus), wired(gpus, wire), told))


def _most_links(counts: Mapping[Pair, int], ports: Mapping[int, int]) -> int:
    """Return how many NVLinks the GPU with most of them has, as far as that is certain."""
    direct: Counter[int] = Counter()
    for pair, count in counts.items():
        if not (pair[0] in ports and pair[1] in ports):
            direct.update(dict.fromkeys(pair, count))
    totals = [direct[i] + ports.get(i, 0) for i in direct | Counter(ports)]
    certain = [total for total in totals if total <= MAX_NVLINKS]
    return max([*certain, *counts.values()], default=0)


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


def _nvlink_assumption(most: int, *, hopper: bool) -> str:
    if hopper:
        return (
            f"NVLink 4 of Hopper is assumed, as {most} NVLinks of a GPU are more than NVLink 3 has "
            "(25 GB/s per link and direction)"
        )
    return (
        f"NVLink {ASSUMED_NVLINK_VERSION} is assumed (25 GB/s per link and direction), "
        "as the text does not tell"
    )


def _list_remarks(matrix: SmiMatrix) -> Iterator[str]:
    if matrix.nodes_counted:
        yield "its NUMA nodes are counted from its CPU lists"
    if matrix.gpus != tuple(range(len(matrix.gpus))):
        yield f"its GPUs {', '.join(map(str, matrix.gpus))} are counted from 0 here"
