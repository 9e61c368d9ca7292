"""A machine as NCCL's topology file, for NCCL_TOPO_FILE and for tools that read such files.

Source: NCCL src/graph/xml.cc; version 1 of the file.
"""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Sequence
from xml.etree import ElementTree as ET

from gpulaunch.errors import UsageError
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Link
from gpulaunch.machine.link_bandwidth import PCIE_PATHS
from gpulaunch.machine.nccl_xml import (
    CPU_CLASS,
    GPU_CLASS,
    GT_PER_S,
    NVSWITCH_CLASS,
    SWITCH_CLASS,
)
from gpulaunch.machine.topology import Topology, machines

_WITHOUT_ADDRESS = "fffffff:ffff:ff"
"""What NCCL writes for an NVLink whose other end it does not know."""


def nccl_xml(topology: Topology) -> str:
    """Return NCCL's topology file of one machine.

    PCIe switches and, on a described machine, GPUs have made-up addresses in a domain of their own.
    Network adapters are not in it.

    Raises:
        UsageError: the machine has MIG instances, or there are several machines.
    """
    if len(machines(topology)) > 1:
        raise UsageError(f"{topology.name} is several machines, and NCCL's topology is of one")
    if any(gpu.mig for gpu in topology.gpus):
        raise UsageError(f"{topology.name} has MIG instances, which NCCL's topology cannot name")
    system = ET.Element("system", version="1")
    links = {frozenset((link.a, link.b)): link for link in topology.links}
    for group in _group(topology.gpus, links, PCIE_PATHS.index("NODE"), by_node=True):
        node = group[0].numa_node
        cpu = ET.SubElement(system, "cpu", numaid=str(-1 if node is None else node))
        if group[0].cpuset:
            cpu.set("affinity", _mask(group[0].cpuset))
        for bridge in _group(group, links, PCIE_PATHS.index("PXB")):
            _add_bridge(cpu, bridge, topology, links)
    ET.indent(system)
    return ET.tostring(system, encoding="unicode") + "\n"


def _group(
    gpus: Sequence[Gpu],
    links: dict[frozenset[int], Link],
    level: int,
    *,
    by_node: bool = False,
) -> list[list[Gpu]]:
    """Split GPUs into groups that meet at this PCIe path or nearer."""
    groups: list[list[Gpu]] = []
    for gpu in gpus:
        for group in groups:
            link = links[frozenset((gpu.index, group[0].index))]
            same = not by_node or gpu.numa_node == group[0].numa_node
            if same and PCIE_PATHS.index(link.pcie_path) <= level:
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return groups


def _add_bridge(
    cpu: ET.Element, gpus: Sequence[Gpu], topology: Topology, links: dict[frozenset[int], Link]
) -> None:
    """Add GPUs with the PCIe switches above them: one for PIX, one more for PXB."""
    switches = _group(gpus, links, PCIE_PATHS.index("PIX"))
    above = _add_pci(cpu, _made_up(gpus[0], 0xC), SWITCH_CLASS, gpus) if len(switches) > 1 else cpu
    for switch in switches:
        shared = len(switch) > 1 or len(switches) > 1
        parent = (
            _add_pci(above, _made_up(switch[0], 0xB), SWITCH_CLASS, switch) if shared else above
        )
        for gpu in switch:
            _add_gpu(_add_pci(parent, _address(gpu), GPU_CLASS, [gpu]), gpu, topology, links)


def _add_pci(parent: ET.Element, bus: str, kind: str, gpus: Iterable[Gpu]) -> ET.Element:
    found = list(gpus)
    pci = ET.SubElement(parent, "pci", {"busid": bus, "class": kind})
    generation = min(gpu.pcie_generation for gpu in found)
    width = min(gpu.pcie_width for gpu in found)
    if generation in GT_PER_S:
        pci.set("link_speed", f"{GT_PER_S[generation]} GT/s PCIe")
    if width:
        pci.set("link_width", str(width))
    return pci


def _add_gpu(
    pci: ET.Element, gpu: Gpu, topology: Topology, links: dict[frozenset[int], Link]
) -> None:
    place = [other.index for other in topology.gpus].index(gpu.index)
    element = ET.SubElement(pci, "gpu", dev=str(place))
    if gpu.compute_capability:
        element.set("sm", gpu.compute_capability.replace(".", ""))
    for other in topology.gpus:
        link = links.get(frozenset((gpu.index, other.index)))
        if link and link.kind == "nvlink":
            _add_nvlink(element, _address(other), link.nvlink_count, GPU_CLASS)
    if gpu.nvswitch_links:
        _add_nvlink(element, _WITHOUT_ADDRESS, gpu.nvswitch_links, NVSWITCH_CLASS)
    if gpu.cpu_nvlinks:
        _add_nvlink(element, _WITHOUT_ADDRESS, gpu.cpu_nvlinks, CPU_CLASS)


def _add_nvlink(gpu: ET.Element, target: str, count: int, kind: str) -> None:
    ET.SubElement(gpu, "nvlink", target=target, count=str(count), tclass=kind)


def _address(gpu: Gpu) -> str:
    """Return a GPU's PCI address as NCCL writes it, made up where there is none."""
    if not gpu.pci_address:
        return _made_up(gpu, 0xA)
    domain, _, rest = gpu.pci_address.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest if '.' in rest else f'{rest}.0'}"


def _made_up(gpu: Gpu, kind: int) -> str:
    return f"ff{kind:x}{gpu.index >> 8:x}:{gpu.index & 0xFF:02x}:00.0"


def _mask(cpus: Collection[int]) -> str:
    words = [0] * (max(cpus) // 32 + 1)
    for cpu in cpus:
        words[cpu // 32] |= 1 << cpu % 32
    return ",".join(f"{word:08x}" for word in reversed(words))
