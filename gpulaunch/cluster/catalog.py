"""Clusters by name or path: shipped ones and the user's own."""

import os
from collections.abc import Mapping

from gpulaunch.cluster.cluster import Cluster, Node
from gpulaunch.cluster.cluster_file import described_cluster, machine_names_of, sockets_of
from gpulaunch.cluster.network import ASSUMED_NODE_GB_PER_S, network_tree
from gpulaunch.cluster.network_text import tree_of_file
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import UsageError
from gpulaunch.files.data_files import (
    config_directory,
    file_names,
    find_file,
    is_path,
    shipped_directory,
)
from gpulaunch.files.document import Document, parsed, read_document
from gpulaunch.machine.catalog import load_described_machine, machine_names
from gpulaunch.machine.topology import Topology, machines

SYSTEM_CLUSTERS = "/etc/gpulaunch/clusters"


def _directories() -> list[str]:
    own = os.path.join(config_directory(), "clusters")
    return [own, SYSTEM_CLUSTERS, shipped_directory("clusters")]


def cluster_names() -> list[str]:
    """Return the sorted names of the clusters that can be found."""
    return file_names(_directories())


def load_cluster(name: str) -> Cluster:
    """Read a cluster by name or path.

    A described machine is a cluster, too: of one node, or of those that its network joins.

    Raises:
        UsageError: there is no such cluster, or its description is wrong.
    """
    if not is_path(name) and name not in cluster_names() and name in machine_names():
        return cluster_of_machine(load_described_machine(name)[0])
    own = f"./{name}" if os.path.isfile(name) else "a file"
    hint = f"known are {', '.join(cluster_names())}, or give {own}"
    path = find_file(name, _directories(), "cluster", hint)
    document = read_document(path)
    machines_of = {
        machine: _load_machine(document, machine, where)
        for machine, where in parsed(document, machine_names_of).items()
    }

    def read_network(file: str, nodes: Mapping[str, float]) -> Tree:
        return tree_of_file(os.path.join(os.path.dirname(path), file), nodes)

    return parsed(document, lambda data: described_cluster(data, machines_of, read_network))


def _load_machine(document: Document, name: str, where: tuple[str | int, ...]) -> Topology:
    """Read a machine by name, or by a path from the directory of the cluster file."""
    place = os.path.join(os.path.dirname(document.path), name) if is_path(name) else name
    try:
        return load_described_machine(place)[0]
    except UsageError as problem:
        if is_path(name):
            raise
        raise UsageError(document.located(where, problem.message), problem.hint) from None


def cluster_of_machine(topology: Topology) -> Cluster:
    """Return the cluster of a described machine, or of the several that its network joins.

    Raises:
        UsageError: the machine does not say its CPUs.
    """
    first, *others = machines(topology).values()
    sockets = sockets_of(first)
    if not sockets:
        raise UsageError(
            f"machine {topology.name} does not say its CPUs", "a cluster file has cores for it"
        )
    names = [f"{topology.name}-{i}" for i in range(len(others) + 1)] if others else [topology.name]
    between = [link.pcie_gb_per_s for link in topology.links if link.kind == "network"]
    gb_per_s = max(between, default=ASSUMED_NODE_GB_PER_S)  # nothing leaves a single node
    nodes = tuple(Node(name, first, sockets) for name in names)  # all are alike
    tree = network_tree((), dict.fromkeys(names, gb_per_s))
    return Cluster(topology.name, topology.source, nodes, tree)
