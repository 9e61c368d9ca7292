"""What a mapping is judged by: the congestion of links (magc-2016 V-B)."""
# pure: decides on plain values

from collections.abc import Iterator

from gpulaunch.cluster.congestion import loads
from gpulaunch.cluster.mapping import MappingProblem, RankMapping
from gpulaunch.cluster.trees import whole_trees
from gpulaunch.records import Record
from gpulaunch.typing import Literal

TreeKind = Literal["network", "CPU", "GPU"]


class LinkLoad(Record):
    """A link and what goes over it.

    Attributes:
        tree: "network", or the tree inside a node.
        depth: number of links from its lower end to the top of the network.
        vertex: its lower end in the whole tree, of GPUs if that is its tree, else of CPUs.
        name: name of that vertex.
        load: traffic in both directions, in the unit of the ranks' traffic.
        gb_per_s: its bandwidth per direction.
    """

    tree: TreeKind
    depth: int
    vertex: int
    name: str
    load: float
    gb_per_s: float

    @property
    def congestion(self) -> float:
        """The load divided by the bandwidth."""
        return self.load / self.gb_per_s


class LevelLoad(Record):
    """All links of one tree at one depth.

    Attributes:
        tree: "network", or the tree inside nodes.
        depth: see LinkLoad.
        links: how many there are.
        maximum: the largest congestion of one.
        total: sum of their congestions.
    """

    tree: TreeKind
    depth: int
    links: int
    maximum: float
    total: float


class Judgement(Record):
    """How a mapping loads the links.

    Attributes:
        maximum: the largest congestion of a link.
        worst: the first link that has it; None if there is no link.
        levels: network, CPU and GPU trees from the top down.
        between_nodes: traffic of pairs of ranks on different nodes, CPU and GPU together.
        links: every link.
    """

    maximum: float
    worst: LinkLoad | None
    levels: tuple[LevelLoad, ...]
    between_nodes: float
    links: tuple[LinkLoad, ...]


def judge(problem: MappingProblem, mapping: RankMapping) -> Judgement:
    """Return the load of every link under a mapping.

    The network carries CPU and GPU traffic, the trees inside nodes each their own, also of pairs on
    different nodes, on its way to the network and from it.

    Args:
        problem: what the mapping was made for.
        mapping: the place of every rank.
    """
    links = tuple(_links(problem, mapping))
    worst = max(links, key=lambda link: link.congestion, default=None)
    between = sum(
        weight
        for traffic in (problem.cpu, problem.gpu)
        for a, b, weight in traffic.edges
        if mapping[a].node != mapping[b].node
    )
    return Judgement(
        worst.congestion if worst else 0.0, worst, tuple(_levels(links)), between, links
    )


def _links(problem: MappingProblem, mapping: RankMapping) -> Iterator[LinkLoad]:
    cluster = problem.cluster
    trees = whole_trees(cluster)
    core_slots = {
        place: slot
        for slot, place in enumerate(
            (number, core)
            for number, node in enumerate(cluster.nodes)
            for cores in node.sockets
            for core in cores
        )
    }
    gpu_slots = {
        place: slot
        for slot, place in enumerate(
            (number, gpu.index)
            for number, node in enumerate(cluster.nodes)
            for gpu in node.topology.gpus
        )
    }
    cpu = loads(trees.cpu, problem.cpu, [core_slots[place.node, place.core] for place in mapping])
    gpu = loads(trees.gpu, problem.gpu, [gpu_slots[place.node, place.gpu] for place in mapping])
    network = len(cluster.network.parents)
    both = [one + other for one, other in zip(cpu[:network], gpu, strict=False)]
    kinds: tuple[tuple[TreeKind, list[float], range], ...] = (
        ("network", both, range(1, network)),
        ("CPU", cpu, range(network, len(cpu))),
        ("GPU", gpu, range(network, len(gpu))),
    )
    for kind, carried, vertices in kinds:
        tree = trees.gpu if kind == "GPU" else trees.cpu
        depths = tree.depths()
        for vertex in vertices:
            yield LinkLoad(
                kind,
                depths[vertex],
                vertex,
                tree.names[vertex],
                carried[vertex],
                tree.gb_per_s[vertex],
            )


def _levels(links: tuple[LinkLoad, ...]) -> Iterator[LevelLoad]:
    found: dict[tuple[TreeKind, int], list[float]] = {}
    for link in links:
        found.setdefault((link.tree, link.depth), []).append(link.congestion)
    order: tuple[TreeKind, ...] = ("network", "CPU", "GPU")
    for tree, depth in sorted(found, key=lambda key: (order.index(key[0]), key[1])):
        congestions = found[tree, depth]
        yield LevelLoad(tree, depth, len(congestions), max(congestions), sum(congestions))
