"""The machine as a value: its GPUs, and the best direct connection of every two of them.

It can also be seen as a tree of levels, down to GPUs (topo-aware-sc17 4.1.2).
"""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal, TypeVar

from gpulaunch.machine.gpu import Gpu, Mig, format_cpuset, parse_cpuset
from gpulaunch.machine.link import Link, PathType
from gpulaunch.records import Record, as_dict, as_list, field_names, replace

DEFAULT_DRIVER = "nvidia"
"""The driver of a described machine that names none."""


class Measured(Record):
    """Measured all-reduce bandwidth of one kind of set of GPUs.

    Attributes:
        ring: names of the links of its best ring, slowest last.
        all_reduce_gb_per_s: bus bandwidth of the all-reduce.
    """

    ring: tuple[str, ...]
    all_reduce_gb_per_s: float


class Topology(Record):
    """All GPUs of a machine, with a link for every two of them.

    Attributes:
        name: name of the described machine, or the host's.
        gpus: GPUs by ascending index.
        links: links by ascending (a, b); complete.
        digest: digest of the description; None for the machine that we run on.
        measured: results of `gpulaunch topo --measure`, if any.
    """

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    source: str
    digest: str | None = None
    measured: tuple[Measured, ...] = ()
    driver: str = DEFAULT_DRIVER

    def to_networkx(self) -> Any:  # noqa: ANN401
        """Return the machine as an undirected networkx graph.

        Nodes are GPU indices, edges are the links. All attributes are scalars with the names of the
        fields of Gpu and Link, except `cpuset`, a Linux CPU list, and `mig_card` and the like of a
        MIG instance. Edges also have `path`, `bandwidth_gb_per_s` and `weight`, which equals it.
        Unknown values are left out. The graph has `name`, `source` and `digest`. It has neither the
        measurements nor the driver.

        Example:
            >>> from gpulaunch.machine.link import connect
            >>> two = (Gpu(0, "GPU-a", "V100", 16 << 30), Gpu(1, "GPU-b", "V100", 16 << 30))
            >>> machine = Topology("pair", two, (connect(*two, "PIX"),), "made up")
            >>> machine.to_networkx().edges[0, 1]["path"]
            'PIX'
        """
        import networkx as nx  # type: ignore[import-untyped]

        facts = {"name": self.name, "source": self.source, "digest": self.digest}
        graph = nx.Graph(**_without_none(facts))
        for gpu in self.gpus:
            values = as_dict(gpu) | {"cpuset": format_cpuset(gpu.cpuset) or None}
            del values["index"], values["mig"]
            if gpu.mig:
                values |= {f"mig_{name}": value for name, value in as_dict(gpu.mig).items()}
            graph.add_node(gpu.index, **_without_none(values))
        for link in self.links:
            weight = link.bandwidth_gb_per_s
            values = as_dict(link) | {"path": link.path, "bandwidth_gb_per_s": weight}
            del values["a"], values["b"]
            graph.add_edge(link.a, link.b, **_without_none(values), weight=weight)
        return graph


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class TableKey(Record):
    """The key of a described machine in the allocation table; this machine's own GPUs have None.

    Attributes:
        file: path of its description, so that a launch inside a lease finds it again.
    """

    name: str
    digest: str
    file: str


def same_table(a: TableKey | None, b: TableKey | None) -> bool:
    """Return whether two keys mean the same machine, wherever its file is; None is this machine."""
    return a is b is None or (
        a is not None and b is not None and (a.name, a.digest) == (b.name, b.digest)
    )


def part_of_machine(topology: Topology, uuids: Collection[str]) -> Topology:
    """Return a machine with these GPUs alone, under their own indices."""
    gpus = tuple(gpu for gpu in topology.gpus if gpu.uuid in uuids)
    left = {gpu.index for gpu in gpus}
    links = tuple(link for link in topology.links if {link.a, link.b} <= left)
    return replace(topology, gpus=gpus, links=links)


def counts_as_cuda(topology: Topology) -> bool:
    """Return whether CUDA counts the GPUs as NVML does, so that an index means the same to both.

    It does not if a card is in MIG mode or left out: CUDA numbers what it can use, from 0 and
    without gaps.
    """
    return [gpu.index for gpu in topology.gpus] == list(range(len(topology.gpus)))


class Card(Record):
    """The contents of one slot: a GPU, or the MIG instances of one.

    Attributes:
        gpu: the GPU, or its first instance, which has the card's slot, NVLinks and CPUs.
        instances: MIG instances by number; empty for a whole card.
    """

    index: int
    gpu: Gpu
    instances: tuple[Gpu, ...] = ()

    @property
    def model(self) -> str:
        """Product name of the card."""
        mig = self.gpu.mig
        return self.gpu.model.removesuffix(f" MIG {mig.profile}") if mig else self.gpu.model

    @property
    def memory_bytes(self) -> int:
        """Total device memory; 0 if unknown, as for a card in MIG mode."""
        return 0 if self.instances else self.gpu.memory_bytes


def cards(topology: Topology) -> list[Card]:
    """Return the cards of a machine by ascending index."""
    parts: dict[int, list[Gpu]] = {}
    for gpu in sorted(topology.gpus, key=lambda gpu: gpu.card):
        parts.setdefault(gpu.card, []).append(gpu)
    return [
        Card(index, gpus[0], tuple(gpus) if gpus[0].mig else ()) for index, gpus in parts.items()
    ]


def card_links(topology: Topology) -> dict[tuple[int, int], Link]:
    """Return a link for every two cards, by their indices, lower first.

    MIG instances share the wires of their card.
    """
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    links: dict[tuple[int, int], Link] = {}
    for link in topology.links:
        a, b = sorted((card[link.a], card[link.b]))
        if a != b:
            links.setdefault((a, b), link)
    return links


def several_models(found: Iterable[Card]) -> bool:
    """Return whether the cards are of more than one model."""
    return len({card.model for card in found}) > 1


def to_rows(topology: Topology) -> list[Any]:
    """Return a topology as rows of JSON values, for another process of the same version.

    They are without digest and measurements, which a machine itself has not.
    """
    gpus = []
    for gpu in topology.gpus:
        mig = as_list(gpu.mig) if gpu.mig else None
        row = as_dict(gpu) | {"cpuset": format_cpuset(gpu.cpuset), "mig": mig}
        gpus.append([*row.values()])
    links = [as_list(link) for link in topology.links]
    return [topology.name, gpus, links, topology.source, topology.driver]


def topology_of_rows(rows: list[Any]) -> Topology:
    """Return the topology of to_rows.

    Raises:
        TypeError, ValueError: they are no rows of this version.
    """
    name, gpu_rows, link_rows, source, driver = rows
    gpus = []
    for row in gpu_rows:
        fields = dict(zip(field_names(Gpu), row, strict=True))
        fields["cpuset"] = parse_cpuset(fields["cpuset"])
        fields["mig"] = Mig(*fields["mig"]) if fields["mig"] else None
        gpus.append(Gpu(**fields))
    links = tuple([Link(*row) for row in link_rows])
    return Topology(name, tuple(gpus), links, source, driver=driver)


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
    card_of = {gpu.index: gpu.card for gpu in topology.gpus}
    groups = [
        Level("GPU", "PIX", (gpu.index,), (card_of[gpu.index],), (), gpu.numa_node, gpu.cpuset)
        for gpu in sorted(topology.gpus, key=attrgetter("card"))
    ]
    first: dict[int, int] = {}
    on_one_card = [(first.setdefault(card, index), index) for index, card in card_of.items()]
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
