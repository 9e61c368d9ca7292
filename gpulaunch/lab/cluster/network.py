"""The network of a cluster: switches as texts name them, made into a tree; Slurm's own texts."""
# pure: decides on plain values

import re
from collections.abc import Iterator, Mapping, Sequence

from gpulaunch.errors import FieldError, quoted
from gpulaunch.files.fields import Path
from gpulaunch.lab.cluster.cluster import Tree
from gpulaunch.records import Record

MOST_HOSTS = 1 << 16
"""Largest number of names in a list: a typing mistake must not fill the memory."""

_ITEM = re.compile(r"(?:\[[^\[\]]*\]|[^\[\],\s])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)

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


class Switch(Record):
    """A switch of a network, or another group of nodes, as a text names it.

    Attributes:
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
        switches = [Switch("network", tuple(nodes), (), ())]
    by_name: dict[str, Switch] = {}
    for switch in switches:
        if switch.name in by_name:
            raise FieldError(switch.path, f"switch {quoted(switch.name)} stands twice")
        by_name[switch.name] = switch
    above = _switches_above(by_name)
    used: set[str] = set()
    below_top: dict[str, str] = {}  # the first node below each topmost switch
    for node in nodes:
        path = _climb(node, above)
        used.update(path)
        below_top.setdefault(path[-1], node)
    top, *other_tops = below_top
    if other_tops:
        one, other = below_top[top], below_top[other_tops[0]]
        raise FieldError(
            above["node", other].path,
            f"the network is no tree: nodes {quoted(one)} and {quoted(other)} have no switch "
            "above both",
        )
    return _build(top, by_name, used, nodes)


_Above = dict[tuple[str, str], Switch]
"""("node" or "switch", its name) -> the switch above it."""


def _switches_above(by_name: Mapping[str, Switch]) -> _Above:
    """Return the switch above each node and switch, after checking that there is only one."""
    above: _Above = {}
    for switch in by_name.values():
        unknown = [name for name in switch.switches if name not in by_name]
        if unknown:
            raise FieldError(
                switch.path,
                f"switch {quoted(switch.name)} has unknown switch {quoted(unknown[0])} below it",
            )
        below = [("node", name) for name in switch.nodes]
        below += [("switch", name) for name in switch.switches]
        for kind, name in below:
            other = above.setdefault((kind, name), switch)
            if other is not switch:
                raise FieldError(
                    switch.path,
                    f"the network is no tree: {kind} {quoted(name)} is below "
                    f"{quoted(other.name)} and {quoted(switch.name)}",
                )
    return above


def _climb(node: str, above: _Above) -> list[str]:
    """Return the names of the switches above a node, the nearest first."""
    switch = above.get(("node", node))
    if switch is None:
        raise FieldError((), f"node {quoted(node)} is on no switch of the network")
    passed: list[str] = []
    while switch:
        if switch.name in passed:
            raise FieldError(
                switch.path,
                f"the network is no tree: switch {quoted(switch.name)} is above itself",
            )
        passed.append(switch.name)
        switch = above.get(("switch", switch.name))
    return passed


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


def expand_hostlist(text: str, path: Path = ()) -> tuple[str, ...]:
    """Return the names in a list, in its order.

    A number with leading zeros gives its length to the whole range; several brackets in one name
    are combined, the last one fastest.

    Args:
        text: names separated by commas, each with any number of ranges in brackets.

    Raises:
        FieldError: the text is no such list, a name stands twice, or there are more than MOST_HOSTS
            names.

    Source: the section "hostlist expressions" of Slurm's man pages.

    Example:
        >>> expand_hostlist("n[1-2,7],m0[01-02]-ib")
        ('n1', 'n2', 'n7', 'm001-ib', 'm002-ib')
    """
    items = _ITEM.findall(text)
    if not items or ",".join(items) != text:
        raise FieldError(path, f"{quoted(text)} is no list of hosts such as 'n[1-4,7],m0[01-12]'")
    names: list[str] = []
    for item in items:
        names += _expand_item(item, path)
        if len(names) > MOST_HOSTS:
            raise FieldError(path, f"{quoted(text)} gives more than {MOST_HOSTS} names")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise FieldError(path, f"{quoted(twice)} stands twice in {quoted(text)}")
    return tuple(names)


def _expand_item(item: str, path: Path) -> list[str]:
    """Return the names of one item, which may have several brackets."""
    names = [""]
    for place, piece in enumerate(_BRACKETS.split(item)):
        inside = place % 2 == 1
        parts = _read_ranges(item, piece, path) if inside else [piece]
        if len(names) * len(parts) > MOST_HOSTS:
            raise FieldError(path, f"{quoted(item)} gives more than {MOST_HOSTS} names")
        names = [name + part for name in names for part in parts]
    return names


def _read_ranges(item: str, ranges: str, path: Path) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not found or low > high:
            raise FieldError(path, f"{quoted(item)}: {quoted(one)} is no range such as 1-4")
        if high - low >= MOST_HOSTS:
            raise FieldError(path, f"{quoted(item)} gives more than {MOST_HOSTS} names")
        numbers += [str(number).zfill(len(found[1])) for number in range(low, high + 1)]
    return numbers


def read_topology_conf(text: str) -> tuple[Switch, ...]:
    """Return the switches in a topology.conf of topology/tree or topology/block, or in what
    `scontrol show topology` prints for one.

    Blocks are switches of their own below one for all. Other lines and keys do not say how nodes
    are joined, or not in a known unit, and are skipped.

    Raises:
        FieldError: a list of hosts is wrong; its path is the line's number. Or there is no switch.

    Source: topology.conf(5) of Slurm 25.05; scontrol lists all nodes below a switch, and not only
        those on it, in lines that have Switches.
    """
    switches: list[Switch] = []
    blocks: list[str] = []
    for number, line in _lines(text):
        values: dict[str, str] = {}
        for word in line.split():
            key, _, value = word.partition("=")
            values[key.lower()] = value
        if "switchname" in values:
            below = _read_hosts(values, "switches", number)
            from_scontrol = bool(below) and "level" in values
            nodes = () if from_scontrol else _read_hosts(values, "nodes", number)
            switches.append(Switch(values["switchname"], nodes, below, (number,)))
        elif "blockname" in values:
            blocks.append(values["blockname"])
            nodes = _read_hosts(values, "nodes", number)
            switches.append(Switch(values["blockname"], nodes, (), (number,)))
    if not switches:
        raise FieldError((), "no SwitchName= and no BlockName= in it")
    if blocks:
        switches.append(Switch("all blocks", (), tuple(blocks), switches[0].path))
    return tuple(switches)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, without comments, continued ones put together."""
    before, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        stated = line.partition("#")[0].rstrip()
        start = start if before else number
        if stated.endswith("\\"):
            before += f"{stated[:-1]} "
        else:
            yield start, before + stated
            before = ""
    yield start, before


def _read_hosts(values: Mapping[str, str], key: str, number: int) -> tuple[str, ...]:
    return expand_hostlist(values[key], (number,)) if key in values else ()
