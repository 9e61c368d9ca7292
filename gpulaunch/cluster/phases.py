"""A mapping in three phases: ranks to nodes, then to cores, and to GPUs (magc-2016 V-A)."""
# pure: decides on plain values

from collections.abc import Callable, Sequence

from gpulaunch.cluster.bisection import Rows
from gpulaunch.cluster.mapping import MappingProblem, Place, RankMapping
from gpulaunch.cluster.near_nodes import sizes_in_use
from gpulaunch.cluster.rank_traffic import RankTraffic
from gpulaunch.cluster.tree import Tree
from gpulaunch.cluster.trees import inner_trees

ToNodes = Callable[[RankTraffic, Tree, Sequence[int]], Sequence[int]]
"""Traffic, network and the slots of each node, 0 if it is not used -> node of each rank."""

Inside = Callable[[Rows, Sequence[int], Tree], dict[int, int]]
"""Rows of all ranks, those on a node, and a tree of it -> position of the leaf of each of them."""


def rows_of(traffic: RankTraffic) -> list[list[tuple[int, float]]]:
    """Return the partners of each rank with what they exchange."""
    return [list(row.items()) for row in traffic.neighbours()]


def nodes_in_use(problem: MappingProblem) -> list[int]:
    """Return the slots of each node that the ranks use, 0 of the others."""
    cluster = problem.cluster
    slots = [node.slots for node in cluster.nodes]
    return sizes_in_use(cluster.network, slots, problem.cpu.ranks)


def map_inside(
    problem: MappingProblem, nodes: Sequence[int], to_cores: Inside, to_gpus: Inside
) -> RankMapping:
    """Return the mapping of ranks that are on nodes already: phases 2 and 3.

    Args:
        problem: what it is made for.
        nodes: number of the node of each rank.
        to_cores: given CPU traffic and the tree of cores.
        to_gpus: given GPU traffic and the tree of GPUs.
    """
    members: dict[int, list[int]] = {}
    for rank, number in enumerate(nodes):
        members.setdefault(number, []).append(rank)
    trees = inner_trees(problem.cluster)
    cpu, gpu = rows_of(problem.cpu), rows_of(problem.gpu)
    places: dict[int, Place] = {}
    for number, ranks in members.items():
        node = problem.cluster.nodes[number]
        ids = [core for cores in node.sockets for core in cores]
        cores = to_cores(cpu, ranks, trees[number].cpu)
        gpus = to_gpus(gpu, ranks, trees[number].gpu)
        for rank in ranks:
            gpu_index = node.topology.gpus[gpus[rank]].index
            places[rank] = Place(number, ids[cores[rank]], gpu_index)
    return tuple(places[rank] for rank in range(len(nodes)))
