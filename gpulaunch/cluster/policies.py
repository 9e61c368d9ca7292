"""The mapping policies by name."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from gpulaunch.cluster.bisection import Rows
from gpulaunch.cluster.judge import judge
from gpulaunch.cluster.magc import map_greedily
from gpulaunch.cluster.mapping import MappingProblem, Place, RankMapping
from gpulaunch.cluster.multisect import multisect, to_nodes
from gpulaunch.cluster.phases import map_inside, nodes_in_use
from gpulaunch.cluster.rank_traffic import RankTraffic, summed, together
from gpulaunch.cluster.scotch import find_gmap, map_by_scotch
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FailedError, UsageError

DEFAULT_MAPPING_POLICY = "auto"


def _map_in_order(problem: MappingProblem) -> RankMapping:
    """Fill nodes one after the other: the local rank is the number of core and GPU."""
    places = [
        Place(number, core, gpu.index)
        for number, node in enumerate(problem.cluster.nodes)
        for core, gpu in zip(sum(node.sockets, ()), node.topology.gpus, strict=False)
    ]
    return tuple(places[: problem.cpu.ranks])


def _map_by_magc(problem: MappingProblem) -> RankMapping:
    """Map to nodes by CPU and GPU traffic, then inside by Algorithm 1 (magc-2016 V)."""
    nodes = _to_nodes(problem, together((problem.cpu, problem.gpu)))
    return map_inside(problem, nodes, map_greedily, map_greedily)


def _map_by_strategy_1(problem: MappingProblem) -> RankMapping:
    """Map to nodes by CPU traffic alone, then inside as MAGC does (magc-2016 VI)."""
    return map_inside(problem, _to_nodes(problem, problem.cpu), map_greedily, map_greedily)


def _map_by_strategy_2(problem: MappingProblem) -> RankMapping:
    """Map to nodes and cores by CPU traffic alone; the local rank is the GPU (magc-2016 VI)."""
    return map_inside(problem, _to_nodes(problem, problem.cpu), map_greedily, _in_order)


def _to_nodes(problem: MappingProblem, traffic: RankTraffic) -> list[int]:
    """Return the node of each rank.

    The paper takes an algorithm of another one, of which it says that for a single switch only its
    initial partition is left; this is a partition in its place.
    """
    return to_nodes(traffic, problem.cluster.network, nodes_in_use(problem), problem.seed)


def _in_order(_rows: Rows, members: Sequence[int], _tree: Tree) -> dict[int, int]:
    return {rank: position for position, rank in enumerate(members)}


def _map_by_best(problem: MappingProblem) -> RankMapping:
    """Map by multisect, or by Scotch where it is installed and congests the worst link less."""
    found = [multisect(problem)]
    if find_gmap():
        with suppress(FailedError, UsageError):  # of Scotch, which takes even trees alone
            found.append(_map_by_scotch(problem))
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda mapping: judge(problem, mapping).maximum)


def _map_by_scotch(problem: MappingProblem) -> RankMapping:
    """Map by Scotch in each of MAGC's phases (magc-2016 V-B)."""

    def inside(rows: Rows, members: Sequence[int], tree: Tree) -> dict[int, int]:
        index = {rank: i for i, rank in enumerate(members)}
        edges = [
            (index[rank], index[other], weight)
            for rank in members
            for other, weight in rows[rank]
            if other in index and rank < other
        ]
        local = summed(len(members), edges)
        return dict(zip(members, map_by_scotch(local, tree, 1), strict=True))

    both = together((problem.cpu, problem.gpu))
    sizes = nodes_in_use(problem)
    if len(set(sizes)) > 1:
        raise UsageError("Scotch: nodes take different numbers of ranks, or some take none")
    nodes = map_by_scotch(both, problem.cluster.network, sizes[0])
    return map_inside(problem, nodes, inside, inside)


MAPPING_POLICIES: dict[str, Callable[[MappingProblem], RankMapping]] = {
    "auto": _map_by_best,
    "multisect": multisect,
    "magc": _map_by_magc,
    "magc_scotch": _map_by_scotch,
    "strategy_1": _map_by_strategy_1,
    "strategy_2": _map_by_strategy_2,
    "default": _map_in_order,
}
"""Name -> function; there are at least as many slots as ranks."""
