"""Conversion of GPUs and links to nodes and edges of a networkx graph, and back."""
# pure: decides on plain values

from collections.abc import Sequence
from itertools import combinations
from math import isclose
from zlib import crc32

from gpulaunch.errors import UsageError, quoted
from gpulaunch.files.fields import FieldTable
from gpulaunch.machine.cpuset import format_cpuset, parse_cpuset
from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.graph import (
    Attributes,
    Graph,
    make_graph,
    read_attributes,
    read_edges,
    read_nodes,
)
from gpulaunch.machine.link import Link, Wire, connect
from gpulaunch.machine.link_bandwidth import NETWORK_PATH, PCIE_PATHS
from gpulaunch.records import Record, as_dict, field_names, replace
from gpulaunch.typing import Any


class Network(Record):
    """The machine in a graph; the fields are those of Topology."""

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    source: str
    digest: str | None


_GRAPH_FIELDS: FieldTable = {"name": str, "source": str, "digest": str}
_GPU_FIELDS: FieldTable = {
    "uuid": str,
    "model": str,
    "memory_bytes": (0, 1 << 50),
    "numa_node": (0, 1 << 20),
    "cpuset": str,
    "compute_capability": str,
    "pcie_generation": (0, 99),
    "pcie_width": (0, 99),
    "nvlink_version": (0, 99),
    "nvswitch_links": (0, 999),
    "cpu_nvlinks": (0, 999),
    "nvlink_gb_per_s": (0.0, 1e6),
    "pci_address": str,
    "host_gb_per_s": (0.0, 1e6),
    "node": (0, 1 << 20),
    "mig_card": (0, 1 << 20),
    "mig_card_uuid": str,
    "mig_instance": (0, 99),
    "mig_profile": str,
}
_LINK_FIELDS: FieldTable = {
    "kind": ("nvlink", "nvswitch", "pcie", "network"),
    "nvlink_count": (0, 999),
    "nvlink_version": (0, 99),
    "pcie_path": (*PCIE_PATHS, NETWORK_PATH),
    "pcie_generation": (0, 99),
    "pcie_width": (0, 99),
    "nvlink_gb_per_s": (0.0, 1e6),
    "nvlink_planned_gb_per_s": (0.0, 1e6),
    "pcie_gb_per_s": (0.001, 1e6),
    "peer_to_peer": bool,
    "path": ("NVL", *PCIE_PATHS, NETWORK_PATH),
    "bandwidth_gb_per_s": (0.001, 1e6),
    "weight": (0.001, 1e6),
}
_USUAL_NVLINK_VERSION = 3


def write_network(network: Network) -> Graph:
    """Return the graph of a machine: its GPUs as nodes, its links as edges."""
    return make_graph(
        ((gpu.index, _gpu_attributes(gpu)) for gpu in network.gpus),
        ((link.a, link.b, _link_attributes(link)) for link in network.links),
        {"name": network.name, "source": network.source, "digest": network.digest},
    )


def read_network(graph: Graph) -> Network:
    """Read the machine of a graph, which may leave out whatever follows from the rest.

    Raises:
        UsageError: names the node or edge, and its attribute that is wrong, unknown, or contradicts
            another.
    """
    facts = read_attributes(graph, _GRAPH_FIELDS)
    name = facts.get("name") or "graph"
    nodes = read_nodes(graph, _GPU_FIELDS)
    if not nodes:
        raise UsageError("graph: it has no node, so no GPU")
    gpus = tuple(_read_gpu(index, values, name) for index, values in nodes.items())
    _refuse_twins(gpus)
    _refuse_wrong_memory(gpus)
    edges = read_edges(graph, _LINK_FIELDS)
    links = tuple(
        _read_link(a, b, edges.get((a.index, b.index), {})) for a, b in combinations(gpus, 2)
    )
    digest = facts.get("digest")
    if digest is None and not all("uuid" in values for values in nodes.values()):
        # Without UUIDs it is a described machine, never the one that we run on.
        digest = f"{crc32(repr((gpus, links)).encode()):08x}"
    return Network(name, gpus, links, facts.get("source", "a networkx graph"), digest)


def _gpu_attributes(gpu: Gpu) -> Attributes:
    values = {**as_dict(gpu), "cpuset": format_cpuset(gpu.cpuset) or None}
    values |= {
        f"mig_{name}": value for name, value in (as_dict(gpu.mig) if gpu.mig else {}).items()
    }
    return {name: value for name, value in values.items() if name not in ("index", "mig")}


def _read_gpu(index: int, values: Attributes, machine: str) -> Gpu:
    facts: dict[str, Any] = {
        "uuid": f"GPU-{machine}-{index}",
        "model": "GPU",
        "memory_bytes": 0,
        **values,
    }
    parts = {
        field: facts.pop(f"mig_{field}") for field in field_names(Mig) if f"mig_{field}" in facts
    }
    if parts and len(parts) < len(field_names(Mig)):
        missing = next(field for field in field_names(Mig) if field not in parts)
        raise UsageError(f"node {index}: mig_{missing} is missing, which a MIG instance has")
    try:
        cpuset = parse_cpuset(facts.pop("cpuset", ""))
    except ValueError:
        raise UsageError(
            f"node {index}: cpuset: {values['cpuset']!r} is no list of CPUs such as '0-19,40-59'"
        ) from None
    return Gpu(index=index, cpuset=cpuset, mig=Mig(**parts) if parts else None, **facts)


def _refuse_twins(gpus: Sequence[Gpu]) -> None:
    """Refuse two GPUs with one UUID, since leases name GPUs by UUID."""
    first: dict[str, int] = {}
    for gpu in gpus:
        twin = first.setdefault(gpu.uuid, gpu.index)
        if twin != gpu.index:
            raise UsageError(f"node {gpu.index}: uuid: {quoted(gpu.uuid)} is that of node {twin}")


def _refuse_wrong_memory(gpus: Sequence[Gpu]) -> None:
    """Check that memory bandwidth has a NUMA node, and is the same for all GPUs of the node.

    Jobs share this bandwidth, so both must be known.
    """
    first: dict[tuple[int, int | None], Gpu] = {}
    for gpu in gpus:
        where, stated = f"node {gpu.index}: host_gb_per_s: {gpu.host_gb_per_s:g}", gpu.host_gb_per_s
        if stated and gpu.numa_node is None:
            raise UsageError(f"{where} is stated without numa_node")
        other = first.setdefault((gpu.node, gpu.numa_node), gpu)
        if other.host_gb_per_s != stated:
            raise UsageError(
                f"{where} contradicts {other.host_gb_per_s:g} of node {other.index} in its NUMA "
                "node"
            )


def _link_attributes(link: Link) -> Attributes:
    bandwidth = link.bandwidth_gb_per_s
    values = as_dict(link) | {
        "path": link.path,
        "bandwidth_gb_per_s": bandwidth,
        "weight": bandwidth,
    }
    return {name: value for name, value in values.items() if name not in ("a", "b")}


def _read_link(a: Gpu, b: Gpu, values: Attributes) -> Link:
    """Return the link of an edge; what the edge does not say follows from it and the GPUs."""
    _refuse_wrong_network(a, b, values)
    path = values.get("path", "SYS" if a.node == b.node else NETWORK_PATH)
    count = values.get("nvlink_count", 1 if path == "NVL" else None)
    if count is not None or a.card == b.card:
        a, b = (replace(gpu, nvswitch_links=0) for gpu in (a, b))
    version = (
        values.get("nvlink_version", min(a.nvlink_version, b.nvlink_version))
        or _USUAL_NVLINK_VERSION
    )
    stated = values.get("bandwidth_gb_per_s", values.get("weight"))
    if count:
        each = values.get("nvlink_gb_per_s", stated or 0.0) / count
        a, b = (
            replace(gpu, nvlink_version=version, nvlink_gb_per_s=each or gpu.nvlink_gb_per_s)
            for gpu in (a, b)
        )
    near = values.get("pcie_path", "SYS" if path == "NVL" else path)
    over_host = values.get("pcie_gb_per_s", None if count else stated)
    if near == NETWORK_PATH and over_host is None:
        raise UsageError(
            f"edge {a.index}-{b.index}: weight is missing: GB/s of the network between two machines"
        )
    wire = Wire(
        near,
        count or 0,
        over_host,
        values.get("peer_to_peer", False if near == NETWORK_PATH else None),
    )
    link = connect(a, b, wire)
    if stated and count and "nvlink_gb_per_s" not in values:
        link = replace(link, nvlink_gb_per_s=stated)
    link = replace(
        link, **{name: value for name, value in values.items() if name in field_names(Link)}
    )
    _refuse_contradiction(link, values)
    return link


def _refuse_wrong_network(a: Gpu, b: Gpu, values: Attributes) -> None:
    """Refuse a network within a machine, other links between machines, a card in two machines."""
    where, nodes = f"edge {a.index}-{b.index}", f"nodes {a.node} and {b.node} of its GPUs"
    apart = a.node != b.node
    if apart and a.card == b.card:
        raise UsageError(f"{where}: card {a.card}, which both are of, contradicts {nodes}")
    if apart and values.get("nvlink_count"):
        raise UsageError(f"{where}: nvlink_count: {values['nvlink_count']} contradicts {nodes}")
    for name, word in (("kind", "network"), ("path", NETWORK_PATH), ("pcie_path", NETWORK_PATH)):
        if name in values and (values[name] == word) != apart:
            raise UsageError(f"{where}: {name}: '{values[name]}' contradicts {nodes}")


def _refuse_contradiction(link: Link, values: Attributes) -> None:
    where = f"edge {link.a}-{link.b}"
    if (link.kind in ("pcie", "network")) != (link.nvlink_count == 0):
        raise UsageError(
            f"{where}: kind: '{link.kind}' contradicts nvlink_count {link.nvlink_count}"
        )
    if (link.nvlink_gb_per_s > 0) != (link.nvlink_count > 0):
        raise UsageError(
            f"{where}: nvlink_gb_per_s: {link.nvlink_gb_per_s:g} contradicts nvlink_count "
            f"{link.nvlink_count}"
        )
    if values.get("path", link.path) != link.path:
        raise UsageError(
            f"{where}: path: '{values['path']}' contradicts '{link.path}', which the rest amounts "
            "to"
        )
    for name in ("bandwidth_gb_per_s", "weight"):
        if not isclose(
            values.get(name, link.bandwidth_gb_per_s), link.bandwidth_gb_per_s, rel_tol=1e-6
        ):
            raise UsageError(
                f"{where}: {name}: {values[name]:g} contradicts {link.bandwidth_gb_per_s:g}, which "
                "the rest amounts to"
            )
