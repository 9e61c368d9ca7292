"""A cluster as a value: its nodes, and the network that joins them."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.network import Switch, network_tree
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import UsageError, quoted
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace


class Node(Record):
    """One machine of a cluster.

    Attributes:
        name: host name, as the cluster engine knows it.
        topology: its GPUs.
        sockets: ids of the cores of each socket, a socket without cores left out.
        socket_gb_per_s: bandwidth between a socket and the rest of the node, per direction. The
            default is assumed: one QPI link of 8 GT/s and 2 bytes.
        core_gb_per_s: bandwidth at which a process on one core sends, and receives. The default is
            assumed: what one core copies through shared memory.
        uplinks: links to the network, which share its traffic; a pair of GPUs uses one of them.
    """

    name: str
    topology: Topology
    sockets: tuple[tuple[int, ...], ...]
    socket_gb_per_s: float = 16.0
    core_gb_per_s: float = 10.0
    uplinks: int = 1

    @property
    def slots(self) -> int:
        """Number of ranks that it takes, each with a core and a GPU of its own (magc-2016 V)."""
        return min(len(self.topology.gpus), sum(map(len, self.sockets)))


class Cluster(Record):
    """Machines joined by a network.

    Attributes:
        name: its name.
        source: origin of the facts.
        nodes: its machines.
        network: switches, with the nodes as leaves, in the order of `nodes`.
    """

    name: str
    source: str
    nodes: tuple[Node, ...]
    network: Tree


def part_of(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """Return the part of a cluster that has these nodes, in this order.

    Raises:
        UsageError: a name is unknown.
    """
    by_name = {node.name: number for number, node in enumerate(cluster.nodes)}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UsageError(
            f"cluster {cluster.name} has no node {quoted(unknown[0])}{more}: its {len(by_name)} "
            f"are {cluster.nodes[0].name} to {cluster.nodes[-1].name}"
        )
    tree = cluster.network
    leaves = set(tree.leaves)
    below = tree.children()
    switches = [
        Switch(
            name,
            tuple(tree.names[child] for child in below[vertex] if child in leaves),
            tuple(tree.names[child] for child in below[vertex] if child not in leaves),
            (),
            tree.gb_per_s[vertex],
        )
        for vertex, name in enumerate(tree.names)
        if vertex not in leaves
    ]
    gb_per_s = {name: tree.gb_per_s[tree.leaves[by_name[name]]] for name in names}
    nodes = tuple(cluster.nodes[by_name[name]] for name in names)
    return replace(cluster, nodes=nodes, network=network_tree(switches, gb_per_s))
