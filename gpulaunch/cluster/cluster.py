"""A cluster as a value: its nodes, and the network that joins them."""
# pure: decides on plain values

from gpulaunch.cluster.tree import Tree
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record


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
