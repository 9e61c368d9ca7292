"""The network of a cluster: switches as texts name them, made into a tree."""
# pure: decides on plain values

from collections.abc import Iterator, Mapping, Sequence

from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FieldError, quoted
from gpulaunch.files.fields import Path
from gpulaunch.records import Record

ASSUMED_NODE_GB_PER_S = 12.5
"""Bandwidth of a node's link where no text says it: 100 Gbit/s, assumed."""

ASSUMED_UPLINK_SHARE = 0.5
"""Bandwidth of a switch's links upward, as a share of all links below it, where no text says it.

It is assumed: networks whose upper levels carry everything need no care in mapping.
"""

ASSUMPTIONS = (
    f"assumed: {ASSUMED_NODE_GB_PER_S:g} GB/s for each node that does not say its own, and "
    f"{ASSUMED_UPLINK_SHARE:g} of what is below a switch for its links upward"
)
"""What a cluster's source says where switches have no bandwidths."""

_TOP = "network"


class Switch(Record):
    """A switch of a network, or another group of nodes, as a text names it.

    Attributes:
        name: its name.
        nodes: names of the nodes on it.
        switches: names of the switches below it.
        path: where the text says so, for messages: keys in a document, or a line.
        gb_per_s: bandwidth of its links upward together, per direction; 0 if unknown.
    """

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    path: Path
    gb_per_s: float = 0.0


def network_tree(switches: Sequence[Switch], nodes: Mapping[str, float]) -> Tree:
    """Return the tree of a network.

    Args:
        switches: all switches; () for one switch that joins all nodes. Nodes that are not asked
            for, and switches without a node below them, are left out.
        nodes: bandwidth of each node's link in GB/s per direction, by name. Their order is that of
            the leaves.

    Raises:
        FieldError: the network is no tree, or a node is not in it; with the path of the switch.
    """
    if not switches:
        switches = [Switch(_TOP, tuple(nodes), (), ())]
    by_name = {switch.name: switch for switch in switches}
    above = _parents(switches, by_name)
    for name in nodes:
        if ("node", name) not in above:
            raise FieldError((), f"node {quoted(name)} is on no switch of the network")
    top = _find_top(nodes, by_name, above)
    used = {switch for node in nodes for switch in _climb(("node", node), above)}
    return _build(top, by_name, used, nodes)


_Vertex = tuple[str, str]
"""A vertex of the network: "switch" or "node", and its name."""


def _parents(switches: Sequence[Switch], by_name: Mapping[str, Switch]) -> dict[_Vertex, str]:
    """Return the switch above each node and switch, after checking that there is only one."""
    above: dict[_Vertex, str] = {}
    seen: set[str] = set()
    for switch in switches:
        if switch.name in seen:
            raise FieldError(switch.path, f"switch {quoted(switch.name)} stands twice")
        seen.add(switch.name)
        below = [
            *(("node", name) for name in switch.nodes),
            *(("switch", name) for name in switch.switches),
        ]
        for kind, name in below:
            if kind == "switch" and name not in by_name:
                raise FieldError(
                    switch.path,
                    f"switch {quoted(switch.name)} has unknown switch {quoted(name)} below it",
                )
            other = above.setdefault((kind, name), switch.name)
            if other != switch.name:
                raise FieldError(
                    switch.path,
                    f"the network is no tree: {kind} {quoted(name)} is below {quoted(other)} and "
                    f"{quoted(switch.name)}",
                )
    for switch in switches:
        _refuse_circle(switch, above)
    return above


def _refuse_circle(switch: Switch, above: Mapping[_Vertex, str]) -> None:
    passed = {switch.name}
    for name in _climb(("switch", switch.name), above):
        if name in passed:
            raise FieldError(
                switch.path, f"the network is no tree: switch {quoted(name)} is above itself"
            )
        passed.add(name)


def _climb(vertex: _Vertex, above: Mapping[_Vertex, str]) -> Iterator[str]:
    """Yield the switches above a vertex, the nearest first."""
    while vertex in above:
        vertex = ("switch", above[vertex])
        yield vertex[1]


def _find_top(
    nodes: Mapping[str, float], by_name: Mapping[str, Switch], above: Mapping[_Vertex, str]
) -> str:
    """Return the lowest switch that is above all nodes."""
    first = next(iter(nodes))
    common = list(_climb(("node", first), above))
    for node in nodes:
        passed = set(_climb(("node", node), above))
        shared = [name for name in common if name in passed]
        if not shared:
            raise FieldError(
                by_name[above["node", node]].path,
                f"the network is no tree: nodes {quoted(first)} and {quoted(node)} have no switch "
                "above both",
            )
        common = shared
    return common[0]


def _build(
    top: str, by_name: Mapping[str, Switch], used: set[str], nodes: Mapping[str, float]
) -> Tree:
    """Return the part of the network below a switch, level by level."""
    parents, names, leaf_of = [-1], [top], {}
    switch_at = [(0, top)]
    for vertex, name in switch_at:  # grows as switches are found
        for child in by_name[name].switches:
            if child in used:
                switch_at.append((len(parents), child))
                parents.append(vertex)
                names.append(child)
        for node in by_name[name].nodes:
            if node in nodes:
                leaf_of[node] = len(parents)
                parents.append(vertex)
                names.append(node)
    gb_per_s = [0.0] * len(parents)
    for node, vertex in leaf_of.items():
        gb_per_s[vertex] = nodes[node]
    switches = dict(switch_at[1:])
    below = [0.0] * len(parents)
    for vertex in range(len(parents) - 1, 0, -1):  # from below, so that sums are complete
        if vertex in switches:
            stated = by_name[switches[vertex]].gb_per_s
            gb_per_s[vertex] = stated or below[vertex] * ASSUMED_UPLINK_SHARE
        below[parents[vertex]] += gb_per_s[vertex]
    return Tree(
        tuple(parents), tuple(gb_per_s), tuple(names), tuple(leaf_of[node] for node in nodes)
    )
