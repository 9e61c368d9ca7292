"""The mapping policies by name."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from gpulaunch.cluster.bisection import Rows
from gpulaunch.cluster.judge import judge
from gpulaunch.cluster.magc import map_greedily
from gpulaunch.cluster.mapping import MappingProblem, Place, RankMapping
from gpulaunch.cluster.multisect import multisect, to_nodes
from gpulaunch.cluster.phases import map_inside, nodes_in_use
from gpulaunch.cluster.rank_traffic import RankTraffic, together
from gpulaunch.cluster.scotch import is_installed
from gpulaunch.cluster.scotch_mapping import magc_scotch, scotch
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FailedError

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
    for policy in (magc_scotch, scotch) if is_installed() else ():
        with suppress(FailedError):  # a crash of Scotch's leaves the others
            found.append(policy(problem))
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda mapping: judge(problem, mapping).maximum)


MAPPING_POLICIES: dict[str, Callable[[MappingProblem], RankMapping]] = {
    "auto": _map_by_best,
    "multisect": multisect,
    "magc": _map_by_magc,
    "magc_scotch": magc_scotch,
    "scotch": scotch,
    "strategy_1": _map_by_strategy_1,
    "strategy_2": _map_by_strategy_2,
    "default": _map_in_order,
}
"""Name -> function; there are at least as many slots as ranks."""
