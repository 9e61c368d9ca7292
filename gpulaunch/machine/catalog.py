"""Described machines and GPU models by name or path: shipped ones and the user's own.

A description is the document of profiles/machines/NAME.toml, and gives a Topology.
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any
from zlib import crc32

from gpulaunch.errors import FieldError, UsageError, printable
from gpulaunch.files.document import (
    config_directory,
    file_names,
    find_file,
    parse_document,
    parsed,
    read_document,
    read_text,
    shipped_directory,
)
from gpulaunch.files.fields import (
    FieldTable,
    ListOf,
    OneOrEach,
    Path,
    RowOf,
    TableOf,
    checked,
)
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.gpu import Gpu, GpuModel, Mig, mig_index, parse_cpuset, parse_gpu_model
from gpulaunch.machine.link import PCIE_PATHS, PathType, Wiring, wired
from gpulaunch.machine.topology import DEFAULT_DRIVER, Measured, Topology
from gpulaunch.records import replace

SYSTEM_MACHINES = "/etc/gpulaunch/machines"

_SHIPPED = ("machines", os.path.join("machines", "made-up"))
"""Kinds of shipped descriptions: machines that people have, then those of papers and examples."""


def load_gpu_models() -> tuple[GpuModel, ...]:
    """Read all GPU models, the user's own first.

    If two files have the same name, the user's is read.

    Raises:
        UsageError: a file is wrong.
    """
    own = os.path.join(config_directory(), "gpus")
    directories = [own, shipped_directory("gpus")]
    names = dict.fromkeys([*file_names([own]), *file_names(directories)])
    paths = [find_file(name, directories, "GPU model", "") for name in names]
    return tuple(parsed(read_document(path), parse_gpu_model) for path in paths)


def own_machine_file(name: str) -> str:
    """Return the path of this user's description of a machine, which need not exist."""
    return os.path.join(config_directory(), "machines", f"{name}.toml")


def _machine_directories() -> list[str]:
    shipped = [shipped_directory(kind) for kind in _SHIPPED]
    return [os.path.dirname(own_machine_file("")), SYSTEM_MACHINES, *shipped]


def machine_names() -> list[str]:
    """Return the sorted names of the described machines that can be found."""
    return file_names(_machine_directories())


def load_measurements(topology: Topology) -> tuple[Measured, ...]:
    """Return the measurements in the file of a machine's name; () without one for the same GPUs.

    Raises:
        UsageError: the file is wrong.
    """
    for directory in _machine_directories()[:2]:
        path = os.path.join(directory, f"{topology.name}.toml")
        if os.path.isfile(path):
            document = read_document(path)
            models = {
                gpu.model
                for gpu in parsed(document, lambda data: described_topology(data, "")).gpus
            }
            same = models == {gpu.model for gpu in topology.gpus}
            return parsed(document, measurements) if same else ()
    return ()


def load_described_machine(name: str) -> tuple[Topology, str]:
    """Read a described machine by name or path; return it with the absolute path of its file.

    Raises:
        UsageError: there is no such machine, or its description is wrong.
    """
    own = f"./{name}" if os.path.isfile(name) else "a file"
    hint = f"known are {', '.join(machine_names())}, or give {own}"
    path = (
        name if name.endswith(".txt") else find_file(name, _machine_directories(), "topology", hint)
    )
    try:
        status = os.stat(path)
    except OSError as problem:
        raise UsageError(f"{path}: {os.strerror(problem.errno or 0).lower()}") from None
    version = (status.st_ino, status.st_size, status.st_mtime_ns)
    return _described_machine(path, version), os.path.abspath(path)


@lru_cache(maxsize=8)
def _described_machine(path: str, _version: tuple[int, int, int]) -> Topology:
    """Read a machine file, or a saved `nvidia-smi topo -m`, once.

    A Python program may ask for GPUs many times.
    """
    text = read_text(path)
    try:
        document = parse_document(path, text)
    except UsageError as problem:
        if path.endswith(".toml"):
            raise
        from gpulaunch.machine.smi_text import WANTED, looks_like_matrix  # late: rarely used

        if looks_like_matrix(text):
            return _text_machine(path, text)
        where, _, why = problem.message.rpartition(": ")
        neither = "neither a matrix of 'nvidia-smi topo -m' as printed nor a machine file in TOML"
        raise UsageError(f"{where}: {neither}: {why}", WANTED) from None
    return parsed(document, lambda data: described_topology(data, _digest(text)))


def _digest(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def _text_machine(path: str, text: str) -> Topology:
    """Return the machine of the matrix that `nvidia-smi topo -m` prints."""
    from gpulaunch.machine.smi_text import WANTED, TextError, parse_topology_text, text_topology

    source = f"nvidia-smi topo -m in {printable(os.path.basename(path))}"
    stem = os.path.splitext(os.path.basename(path))[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", stem) or "machine"
    try:
        matrix = parse_topology_text(text)
    except TextError as problem:
        raise UsageError(f"{path}:{problem.line}: {problem.message}", WANTED) from None
    return text_topology(matrix, name, source, _digest(text))


MAX_GPUS = 1024
"""Largest number of GPUs of a description."""

_NVLINKS: Path = ("nvlink", "links")
_INDICES = ListOf((0, MAX_GPUS))

_MACHINE: FieldTable = {
    "name": str,
    "description": str,
    "source": str,
    "driver": str,
    "gpus": dict,
    "nvlink": dict,
    "pcie": dict,
    "numa": list,
    "mig": list,
    "measurement": dict,
    "measured": list,
}
_GPUS: FieldTable = {
    "count": (1, MAX_GPUS),
    "model": OneOrEach(str),
    "memory_mib": OneOrEach((0, 1 << 30)),
    "compute_capability": OneOrEach(str),
}
_NVLINK: FieldTable = {
    "version": OneOrEach((0, 99)),
    "links": ListOf(RowOf((0, MAX_GPUS), (0, MAX_GPUS), (1, 99))),
    "switch_links_per_gpu": OneOrEach((0, 999)),
    "cpu_links_per_gpu": OneOrEach((0, 999)),
    "gb_per_s_per_link": OneOrEach((0.0, 1e6)),
}
_PCIE: FieldTable = {
    "generation": OneOrEach((0, 9)),
    "width": OneOrEach((0, 16)),
    "bandwidth_gb_per_s": (0.001, 1e6),
    "groups": TableOf(ListOf(_INDICES), PCIE_PATHS),
    "peer_to_peer": bool,
}
_NUMA: FieldTable = {
    "node": (0, 1 << 20),
    "gpus": _INDICES,
    "cpuset": str,
}
_MEASUREMENT: FieldTable = {"tool": str, "date": str}
_MEASURED: FieldTable = {
    "gpus": list,
    "ring": ListOf(str, least=1),
    "all_reduce_gb_per_s": (0.001, 1e6),
}
_MIG: FieldTable = {
    "gpu": (0, MAX_GPUS),
    "profile": str,
    "memory_mib": (0, 1 << 30),
    "instances": ListOf((0, 99)),
}


def described_topology(document: Mapping[str, Any], digest: str) -> Topology:
    """Build the topology that a machine file describes.

    Args:
        document: parsed TOML; docs/reference/machines.md explains the keys.
        digest: digest of the file's text; it keeps tables of different descriptions apart.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    machine = checked(document, _MACHINE, required=("name", "source", "gpus", "pcie"))
    plain = machine["name"].translate({ord(c): "x" for c in "._-"})
    if not (plain.isascii() and plain.isalnum()):  # it becomes part of the UUIDs
        raise FieldError(
            ("name",), f"name: {machine['name']!r} is not made of letters, digits, '.', '_' and '-'"
        )
    driver = machine.get("driver", DEFAULT_DRIVER)
    if driver not in DRIVERS:
        raise FieldError(("driver",), f"driver: {driver!r} is none of {', '.join(DRIVERS)}")
    cards = _read_cards(machine)
    pcie = machine["pcie"]
    stated, peer_to_peer = pcie.get("bandwidth_gb_per_s"), pcie.get("peer_to_peer")
    paths = _read_pcie_paths(pcie.get("groups", {}), len(cards))
    nvlinks = _read_nvlinks(machine.get("nvlink", {}).get("links", []), cards)

    def wire(a: int, b: int) -> Wiring:
        return paths.get((a, b), "SYS"), nvlinks.get((a, b), 0), stated, peer_to_peer

    gpus, measured = _with_instances(machine, cards), measurements(machine)
    links = wired(gpus, wire)
    return Topology(machine["name"], gpus, links, machine["source"], digest, measured, driver)


def measurements(machine: Mapping[str, Any]) -> tuple[Measured, ...]:
    """Return the measurements in a machine file: the median for each kind of set.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    checked(machine.get("measurement", {}), _MEASUREMENT, where=("measurement",))
    kinds: dict[tuple[str, ...], list[float]] = {}
    for i, entry in enumerate(machine.get("measured", [])):
        part = checked(
            entry, _MEASURED, required=("ring", "all_reduce_gb_per_s"), where=("measured", i)
        )
        kinds.setdefault(tuple(part["ring"]), []).append(part["all_reduce_gb_per_s"])
    return tuple(
        Measured(ring, sorted(bandwidths)[len(bandwidths) // 2])
        for ring, bandwidths in kinds.items()
    )


def _read_cards(machine: Mapping[str, Any]) -> list[Gpu]:
    common = checked(machine["gpus"], _GPUS, required=("count", "model"), where=("gpus",))
    nvlink = (
        checked(machine["nvlink"], _NVLINK, required=("version",), where=("nvlink",))
        if "nvlink" in machine
        else {}
    )
    pcie = checked(machine["pcie"], _PCIE, required=("generation", "width"), where=("pcie",))
    nodes = _read_numa_nodes(machine.get("numa", []), common["count"])

    def values(table: Mapping[str, Any], where: str, key: str, otherwise: object) -> list[Any]:
        value, count = table.get(key, otherwise), common["count"]
        if not isinstance(value, list):
            return [value] * count
        if len(value) != count:
            raise FieldError((where, key), f"{key}: {len(value)} values for {count} items")
        return value

    fields = {
        "model": values(common, "gpus", "model", ""),
        "memory_bytes": [mib << 20 for mib in values(common, "gpus", "memory_mib", 0)],
        "compute_capability": [
            text or None for text in values(common, "gpus", "compute_capability", "")
        ],
        "pcie_generation": values(pcie, "pcie", "generation", 0),
        "pcie_width": values(pcie, "pcie", "width", 0),
        "nvlink_version": values(nvlink, "nvlink", "version", 0),
        "nvswitch_links": values(nvlink, "nvlink", "switch_links_per_gpu", 0),
        "cpu_nvlinks": values(nvlink, "nvlink", "cpu_links_per_gpu", 0),
        "nvlink_gb_per_s": values(nvlink, "nvlink", "gb_per_s_per_link", 0.0),
    }
    found = []
    for index in range(common["count"]):
        facts = {name: column[index] for name, column in fields.items()}
        if index in nodes:
            facts |= nodes[index]
        found.append(Gpu(index=index, uuid=f"GPU-{machine['name']}-{index}", **facts))
    return found


def _read_numa_nodes(entries: Sequence[object], count: int) -> dict[int, dict[str, Any]]:
    """Return what each card that is in a NUMA node takes over from it, named as in Gpu."""
    found: dict[int, dict[str, Any]] = {}
    for i, entry in enumerate(entries):
        node = checked(entry, _NUMA, required=("gpus",), where=("numa", i))
        try:
            cpuset = parse_cpuset(node.get("cpuset", ""))
        except ValueError:
            raise FieldError(
                ("numa", i, "cpuset"), f"{node['cpuset']!r} is no list of CPUs such as '0-19,40-59'"
            ) from None
        for index in _read_indices(node["gpus"], count, ("numa", i, "gpus")):
            if index in found:
                raise FieldError(("numa", i, "gpus"), f"GPU {index} is in two NUMA nodes")
            found[index] = {"numa_node": node.get("node"), "cpuset": cpuset}
    return found


def _with_instances(machine: Mapping[str, Any], cards: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Replace the cards in MIG mode by their instances, which are GPUs of their own."""
    instances: dict[int, Gpu] = {}
    split: set[int] = set()
    for i, entry in enumerate(machine.get("mig", [])):
        part = checked(
            entry, _MIG, required=("gpu", "profile", "memory_mib", "instances"), where=("mig", i)
        )
        (card,) = _read_indices([part["gpu"]], len(cards), ("mig", i, "gpu"))
        split.add(card)
        for number in part["instances"]:
            if mig_index(card, number) in instances:
                raise FieldError(("mig", i, "instances"), f"instance {number} is there twice")
            mig = Mig(card, cards[card].uuid, number, part["profile"])
            instances[mig_index(card, number)] = replace(
                cards[card],
                index=mig_index(card, number),
                uuid=f"MIG-{machine['name']}-{card}-{number}",
                model=f"{cards[card].model} MIG {part['profile']}",
                memory_bytes=part["memory_mib"] << 20,
                mig=mig,
            )
    whole = {card.index: card for card in cards if card.index not in split}
    if not whole and not instances:
        raise FieldError(("mig",), "every card is in MIG mode and none has an instance")
    if max(whole, default=0) >= 100 and instances:
        raise FieldError(("mig",), "a machine of more than 100 cards cannot have MIG instances")
    return tuple(gpu for _, gpu in sorted((whole | instances).items()))


def _read_pcie_paths(groups: Mapping[str, Any], count: int) -> dict[tuple[int, int], PathType]:
    """Return each pair's path type: the nearest level at which one group contains both."""
    paths: dict[tuple[int, int], PathType] = {}
    for level in reversed(PCIE_PATHS):  # near levels last, so that they win
        for group in groups.get(level, []):
            members = _read_indices(group, count, ("pcie", "groups", level))
            paths |= dict.fromkeys(combinations(sorted(members), 2), level)
    return paths


def _read_nvlinks(entries: list[Any], cards: Sequence[Gpu]) -> dict[tuple[int, int], int]:
    nvlinks: dict[tuple[int, int], int] = {}
    for entry in entries:
        a, b = sorted(_read_indices(entry[:2], len(cards), _NVLINKS))
        for index in (a, b):
            if not cards[index].nvlink_version:
                raise FieldError(_NVLINKS, f"GPU {index} has NVLinks, and their version is 0")
        if a == b or (a, b) in nvlinks:
            raise FieldError(_NVLINKS, f"{entry!r} joins a GPU to itself or a pair twice")
        nvlinks[a, b] = entry[2]
    return nvlinks


def _read_indices(values: list[int], count: int, path: Path) -> list[int]:
    if any(index >= count for index in values):
        raise FieldError(path, f"{values!r} is no list of GPU indices 0 to {count - 1}")
    return values
