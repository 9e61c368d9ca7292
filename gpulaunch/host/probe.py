"""What machine this is: every GPU in service and how they are wired, asked of NVML one call after the other.

Probing a box of eight takes long enough to feel, so find_machine keeps the answer (topology_cache.py).
"""

import os
from typing import NamedTuple

from gpulaunch.core.hardware.topology import Gpu, Mig, Topology, Wire, mig_index, wired
from gpulaunch.errors import FailedError
from gpulaunch.host import nvml
from gpulaunch.host.nvml import Card, NvlinkEnd, PciAddress, Unanswered


class Reading(NamedTuple):
    """What NVML says of this machine's build.

    Attributes:
        driver: its version; None if it does not say.
        topology: the GPUs in service and their links.
        problems: what was left out, a line each.
        unanswered: calls that told nothing.
        links_down: by index of the card, the numbers of its NVLinks that are down.
        empty: indices of the cards in MIG mode that have no instance, so that nothing of them can be used.
    """

    driver: str | None
    topology: Topology
    problems: tuple[str, ...]
    unanswered: tuple[Unanswered, ...]
    links_down: dict[int, list[int]]
    empty: tuple[int, ...]


class Part(NamedTuple):
    """A card as it was read.

    Attributes:
        card: to ask more.
        address: on the PCI bus.
        gpu: what it is as a whole.
        nvlinks: all of them by number.
        instances: those of a card in MIG mode; None if it is not.
    """

    card: Card
    address: PciAddress | None
    gpu: Gpu
    nvlinks: dict[int, NvlinkEnd]
    instances: list[Gpu] | None


def probe() -> Reading:
    """Read this machine's build.

    Raises:
        FailedError: there is no NVML, no driver, or no GPU in service.
    """
    nvml.open_nvml()
    problems: list[str] = []
    unanswered: list[Unanswered] = []
    parts: dict[int, Part] = {}
    for index in range(nvml.card_count()):
        try:
            parts[index] = _part(nvml.card_at(index, unanswered))
        except nvml.LostGpuError as problem:
            problems.append(str(problem))
    gpus: list[Gpu] = []
    for part in parts.values():
        gpus += [part.gpu] if part.instances is None else part.instances
    empty = tuple(index for index, part in parts.items() if part.instances == [])
    if not gpus:
        problems += [f"GPU {index} is in MIG mode and has no instance" for index in empty]
        raise FailedError("; ".join(["NVML lists no GPU in service", *problems]), nvml.HINT)
    gpus.sort(key=lambda gpu: gpu.index)
    down = {index: [number for number, end in part.nvlinks.items() if not end.active] for index, part in parts.items()}
    return Reading(
        nvml.driver_version(),
        Topology(os.uname().nodename, tuple(gpus), wired(gpus, _Wires(parts).between), "NVML"),
        tuple(problems),
        tuple(unanswered),
        {index: links for index, links in down.items() if links and len(links) < len(parts[index].nvlinks)},
        empty,
    )


def _part(card: Card) -> Part:
    address = card.address()
    nvlinks = card.nvlinks()
    active = [end for end in nvlinks.values() if end.active]
    memory = card.memory()
    generation, width = card.pcie()
    gpu = Gpu(
        index=card.index,
        uuid=card.uuid(),
        model=card.model() or "unknown",
        memory_bytes=memory.total if memory else 0,
        numa_node=_numa_node(card, address),
        cpuset=card.cpus(),
        compute_capability=card.compute_capability(),
        pcie_generation=generation,
        pcie_width=width,
        nvlink_version=min((end.version or 1 for end in active), default=0),
        nvswitch_links=sum(end.remote == "switch" for end in active),
        cpu_nvlinks=sum(end.remote == "cpu" for end in active),
        nvlink_gb_per_s=min((end.gb_per_s for end in active), default=0.0),
        pci_address=f"{address[0]:04x}:{address[1]:02x}:{address[2]:02x}" if address else None,
    )
    instances = card.instances()
    if instances is None:
        return Part(card, address, gpu, nvlinks, None)
    return Part(card, address, gpu, nvlinks, [_instance(gpu, number, part) for number, part in instances.items()])


def _instance(card: Gpu, number: int, instance: Card) -> Gpu:
    profile, memory = instance.mig_profile(), instance.memory()
    return card._replace(
        index=mig_index(card.index, number),
        uuid=instance.uuid(),
        model=f"{card.model} MIG {profile}",
        memory_bytes=memory.total if memory else 0,
        mig=Mig(card.index, card.uuid, number, profile),
    )


def _numa_node(card: Card, address: PciAddress | None) -> int | None:
    """NUMA node of the CPUs next to the GPU, as the kernel tells by PCI address.

    (nvmlDeviceGetNumaNodeId is about the GPU's own memory.) NVML's memory affinity is asked where sysfs is silent.
    """
    if address:
        domain, bus, device = address
        try:
            with open(f"/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node") as file:
                node = int(file.read())
            if node >= 0:
                return node
        except (OSError, ValueError):
            pass
    nodes = card.memory_nodes()
    return min(nodes) if len(nodes) == 1 else None


class _Wires:
    """How every two cards are joined."""

    def __init__(self, parts: dict[int, Part]) -> None:
        self._parts = parts
        self._nvlinks: dict[tuple[int, int], int] = {}
        index_at = {part.address: index for index, part in parts.items() if part.address}
        for index, part in parts.items():
            for end in part.nvlinks.values():
                peer = index_at.get(end.address) if end.active and end.address and end.remote != "switch" else None
                if peer is not None and index < peer:
                    self._nvlinks[index, peer] = self._nvlinks.get((index, peer), 0) + 1

    def between(self, a: int, b: int) -> Wire:
        """The wire of two cards."""
        here, there = self._parts[a].card, self._parts[b].card
        try:
            return Wire(here.path_to(there), self._nvlinks.get((a, b), 0), None, here.reads_from(there))
        except nvml.LostGpuError:  # it answered a moment ago; who uses it next will be told
            return Wire("SYS", self._nvlinks.get((a, b), 0))
