"""The mapping policies that ask Scotch: in MAGC's phases, and for one tree at once.

Scotch runs in a child process, which is all that ends if it crashes.
"""

import json
import os
from collections.abc import Callable, Sequence

from gpulaunch.cluster.bisection import Rows
from gpulaunch.cluster.mapping import MappingProblem, Place, RankMapping
from gpulaunch.cluster.phases import map_inside, nodes_in_use, rows_of
from gpulaunch.cluster.rank_traffic import RankTraffic, together
from gpulaunch.cluster.scotch import map_by_scotch, refuse_without_scotch
from gpulaunch.cluster.tree import Tree, grafted
from gpulaunch.cluster.trees import inner_trees
from gpulaunch.errors import FailedError


def magc_scotch(problem: MappingProblem) -> RankMapping:
    """Map by Scotch in each of MAGC's phases (magc-2016 V-B)."""
    return _in_child(_map_in_phases, problem)


def scotch(problem: MappingProblem) -> RankMapping:
    """Map CPU and GPU traffic together to the GPUs of the whole cluster as one tree, by Scotch.

    Cores follow from nodes: Scotch maps to them by CPU traffic.
    """
    return _in_child(_map_to_one_tree, problem)


def _in_child(
    policy: Callable[[MappingProblem], RankMapping], problem: MappingProblem
) -> RankMapping:
    """Return what a policy returns in a child process.

    Raises:
        FailedError: the child said nothing, since Scotch crashed or failed.
    """
    refuse_without_scotch()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read_end)
            os.environ["SCOTCH_PTHREAD_NUMBER"] = "1"  # several threads map by chance
            mapping = policy(problem)
            with open(write_end, "w") as pipe:
                json.dump([(place.node, place.core, place.gpu) for place in mapping], pipe)
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        ended = os.waitstatus_to_exitcode(status)
        raise FailedError(
            f"Scotch: no mapping of {problem.cpu.ranks} ranks"
            + (f", it ended by signal {-ended}" if ended < 0 else "")
        )
    return tuple(Place(*place) for place in json.loads(text))


def _map_in_phases(problem: MappingProblem) -> RankMapping:
    both = together((problem.cpu, problem.gpu))
    nodes = _map(both, problem.cluster.network, nodes_in_use(problem))
    return map_inside(problem, nodes, _map_inside, _map_inside)


def _map_to_one_tree(problem: MappingProblem) -> RankMapping:
    both = together((problem.cpu, problem.gpu))
    used = nodes_in_use(problem)
    trees = [trees.gpu for trees in inner_trees(problem.cluster)]
    whole = grafted(problem.cluster.network, trees)
    slots = [
        (node, position) for node, tree in enumerate(trees) for position in range(len(tree.leaves))
    ]
    found = _map(both, whole, [int(position < used[node]) for node, position in slots])
    gpus = dict(enumerate(slots[slot][1] for slot in found))
    return map_inside(
        problem, [slots[slot][0] for slot in found], _map_inside, lambda _rows, _ranks, _tree: gpus
    )


def _map_inside(rows: Rows, members: Sequence[int], tree: Tree) -> dict[int, int]:
    index = {rank: i for i, rank in enumerate(members)}
    edges = tuple(
        (index[rank], index[other], weight)
        for rank in members
        for other, weight in rows[rank]
        if other in index and index[rank] < index[other]
    )
    found = _map(RankTraffic(len(members), edges), tree, [1] * len(tree.leaves))
    return dict(zip(members, found, strict=True))


def _map(traffic: RankTraffic, tree: Tree, sizes: Sequence[int]) -> list[int]:
    """Return the leaf of each rank, none with more ranks than it takes."""
    taken = [position for position, size in enumerate(sizes) if size]
    room = [sizes[position] for position in taken]
    found = map_by_scotch(traffic.ranks, traffic.edges, _pruned(tree, taken), room)
    for place in found:
        room[place] -= 1
    rows = rows_of(traffic)
    for rank, place in enumerate(found):
        if room[place] < 0:  # Scotch balances, but not exactly: go where most partners are
            pulls = [0.0] * len(room)
            for other, weight in rows[rank]:
                pulls[found[other]] += weight
            better = max((i for i, free in enumerate(room) if free > 0), key=pulls.__getitem__)
            room[place] += 1
            room[better] -= 1
            found[rank] = better
    return [taken[place] for place in found]


def _pruned(tree: Tree, positions: Sequence[int]) -> Tree:
    """Return a tree with some of its leaves alone, and what is above them."""
    kept = {0}
    for position in positions:
        vertex = tree.leaves[position]
        while vertex not in kept:
            kept.add(vertex)
            vertex = tree.parents[vertex]
    order = sorted(kept)
    index = {vertex: number for number, vertex in enumerate(order)}
    return Tree(
        (-1, *(index[tree.parents[vertex]] for vertex in order[1:])),
        tuple(tree.gb_per_s[vertex] for vertex in order),
        tuple(tree.names[vertex] for vertex in order),
        tuple(index[tree.leaves[position]] for position in positions),
    )
