"""Cluster files: the Cluster that the document of profiles/clusters/NAME.toml gives."""
# pure: decides on plain values

from collections.abc import Callable, Mapping, Sequence

from gpulaunch.cluster.cluster import Cluster, Node
from gpulaunch.cluster.hostlist import expand_hostlist
from gpulaunch.cluster.network import (
    ASSUMED_NODE_GB_PER_S,
    ASSUMPTIONS,
    Switch,
    network_tree,
)
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FieldError, printable, quoted
from gpulaunch.files.fields import Above, FieldTable, ListOf, Path, checked
from gpulaunch.machine.cpuset import parse_cpuset
from gpulaunch.machine.topology import Topology
from gpulaunch.typing import Any

MOST_GPUS = 1 << 16
"""Largest number of GPUs in a cluster."""

_GB_PER_S = Above(0.0, 1e9)
_CLUSTER: FieldTable = {
    "name": str,
    "description": str,
    "source": str,
    "nodes": ListOf(dict, 1),
    "network": dict,
}
_NODES: FieldTable = {
    "names": str,
    "machine": str,
    "cores": ListOf(str, 1),
    "socket_gb_per_s": _GB_PER_S,
    "core_gb_per_s": _GB_PER_S,
    "uplinks": (1, 1 << 16),
    "gb_per_s_per_uplink": _GB_PER_S,
    "source": str,
}
_NETWORK: FieldTable = {"source": str, "file": str, "switches": ListOf(dict, 1)}
_SWITCH: FieldTable = {
    "name": str,
    "nodes": str,
    "switches": str,
    "uplinks": (1, 1 << 24),
    "gb_per_s_per_uplink": _GB_PER_S,
}


def machine_names_of(document: Mapping[str, Any]) -> dict[str, Path]:
    """Return the machines that a cluster file names, each with the path of its first mention.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    checked(document, _CLUSTER, required=("name", "source", "nodes", "network"))
    names: dict[str, Path] = {}
    for i, entry in enumerate(document["nodes"]):
        checked(entry, _NODES, required=("names", "machine"), where=("nodes", i))
        names.setdefault(entry["machine"], ("nodes", i, "machine"))
    return names


def described_cluster(
    document: Mapping[str, Any],
    machines: Mapping[str, Topology],
    read_network: Callable[[str, Mapping[str, float]], Tree],
) -> Cluster:
    """Build the cluster that a cluster file describes.

    Args:
        document: parsed TOML; docs/guides/cluster.md explains the keys.
        machines: the machines that it names.
        read_network: reads the network from the file of that name, for nodes with these
            bandwidths.

    Raises:
        FieldError: a key is unknown or missing, its value has the wrong type or range, or the
            network is no tree.
    """
    machine_names_of(document)
    network = checked(document["network"], _NETWORK, required=("source",), where=("network",))
    if ("file" in network) == ("switches" in network):
        raise FieldError(("network",), "network: either switches or a file is needed")
    nodes: list[Node] = []
    gb_per_s: dict[str, float] = {}
    for i, entry in enumerate(document["nodes"]):
        topology = machines[entry["machine"]]
        where: Path = ("nodes", i)
        own = _read_nodes(entry, topology, where)
        total = sum(len(node.topology.gpus) for node in (*nodes, *own))
        if total > MOST_GPUS:
            raise FieldError(where, f"names: {total} GPUs, more than {MOST_GPUS}")
        for node in own:
            if node.name in gb_per_s:
                raise FieldError((*where, "names"), f"names: node {quoted(node.name)} stands twice")
            gb_per_s[node.name] = _bandwidth_of_node(entry, where, assumed="file" in network)
        nodes += own
    if "file" in network:
        tree = read_network(network["file"], gb_per_s)
    else:
        switches = _read_switches(network["switches"], gb_per_s)
        tree = network_tree(switches, gb_per_s)
        _refuse_silent(switches)
    sources = [document["source"]]
    sources += [entry["source"] for entry in document["nodes"] if "source" in entry]
    sources += [network["source"], *([ASSUMPTIONS] if "file" in network else [])]
    return Cluster(document["name"], "; ".join(sources), tuple(nodes), tree)


def _read_nodes(entry: Mapping[str, Any], topology: Topology, where: Path) -> list[Node]:
    if len({gpu.node for gpu in topology.gpus}) > 1:
        raise FieldError(
            (*where, "machine"), f"machine: {topology.name} is several machines, and one is needed"
        )
    sockets = (
        _read_cores(entry["cores"], (*where, "cores")) if "cores" in entry else sockets_of(topology)
    )
    if not sockets:
        raise FieldError(
            where, f"cores: {topology.name} does not say its CPUs, and they are missing"
        )
    options = {
        key: entry[key] for key in ("socket_gb_per_s", "core_gb_per_s", "uplinks") if key in entry
    }
    return [
        Node(name, topology, sockets, **options)
        for name in _hosts(entry["names"], (*where, "names"))
    ]


def sockets_of(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each NUMA node of a machine's GPUs, as far as they are known.

    Every CPU counts as a core, also the second thread of one.
    """
    cpusets = {gpu.numa_node: gpu.cpuset for gpu in topology.gpus if gpu.cpuset}
    numbers = sorted(cpusets, key=lambda number: (number is None, number or 0))
    return tuple(tuple(sorted(cpusets[number])) for number in numbers)


def _read_cores(texts: Sequence[str], path: Path) -> tuple[tuple[int, ...], ...]:
    sockets: list[tuple[int, ...]] = []
    for text in texts:
        try:
            cores = tuple(sorted(parse_cpuset(text)))
        except ValueError:
            cores = ()
        if not cores:
            raise FieldError(path, f"cores: {text!r} is no list of cores such as '0-11'")
        twice = {core for socket in sockets for core in socket} & set(cores)
        if twice:
            raise FieldError(path, f"cores: core {min(twice)} is in two sockets")
        sockets.append(cores)
    return tuple(sockets)


def _bandwidth_of_node(entry: Mapping[str, Any], where: Path, *, assumed: bool) -> float:
    if "gb_per_s_per_uplink" in entry:
        return float(entry["gb_per_s_per_uplink"] * entry.get("uplinks", 1))
    if not assumed:
        raise FieldError(where, "key 'gb_per_s_per_uplink' is missing in nodes")
    return ASSUMED_NODE_GB_PER_S


def _read_switches(entries: Sequence[object], nodes: Mapping[str, float]) -> tuple[Switch, ...]:
    switches = []
    for i, entry in enumerate(entries):
        where: Path = ("network", "switches", i)
        table = checked(entry, _SWITCH, required=("name",), where=where)
        below = [
            _hosts(table[key], (*where, key)) if key in table else ()
            for key in ("nodes", "switches")
        ]
        unknown = next((node for node in below[0] if node not in nodes), None)
        if unknown is not None:
            raise FieldError((*where, "nodes"), f"nodes: unknown node {quoted(unknown)}")
        up = table.get("gb_per_s_per_uplink", 0.0) * table.get("uplinks", 1)
        switches.append(Switch(table["name"], below[0], below[1], where, up))
    return tuple(switches)


def _refuse_silent(switches: Sequence[Switch]) -> None:
    """Refuse a switch below another one whose links upward have no bandwidth."""
    children = {name for switch in switches for name in switch.switches}
    silent = next((one for one in switches if one.name in children and not one.gb_per_s), None)
    if silent:
        raise FieldError(
            silent.path, f"switch {quoted(silent.name)}: key 'gb_per_s_per_uplink' is missing"
        )


def _hosts(text: str, path: Path) -> tuple[str, ...]:
    try:
        return expand_hostlist(text)
    except ValueError as problem:
        raise FieldError(path, f"{path[-1]}: {printable(str(problem))}") from None
