"""The machine as a multi-level graph, down to GPUs (topo-aware-sc17 4.1.2)."""
# pure: decides on plain values

from collections.abc import Iterable
from typing import Literal, TypeVar

from gpulaunch.machine.link import PathType
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace

T = TypeVar("T")

LevelKind = Literal["machine", "socket", "host bridge", "switch", "card", "GPU"]


class Level(Record):
    """A place in the machine where GPUs meet, or a GPU.

    Attributes:
        kind: kind of the place. Of levels with the same GPUs only the uppermost is kept, with its
            kind.
        path: path type of two GPUs that meet here and not below; for a GPU, the nearest type.
        gpus: indices of all GPUs below, ascending.
        cards: indices of all cards below, in the order of the tree, so that those of one switch are
            adjacent.
        children: levels below, by their first card; empty for a GPU.
        numa_node: NUMA node of all GPUs below; None if it is not the same.
        cpuset: CPUs next to all GPUs below; empty if they are not the same.
    """

    kind: LevelKind
    path: PathType
    gpus: tuple[int, ...]
    cards: tuple[int, ...]
    children: "tuple[Level, ...]" = ()
    numa_node: int | None = None
    cpuset: frozenset[int] = frozenset()

    @property
    def is_branch(self) -> bool:
        """True if cards meet here; False for a card or a GPU."""
        return self.kind not in ("GPU", "card")

    @property
    def sockets(self) -> "tuple[Level, ...]":
        """The sockets of a machine.

        A machine that is one socket, or whose GPUs have no known place, is its own only socket.
        """
        known = any(child.is_branch or child.numa_node is not None for child in self.children)
        return self.children if known and self.path == "SYS" else (self,)


_KINDS: dict[PathType, LevelKind] = {
    "PIX": "switch",
    "PXB": "switch",
    "PHB": "host bridge",
    "NODE": "socket",
}
"""What joins cards within a machine, from near to far."""

_WEIGHTS: dict[PathType, int] = {"PIX": 1, "PXB": 2, "PHB": 4, "NODE": 8, "SYS": 20}
"""Weight of an edge by the level that it leads up to.

Each exceeds the sum of the nearer ones, so that a nearer way is always shorter.
"""


def machine_tree(topology: Topology) -> Level:
    """Build the levels of a machine from its PCIe paths.

    GPUs belong together at a level if a chain of links of that path type or nearer connects them.
    On a real machine every link in the chain is direct; an inconsistent made-up table still gives a
    tree.
    """
    groups = [
        Level("GPU", "PIX", (gpu.index,), (gpu.card,), (), gpu.numa_node, gpu.cpuset)
        for gpu in sorted(topology.gpus, key=lambda gpu: gpu.card)
    ]
    first: dict[int, int] = {}
    on_one_card = [(first.setdefault(gpu.card, gpu.index), gpu.index) for gpu in topology.gpus]
    groups = _join_levels(groups, on_one_card, "card", "PIX")
    pairs: dict[PathType, list[tuple[int, int]]] = {}
    for link in topology.links:
        pairs.setdefault(link.pcie_path, []).append((link.a, link.b))
    for path, kind in _KINDS.items():
        groups = _join_levels(groups, pairs.get(path, ()), kind, path)
    # A switch or host bridge right below the machine stands for a socket.
    children = [replace(one, kind="socket") if one.is_branch else one for one in groups]
    if len(children) == 1 and children[0].is_branch:
        return replace(children[0], kind="machine")
    return _build_level("machine", "SYS", tuple(children))


def _join_levels(
    levels: list[Level], pairs: Iterable[tuple[int, int]], kind: LevelKind, path: PathType
) -> list[Level]:
    """Return the next levels up: levels that pairs connect become one, the others stay."""
    above = {index: i for i, level in enumerate(levels) for index in level.gpus}
    group = list(range(len(levels)))
    for a, b in pairs:
        one, other = group[above[a]], group[above[b]]
        if one != other:
            low, high = min(one, other), max(one, other)
            group = [low if g == high else g for g in group]
    members: dict[int, list[Level]] = {}
    for level, g in zip(levels, group, strict=True):
        members.setdefault(g, []).append(level)
    return [
        below[0] if len(below) == 1 else _build_level(kind, path, tuple(below))
        for below in members.values()
    ]


def _build_level(kind: LevelKind, path: PathType, children: tuple[Level, ...]) -> Level:
    return Level(
        kind=kind,
        path=path,
        gpus=tuple(sorted(index for child in children for index in child.gpus)),
        cards=tuple(dict.fromkeys(card for child in children for card in child.cards)),
        children=children,
        numa_node=_common_value((child.numa_node for child in children), None),
        cpuset=_common_value((child.cpuset for child in children), frozenset()),
    )


def _common_value(values: Iterable[T], otherwise: T) -> T:
    """Return the value that all have, or `otherwise` if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else otherwise


def distances(topology: Topology, tree: Level) -> dict[int, dict[int, int]]:
    """Return the distance of every two GPUs, by index: 1 by NVLink, else along the machine's tree.

    Only their order has a meaning. One edge costs 1 to a switch and 20 from a socket to the
    machine, as in the paper, and something in between at the levels between. A GPU is at 0 from
    itself.

    Source: topo-aware-sc17 4.1.2, where NVLinks are edges between GPUs. Departures: no way leads
        through a third GPU, since no driver forwards there, and the paper's introduction lets such
        a pair in a DGX-1 use PCIe, too; GPUs right below a socket are farther from each other than
        those of one switch; an NVSwitch is no vertex but an edge for each pair.
    """
    far = {gpu.index: {gpu.index: 0} for gpu in topology.gpus}
    _add_distances(tree, far)
    for link in topology.links:
        if link.nvlink_count:
            far[link.a][link.b] = far[link.b][link.a] = 1
    return far


def _add_distances(level: Level, far: dict[int, dict[int, int]]) -> dict[int, int]:
    """Add the distances of all GPUs below a level; return how far each is from the level."""
    if not level.children:
        return dict.fromkeys(level.gpus, 0)
    ways: dict[int, int] = {}
    for child in level.children:
        below = {gpu: way + _WEIGHTS[level.path] for gpu, way in _add_distances(child, far).items()}
        for a, way in below.items():
            for b, other in ways.items():
                far[a][b] = far[b][a] = way + other
        ways |= below
    return ways
