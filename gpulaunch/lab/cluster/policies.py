"""The mapping policies by name: one that spreads ranks, and the heuristic of magc-2016.

The first part cuts a sparse graph in two parts of given sizes, so that little is cut. By that
`multisect` spreads ranks down a tree, so that no link is congested.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Sequence
from math import inf

from gpulaunch.lab.cluster.cluster import Tree
from gpulaunch.lab.cluster.mapping import (
    MappingProblem,
    Place,
    RankMapping,
    loads_of_links,
    map_inside,
    nodes_in_use,
)
from gpulaunch.lab.cluster.traffic import (
    RankTraffic,
    Rows,
    largest_weight,
    rows_of,
    scaled,
    together,
)
from gpulaunch.records import replace

_GOLDEN = 0.6180339887
"""Its multiples, without their integers, are as evenly spread as can be, however many there are."""

_PATIENCE = 8
"""Exchanges without a gain after which a pass gives up."""

_TINY = 1e-9
"""Below it, a difference of traffic is rounding."""


Split = tuple[float, list[int]]
"""A graph in two parts: the weight of all edges that are cut, and 0 or 1 for each vertex."""


def splits(rows: Rows, size: int, starts: int, shift: int = 0) -> Iterator[Split]:
    """Yield ways to split a graph into `size` vertices and the rest, each a local optimum.

    A part is grown around a vertex, next the one that adds least to the cut, then improved by
    passes that exchange vertices.

    Args:
        size: vertices of part 0, 1 to all but one.
        starts: number of vertices to begin at, evenly spread.
        shift: moves them.

    Cost: with few edges, linear in their number for each start.

    Source: Fiduccia and Mattheyses, A linear-time heuristic for improving network partitions, DAC
        1982. Departures: vertices are exchanged, not moved, so that sizes stay exact, and only
        those with an edge that is cut.
    """
    n = len(rows)
    # how much less is cut, below 0, if a vertex leaves the side where all others are
    alone = [-sum([weight for _, weight in row]) for row in rows]
    for start in range(starts):
        gains = alone[:]
        sides = _grow(rows, size, int((start * _GOLDEN % 1) * n + shift) % n, gains)
        while _run_pass(rows, sides, gains, alone) > _TINY:
            pass
        cut = 0.0
        for gain, least, side in zip(gains, alone, sides, strict=True):
            cut += 0.0 if side else (gain - least) / 2
        yield cut, sides


def bisect(rows: Rows, size: int, starts: int) -> Split:
    """Return the split that cuts least, of equals the first; see splits().

    It stops early if nothing is cut, or if a third of the starts led to the same cut.
    """
    best: Split = inf, []
    found = 0
    for cut, sides in splits(rows, size, starts):
        if cut < best[0] - _TINY:
            best, found = (cut, sides), 0
        found += cut < best[0] + _TINY
        if best[0] < _TINY or 3 * found > starts:
            break
    return best


def _grow(rows: Rows, size: int, start: int, gains: list[float]) -> list[int]:
    """Return parts, part 0 of a size grown around a vertex.

    Gains are those of moves from part 1, which has all vertices; then of moves from the new parts.
    """
    sides = [1] * len(rows)
    front = {start}
    for _ in range(size):
        if not front:  # what is connected is inside: begin anew
            front.add(max([v for v, side in enumerate(sides) if side], key=gains.__getitem__))
        vertex = max(front, key=gains.__getitem__)
        front.remove(vertex)
        sides[vertex] = 0
        gains[vertex] = -gains[vertex]
        for other, weight in rows[vertex]:
            if sides[other]:
                gains[other] += 2 * weight
                front.add(other)
            else:
                gains[other] -= 2 * weight
    return sides


def _run_pass(rows: Rows, sides: list[int], gains: list[float], alone: list[float]) -> float:
    """Exchange vertices, the best of each side, each once; keep the best point on the way."""
    before = sides[:], gains[:]
    free: tuple[set[int], set[int]] = (set(), set())  # of each side, those with an edge that is cut
    for vertex, (gain, least) in enumerate(zip(gains, alone, strict=True)):
        if gain > least + _TINY:
            free[sides[vertex]].add(vertex)
    moved: list[int] = []
    total = best = 0.0
    kept = 0
    locked = [False] * len(rows)
    while free[0] and free[1] and len(moved) - kept < 2 * _PATIENCE:
        for here in free:
            if here:
                vertex = max(here, key=gains.__getitem__)
                total += gains[vertex]
                moved.append(vertex)
                _move(rows, sides, gains, vertex, here, locked)
        if total > best + _TINY and len(moved) % 2 == 0:
            best, kept = total, len(moved)
    if not kept:
        sides[:], gains[:] = before
        return 0.0
    for vertex in moved[kept:]:
        _move(rows, sides, gains, vertex, set(), locked)
    return best


def _move(
    rows: Rows,
    sides: list[int],
    gains: list[float],
    vertex: int,
    here: set[int],
    locked: list[bool],
) -> None:
    """Move a vertex to the other side, once: its neighbours `here` may be moved then."""
    side = sides[vertex]
    sides[vertex] = 1 - side
    gains[vertex] = -gains[vertex]
    here.discard(vertex)
    locked[vertex] = True
    for other, weight in rows[vertex]:
        if sides[other] == side:
            gains[other] += 2 * weight
            if not locked[other]:
                here.add(other)
        else:
            gains[other] -= 2 * weight


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


def spread(
    rows: Rows, members: Sequence[int], tree: Tree, sizes: Sequence[int], floor: float
) -> dict[int, int]:
    """Return the leaf of each member: at every vertex of the tree they are divided below it.

    They are divided by recursive bisection, so that little is cut, and then, where one part's link
    is more congested than the others', split anew together with another part.

    Args:
        rows: neighbours of each rank, also those that are not members.
        members: ranks, as many as the leaves take, or fewer: then each child gets its share.
        tree: the tree; a leaf is named by its position in `tree.leaves`.
        sizes: ranks that each leaf takes, 0 for one that is not used.
        floor: congestion in traffic per GB/s below which nothing is gained.
    """
    takes = [0] * len(tree.parents)
    for leaf, size in zip(tree.leaves, sizes, strict=True):
        takes[leaf] = size
    for vertex in range(len(takes) - 1, 0, -1):
        takes[tree.parents[vertex]] += takes[vertex]
    used = [[child for child in below if takes[child]] for below in tree.children()]
    positions = {leaf: position for position, leaf in enumerate(tree.leaves)}
    found: dict[int, int] = {}
    work = [(0, list(members))]
    while work:
        vertex, part = work.pop()
        if not used[vertex]:
            found |= dict.fromkeys(part, positions[vertex])
        elif len(used[vertex]) == 1:
            work.append((used[vertex][0], part))
        else:
            below, speeds = _ends_of_chains(tree, used, vertex)
            counts = [takes[lower] for lower in below]
            if set(counts) == {1} and len(set(speeds)) == 1:  # leaves that are alike
                found |= zip(part, [positions[leaf] for leaf in below], strict=False)
            else:
                work += zip(below, _divide(rows, part, counts, speeds, floor), strict=True)
    return found


def _ends_of_chains(
    tree: Tree, used: Sequence[Sequence[int]], vertex: int
) -> tuple[list[int], list[float]]:
    """Return where ranks below a vertex part again or end, and the bandwidth of the way there.

    Links in a chain have the same load, so that the slowest stands for all.
    """
    ends = []
    speeds = []
    for child in used[vertex]:
        end, speed = child, tree.gb_per_s[child]
        while len(used[end]) == 1:
            end = used[end][0]
            speed = min(speed, tree.gb_per_s[end])
        ends.append(end)
        speeds.append(speed)
    return ends, speeds


def _divide(
    rows: Rows,
    members: Sequence[int],
    counts: Sequence[int],
    speeds: Sequence[float],
    floor: float,
) -> list[list[int]]:
    sizes = _shares(counts, len(members))
    if floor:
        parts = _multisect(rows, members, sizes, 1)
        loads, _ = _loads(rows, parts)
        if max(_congestions(loads, speeds)) <= floor + _TINY:
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
    if len(sizes) == 1:
        return [list(members)]
    middle, first = _middle(sizes)
    if 0 < first < len(members):
        _, sides = bisect(_local(rows, members), first, starts)
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
        if most <= max(floor, _UNEVEN * mean) + _TINY:
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
        if best[0] >= _WORTHWHILE * most - _TINY:
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
    best: tuple[float, list[int], tuple[int, int]] = inf, [], (0, 1)
    for cut, sides in splits(local, len(parts[0]), _STARTS_ANEW, 1):
        second = sum([rest for rest, side in zip(beyond, sides, strict=True) if side])
        loads = cut + sum(beyond) - second, cut + second
        for order in orders:
            congestion = max(loads[order[0]] / speeds[0], loads[order[1]] / speeds[1])
            if congestion < best[0] - _TINY:
                best = congestion, sides, order
    halves: tuple[list[int], list[int]] = ([], [])
    for rank, side in zip(members, best[1], strict=True):
        halves[side].append(rank)
    return best[0], halves[best[2][0]], halves[best[2][1]]


def to_nodes(traffic: RankTraffic, network: Tree, sizes: Sequence[int]) -> list[int]:
    """Return the node of each rank, so that no link of the network is congested.

    Slots that stay free count as ranks that are silent, so that the rest may lie as it likes.

    Args:
        sizes: ranks that each node takes, 0 for one that is not used.
    """
    unit = scaled(traffic, largest_weight([traffic]))
    rows = [*rows_of(unit), *[[]] * (sum(sizes) - traffic.ranks)]
    found = spread(rows, range(len(rows)), network, sizes, 0.0)
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
        return spread(rows, members, tree, [1] * len(tree.leaves), floor)

    def packed(rows: Rows, members: Sequence[int], tree: Tree) -> dict[int, int]:
        silent = range(len(rows), len(rows) + len(tree.leaves) - len(members))
        return inside([*rows, *[[]] * len(silent)], [*members, *silent], tree)

    return map_inside(problem, nodes, inside, packed)


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


DEFAULT_MAPPING_POLICY = "multisect"

MAPPING_POLICIES: dict[str, Callable[[MappingProblem], RankMapping]] = {
    "multisect": multisect,
    "magc": _map_by_magc,
    "default": _map_in_order,
}
"""Name -> function; there are at least as many slots as ranks."""
