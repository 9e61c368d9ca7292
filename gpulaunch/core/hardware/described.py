"""A described machine: the document of profiles/machines/NAME.toml -> Topology."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from gpulaunch.core.fields import FieldTable, Path, checked
from gpulaunch.core.hardware.bandwidth import PCIE_PATHS, PathType
from gpulaunch.core.hardware.cpuset import parse_cpuset
from gpulaunch.core.hardware.topology import Gpu, Link, Topology, connect
from gpulaunch.errors import FieldError

MAX_GPUS = 1024

_NVLINKS: Path = ("nvlink", "links")

_MACHINE: FieldTable = {
    "name": str,
    "description": str,
    "source": str,
    "gpus": dict,
    "nvlink": dict,
    "pcie": dict,
    "numa": list,
}
_GPUS: FieldTable = {"count": (1, MAX_GPUS), "model": str, "memory_mib": (1, 1 << 30), "compute_capability": str}
_NVLINK: FieldTable = {"version": (1, 99), "links": list, "switch_links_per_gpu": (1, 999)}
_PCIE: FieldTable = {"generation": (1, 9), "width": (1, 16), "bandwidth_gb_per_s": (0.001, 1e6), "groups": dict}
_NUMA: FieldTable = {"node": (0, 1 << 20), "gpus": list, "cpuset": str}


def described_topology(document: Mapping[str, Any], digest: str) -> Topology:
    """Build the topology that a machine file describes.

    Args:
        document: parsed TOML; the keys are explained in docs/machines.md.
        digest: of the file's text; it keeps tables of different descriptions apart.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    machine = checked(document, _MACHINE, required=("name", "source", "gpus", "pcie"))
    plain = machine["name"].translate({ord(c): "x" for c in "._-"})
    if not (plain.isascii() and plain.isalnum()):  # it becomes part of the UUIDs
        raise FieldError(("name",), f"name: {machine['name']!r} is not made of letters, digits, '.', '_' and '-'")
    gpus = _gpus(machine)
    return Topology(machine["name"], gpus, _links(machine, gpus), machine["source"], digest)


def _gpus(machine: Mapping[str, Any]) -> tuple[Gpu, ...]:
    common = checked(machine["gpus"], _GPUS, required=("count", "model", "memory_mib"), where=("gpus",))
    nvlink = (
        checked(machine["nvlink"], _NVLINK, required=("version",), where=("nvlink",)) if "nvlink" in machine else {}
    )
    pcie = checked(machine["pcie"], _PCIE, required=("generation", "width"), where=("pcie",))
    node_of: dict[int, tuple[int, frozenset[int]]] = {}
    for i, entry in enumerate(machine.get("numa", [])):
        node = checked(entry, _NUMA, required=("node", "gpus"), where=("numa", i))
        try:
            cpuset = parse_cpuset(node.get("cpuset", ""))
        except ValueError:
            raise FieldError(
                ("numa", i, "cpuset"), f"{node['cpuset']!r} is no list of CPUs such as '0-19,40-59'"
            ) from None
        for index in _indices(node["gpus"], common["count"], ("numa", i, "gpus")):
            if index in node_of:
                raise FieldError(("numa", i, "gpus"), f"GPU {index} is in two NUMA nodes")
            node_of[index] = (node["node"], cpuset)
    return tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{machine['name']}-{index}",
            model=common["model"],
            memory_bytes=common["memory_mib"] << 20,
            numa_node=node_of[index][0] if index in node_of else None,
            cpuset=node_of[index][1] if index in node_of else frozenset(),
            compute_capability=common.get("compute_capability"),
            pcie_generation=pcie["generation"],
            pcie_width=pcie["width"],
            nvlink_version=nvlink.get("version", 0),
            nvswitch_links=nvlink.get("switch_links_per_gpu", 0),
        )
        for index in range(common["count"])
    )


def _links(machine: Mapping[str, Any], gpus: tuple[Gpu, ...]) -> tuple[Link, ...]:
    paths = _pcie_paths(machine["pcie"].get("groups", {}), len(gpus))
    nvlinks = _nvlinks(machine.get("nvlink", {}).get("links", []), len(gpus))
    return tuple(
        connect(
            a,
            b,
            paths.get((a.index, b.index), "SYS"),
            direct_nvlinks=nvlinks.get((a.index, b.index), 0),
            pcie_gb_per_s=machine["pcie"].get("bandwidth_gb_per_s"),
        )
        for a, b in combinations(gpus, 2)
    )


def _pcie_paths(groups: Mapping[str, Any], count: int) -> dict[tuple[int, int], PathType]:
    """Path type of each pair: the nearest level at which one group holds both."""
    for level, members in groups.items():
        if level not in PCIE_PATHS:
            raise FieldError(("pcie", "groups", level), f"{level!r} is no PCIe path type: {', '.join(PCIE_PATHS)}")
        if not isinstance(members, list):
            raise FieldError(("pcie", "groups", level), f"{level}: {members!r} is not a list")
    paths: dict[tuple[int, int], PathType] = {}
    for level in reversed(PCIE_PATHS):  # near levels last, so that they win
        for group in groups.get(level, []):
            for a, b in combinations(sorted(_indices(group, count, ("pcie", "groups", level))), 2):
                paths[a, b] = level
    return paths


def _nvlinks(entries: list[Any], count: int) -> dict[tuple[int, int], int]:
    nvlinks: dict[tuple[int, int], int] = {}
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 3:
            raise FieldError(_NVLINKS, f"{entry!r} is not [GPU, GPU, number of NVLinks]")
        a, b = sorted(_indices(entry[:2], count, _NVLINKS))
        if a == b or (a, b) in nvlinks:
            raise FieldError(_NVLINKS, f"{entry!r} joins a GPU to itself or a pair twice")
        if type(entry[2]) is not int or not 1 <= entry[2] <= 99:
            raise FieldError(_NVLINKS, f"{entry!r}: the number of NVLinks must be 1 to 99")
        nvlinks[a, b] = entry[2]
    return nvlinks


def _indices(values: object, count: int, path: Path) -> list[int]:
    if not isinstance(values, list) or any(type(v) is not int or not 0 <= v < count for v in values):
        raise FieldError(path, f"{values!r} is no list of GPU indices 0 to {count - 1}")
    return values
