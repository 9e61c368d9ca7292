"""What mapping policies are held against: Scotch and the strategies of magc-2016 VI.

Of Scotch (Pellegrini and Roman, HPCN 1996) gmap is the program that maps to a tree; magc-2016 V-B
maps by it in each of MAGC's phases.
"""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence

from gpulaunch.lab.cluster.cluster import Tree
from gpulaunch.lab.cluster.mapping import MappingProblem, RankMapping, map_inside, nodes_in_use
from gpulaunch.lab.cluster.policies import Rows, map_greedily, to_nodes
from gpulaunch.lab.cluster.traffic import RankTraffic, rows_of, summed, together

GMAP = shutil.which("scotch_gmap") or shutil.which("gmap")


def map_by_strategy_1(problem: MappingProblem) -> RankMapping:
    """Map to nodes by CPU traffic alone, then inside as MAGC does."""
    nodes = to_nodes(problem.cpu, problem.cluster.network, nodes_in_use(problem))
    return map_inside(problem, nodes, map_greedily, map_greedily)


def map_by_strategy_2(problem: MappingProblem) -> RankMapping:
    """Map to nodes and cores by CPU traffic alone; the local rank is the GPU."""

    def in_order(_rows: Rows, members: Sequence[int], _tree: Tree) -> dict[int, int]:
        return {rank: position for position, rank in enumerate(members)}

    nodes = to_nodes(problem.cpu, problem.cluster.network, nodes_in_use(problem))
    return map_inside(problem, nodes, map_greedily, in_order)


def map_by_scotch(problem: MappingProblem) -> RankMapping:
    """Map by Scotch to nodes that take as many ranks each, and inside them."""

    def inside(rows: Rows, members: Sequence[int], tree: Tree) -> dict[int, int]:
        index = {rank: i for i, rank in enumerate(members)}
        edges = [
            (index[rank], index[other], weight)
            for rank in members
            for other, weight in rows[rank]
            if other in index and rank < other
        ]
        return dict(zip(members, to_leaves(summed(len(members), edges), tree, 1), strict=True))

    both = together((problem.cpu, problem.gpu))
    (size,) = set(nodes_in_use(problem))
    return map_inside(problem, to_leaves(both, problem.cluster.network, size), inside, inside)


def to_leaves(traffic: RankTraffic, tree: Tree, size: int) -> list[int]:
    """Return the leaf of each rank by Scotch's default strategy.

    Args:
        tree: all vertices of a level have as many children, over links of one bandwidth. Two leaves
            count as far from each other as 1 / bandwidth of all links between adds up.
        size: how many ranks each leaf takes.
    """
    levels = levels_of(tree)
    if not levels or traffic.ranks < 2:
        return [0] * traffic.ranks
    rows = [*rows_of(traffic), *[[]] * (size * len(tree.leaves) - traffic.ranks)]
    largest = max([weight for _, _, weight in traffic.edges], default=1.0)
    lines = ["0", f"{len(rows)} {2 * len(traffic.edges)}", "0 010"]  # 010: edges have weights
    for row in rows:
        ends = (f"{integer(weight, largest)} {other}" for other, weight in row)
        lines.append(" ".join([str(len(row)), *ends]))
    ways = (f"{fan} {integer(way, levels[0][1])}" for fan, way in levels)
    lines.append(" ".join(["tleaf", str(len(levels)), *ways]))
    one_thread = {**os.environ, "SCOTCH_PTHREAD_NUMBER": "1"}  # several map by chance
    for balance in ([], ["-b0"]):  # by default a leaf may get a rank too many
        argv = [str(GMAP), *balance, "-", "-", "-"]
        text = "\n".join(lines) + "\n"
        printed = subprocess.check_output(argv, input=text, env=one_thread, text=True)
        pairs = map(str.split, printed.splitlines()[1:])
        found = {int(vertex): int(leaf) for vertex, leaf in pairs}
        if len(found) == len(rows) and max(Counter(found.values()).values()) <= size:
            return [found[rank] for rank in range(traffic.ranks)]
    raise AssertionError(f"no mapping of {traffic.ranks} ranks")


def integer(weight: float, largest: float) -> int:
    """Return a weight as Scotch has them: an integer, 1,000 for the largest."""
    return max(1, round(weight / largest * 1000))


def levels_of(tree: Tree) -> list[tuple[int, float]]:
    """Return the fan-out of each level from the top, and the way up from its lowest vertices."""
    children = tree.children()
    level, links = [0], list[tuple[int, float]]()
    while any(children[vertex] for vertex in level):
        below = children[level[0]]
        links.append((len(below), 1.0 / tree.gb_per_s[below[0]]))
        level = [child for vertex in level for child in children[vertex]]
    ways = [sum(way for _, way in links[number:]) for number in range(len(links))]
    return [(fan, way) for (fan, _), way in zip(links, ways, strict=True) if fan > 1]
