"""NCCL's topology file, as NCCL_TOPO_DUMP_FILE writes it: one machine's PCIe tree with NVLinks.

Source: NCCL src/graph/xml.cc (elements and attributes), topo.cc (their meaning).
"""
# pure: decides on plain values

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from xml.etree import ElementTree as ET

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.link_bandwidth import PathType
from gpulaunch.machine.nvidia.nvlink import version_by_capability
from gpulaunch.machine.smi_machine import ASSUMED_NVLINK_VERSION
from gpulaunch.machine.smi_text import TextError
from gpulaunch.machine.topology import Topology
from gpulaunch.machine.write_description import machine_document
from gpulaunch.records import Record, replace
from gpulaunch.typing import Any

GT_PER_S = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""Rate of a PCIe lane by generation."""

GPU_CLASS = "0x030200"
SWITCH_CLASS = "0x060400"
NVSWITCH_CLASS = "0x068000"
CPU_CLASS = "0x068001"

_DUMP = "set NCCL_TOPO_DUMP_FILE=FILE and run any program that makes a NCCL communicator"
_MAX_DEPTH = 64
_MAX_GPUS = 256
_SPEED = re.compile(r"([0-9.]+) ?GT/s")


class _Card(Record):
    """A GPU in the file, with the PCI devices above it from the CPU down."""

    bus: str
    cpu: int
    above: tuple[str, ...]
    gpu: Gpu
    nvlinks: Mapping[str, int]


def nccl_document(text: str, name: str, source: str, model: str | None = None) -> dict[str, Any]:
    """Return the machine that the file describes, as described_topology reads it.

    GPUs are in the order of their PCI addresses; network adapters are passed over. GPUs that meet
    at a CPU are PHB apart: the file does not tell host bridges of one CPU apart.

    Args:
        text: the file.
        name: name of the machine.
        source: origin of the text; what was assumed is added to it.
        model: product name of the GPUs, which the file does not tell.

    Raises:
        TextError: it is no such file, or of several machines.
    """
    system = _parse(text)
    cards = sorted(_read_cards(system), key=lambda card: card.bus)
    if not cards:
        raise TextError(1, "NCCL's topology names no GPU", f"it was made by hand: {_DUMP}")
    if len(cards) > _MAX_GPUS:
        raise TextError(1, f"NCCL's topology names {len(cards)} GPUs, more than {_MAX_GPUS}")
    if len({card.bus for card in cards}) < len(cards):
        raise TextError(1, "two GPUs of NCCL's topology have the same PCI address")
    gpus = tuple(_numbered(card, i, model) for i, card in enumerate(cards))
    direct = _direct_nvlinks(cards)

    def wire(a: int, b: int) -> Wire:
        return Wire(_pcie_path(cards[a], cards[b]), direct.get((a, b), 0))

    told = "; ".join([source, *_remarks(system, cards)])
    return machine_document(Topology(name, gpus, wired(gpus, wire), told))


def _parse(text: str) -> ET.Element:
    """Parse the file; nothing in it can make the parser grow or read other files."""
    if re.search(r"<!(?!--)", text):
        raise TextError(1, "this XML declares a document type, and NCCL's topology has none", _DUMP)
    try:
        system = ET.fromstring(text)  # noqa: S314  without a document type there are no entities
    except ET.ParseError as problem:
        message = f"this XML is not complete: {problem.msg}"
        raise TextError(problem.position[0], message, _DUMP) from None
    if system.tag != "system":
        found = f"this XML begins with {system.tag[:40]!r}, and NCCL's topology with 'system'"
        raise TextError(1, found, _DUMP)
    if any(gpu.get("gcn") for gpu in system.iter("gpu")) or system.find(".//xgmi") is not None:
        hint = "gpulaunch knows NVIDIA's GPUs, and RCCL is about AMD's"
        raise TextError(1, "this is RCCL's topology, not NCCL's", hint)
    hosts = {cpu.get("host_hash") for cpu in system.iter("cpu")}
    if len(hosts) > 1:
        message = f"NCCL's topology has {len(hosts)} machines, and a machine file is of one"
        raise TextError(1, message, "dump it in a job on one machine")
    return system


def _read_cards(system: ET.Element) -> Iterator[_Card]:
    for number, cpu in enumerate(system.findall("cpu")):
        yield from _read_below(cpu, number, (), _number(cpu, "numaid"), _cpus(cpu))


def _read_below(
    element: ET.Element, cpu: int, above: tuple[str, ...], node: int, cpus: frozenset[int]
) -> Iterator[_Card]:
    if len(above) > _MAX_DEPTH:
        raise TextError(1, f"NCCL's topology has more than {_MAX_DEPTH} PCI devices in a row")
    for pci in element.findall("pci"):
        bus = pci.get("busid", "").lower()
        found = pci.find("gpu")
        if found is not None:
            gpu = Gpu(
                index=0,
                uuid="",
                model="GPU",
                memory_bytes=0,
                numa_node=node if node >= 0 else None,
                cpuset=cpus,
                compute_capability=_capability(found),
                pcie_generation=_generation(pci.get("link_speed", "")),
                pcie_width=min(max(_number(pci, "link_width"), 0), 16),
            )
            nvlinks: dict[str, int] = {}
            for link in found.findall("nvlink"):
                kind = link.get("tclass", "")
                target = link.get("target", "").lower() if kind[:4] in ("", "0x03") else kind
                nvlinks[target] = nvlinks.get(target, 0) + max(_number(link, "count"), 0)
            yield _Card(bus, cpu, above, gpu, nvlinks)
        yield from _read_below(pci, cpu, (*above, bus), node, cpus)


def _number(element: ET.Element, key: str) -> int:
    """Return an attribute as a number; -1 if it is not there or is none."""
    text = element.get(key, "")
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else -1


def _capability(gpu: ET.Element) -> str | None:
    sm = _number(gpu, "sm")
    return f"{sm // 10}.{sm % 10}" if sm >= 10 else None


def _generation(speed: str) -> int:
    found = _SPEED.match(speed)
    rates = {float(rate): generation for generation, rate in GT_PER_S.items()}
    try:
        return rates.get(float(found[1]), 0) if found else 0
    except ValueError:
        return 0


def _cpus(cpu: ET.Element) -> frozenset[int]:
    """Return the CPUs of a mask such as "ffff0000,0000ffff", 32 to a word."""
    words = cpu.get("affinity", "").replace("0x", "").split(",")
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words) or len(words) > 2048:
        return frozenset()
    mask = int("".join(word.zfill(8) for word in words), 16)
    return frozenset(i for i in range(mask.bit_length()) if mask >> i & 1)


def _numbered(card: _Card, index: int, model: str | None) -> Gpu:
    """Return the GPU with its place."""
    version = version_by_capability(card.gpu.compute_capability) or ASSUMED_NVLINK_VERSION
    return replace(
        card.gpu,
        index=index,
        model=model or card.gpu.model,
        nvlink_version=version if any(card.nvlinks.values()) else 0,
        nvswitch_links=card.nvlinks.get(NVSWITCH_CLASS, 0),
        cpu_nvlinks=card.nvlinks.get(CPU_CLASS, 0),
    )


def _direct_nvlinks(cards: list[_Card]) -> dict[tuple[int, int], int]:
    """Return the NVLinks between two GPUs.

    Raises:
        TextError: the two ends do not have the same number.
    """
    found: dict[tuple[int, int], int] = {}
    for (a, one), (b, other) in combinations(enumerate(cards), 2):
        there, back = one.nvlinks.get(other.bus, 0), other.nvlinks.get(one.bus, 0)
        if there != back:
            ends = f"GPU {one.bus} has {there} NVLinks to {other.bus}, which has {back} back"
            raise TextError(1, ends)
        if there:
            found[a, b] = there
    return found


def _pcie_path(a: _Card, b: _Card) -> PathType:
    if a.cpu != b.cpu:
        return "SYS"
    shared = [one for one, other in zip(a.above, b.above, strict=False) if one == other]
    if not shared:
        return "PHB"
    return "PIX" if len(a.above) == len(b.above) == len(shared) else "PXB"


def _remarks(system: ET.Element, cards: list[_Card]) -> Iterator[str]:
    kinds = {
        " ".join(filter(None, (cpu.get("arch"), cpu.get("vendor"), *_family(cpu))))
        for cpu in system.iter("cpu")
    } - {""}
    if kinds:
        yield f"CPU {' and '.join(sorted(kinds))}"
    if not all(card.gpu.pcie_generation and card.gpu.pcie_width for card in cards):
        yield "PCIe 3.0 with 16 lanes is assumed where it says nothing"
    linked = [card for card in cards if any(card.nvlinks.values())]
    if not all(version_by_capability(card.gpu.compute_capability) for card in linked):
        yield f"NVLink {ASSUMED_NVLINK_VERSION} is assumed where it says nothing"


def _family(cpu: ET.Element) -> Iterator[str]:
    for word, key in (("family", "familyid"), ("model", "modelid")):
        if cpu.get(key, "").isdecimal():
            yield f"{word} {cpu.get(key)}"
