"""The mapping policies by name, with the heuristic of magc-2016."""

from collections.abc import Callable, Sequence

from gpulaunch.lab.cluster.bisection import Rows
from gpulaunch.lab.cluster.cluster import Tree
from gpulaunch.lab.cluster.mapping import (
    MappingProblem,
    Place,
    RankMapping,
    map_inside,
    nodes_in_use,
)
from gpulaunch.lab.cluster.multisect import multisect, to_nodes
from gpulaunch.lab.cluster.traffic import together

DEFAULT_MAPPING_POLICY = "multisect"


def map_greedily(rows: Rows, members: Sequence[int], tree: Tree) -> dict[int, int]:
    """Return the position of the leaf of each rank, by Algorithm 1.

    Next comes the rank whose mean traffic with neighbours that are mapped exceeds that with its
    other neighbours most. It takes the free leaf with which the most congested link of the tree is
    least congested.

    Args:
        rows: neighbours of each rank; only those among members count.
        members: ranks, at most as many as leaves.

    Source: magc-2016, Algorithm 1. Mends: a mean over no neighbours is 0, where the paper divides 0
        by 0; a neighbour is whom a rank sends to or receives from. Open in the paper, and decided
        here: of equal ranks the lowest comes first; of equal leaves the one that adds the least
        congestion in sum, then the first. As printed, the first rank is the one with the least mean
        traffic, since delta is negative for all.
    """
    among = set(members)
    near = {q: [(r, weight) for r, weight in rows[q] if r in among] for q in members}
    paths = [_path(tree, vertex) for vertex in tree.leaves]
    congestions = [0.0] * len(tree.parents)
    free = list(range(len(tree.leaves)))
    mapped: dict[int, int] = {}
    while len(mapped) < len(members):
        new = max(
            (q for q in members if q not in mapped), key=lambda q: (_delta(near[q], mapped), -q)
        )
        partners = [(paths[mapped[r]], weight) for r, weight in near[new] if r in mapped]
        most_before = max(congestions)
        best: tuple[float, float] | None = None
        tried: set[tuple[int, float]] = set()
        for leaf in free:
            vertex = tree.leaves[leaf]
            kind = tree.parents[vertex], tree.gb_per_s[vertex]
            if kind in tried:  # free leaves of one parent are alike: the first stands for all
                continue
            tried.add(kind)
            added: dict[int, float] = {}
            for path, weight in partners:
                for link in paths[leaf] ^ path:
                    added[link] = added.get(link, 0.0) + weight / tree.gb_per_s[link]
            most = most_before
            for link, more in added.items():
                most = max(most, congestions[link] + more)
            cost = most, sum(added.values())
            if best is None or cost < best:
                best, chosen, brought = cost, leaf, added
        for link, more in brought.items():
            congestions[link] += more
        free.remove(chosen)
        mapped[new] = chosen
    return mapped


def _delta(near: Sequence[tuple[int, float]], mapped: dict[int, int]) -> float:
    inside = [weight for other, weight in near if other in mapped]
    outside = [weight for other, weight in near if other not in mapped]
    return _mean(inside) - _mean(outside)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _path(tree: Tree, vertex: int) -> frozenset[int]:
    """Return the vertices with links from a leaf up."""
    found = []
    while vertex:
        found.append(vertex)
        vertex = tree.parents[vertex]
    return frozenset(found)


def _map_in_order(problem: MappingProblem) -> RankMapping:
    """Fill nodes one after the other: the local rank is the number of core and GPU."""
    places = [
        Place(number, core, gpu.index)
        for number, node in enumerate(problem.cluster.nodes)
        for core, gpu in zip(sum(node.sockets, ()), node.topology.gpus, strict=False)
    ]
    return tuple(places[: problem.cpu.ranks])


def _map_by_magc(problem: MappingProblem) -> RankMapping:
    """Map to nodes by CPU and GPU traffic, then inside by Algorithm 1 (magc-2016 V).

    To nodes the paper takes an algorithm of another one, of which it says that for a single switch
    only its initial partition is left; here is a partition in its place.
    """
    both = together((problem.cpu, problem.gpu))
    nodes = to_nodes(both, problem.cluster.network, nodes_in_use(problem))
    return map_inside(problem, nodes, map_greedily, map_greedily)


MAPPING_POLICIES: dict[str, Callable[[MappingProblem], RankMapping]] = {
    "multisect": multisect,
    "magc": _map_by_magc,
    "default": _map_in_order,
}
"""Name -> function; there are at least as many slots as ranks."""
