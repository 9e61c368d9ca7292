"""The mapping of ranks to nodes, cores and GPUs: its load of links, and its files for engines."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from gpulaunch.lab.cluster.cluster import Cluster, Tree, cpu_tree, gpu_tree
from gpulaunch.lab.cluster.traffic import RankTraffic, Rows, rows_of, together
from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record


class Place(Record):
    """Where one rank runs: the number of the node, and there the id of a core and a GPU's index."""

    node: int
    core: int
    gpu: int


class MappingProblem(Record):
    """What a mapping is made for.

    Attributes:
        cpu: what the ranks' processes send each other.
        gpu: what their GPUs send each other; as many ranks.
    """

    cluster: Cluster
    cpu: RankTraffic
    gpu: RankTraffic


RankMapping = tuple[Place, ...]
"""The place of each rank, by rank."""

Inside = Callable[[Rows, Sequence[int], Tree], dict[int, int]]
"""Rows of all ranks, those on a node, and a tree of it -> position of the leaf of each of them."""


def map_inside(
    problem: MappingProblem, nodes: Sequence[int], to_cores: Inside, to_gpus: Inside
) -> RankMapping:
    """Return the mapping of ranks that are on nodes already: phases 2 and 3 (magc-2016 V-A)."""
    members: dict[int, list[int]] = {}
    for rank, number in enumerate(nodes):
        members.setdefault(number, []).append(rank)
    cpu, gpu = rows_of(problem.cpu), rows_of(problem.gpu)
    places: dict[int, Place] = {}
    for number, ranks in members.items():
        node = problem.cluster.nodes[number]
        ids = [core for cores in node.sockets for core in cores]
        cores = to_cores(cpu, ranks, cpu_tree(node))
        gpus = to_gpus(gpu, ranks, gpu_tree(node))
        for rank in ranks:
            gpu_index = node.topology.gpus[gpus[rank]].index
            places[rank] = Place(number, ids[cores[rank]], gpu_index)
    return tuple(places[rank] for rank in range(len(nodes)))


def nodes_in_use(problem: MappingProblem) -> list[int]:
    """Return the slots of each node that the ranks use, 0 of the others.

    They use as few nodes as can be, below the switch with the fewest slots that has so many. Large
    nodes come first, then those of large switches.
    """
    network, ranks = problem.cluster.network, problem.cpu.ranks
    slots = [node.slots for node in problem.cluster.nodes]
    below: list[list[int]] = [[] for _ in network.parents]
    for position, vertex in enumerate(network.leaves):
        below[vertex].append(position)
    for vertex in range(len(network.parents) - 1, 0, -1):
        below[network.parents[vertex]] += below[vertex]
    sizes = [sum(slots[position] for position in positions) for positions in below]
    depths = network.depths()

    def order(position: int) -> tuple[int, int, int]:
        return -slots[position], -sizes[network.parents[network.leaves[position]]], position

    choices = []
    for vertex, positions in enumerate(below):
        taken: set[int] = set()
        left = ranks
        for position in sorted(positions, key=order):
            if left > 0:
                taken.add(position)
                left -= slots[position]
        if left <= 0:
            choices.append((len(taken), sizes[vertex], -depths[vertex], vertex, taken))
    used = min(choices)[-1]
    return [size if position in used else 0 for position, size in enumerate(slots)]


def loads_of_links(tree: Tree, edges: Iterable[Edge], vertices: Sequence[int]) -> list[float]:
    """Return the traffic over the link from each vertex of a tree to its parent.

    Args:
        vertices: vertex of each rank; several ranks may be at one.
    """
    loads = [0.0] * len(tree.parents)
    depths = tree.depths()
    for a, b, weight in edges:
        one, other = vertices[a], vertices[b]
        while one != other:
            if depths[one] < depths[other]:
                one, other = other, one
            loads[one] += weight
            one = tree.parents[one]
    return loads


TreeKind = Literal["network", "CPU", "GPU"]


class LinkLoad(Record):
    """A link and what goes over it.

    Attributes:
        tree: "network", or the tree inside a node.
        depth: number of links from its lower end to the top of the network.
        name: name of its lower end.
        load: traffic in both directions, in the unit of the ranks' traffic.
        gb_per_s: its bandwidth per direction.
    """

    tree: TreeKind
    depth: int
    name: str
    load: float
    gb_per_s: float

    @property
    def congestion(self) -> float:
        """The load divided by the bandwidth (magc-2016 V-B)."""
        return self.load / self.gb_per_s


class Judgement(Record):
    """How a mapping loads the links.

    Attributes:
        worst: the first link that has it; None if there is no link.
        between_nodes: traffic of pairs of ranks on different nodes, CPU and GPU together.
    """

    maximum: float
    worst: LinkLoad | None
    between_nodes: float
    links: tuple[LinkLoad, ...]


def judge(problem: MappingProblem, mapping: RankMapping) -> Judgement:
    """Return the load of every link under a mapping.

    The network carries CPU and GPU traffic, the trees inside nodes each their own, also of pairs on
    different nodes, on its way to the network and from it.
    """
    links = tuple(_links(problem, mapping))
    worst = max(links, key=lambda link: link.congestion, default=None)
    between = sum(
        weight
        for traffic in (problem.cpu, problem.gpu)
        for a, b, weight in traffic.edges
        if mapping[a].node != mapping[b].node
    )
    return Judgement(worst.congestion if worst else 0.0, worst, between, links)


def _links(problem: MappingProblem, mapping: RankMapping) -> Iterator[LinkLoad]:
    network, nodes = problem.cluster.network, problem.cluster.nodes
    both = together((problem.cpu, problem.gpu))
    on_nodes = [network.leaves[place.node] for place in mapping]
    yield from _links_of("network", network, loads_of_links(network, both.edges, on_nodes), 0)
    depths = network.depths()
    kinds: tuple[tuple[TreeKind, RankTraffic], ...] = (("CPU", problem.cpu), ("GPU", problem.gpu))
    for kind, traffic in kinds:
        touching = _edges_of_nodes(traffic, mapping, len(nodes))
        for number, node in enumerate(nodes):
            if kind == "CPU":
                tree, ids = cpu_tree(node), sum(node.sockets, ())
                taken = [place.core for place in mapping]
            else:
                tree, ids = gpu_tree(node), tuple(gpu.index for gpu in node.topology.gpus)
                taken = [place.gpu for place in mapping]
            leaves = dict(zip(ids, tree.leaves, strict=True))
            vertices = []
            for place, own in zip(mapping, taken, strict=True):
                vertices.append(leaves[own] if place.node == number else 0)
            loads = loads_of_links(tree, touching[number], vertices)
            yield from _links_of(kind, tree, loads, depths[network.leaves[number]])


def _edges_of_nodes(traffic: RankTraffic, mapping: RankMapping, nodes: int) -> list[list[Edge]]:
    """Return the traffic of the ranks of each node; ranks elsewhere are beyond its root."""
    touching: list[list[Edge]] = [[] for _ in range(nodes)]
    for edge in traffic.edges:
        for number in {mapping[edge[0]].node, mapping[edge[1]].node}:
            touching[number].append(edge)
    return touching


def _links_of(kind: TreeKind, tree: Tree, loads: Sequence[float], above: int) -> Iterator[LinkLoad]:
    depths = tree.depths()
    for x in range(1, len(tree.parents)):
        yield LinkLoad(kind, above + depths[x], tree.names[x], loads[x], tree.gb_per_s[x])


def rankfile(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a rankfile of Open MPI 4.1: socket and core of each rank by their logical numbers.

    Source: mpirun(1) of Open MPI 4.1, "Rankfiles".

    Example of a line: rank 0=n1 slot=0:3
    """
    lines = []
    for rank, place in enumerate(mapping):
        node = cluster.nodes[place.node]
        for socket, cores in enumerate(node.sockets):
            if place.core in cores:
                slot = f"{socket}:{cores.index(place.core)}"
                lines.append(f"rank {rank}={node.name} slot={slot}\n")
    return "".join(lines)


def rankfile5(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a rankfile of Open MPI 5: the core of each rank by its logical number in the node.

    Source: "Rankfiles" in the documentation of PRRTE 3: all numbers are logical.

    Example of a line: rank 0=n1 slot=3
    """
    lines = []
    for rank, place in enumerate(mapping):
        node = cluster.nodes[place.node]
        slot = sum(node.sockets, ()).index(place.core)
        lines.append(f"rank {rank}={node.name} slot={slot}\n")
    return "".join(lines)


def hostfile(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a hostfile of Open MPI: the nodes that have ranks, each with as many slots."""
    counts = Counter(cluster.nodes[place.node].name for place in mapping)
    return "".join(f"{node} slots={count}\n" for node, count in counts.items())


def slurm_hosts(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a file for SLURM_HOSTFILE and --distribution=arbitrary: each rank's node.

    Source: srun(1), --distribution.
    """
    return "".join(f"{cluster.nodes[place.node].name}\n" for place in mapping)


ENGINE_FILES: dict[str, Callable[[Cluster, RankMapping], str]] = {
    "rankfile": rankfile,
    "rankfile5": rankfile5,
    "hostfile": hostfile,
    "slurm_hosts": slurm_hosts,
}
"""Name of a file in a directory -> function that makes its text."""
