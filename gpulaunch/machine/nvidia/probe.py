"""A reading of this machine through NVML: every GPU in service and its wiring, and what is wrong.

Probing eight GPUs takes noticeable time, so find_machine caches the result.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from gpulaunch.errors import FailedError, counted
from gpulaunch.machine.driver import Build, Finding
from gpulaunch.machine.gpu import Gpu, Mig, format_cpuset, mig_index
from gpulaunch.machine.link import Wiring, wired
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.nvml import NvlinkEnd, NvmlDevice, PciAddress, read_nvlinks
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace

T = TypeVar("T")


_ALWAYS_LINKED = ("SXM", "HBM3", "B200", "B300", "GH200")
"""Parts of the names of cards that come on boards with NVLink."""


class ProbedCard(Record):
    """One card as it was read.

    Attributes:
        compute_mode: name of the mode; "" for the default.
        instances: instances of a card in MIG mode; None if it is not.
    """

    card: NvmlDevice
    gpu: Gpu
    nvlinks: dict[int, NvlinkEnd]
    compute_mode: str
    instances: list[Gpu] | None


def probe() -> tuple[Build, dict[int, ProbedCard]]:
    """Read this machine, and return every card that was read by its index, too.

    Raises:
        FailedError: there is no NVML, no driver, or no GPU in service.
    """
    nvml.open_nvml()
    problems: list[str] = []
    unsteady: list[str] = []
    cards = _read_each(
        range(nvml.card_count()), lambda index: nvml.card_at(index, unsteady), problems
    )
    addresses = _read_each(cards, lambda index: cards[index].address(), problems)
    known = {address: index for index, address in addresses.items() if address}
    everyone = known if len(known) == nvml.card_count() else None
    parts = _read_each(
        addresses, lambda index: _read_card(cards[index], addresses[index], everyone), problems
    )

    gpus = []
    for part in parts.values():
        gpus += [part.gpu] if part.instances is None else part.instances
    if not gpus:
        hint = nvml.HINT
        if empty := _empty_cards(parts):
            without, hint = _explain_empty(empty)
            problems.append(without)
        raise FailedError("; ".join(["NVML lists no GPU in service", *problems]), hint)
    gpus.sort(key=lambda gpu: gpu.index)
    direct = _count_direct_nvlinks(parts, known)
    lost: set[int] = set()

    def wire(a: int, b: int) -> Wiring:
        here, there = parts[a].card, parts[b].card
        try:
            return here.path_to(there), direct.get((a, b), 0), None, here.reads_from(there)
        except nvml.LostGpuError as problem:  # the card answered a moment ago
            problems.append(str(problem))
            lost.add(a)
            return "SYS", 0, None, None

    links = wired(gpus, wire)
    gpus = [gpu for gpu in gpus if gpu.card not in lost]
    left = {gpu.index for gpu in gpus}
    links = tuple(link for link in links if left.issuperset((link.a, link.b)))
    topology = Topology(os.uname().nodename, tuple(gpus), links, "NVML")
    left_out = tuple(dict.fromkeys(problems))
    return Build(topology, left_out, is_steady=not problems and not unsteady), parts


def _empty_cards(parts: dict[int, ProbedCard]) -> list[int]:
    """Return the indices of the cards in MIG mode without any instance: no part can be used."""
    return [index for index, part in parts.items() if part.instances == []]


def _explain_empty(cards: Collection[int]) -> tuple[str, str]:
    """Return what is wrong with cards in MIG mode without an instance, and what helps."""
    subject = "GPU" if len(cards) == 1 else "GPUs"
    verbs = "is in MIG mode and has" if len(cards) == 1 else "are in MIG mode and have"
    text = f"{subject} {format_cpuset(frozenset(cards))} {verbs} no instance"
    named = ",".join(map(str, cards))
    make = f"'sudo nvidia-smi mig -i {named} -cgi SIZE -C' makes instances"
    end = f"'sudo nvidia-smi -i {named} -mig 0' ends MIG mode"
    return text, f"{make}, of a SIZE that 'nvidia-smi mig -lgip' lists; {end}"


def _read_each(
    indices: Iterable[int], read: Callable[[int], T], problems: list[str]
) -> dict[int, T]:
    """Read each card; lost cards are left out and reported as problems, hidden ones in silence."""
    found = {}
    for index in indices:
        try:
            found[index] = read(index)
        except nvml.HiddenGpuError:
            continue
        except nvml.LostGpuError as problem:
            problems.append(str(problem))
    return found


def _read_card(
    card: NvmlDevice, address: PciAddress | None, everyone: Collection[PciAddress] | None
) -> ProbedCard:
    """Read a card; `everyone` are the addresses of all cards, or None if some are unknown."""
    capability = card.compute_capability()
    nvlinks = {
        number: _reveal_switch(end, everyone)
        for number, end in read_nvlinks(card, capability).items()
    }
    active = [end for end in nvlinks.values() if end.active]
    memory = card.memory() or card.shared_memory()
    generation, width = card.pcie()
    gpu = Gpu(
        index=card.index,
        uuid=card.uuid(),
        model=card.model() or "unknown",
        memory_bytes=memory.total if memory else 0,
        numa_node=_read_numa_node(card, address),
        cpuset=card.cpus(),
        compute_capability=capability,
        pcie_generation=generation,
        pcie_width=width,
        nvlink_version=min((end.version or 1 for end in active), default=0),
        nvswitch_links=sum(end.remote == "switch" for end in active),
        cpu_nvlinks=sum(end.remote == "cpu" for end in active),
        nvlink_gb_per_s=min((end.gb_per_s for end in active), default=0.0),
        pci_address=f"{address[0]:04x}:{address[1]:02x}:{address[2]:02x}" if address else None,
    )
    found = card.instances()
    instances = (
        None
        if found is None
        else [_read_instance(gpu, number, instance) for number, instance in found.items()]
    )
    return ProbedCard(card, gpu, nvlinks, card.compute_mode(), instances)


def _reveal_switch(end: NvlinkEnd, everyone: Collection[PciAddress] | None) -> NvlinkEnd:
    """Return a link to an unknown address as one to an NVSwitch, which a virtual machine hides.

    Source: NCCL src/graph/xml.cc, which assumes the same.
    """
    hidden = (
        not end.remote
        and end.address is not None
        and everyone is not None
        and end.address not in everyone
    )
    return replace(end, remote="switch") if hidden else end


def _read_instance(card: Gpu, number: int, instance: NvmlDevice) -> Gpu:
    profile, memory = instance.mig_profile(card.memory_bytes), instance.memory()
    return replace(
        card,
        index=mig_index(card.index, number),
        uuid=instance.uuid(),
        model=f"{card.model} MIG {profile}",
        memory_bytes=memory.total if memory else 0,
        mig=Mig(card.index, card.uuid, number, profile),
    )


def _read_numa_node(card: NvmlDevice, address: PciAddress | None) -> int | None:
    """Return the NUMA node of the CPUs next to the GPU, from sysfs, else from NVML.

    nvmlDeviceGetNumaNodeId is about the GPU's own memory, so NVML is asked for memory affinity.
    """
    if address:
        domain, bus, device = address
        try:
            with open(
                f"/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node"
            ) as file:
                node = int(file.read())
            if node >= 0:
                return node
        except (OSError, ValueError):
            pass
    nodes = card.memory_nodes()
    return min(nodes) if len(nodes) == 1 else None


def _count_direct_nvlinks(
    parts: dict[int, ProbedCard], known: dict[PciAddress, int]
) -> dict[tuple[int, int], int]:
    """Count the NVLinks that join each pair of cards without a switch.

    The smaller of both cards' counts is used, or the only one if one card reports none.
    """
    seen: Counter[tuple[int, int]] = Counter()
    for index, part in parts.items():
        for end in part.nvlinks.values():
            peer = (
                known.get(end.address)
                if end.active and end.address and end.remote != "switch"
                else None
            )
            if peer is not None:
                seen[index, peer] += 1
    return {
        (min(pair), max(pair)): min(filter(None, (seen[pair], seen[pair[::-1]])))
        for pair in list(seen)
    }


def diagnose() -> list[Finding]:
    """Read NVML anew and return the findings.

    Raises:
        FailedError: there is no NVML, no driver, or no GPU in service.
    """
    build, cards = probe()
    found = [
        Finding("GPUs", "problem", text, "look for it in 'dmesg' (Xid), then reset it or boot")
        for text in build.problems
    ]
    if empty := _empty_cards(cards):
        found.append(Finding("GPUs", "warning", *_explain_empty(empty)))
    instances = [f"{gpu.name} {gpu.mig.profile}" for gpu in build.topology.gpus if gpu.mig]
    if instances:
        text = f"{counted(len(instances), 'instance')}: {', '.join(instances)}"
        found.append(Finding("MIG", "ok", text))
    return [*found, *_report_compute_modes(cards), *_report_nvlinks(cards)]


def _report_compute_modes(cards: dict[int, ProbedCard]) -> list[Finding]:
    found = []
    for card, part in cards.items():
        text = f"GPU {card}: {part.compute_mode}"
        if part.compute_mode == nvml.PROHIBITED:
            hint = f"'nvidia-smi -i {card} -c DEFAULT' lets jobs use it"
            found.append(Finding("compute mode", "warning", text, hint))
        elif part.compute_mode:
            found.append(Finding("compute mode", "ok", text))
    return found


def _report_nvlinks(cards: dict[int, ProbedCard]) -> list[Finding]:
    """Report whether all NVLinks are up, or none; the health of a GPU names those that are down."""
    up = [end.active for part in cards.values() for end in part.nvlinks.values()]
    if any(up) or not up:
        return [Finding("NVLink", "ok", "every link is up")] if up and all(up) else []
    # The cards may just have no bridge, unless they are made for one.
    meant = any(word in part.gpu.model for part in cards.values() for word in _ALWAYS_LINKED)
    if not meant:
        return [Finding("NVLink", "ok", "no link is up")]
    hint = "is the fabric manager running? 'systemctl status nvidia-fabricmanager'"
    return [Finding("NVLink", "warning", "no link is up", hint)]
