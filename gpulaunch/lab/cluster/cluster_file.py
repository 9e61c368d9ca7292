"""Files of clusters, such as profiles/clusters/NAME.toml, by name or path; files of traffic.

Traffic between ranks is a matrix or an edge list.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from gpulaunch.errors import FieldError, UsageError, did_you_mean, printable, quoted
from gpulaunch.files.document import (
    Document,
    config_directory,
    file_names,
    find_file,
    is_path,
    parsed,
    read_document,
    read_text,
    shipped_directory,
)
from gpulaunch.files.fields import Above, FieldTable, ListOf, Path, checked
from gpulaunch.lab.cluster.cluster import Cluster, Node, Tree
from gpulaunch.lab.cluster.network import (
    ASSUMED_NODE_GB_PER_S,
    ASSUMPTIONS,
    Switch,
    expand_hostlist,
    network_tree,
    read_topology_conf,
)
from gpulaunch.lab.cluster.traffic import (
    MOST_WEIGHT,
    SHAPES,
    RankTraffic,
    is_sizes,
    parallel_traffic,
    shape_traffic,
    summed,
)
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import parse_cpuset
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.pattern import Edge
from gpulaunch.profiles.pattern_file import GRAPH_ENDINGS, read_edges

MOST_BYTES = 1 << 28
"""Largest file: a matrix of 4,096 ranks with up to 16 characters a figure."""

SYSTEM_CLUSTERS = "/etc/gpulaunch/clusters"

_GB_PER_S = Above(0.0, 1e9)
_CLUSTER: FieldTable = {
    "name": str,
    "source": str,
    "nodes": ListOf(dict, 1),
    "network": dict,
}
_NODES: FieldTable = {
    "names": str,
    "machine": str,
    "cores": ListOf(str, 1),
    "gb_per_s": _GB_PER_S,
    "source": str,
}
_NETWORK: FieldTable = {"source": str, "file": str, "switches": ListOf(dict, 1)}
_SWITCH: FieldTable = {
    "name": str,
    "nodes": str,
    "switches": str,
    "gb_per_s": _GB_PER_S,
}


def _directories() -> list[str]:
    own = os.path.join(config_directory(), "clusters")
    return [own, SYSTEM_CLUSTERS, shipped_directory("clusters")]


def cluster_names() -> list[str]:
    """Return the sorted names of the clusters that can be found."""
    return file_names(_directories())


def load_cluster(name: str) -> Cluster:
    """Read a cluster by name or path; docs/guides/cluster.md explains the keys of its file.

    Raises:
        UsageError: there is no such cluster, or its description is wrong.
    """
    own = f"./{name}" if os.path.isfile(name) else "a file"
    hint = f"known are {', '.join(cluster_names())}, or give {own}"
    document = read_document(find_file(name, _directories(), "cluster", hint))
    return parsed(document, lambda data: _described_cluster(data, document))


def tree_of_file(path: str, nodes: Mapping[str, float]) -> Tree:
    """Return the network of a topology.conf, or of what `scontrol show topology` has printed.

    Raises:
        UsageError: the file is wrong, or the network no tree; with path and line.
    """
    text = read_text(path)
    try:
        return network_tree(read_topology_conf(text), nodes)
    except FieldError as problem:
        line = f":{problem.path[0]}" if problem.path else ""
        raise UsageError(f"{path}{line}: {problem.message}") from None


def _described_cluster(data: Mapping[str, Any], document: Document) -> Cluster:
    """Build the cluster of a file's content; raise FieldError if something is wrong with it."""
    checked(data, _CLUSTER, required=("name", "source", "nodes", "network"))
    for i, entry in enumerate(data["nodes"]):
        checked(entry, _NODES, required=("names", "machine"), where=("nodes", i))
    network = checked(data["network"], _NETWORK, required=("source",), where=("network",))
    if ("file" in network) == ("switches" in network):
        raise FieldError(("network",), "network: either switches or a file is needed")
    beside = os.path.dirname(document.path)
    nodes: list[Node] = []
    gb_per_s: dict[str, float] = {}
    sources = [data["source"]]
    for i, entry in enumerate(data["nodes"]):
        where: Path = ("nodes", i)
        speed = entry.get("gb_per_s", ASSUMED_NODE_GB_PER_S)
        if "gb_per_s" not in entry and "file" not in network:
            raise FieldError(where, "key 'gb_per_s' is missing in nodes")
        for node in _read_nodes(entry, _load_machine(document, entry["machine"], where), where):
            if node.name in gb_per_s:
                raise FieldError((*where, "names"), f"names: node {quoted(node.name)} stands twice")
            gb_per_s[node.name] = speed
            nodes.append(node)
        sources += [entry["source"]] if "source" in entry else []
    sources.append(network["source"])
    if "file" in network:
        tree = tree_of_file(os.path.join(beside, network["file"]), gb_per_s)
        sources.append(ASSUMPTIONS)
    else:
        tree = _tree_of_switches(network["switches"], gb_per_s)
    return Cluster(data["name"], "; ".join(sources), tuple(nodes), tree)


def _load_machine(document: Document, name: str, where: Path) -> Topology:
    """Read a machine by name, or by a path from the directory of the cluster file."""
    if is_path(name):
        return load_described_machine(os.path.join(os.path.dirname(document.path), name))[0]
    try:
        return load_described_machine(name)[0]
    except UsageError as problem:
        located = document.located((*where, "machine"), problem.message)
        raise UsageError(located, problem.hint) from None


def _read_nodes(entry: Mapping[str, Any], topology: Topology, where: Path) -> list[Node]:
    cores = entry.get("cores")
    sockets = _read_cores(cores, (*where, "cores")) if cores else _sockets_of(topology)
    if not sockets:
        raise FieldError(
            where, f"cores: {topology.name} does not say its CPUs, and they are missing"
        )
    names = expand_hostlist(entry["names"], (*where, "names"))
    return [Node(name, topology, sockets) for name in names]


def _sockets_of(topology: Topology) -> tuple[tuple[int, ...], ...]:
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


def _tree_of_switches(entries: Sequence[object], nodes: Mapping[str, float]) -> Tree:
    switches = []
    for i, entry in enumerate(entries):
        where: Path = ("network", "switches", i)
        table = checked(entry, _SWITCH, required=("name",), where=where)
        below = [
            expand_hostlist(table[key], (*where, key)) if key in table else ()
            for key in ("nodes", "switches")
        ]
        unknown = next((node for node in below[0] if node not in nodes), None)
        if unknown is not None:
            raise FieldError((*where, "nodes"), f"nodes: unknown node {quoted(unknown)}")
        up = table.get("gb_per_s", 0.0)
        switches.append(Switch(table["name"], below[0], below[1], where, up))
    tree = network_tree(switches, nodes)
    children = {name for switch in switches for name in switch.switches}
    silent = next((one for one in switches if one.name in children and not one.gb_per_s), None)
    if silent:
        raise FieldError(silent.path, f"switch {quoted(silent.name)}: key 'gb_per_s' is missing")
    return tree


def read_traffic_file(path: str, ranks: int) -> RankTraffic:
    """Read the traffic of this many ranks from a file.

    A line of more than three figures is one of a matrix: what a rank sends to each rank. Anything
    else is an edge list as of docs/reference/patterns.md. Here the graph need not be connected.

    Raises:
        UsageError: the file cannot be read, or is wrong; with path and line.
    """
    text = read_text(path, MOST_BYTES).removeprefix("\ufeff")
    rows = [
        (number, fields)
        for number, line in enumerate(text.split("\n"), 1)
        if (fields := line.partition("#")[0].replace(",", " ").split())
    ]
    if not rows:
        raise UsageError(f"{path}: no traffic is in it")
    if len(rows[0][1]) > 3:
        return summed(ranks, _read_matrix(path, rows, ranks))
    edges = read_edges(path, text)
    for number, (a, b, weight) in edges:
        where = f"{path}:{number}"
        if max(a, b) >= ranks:
            raise UsageError(f"{where}: rank {max(a, b)}: {ranks} ranks are 0 to {ranks - 1}")
        if a == b:
            raise UsageError(f"{where}: edge {a}-{b}: it joins a rank to itself")
        if not isfinite(weight) or not 1e-9 <= weight <= MOST_WEIGHT:
            raise UsageError(
                f"{where}: edge {a}-{b}: {weight:g} is no traffic above 0, 1e18 at most"
            )
    return summed(ranks, [edge for _, edge in edges])


def _read_matrix(path: str, rows: Sequence[tuple[int, list[str]]], ranks: int) -> Iterator[Edge]:
    """Yield what each rank sends to each other one; what it sends to itself goes nowhere."""
    wanted = f"a matrix of {ranks} ranks has {ranks} rows and columns"
    for row, (number, fields) in enumerate(rows):
        if row == ranks or len(fields) != ranks:
            found = f"{len(fields)} figures" if row < ranks else f"more than {ranks} rows"
            raise UsageError(f"{path}:{number}: {found}: {wanted}")
        for column, field in enumerate(fields):
            weight = 0.0 if field == "0" else _read_figure(path, number, field)
            if weight and column != row:
                yield row, column, weight
    if len(rows) < ranks:
        raise UsageError(f"{path}: {len(rows)} rows: {wanted}")


def _read_figure(path: str, number: int, field: str) -> float:
    try:
        weight = float(field)
    except ValueError:
        weight = float("nan")
    if not isfinite(weight) or not 0 <= weight <= MOST_WEIGHT:
        shown = printable(field[:40])
        raise UsageError(f"{path}:{number}: '{shown}' is no traffic: a number from 0 to 1e18")
    return weight


def read_traffic(option: str, text: str, ranks: int) -> RankTraffic:
    """Read what so many ranks send each other from the value of an option.

    Raises:
        UsageError: there is no such pattern, or it is not one of this many ranks.
    """
    try:
        return _read_traffic(text, ranks)
    except UsageError as problem:
        raise UsageError(f"{option}: {problem.message}", problem.hint) from None


def _read_traffic(text: str, ranks: int) -> RankTraffic:
    kind, _, rest = text.partition(":")
    if kind == "profile" or text.endswith(".toml"):
        return _of_profile(rest or text, ranks)
    if is_sizes(text):
        return parallel_traffic(text, ranks)
    shape = shape_traffic(text, ranks)
    if shape is not None:
        return shape
    if os.sep in text or text.lower().endswith(GRAPH_ENDINGS):
        return read_traffic_file(text, ranks)
    names = [name.replace("_", "-") for name in SHAPES]
    file = f"./{text}" if os.path.isfile(text) else "a file"
    raise UsageError(
        f"unknown pattern {quoted(text)}{did_you_mean(text, names)}",
        f"known are {', '.join(names)}, or give {file}",
    )


def _of_profile(name: str, ranks: int) -> RankTraffic:
    profile = load_profile(name)
    graph = profile.graph
    if graph:
        if graph.ranks != ranks:
            raise UsageError(
                f"profile {profile.name} has {graph.ranks} ranks, and {ranks} are mapped"
            )
        return summed(ranks, graph.given)
    pattern = profile.communication.pattern
    found = shape_traffic(pattern, ranks) if pattern else None
    if found is None:
        raise UsageError(f"profile {quoted(name)} has no pattern")
    return found
