"""A cluster as a value: its nodes, the network that joins them, and the trees inside nodes."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.machine.gpu import gpus_named
from gpulaunch.machine.link import pcie_bandwidth
from gpulaunch.machine.topology import Level, Topology, machine_tree
from gpulaunch.records import Record

SOCKET_GB_PER_S = 16.0
"""Bandwidth between a socket and the rest of its node, per direction. It is assumed: one QPI link
of 8 GT/s and 2 bytes."""

CORE_GB_PER_S = 10.0
"""Bandwidth at which a process on one core sends, and receives. It is assumed: what one core copies
through shared memory."""

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


class Node(Record):
    """One machine of a cluster.

    Attributes:
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
        network: switches, with the nodes as leaves, in the order of `nodes`.
    """

    name: str
    source: str
    nodes: tuple[Node, ...]
    network: Tree


def cpu_tree(node: Node) -> Tree:
    """Return the sockets of a node with their cores: a leaf for each core, in order of `sockets`.

    The root is the node itself.
    """
    rows: list[Row] = [(-1, 0.0, node.name)]
    leaves = []
    for number, cores in enumerate(node.sockets):
        socket = len(rows)
        rows.append((0, SOCKET_GB_PER_S, f"{node.name} socket {number}"))
        for core in cores:
            leaves.append(len(rows))
            rows.append((socket, CORE_GB_PER_S, f"{node.name} core {core}"))
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
    _add_below(rows, leaves, 0, machine_tree(node.topology), node)
    return _tree(rows, [leaves[gpu.index] for gpu in node.topology.gpus])


def _add_below(
    rows: list[Row], leaves: dict[int, int], parent: int, level: Level, node: Node
) -> None:
    """Add what is below a level, with the GPUs that NVLinks join put together."""
    links = node.topology.links
    if level.path == "SYS" and links and all(link.kind == "nvswitch" for link in links):
        for gpu in node.topology.gpus:
            leaves[gpu.index] = _add(rows, parent, "", frozenset({gpu.index}), node)
        return
    parts = _join(level.children, node.topology)
    if len(parts) == 1:
        parts = [[child] for child in level.children]
    for part in parts:
        above = parent
        if len(part) > 1:
            joined = frozenset(gpu for child in part for gpu in child.gpus)
            above = _add(rows, parent, "NVLinks", joined, node)
        for child in part:
            if child.children:
                own = _add(rows, above, child.kind, frozenset(child.gpus), node)
                _add_below(rows, leaves, own, child, node)
            else:
                leaves[child.gpus[0]] = _add(rows, above, "", frozenset(child.gpus), node)


def _join(levels: Sequence[Level], topology: Topology) -> list[list[Level]]:
    """Return the levels in parts that NVLinks join."""
    parts = [[level] for level in levels]
    for link in topology.links:
        if link.nvlink_count:
            touched = [p for p in parts if any({link.a, link.b} & {*level.gpus} for level in p)]
            if len(touched) == 2:
                touched[0] += touched[1]
                parts.remove(touched[1])
    return parts


def _add(rows: list[Row], parent: int, kind: str, gpus: frozenset[int], node: Node) -> int:
    """Add a vertex for GPUs that meet, or for one GPU if kind is empty; return its number."""
    named = gpus_named(gpu for gpu in node.topology.gpus if gpu.index in gpus)
    name = f"{node.name} {kind} of {named}" if kind else f"{node.name} {named}"
    rows.append((parent, _gb_per_s_out(gpus, node.topology), name))
    return len(rows) - 1


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
