"""What the bandwidth model `cut` is known to be unsure of, in words with the published figures.

docs/bandwidth.md has every figure with its source.
"""
# pure: decides on plain values

from collections.abc import Callable, Sequence

from gpulaunch.decide.placement.effective import nvlink_parts, nvls_bandwidth, ring_bandwidth
from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Link
from gpulaunch.machine.link_bandwidth import BRIDGED_LINKS
from gpulaunch.records import Record

_FITTED_GPUS = 8  # the sum in NVSwitch was fitted to at most so many


class _Set(Record):
    """The GPUs of a set.

    Attributes:
        gpus: them.
        parts: which of them NVLink joins.
        nvlinks: NVLinks that its ring goes over, straight from GPU to GPU.
        pcie: PCIe paths between its parts; empty if it is one part.
        summed: whether NVSwitch computes its sum.
    """

    gpus: list[Gpu]
    parts: list[list[int]]
    nvlinks: list[Link]
    pcie: list[Link]
    summed: bool


def find_doubts(fabric: Fabric, gpus: Sequence[int]) -> list[str]:
    """Return why the effective bandwidth of a set may be off by more than 25 %.

    It is empty where that is not known to happen.

    Args:
        fabric: the links.
        gpus: positions in the fabric.
    """
    parts = nvlink_parts(fabric, gpus)
    one = len(parts) == 1
    indices = {fabric.gpus[gpu] for gpu in gpus}
    links = [link for link in fabric.topology.links if {link.a, link.b} <= indices]
    found = _Set(
        [fabric.topology.gpus[gpu] for gpu in gpus],
        parts,
        [link for link in links if one and link.kind == "nvlink"],
        [link for link in links if not one and link.kind == "pcie"],
        one and nvls_bandwidth(fabric, gpus) > ring_bandwidth(fabric, gpus),
    )
    return [text for applies, text in _DOUBTS if applies(found)]


def _is_staged(found: _Set) -> bool:
    return any(link.peer_to_peer is False for link in found.pcie)


def _leaves_a_pcie_5_switch(found: _Set) -> bool:
    return any(
        link.peer_to_peer is not False
        and link.pcie_generation >= 5
        and link.pcie_path in ("PHB", "NODE", "SYS")
        for link in found.pcie
    )


def _has_unknown_pcie(found: _Set) -> bool:
    return any(not link.pcie_generation for link in found.pcie)


def _has_several_groups(found: _Set) -> bool:
    return len(found.parts) > 1 and min(len(part) for part in found.parts) > 1


def _has_capability(found: _Set, start: str) -> bool:
    return any((gpu.compute_capability or "").startswith(start) for gpu in found.gpus)


def _is_bridged_turing(found: _Set) -> bool:
    return bool(found.nvlinks) and _has_capability(found, "7.5")


def _is_bridged_ga10x(found: _Set) -> bool:
    return bool(found.nvlinks) and _has_capability(found, "8.6")


def _is_bridged_hopper(found: _Set) -> bool:
    return any(link.nvlink_count >= BRIDGED_LINKS for link in found.nvlinks) and (
        _has_capability(found, "9.")
    )


def _is_summed_for_many(found: _Set) -> bool:
    return found.summed and len(found.gpus) > _FITTED_GPUS


_DOUBTS: tuple[tuple[Callable[[_Set], bool], str], ...] = (
    (
        _is_staged,
        (
            "without peer-to-peer everything goes through the host's memory: published are 2 to 35 "
            "GB/s, and near GPUs are not always faster"
        ),
    ),
    (
        _leaves_a_pcie_5_switch,
        (
            "beyond one PCIe 5 switch published are 22 to 50 GB/s: it depends on the CPUs, and "
            "NCCL goes through the host's memory unless NCCL_P2P_LEVEL=SYS"
        ),
    ),
    (_has_unknown_pcie, "the PCIe generation is not known and counts as 3"),
    (
        _has_several_groups,
        (
            "NCCL may cross between NVLink groups over several PCIe slots at once: published is 69 "
            "GB/s for two groups of four"
        ),
    ),
    (_is_bridged_turing, "of NVLink bridges of this generation one all-reduce is published"),
    (_is_bridged_ga10x, "of NVLink bridges of this generation no all-reduce is published"),
    (_is_bridged_hopper, "of bridged Hopper cards 116 and 211 GB/s are published"),
    (
        _is_summed_for_many,
        "what NVSwitch adds up is known for at most 8 GPUs: published are 847 GB/s for 72",
    ),
)
