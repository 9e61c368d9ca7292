"""The mapping policy `multisect`: ranks spread down a tree so that no link is congested."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.bisection import TINY, Rows, bisect, splits
from gpulaunch.cluster.cluster import Tree
from gpulaunch.cluster.mapping import (
    MappingProblem,
    RankMapping,
    loads_of_links,
    map_inside,
    nodes_in_use,
)
from gpulaunch.cluster.traffic import RankTraffic, largest_weight, rows_of, scaled, together
from gpulaunch.records import Record, replace

_STARTS = 8
"""Vertices at which a bisection begins, if it matters."""

_STARTS_ANEW = 24
"""Likewise, if two parts are split anew."""

_PARTNERS = 3
"""Parts with which the most congested one is split anew, before it is left as it is."""

_WORTHWHILE = 0.99
"""Share of the largest congestion that a split anew must get below, lest there be no end."""

_UNEVEN = 1.05
"""The largest congestion over the mean, from which parts are evened out."""


class Branch(Record):
    """A vertex of a tree with what is below it.

    Attributes:
        gb_per_s: bandwidth of the link upward; 0 at the root.
        size: number of ranks that its leaves take.
        leaf: position of the leaf that it is; None if it is none.
        children: those with leaves that take ranks; not just one.
    """

    gb_per_s: float
    size: int
    leaf: int | None = None
    children: "tuple[Branch, ...]" = ()

    @property
    def is_uniform(self) -> bool:
        """True if all children are alike in bandwidth and size."""
        return len({(child.gb_per_s, child.size) for child in self.children}) == 1


def branches(tree: Tree, sizes: Sequence[int]) -> Branch:
    """Return a tree whose leaves take so many ranks each; what takes none is left out.

    Links in a chain have the same load, so that the slowest stands for all.
    """
    below: list[list[Branch]] = [[] for _ in tree.parents]
    for position, vertex in enumerate(tree.leaves):
        if sizes[position]:
            below[vertex].append(Branch(0.0, sizes[position], position))
    for vertex in range(len(tree.parents) - 1, 0, -1):
        if below[vertex]:
            below[tree.parents[vertex]].insert(0, _with_link(below[vertex], tree.gb_per_s[vertex]))
    return _with_link(below[0], 0.0)


def _with_link(children: list[Branch], gb_per_s: float) -> Branch:
    if len(children) > 1:
        return Branch(gb_per_s, sum(child.size for child in children), None, tuple(children))
    only = children[0]
    slowest = min(gb_per_s or only.gb_per_s, only.gb_per_s or gb_per_s)
    return Branch(slowest, only.size, only.leaf, only.children)


def spread(rows: Rows, members: Sequence[int], branch: Branch, floor: float) -> dict[int, int]:
    """Return the leaf of each member: at every vertex of the tree they are divided below it.

    They are divided by recursive bisection, so that little is cut, and then, where one part's link
    is more congested than the others', split anew together with another part.

    Args:
        rows: neighbours of each rank, also those that are not members.
        members: ranks, as many as the leaves take, or fewer: then each child gets its share.
        branch: the tree.
        floor: congestion in traffic per GB/s below which nothing is gained.
    """
    if branch.leaf is not None:
        return dict.fromkeys(members, branch.leaf)
    leaves = [child.leaf for child in branch.children]
    if None not in leaves and branch.is_uniform and branch.children[0].size == 1:
        return dict(zip(members, (leaf for leaf in leaves if leaf is not None), strict=False))
    found: dict[int, int] = {}
    for child, part in zip(branch.children, _divide(rows, members, branch, floor), strict=True):
        found |= spread(rows, part, child, floor)
    return found


def _divide(rows: Rows, members: Sequence[int], branch: Branch, floor: float) -> list[list[int]]:
    sizes = _shares([child.size for child in branch.children], len(members))
    speeds = [child.gb_per_s for child in branch.children]
    if floor:
        parts = _multisect(rows, members, sizes, 1)
        loads, _ = _loads(rows, parts)
        if max(_congestions(loads, speeds)) <= floor + TINY:
            return parts
    parts = _multisect(rows, members, sizes, _STARTS)
    _even_out(rows, parts, speeds, floor)
    return parts


def _shares(sizes: Sequence[int], count: int) -> list[int]:
    """Return how many of `count` each gets, in proportion to sizes: the largest remainders more."""
    total = sum(sizes)
    shares = [count * size // total for size in sizes]
    order = sorted(range(len(sizes)), key=lambda i: -(count * sizes[i] % total))
    for i in order[: count - sum(shares)]:
        shares[i] += 1
    return shares


def _multisect(
    rows: Rows, members: Sequence[int], sizes: Sequence[int], starts: int
) -> list[list[int]]:
    """Divide ranks into parts of given sizes by recursive bisection."""
    if len(sizes) == 1:
        return [list(members)]
    middle, first = _middle(sizes)
    if 0 < first < len(members):
        sides = bisect(_local(rows, members), first, starts).sides
    else:
        sides = [int(not first)] * len(members)
    halves: tuple[list[int], list[int]] = ([], [])
    for rank, side in zip(members, sides, strict=True):
        halves[side].append(rank)
    return [
        *_multisect(rows, halves[0], sizes[:middle], starts),
        *_multisect(rows, halves[1], sizes[middle:], starts),
    ]


def _middle(sizes: Sequence[int]) -> tuple[int, int]:
    """Return where a list is cut into halves as even as can be, and the sum of the first."""
    total, first = sum(sizes), 0
    best = (total + 1, 1, sizes[0])
    for number, size in enumerate(sizes[:-1], 1):
        first += size
        best = min(best, (abs(total - 2 * first), number, first))
    return best[1:]


def _local(rows: Rows, members: Sequence[int]) -> list[list[tuple[int, float]]]:
    """Return the graph of some ranks alone, numbered in their order."""
    index = {rank: i for i, rank in enumerate(members)}
    return [
        [(index[other], weight) for other, weight in rows[rank] if other in index]
        for rank in members
    ]


def _loads(
    rows: Rows, parts: Sequence[Sequence[int]]
) -> tuple[list[float], list[dict[int, float]]]:
    """Return what leaves each part, and what it exchanges with each other one; -1 is the rest."""
    owner = {rank: number for number, part in enumerate(parts) for rank in part}
    between: list[dict[int, float]] = []
    for number, part in enumerate(parts):
        found: dict[int, float] = {}
        for rank in part:
            for other, weight in rows[rank]:
                there = owner.get(other, -1)
                if there != number:
                    found[there] = found.get(there, 0.0) + weight
        between.append(found)
    return [sum(found.values()) for found in between], between


def _congestions(loads: Sequence[float], speeds: Sequence[float]) -> list[float]:
    return [load / speed for load, speed in zip(loads, speeds, strict=True)]


def _even_out(rows: Rows, parts: list[list[int]], speeds: Sequence[float], floor: float) -> None:
    """Split the most congested part anew with another one, as long as that helps."""
    while True:
        loads, between = _loads(rows, parts)
        congestions = _congestions(loads, speeds)
        most = max(congestions)
        mean = sum(congestions) / len(congestions)
        if most <= max(floor, _UNEVEN * mean) + TINY:
            return
        one = congestions.index(most)
        shared = sorted((-weight, other) for other, weight in between[one].items() if other >= 0)
        trials = [
            (
                *_split_anew(rows, (parts[one], parts[other]), (speeds[one], speeds[other])),
                other,
            )
            for _, other in shared[:_PARTNERS]
        ]
        best = min(trials, key=lambda trial: trial[0], default=(most, [], [], -1))
        if best[0] >= _WORTHWHILE * most - TINY:
            return
        _, parts[one], parts[best[3]], _ = best


def _split_anew(
    rows: Rows,
    parts: tuple[list[int], list[int]],
    speeds: tuple[float, float],
) -> tuple[float, list[int], list[int]]:
    """Return the largest congestion of two parts, and the parts that have it."""
    members = parts[0] + parts[1]
    local = _local(rows, members)
    beyond = [
        sum([weight for _, weight in rows[rank]]) - sum([weight for _, weight in row])
        for rank, row in zip(members, local, strict=True)
    ]
    orders = ((0, 1), (1, 0)) if len(parts[0]) == len(parts[1]) else ((0, 1),)
    best: tuple[float, list[int], tuple[int, int]] | None = None
    for split in splits(local, len(parts[0]), _STARTS_ANEW, 1):
        second = sum([rest for rest, side in zip(beyond, split.sides, strict=True) if side])
        loads = split.cut + sum(beyond) - second, split.cut + second
        for order in orders:
            congestion = max(loads[order[0]] / speeds[0], loads[order[1]] / speeds[1])
            if best is None or congestion < best[0] - TINY:
                best = congestion, split.sides, order
    assert best  # noqa: S101
    halves: tuple[list[int], list[int]] = ([], [])
    for rank, side in zip(members, best[1], strict=True):
        halves[side].append(rank)
    return best[0], halves[best[2][0]], halves[best[2][1]]


def to_nodes(traffic: RankTraffic, network: Tree, sizes: Sequence[int]) -> list[int]:
    """Return the node of each rank, so that no link of the network is congested.

    Slots that stay free count as ranks that are silent, so that the rest may lie as it likes.

    Args:
        traffic: what all ranks exchange.
        network: its leaves are the nodes.
        sizes: ranks that each node takes, 0 for one that is not used.
    """
    unit = scaled(traffic, largest_weight([traffic]))
    rows = [*rows_of(unit), *[[]] * (sum(sizes) - traffic.ranks)]
    found = spread(rows, range(len(rows)), branches(network, sizes), 0.0)
    return [found[rank] for rank in range(traffic.ranks)]


def multisect(problem: MappingProblem) -> RankMapping:
    """Map by recursive bisection down the trees, refined where links are congested.

    Inside nodes, links that stay below the most congested one of the network get a simple
    bisection.
    """
    unit = largest_weight((problem.cpu, problem.gpu))  # differences of 1e-9 are rounding
    problem = replace(problem, cpu=scaled(problem.cpu, unit), gpu=scaled(problem.gpu, unit))
    both = together((problem.cpu, problem.gpu))
    network = problem.cluster.network
    nodes = to_nodes(both, network, nodes_in_use(problem))
    loads = loads_of_links(network, both.edges, [network.leaves[number] for number in nodes])
    carried = zip(loads, network.gb_per_s, strict=True)
    floor = max([load / speed for load, speed in carried if speed], default=0.0)

    def inside(rows: Rows, members: Sequence[int], tree: Tree) -> dict[int, int]:
        return spread(rows, members, branches(tree, [1] * len(tree.leaves)), floor)

    def packed(rows: Rows, members: Sequence[int], tree: Tree) -> dict[int, int]:
        silent = range(len(rows), len(rows) + len(tree.leaves) - len(members))
        return inside([*rows, *[[]] * len(silent)], [*members, *silent], tree)

    return map_inside(problem, nodes, inside, packed)
