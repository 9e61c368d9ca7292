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
    """The GPUs of a set, the links that its ring goes over, and its parts joined by NVLink."""

    gpus: list[Gpu]
    links: list[Link]
    parts: list[list[int]]
    summed: bool


def find_doubts(fabric: Fabric, gpus: Sequence[int]) -> list[str]:
    """Return why the effective bandwidth of a set may be off by more than 25 %; [] if it is not.

    Args:
        fabric: the links.
        gpus: positions in the fabric.
    """
    if len(gpus) < 2:
        return []
    parts = nvlink_parts(fabric, gpus)
    indices = {fabric.gpus[gpu] for gpu in gpus}
    links = [link for link in fabric.topology.links if {link.a, link.b} <= indices]
    summed = len(parts) == 1 and nvls_bandwidth(fabric, gpus) > ring_bandwidth(fabric, gpus)
    members = [fabric.topology.gpus[gpu] for gpu in gpus]
    over = [link for link in links if bool(link.nvlink_count) == (len(parts) == 1)]
    found = _Set(members, over, parts, summed)
    return [text for applies, text in _DOUBTS if applies(found)]


def _over_pcie(found: _Set, applies: Callable[[Link], bool]) -> bool:
    return len(found.parts) > 1 and any(
        applies(link) for link in found.links if link.kind == "pcie"
    )


def _is_bridged(found: _Set, capability: str, count: int = 1) -> bool:
    return any(link.kind == "nvlink" and link.nvlink_count >= count for link in found.links) and (
        any((gpu.compute_capability or "").startswith(capability) for gpu in found.gpus)
    )


_DOUBTS: tuple[tuple[Callable[[_Set], bool], str], ...] = (
    (
        lambda found: _over_pcie(found, lambda link: link.peer_to_peer is False),
        "without peer-to-peer everything goes through the host's memory: published are 2 to 35 "
        "GB/s, and near GPUs are not always faster",
    ),
    (
        lambda found: _over_pcie(
            found,
            lambda link: (
                link.peer_to_peer is not False
                and link.pcie_generation >= 5
                and link.pcie_path in ("PHB", "NODE", "SYS")
            ),
        ),
        "beyond one PCIe 5 switch published are 22 to 50 GB/s: it depends on the CPUs, and NCCL "
        "goes through the host's memory unless NCCL_P2P_LEVEL=SYS",
    ),
    (
        lambda found: _over_pcie(found, lambda link: not link.pcie_generation),
        "the PCIe generation is not known and counts as 3",
    ),
    (
        lambda found: len(found.parts) > 1 and min(len(part) for part in found.parts) > 1,
        "NCCL may cross between NVLink groups over several PCIe slots at once: published is 69 "
        "GB/s for two groups of four",
    ),
    (
        lambda found: len(found.parts) == 1 and _is_bridged(found, "7.5"),
        "of NVLink bridges of this generation one all-reduce is published",
    ),
    (
        lambda found: len(found.parts) == 1 and _is_bridged(found, "8.6"),
        "of NVLink bridges of this generation no all-reduce is published",
    ),
    (
        lambda found: len(found.parts) == 1 and _is_bridged(found, "9.", BRIDGED_LINKS),
        "of bridged Hopper cards 116 and 211 GB/s are published",
    ),
    (
        lambda found: found.summed and len(found.gpus) > _FITTED_GPUS,
        "what NVSwitch adds up is known for at most 8 GPUs: published are 847 GB/s for 72",
    ),
)
