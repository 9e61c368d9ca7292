"""A cluster as a value: its nodes, the network that joins them, and the trees inside nodes."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.machine.gpu_names import gpus_named
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import pcie_bandwidth
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

Row = tuple[int, float, str]
"""A vertex of a tree: its parent, the bandwidth of the link to it, its name."""


class Tree(Record):
    """A tree whose leaves take ranks, or nodes, and whose other vertices are switches and the like.

    Attributes:
        parents: parent of each vertex, which comes before it; -1 for the root, vertex 0.
        gb_per_s: bandwidth of the link from each vertex to its parent, per direction; 0 for the
            root.
        names: name of each vertex, such as "leaf1", "n1", "n1 socket 0" or "n1 GPU 2".
        leaves: vertices that take ranks or nodes, by their number: position i is slot i.
    """

    parents: tuple[int, ...]
    gb_per_s: tuple[float, ...]
    names: tuple[str, ...]
    leaves: tuple[int, ...]

    def children(self) -> list[list[int]]:
        """Return the children of each vertex, ascending."""
        children: list[list[int]] = [[] for _ in self.parents]
        for vertex, parent in enumerate(self.parents[1:], 1):
            children[parent].append(vertex)
        return children

    def depths(self) -> list[int]:
        """Return the number of links from each vertex to the root."""
        depths = [0] * len(self.parents)
        for vertex, parent in enumerate(self.parents[1:], 1):
            depths[vertex] = depths[parent] + 1
        return depths


def grafted(trunk: Tree, branches: Sequence[Tree]) -> Tree:
    """Return a tree in which each leaf of a trunk is the root of a branch.

    Args:
        trunk: a network; its leaves are nodes.
        branches: what is inside each node, in the order of the leaves. The leaf keeps its name and
            its link; the branch's root adds nothing.
    """
    parents, gb_per_s, names = list(trunk.parents), list(trunk.gb_per_s), list(trunk.names)
    leaves: list[int] = []
    for leaf, branch in zip(trunk.leaves, branches, strict=True):
        shift = len(parents) - 1  # vertex 1 of the branch comes next; its root is the leaf
        parents += [leaf if parent == 0 else parent + shift for parent in branch.parents[1:]]
        gb_per_s += branch.gb_per_s[1:]
        names += branch.names[1:]
        leaves += [leaf if slot == 0 else slot + shift for slot in branch.leaves]
    return Tree(tuple(parents), tuple(gb_per_s), tuple(names), tuple(leaves))


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
    """

    name: str
    topology: Topology
    sockets: tuple[tuple[int, ...], ...]
    socket_gb_per_s: float = 16.0
    core_gb_per_s: float = 10.0

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


class TwoTrees(Record):
    """What processes send each other over, and what their GPUs do.

    Attributes:
        cpu: its leaves are cores.
        gpu: its leaves are GPUs.
    """

    cpu: Tree
    gpu: Tree


def cpu_tree(node: Node) -> Tree:
    """Return the sockets of a node with their cores: a leaf for each core, in order of `sockets`.

    The root is the node itself.
    """
    rows: list[Row] = [(-1, 0.0, node.name)]
    leaves = []
    for number, cores in enumerate(node.sockets):
        socket = len(rows)
        rows.append((0, node.socket_gb_per_s, f"{node.name} socket {number}"))
        for core in cores:
            leaves.append(len(rows))
            rows.append((socket, node.core_gb_per_s, f"{node.name} core {core}"))
    return _tree(rows, leaves)


def gpu_tree(node: Node) -> Tree:
    """Return the levels at which a node's GPUs meet: a leaf for each GPU, by index.

    The root is the node itself. A link carries what all wires out of its GPUs carry: NVLinks add
    up; without any, it is the fastest PCIe path out, which they share. GPUs that NVLinks join,
    where others of their level are not joined to them, have a vertex of their own. If an NVSwitch
    joins all, every GPU is right below the node.

    What leaves the node goes the same way to the root, since where a network adapter is plugged in
    is not known. NVLinks from each GPU to several others are no tree: there the load of a link is
    that of a cut, and no routing can do better than its congestion.
    """
    rows: list[Row] = [(-1, 0.0, node.name)]
    leaves: dict[int, int] = {}
    for level in _levels_below(machine_tree(node.topology), node.topology):
        _add_level(rows, leaves, 0, level, node)
    return _tree(rows, [leaves[gpu.index] for gpu in node.topology.gpus])


def inner_trees(cluster: Cluster) -> list[TwoTrees]:
    """Return the trees of each node; those of nodes that are alike may have another one's names."""
    known: dict[tuple[object, ...], TwoTrees] = {}
    trees = []
    for node in cluster.nodes:
        sizes = tuple(map(len, node.sockets))
        key = (id(node.topology), sizes, node.socket_gb_per_s, node.core_gb_per_s)
        if key not in known:
            known[key] = TwoTrees(cpu_tree(node), gpu_tree(node))
        trees.append(known[key])
    return trees


def whole_trees(cluster: Cluster) -> TwoTrees:
    """Return the network with the inside of all nodes below; its vertices come first in both."""
    return TwoTrees(
        grafted(cluster.network, [cpu_tree(node) for node in cluster.nodes]),
        grafted(cluster.network, [gpu_tree(node) for node in cluster.nodes]),
    )


Group = tuple[str, frozenset[int], tuple["Group", ...]]
"""GPUs that meet: what at, or "" if it is a GPU; their indices; the groups below."""


def _levels_below(level: Level, topology: Topology) -> list[Group]:
    """Return what is right below a level, with the GPUs that NVLinks join put together."""
    if level.path == "SYS" and topology.links and all(e.kind == "nvswitch" for e in topology.links):
        return [("", frozenset({gpu.index}), ()) for gpu in topology.gpus]
    below: list[Group] = [
        (
            child.kind if child.children else "",
            frozenset(child.gpus),
            tuple(_levels_below(child, topology)),
        )
        for child in level.children
    ]
    joined = _join(below, topology)
    if len(joined) == 1 or len(joined) == len(below):
        return below
    return [
        part[0]
        if len(part) == 1
        else ("NVLinks", frozenset().union(*(g[1] for g in part)), (*part,))
        for part in joined
    ]


def _join(groups: Sequence[Group], topology: Topology) -> list[list[Group]]:
    """Return the groups in parts that NVLinks join."""
    parts = [[group] for group in groups]
    for link in topology.links:
        if link.nvlink_count:
            touched = [p for p in parts if any({link.a, link.b} & group[1] for group in p)]
            if len(touched) == 2:
                touched[0] += touched[1]
                parts.remove(touched[1])
    return parts


def _add_level(
    rows: list[Row], leaves: dict[int, int], parent: int, group: Group, node: Node
) -> None:
    kind, gpus, below = group
    named = gpus_named(gpu for gpu in node.topology.gpus if gpu.index in gpus)
    own = len(rows)
    rows.append(
        (
            parent,
            _gb_per_s_out(gpus, node.topology),
            f"{node.name} {kind} of {named}" if kind else f"{node.name} {named}",
        )
    )
    if not kind:
        leaves[min(gpus)] = own
    for child in below:
        _add_level(rows, leaves, own, child, node)


def _gb_per_s_out(gpus: frozenset[int], topology: Topology) -> float:
    """Return the bandwidth from some GPUs to all others of a node, per direction."""
    out = [link for link in topology.links if (link.a in gpus) != (link.b in gpus)]
    if not out:  # a node of one GPU: its slot
        gpu = topology.gpus[0]
        return pcie_bandwidth("PIX", gpu.pcie_generation, gpu.pcie_width)
    direct = sum(link.nvlink_gb_per_s for link in out if link.kind == "nvlink")
    into_switch: dict[int, float] = {}
    for link in out:
        if link.kind == "nvswitch":
            into_switch[link.a if link.a in gpus else link.b] = link.nvlink_gb_per_s
    shared = max(link.pcie_gb_per_s for link in out)
    return direct + sum(into_switch.values()) or shared


def _tree(rows: Sequence[Row], leaves: Sequence[int]) -> Tree:
    parents, gb_per_s, names = zip(*rows, strict=True)
    return Tree(parents, gb_per_s, names, tuple(leaves))
