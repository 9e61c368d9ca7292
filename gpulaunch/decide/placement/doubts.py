"""What the bandwidth model `cut` is known to be unsure of, in words with the published figures.

tests/unit/test_bandwidth.py has every figure with its source.
"""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.decide.placement.effective import nvlink_parts, nvls_bandwidth, ring_bandwidth
from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.machine.link import Link
from gpulaunch.machine.link_bandwidth import BRIDGED_LINKS

_FITTED_GPUS = 8  # the sum in NVSwitch was fitted to at most so many


def find_doubts(fabric: Fabric, gpus: Sequence[int]) -> list[str]:
    """Return why the effective bandwidth of a set may be off by more than 25 %.

    It is empty where that is not known to happen.

    Args:
        fabric: the links.
        gpus: positions in the fabric.
    """
    parts = nvlink_parts(fabric, gpus)
    indices = {fabric.gpus[gpu] for gpu in gpus}
    links = [link for link in fabric.topology.links if {link.a, link.b} <= indices]
    return (
        _doubts_of_one_part(fabric, gpus, links)
        if len(parts) == 1
        else _doubts_of_parts(parts, links)
    )


def _doubts_of_parts(parts: Sequence[Sequence[int]], links: Sequence[Link]) -> list[str]:
    """Return the doubts about parts that PCIe joins."""
    pcie = [link for link in links if link.kind == "pcie"]
    doubts = []
    if any(link.peer_to_peer is False for link in pcie):
        doubts.append(
            "without peer-to-peer everything goes through the host's memory: published are 2 to 35 "
            "GB/s, and near GPUs are not always faster"
        )
    if any(
        link.peer_to_peer is not False
        and link.pcie_generation >= 5
        and link.pcie_path in ("PHB", "NODE", "SYS")
        for link in pcie
    ):
        doubts.append(
            "beyond one PCIe 5 switch published are 22 to 50 GB/s: it depends on the CPUs, and "
            "NCCL goes through the host's memory unless NCCL_P2P_LEVEL=SYS"
        )
    if any(not link.pcie_generation for link in pcie):
        doubts.append("the PCIe generation is not known and counts as 3")
    if min(map(len, parts)) > 1:
        doubts.append(
            "NCCL may cross between NVLink groups over several PCIe slots at once: published is 69 "
            "GB/s for two groups of four"
        )
    return doubts


def _doubts_of_one_part(fabric: Fabric, gpus: Sequence[int], links: Sequence[Link]) -> list[str]:
    """Return the doubts about GPUs that NVLink joins."""
    nvlinks = [link for link in links if link.kind == "nvlink"]
    capabilities = [fabric.topology.gpus[gpu].compute_capability or "" for gpu in gpus]
    doubts = []
    if nvlinks and any(one.startswith("7.5") for one in capabilities):
        doubts.append("of NVLink bridges of this generation one all-reduce is published")
    if nvlinks and any(one.startswith("8.6") for one in capabilities):
        doubts.append("of NVLink bridges of this generation no all-reduce is published")
    bridged = any(link.nvlink_count >= BRIDGED_LINKS for link in nvlinks)
    if bridged and any(one.startswith("9.") for one in capabilities):
        doubts.append("of bridged Hopper cards 116 and 211 GB/s are published")
    summed = nvls_bandwidth(fabric, gpus) > ring_bandwidth(fabric, gpus)
    if summed and len(gpus) > _FITTED_GPUS:
        doubts.append(
            "what NVSwitch adds up is known for at most 8 GPUs: published are 847 GB/s for 72"
        )
    return doubts
