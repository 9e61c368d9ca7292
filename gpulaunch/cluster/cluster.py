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
    """

    name: str
    topology: Topology
    sockets: tuple[tuple[int, ...], ...]

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
