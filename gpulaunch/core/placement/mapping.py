"""Which rank sits on which GPU of a set: the pattern's edges meet the links (mapa-sc21 3.3).

A mapping has two figures. Its *total* is the aggregate bandwidth: the sum of w over the pattern's edges, each counted
for what it weighs relative to the heaviest (Eq. 1). Its *slowest* is the speed of the edge that keeps the others
waiting: what its link carries, divided by the same relative weight. Both are whole numbers of 1e-6 GB/s.

The search is exact up to EXACT_RANKS ranks: ranks are placed one after the other, and a beginning is given up as soon
as even the best links for all that is left would not beat what was found. Of ranks that are alike to the pattern, and
of GPUs that are alike to the links, only one order is tried.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, combinations
from typing import NamedTuple

from gpulaunch.core.placement.fabric import Fabric
from gpulaunch.core.workload.pattern import Edge

EXACT_RANKS = 8
"""Up to so many ranks the best mapping is found; beyond that, a mapping that no swap and no reversal improves."""


_NO_END = 1 << 62


class Mapping(NamedTuple):
    """The GPUs by rank.

    Attributes:
        gpus: positions in a Fabric, in rank order.
        slowest: speed of the slowest edge, 1e-6 GB/s; 0 without speeds.
        total: aggregate bandwidth, 1e-6 GB/s.
    """

    gpus: tuple[int, ...]
    slowest: int
    total: int


class Traffic:
    """A pattern's edges over the links of a machine.

    Args:
        fabric: the links.
        edges: of the pattern, for the number of ranks that are to be placed.
        speeds: what a link of each kind carries for two GPUs, 1e-6 GB/s; None if no edge is waited for.
        worth: what a link of each kind adds to a total; None for w.

    Attributes:
        ranks: how many.
        shares: the weights of edges, relative to the heaviest, descending.
        edges: rank, higher rank, place in `shares`.
        gain: for each share what an edge adds to the total, by kind of link.
        speed: for each share how fast an edge is, by kind of link; None without speeds.
    """

    def __init__(
        self,
        fabric: Fabric,
        edges: Sequence[Edge],
        speeds: Sequence[int] | None = None,
        worth: Sequence[int] | None = None,
    ) -> None:
        self.fabric = fabric
        self.ranks = 1 + max((b for _, b, _ in edges), default=-1)
        worth = worth or [kind.weight for kind in fabric.kinds]
        self._given = (fabric, edges, speeds, worth)
        heaviest = max((weight for _, _, weight in edges), default=1.0)
        self.shares = sorted({weight / heaviest for _, _, weight in edges}, reverse=True)
        self.edges = [(a, b, self.shares.index(weight / heaviest)) for a, b, weight in edges]
        self.gain = [[round(link * share) for link in worth] for share in self.shares]
        self.speed = [[round(speed / share) for speed in speeds] for share in self.shares] if speeds else None
        self._known: dict[object, int] = {}
        self._orders: dict[object, list[int]] = {}

    @cached_property
    def earlier(self) -> list[list[tuple[int, int]]]:
        """For each rank its neighbours of lower rank, with the share of their edge."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        for a, b, share in self.edges:
            found[b].append((a, share))
        return found

    @cached_property
    def open(self) -> list[tuple[list[tuple[int, int]], int]]:
        """For each number of placed ranks: those with edges to the others, and how many; and the edges among these."""
        found = []
        for placed in range(self.ranks + 1):
            ends = Counter(a for a, b, _ in self.edges if a < placed <= b)
            found.append((sorted(ends.items()), sum(placed <= a for a, _, _ in self.edges)))
        return found

    @cached_property
    def twin(self) -> list[int]:
        """For each rank the next lower one that the pattern does not tell from it; -1 if there is none."""
        rows = [dict.fromkeys(range(self.ranks), -1) for _ in range(self.ranks)]
        for a, b, share in self.edges:
            rows[a][b] = rows[b][a] = share
        return [
            next(
                (
                    before
                    for before in reversed(range(rank))
                    if all(rows[rank][k] == rows[before][k] for k in range(self.ranks) if k not in (rank, before))
                ),
                -1,
            )
            for rank in range(self.ranks)
        ]

    @cached_property
    def later_twins(self) -> list[int]:
        """For each rank how many higher ones the pattern does not tell from it."""
        found = [0] * self.ranks
        for rank in range(self.ranks):
            before = self.twin[rank]
            while before >= 0:
                found[before] += 1
                before = self.twin[before]
        return found

    @cached_property
    def degree(self) -> list[int]:
        """How many edges each rank has."""
        ends = Counter(rank for a, b, _ in self.edges for rank in (a, b))
        return [ends[rank] for rank in range(self.ranks)]

    @cached_property
    def connected_order(self) -> list[int]:
        """The ranks, so that each but the first has as many edges to the ones before as can be.

        Which links are used shows early then, and a search that is only after figures ends sooner.
        """
        order = [max(range(self.ranks), key=lambda rank: (self.degree[rank], -rank))]
        while len(order) < self.ranks:
            pulls = Counter(
                rank
                for a, b, _ in self.edges
                for rank, other in ((a, b), (b, a))
                if other in order and rank not in order
            )
            left = (rank for rank in range(self.ranks) if rank not in order)
            order.append(max(left, key=lambda rank: (pulls[rank], self.degree[rank], -rank)))
        return order

    @cached_property
    def connected(self) -> "Traffic":
        """The same with the ranks renumbered in that order."""
        fabric, edges, speeds, worth = self._given
        place = {rank: i for i, rank in enumerate(self.connected_order)}
        moved = [(min(place[a], place[b]), max(place[a], place[b]), weight) for a, b, weight in edges]
        return Traffic(fabric, moved, speeds, worth)

    @cached_property
    def alike(self) -> bool:
        """Whether the pattern tells no rank from any other."""
        return all(self.twin[rank] == rank - 1 for rank in range(self.ranks))

    @cached_property
    def turns(self) -> bool:
        """Whether every rank could as well be the next one."""
        edges = set(self.edges)
        moved = {((a + 1) % self.ranks, (b + 1) % self.ranks, share) for a, b, share in edges}
        return edges == {(min(a, b), max(a, b), share) for a, b, share in moved}

    def figures(self, gpus: Sequence[int]) -> Mapping:
        """A mapping with its figures."""
        kind = self.fabric.kind
        links = [(share, kind[gpus[a]][gpus[b]]) for a, b, share in self.edges]
        slowest = min(self.speed[share][link] for share, link in links) if self.speed and links else 0
        return Mapping(tuple(gpus), slowest, sum(self.gain[share][link] for share, link in links))

    def best_total(self, gpus: Sequence[int], floor: int = 0) -> int:
        """Largest total of all mappings to a set, none of whose edges is slower than floor; -1 if there is none.

        Args:
            gpus: positions, ascending; as many as there are ranks, at most EXACT_RANKS.
            floor: 1e-6 GB/s.
        """
        return self._remembered("total", gpus, floor, lambda: _Search(self.connected, gpus, floor).best())

    def best_slowest(self, gpus: Sequence[int], total: int = 0) -> int:
        """The fastest slowest edge of all mappings to a set whose total is not less than that given; see best_total."""
        return self._remembered("slowest", gpus, total, lambda: self._fastest_floor(gpus, total))

    def near_best(self, gpus: Sequence[int], *, slowest_first: bool) -> Mapping:
        """A mapping that no swap of two GPUs and no reversal of a stretch improves; see best_mapping."""
        kind = self.fabric.kind
        if len({kind[a][b] for a, b in combinations(gpus, 2)}) == 1:
            return self.figures(gpus)
        order, links = _arranged(kind, gpus)
        key = (slowest_first, *links)
        if key not in self._orders:
            self._orders[key] = _improved(self, [gpus[i] for i in order], slowest_first=slowest_first)
        return self.figures([gpus[order[i]] for i in self._orders[key]])

    def _remembered(self, what: str, gpus: Sequence[int], bound: int, search: Callable[[], int]) -> int:
        """Sets whose links are alike have the same figures; in what order the GPUs come makes no difference."""
        key = (what, bound, *_arranged(self.fabric.kind, gpus)[1])
        if key not in self._known:
            self._known[key] = search()
        return self._known[key]

    def _fastest_floor(self, gpus: Sequence[int], total: int) -> int:
        if not self.speed:
            return 0
        kind = self.fabric.kind
        kinds = {kind[a][b] for a, b in combinations(gpus, 2)}
        floors = sorted({speeds[k] for speeds in self.speed for k in kinds}, reverse=True)
        return next((floor for floor in floors if _Search(self.connected, gpus, floor).reaches(total)), 0)


def best_mapping(traffic: Traffic, gpus: Sequence[int], *, slowest_first: bool = False, effort: int = 0) -> Mapping:
    """The best mapping to a set of GPUs; of equals the one with the lowest positions, rank by rank.

    Args:
        traffic: of as many ranks as there are GPUs.
        gpus: positions, ascending.
        slowest_first: compare the slowest edge before the total, not after it.
        effort: beyond EXACT_RANKS so many beginnings are tried to better what swaps led to; about 10 us each.

    Source: mapa-sc21 3.3, which leaves the choice among isomorphic matches to Eq. 1.
    """
    kind = traffic.fabric.kind
    if not traffic.edges:
        return Mapping(tuple(gpus), 0, 0)
    if traffic.alike or len({kind[a][b] for a, b in combinations(gpus, 2)}) == 1:
        return traffic.figures(gpus)
    if len(gpus) > EXACT_RANKS:
        found = traffic.near_best(gpus, slowest_first=slowest_first)
        return _bettered(traffic, gpus, found, effort, slowest_first=slowest_first) if effort else found
    if slowest_first:
        slowest = traffic.best_slowest(gpus)
        total = traffic.best_total(gpus, slowest)
    else:
        total = traffic.best_total(gpus)
        slowest = traffic.best_slowest(gpus, total)
    return traffic.figures(_Search(traffic, gpus, slowest).first(total))


def _bettered(traffic: Traffic, gpus: Sequence[int], start: Mapping, effort: int, *, slowest_first: bool) -> Mapping:
    """The best that a search which gives up can add to a mapping."""
    found = start
    while True:
        better = None
        if slowest_first and traffic.speed:
            better = _Search(traffic.connected, gpus, found.slowest + 1).better(0, effort)
        better = better or _Search(traffic.connected, gpus, found.slowest if slowest_first else 0).better(
            found.total + 1, effort
        )
        if better is None:
            return found
        by_rank = dict(zip(traffic.connected_order, better, strict=True))
        found = traffic.figures([by_rank[rank] for rank in range(traffic.ranks)])


def _arranged(kind: Sequence[Sequence[int]], gpus: Sequence[int]) -> tuple[list[int], list[int]]:
    """An order of a set, and the kinds of its links in it, that sets with the same links mostly share."""
    rows = [[kind[a][b] for b in gpus] for a in gpus]
    profiles = [sorted(row) for row in rows]
    number = {profile: i for i, profile in enumerate(sorted(set(map(tuple, profiles))))}
    seen = [number[tuple(profile)] for profile in profiles]
    profiles = [sorted(link * len(gpus) + seen[other] for other, link in enumerate(row)) for row in rows]
    order: list[int] = []
    left = set(range(len(gpus)))
    while left:
        order.append(min(left, key=lambda gpu: ([rows[gpu][other] for other in order], profiles[gpu], gpu)))
        left.remove(order[-1])
    return order, [rows[order[b]][order[a]] for b in range(len(order)) for a in range(b)]


class _Search:
    """One exact search over the mappings to one set; GPUs are places in it."""

    def __init__(self, traffic: Traffic, gpus: Sequence[int], floor: int) -> None:
        self._gpus = gpus
        self._traffic = traffic
        self._count = len(gpus)
        kind = [[traffic.fabric.kind[a][b] for b in gpus] for a in gpus]
        self._gain = [[[gains[link] for link in row] for row in kind] for gains in traffic.gain]
        self._fast: list[list[list[bool]]] | None = None
        self._degree = [self._count] * self._count
        if traffic.speed and floor:
            self._fast = [[[speeds[link] >= floor for link in row] for row in kind] for speeds in traffic.speed]
            self._degree = [sum(row) - row[gpu] for gpu, row in enumerate(self._fast[-1])]
        self._lower_twins = [
            sum(1 << other for other in range(gpu) if _alike(kind, gpu, other)) for gpu in range(self._count)
        ]
        self._rows: dict[tuple[int, int], list[int]] = {}
        self._pairs: dict[int, list[int]] = {}
        self._order = [0] * self._count

    def best(self) -> int:
        """The largest total; -1 if every mapping has an edge that is too slow."""
        self._run(least=0, enough=self._most(0, 0), eager=True)
        return self._found

    def reaches(self, total: int) -> bool:
        """Whether there is a mapping of at least so much."""
        self._run(least=total, enough=total, eager=True)
        return self._found >= total

    def first(self, total: int) -> list[int]:
        """The first mapping by positions that has at least this total; there is one."""
        self._run(least=total, enough=total, eager=False)
        return [self._gpus[i] for i in self._best_order]

    def better(self, total: int, effort: int) -> list[int] | None:
        """The best mapping of at least this total that so many beginnings lead to; None if they lead to none."""
        self._run(least=total, enough=self._most(0, 0), eager=True, effort=effort)
        return [self._gpus[i] for i in self._best_order] if self._found >= total else None

    def _run(self, *, least: int, enough: int, eager: bool, effort: int = _NO_END) -> None:
        """Search for more and more than `least`, until it is enough.

        Args:
            least: totals below are of no interest.
            enough: where to stop.
            eager: try first what adds most, not what comes first.
            effort: how many beginnings to try at most.
        """
        self._found = least - 1
        self._left = effort
        self._enough = enough
        self._eager = eager
        self._extend(0, 0, 0)

    def _extend(self, rank: int, used: int, total: int) -> None:
        if rank == self._count:
            if total > self._found:
                self._found = total
                self._best_order = list(self._order)
            return
        if total + self._most(rank, used) <= self._found:
            return
        steps = self._steps(rank, used)
        if self._eager and len(steps) > 1:
            steps.sort(reverse=True)
        self._left -= 1
        for gain, lower in steps:
            self._order[rank] = -lower
            self._extend(rank + 1, used | 1 << -lower, total + gain)
            if self._found >= self._enough or self._left < 0:
                return

    def _most(self, rank: int, used: int) -> int:
        """The most that the open edges could add: over the best links left from each GPU, and the best pairs left."""
        ends, among = self._traffic.open[rank]
        pairs = self._pairs.get(used)
        if pairs is None:
            pairs = self._pairs[used] = self._best_pairs(used)
        most = pairs[among]
        for end, edges in ends:
            key = (self._order[end], used)
            links = self._rows.get(key)
            if links is None:
                links = self._rows[key] = self._best_links(*key)
            most += links[edges]
        return most

    def _best_links(self, gpu: int, used: int) -> list[int]:
        """Sums of the best one, two ... links from a GPU to those that are not used."""
        free = [gain for other, gain in enumerate(self._gain[0][gpu]) if not used >> other & 1]
        free.sort(reverse=True)
        return [0, *accumulate(free)]

    def _best_pairs(self, used: int) -> list[int]:
        """Sums of the best one, two ... links among those that are not used."""
        gain = self._gain[0]
        links = [gain[a][b] for a, b in combinations(self._free(used), 2)]
        links.sort(reverse=True)
        return [0, *accumulate(links)]

    def _free(self, used: int) -> list[int]:
        return [gpu for gpu in range(self._count) if not used >> gpu & 1]

    def _steps(self, rank: int, used: int) -> list[tuple[int, int]]:
        """What placing this rank adds on each GPU where that is allowed; the GPU is negative, so that lower is more.

        Of ranks that are alike the later ones get higher GPUs, so enough of those must be left.
        """
        traffic, order, fast = self._traffic, self._order, self._fast
        earlier, degree = traffic.earlier[rank], traffic.degree[rank]
        twin = traffic.twin[rank]
        first = order[twin] + 1 if twin >= 0 else 0
        free = self._free(used)
        if rank == 0 and traffic.turns:
            free = free[: 1 + traffic.later_twins[0]]
        steps = []
        for gpu in free[: len(free) - traffic.later_twins[rank]]:
            if gpu < first or self._lower_twins[gpu] & ~used or self._degree[gpu] < degree:
                continue
            if fast and not all(fast[share][gpu][order[other]] for other, share in earlier):
                continue
            steps.append((sum([self._gain[share][gpu][order[other]] for other, share in earlier]), -gpu))
        return steps


def _alike(kind: list[list[int]], a: int, b: int) -> bool:
    """Whether two places have the same links to all others."""
    return all(kind[a][k] == kind[b][k] for k in range(len(kind)) if k not in (a, b))


def _improved(traffic: Traffic, gpus: Sequence[int], *, slowest_first: bool) -> list[int]:
    """The places of ranks in a set where no swap or reversal improves them, from ranks that are placed one by one."""
    kind = [[traffic.fabric.kind[a][b] for b in gpus] for a in gpus]
    place = {gpu: i for i, gpu in enumerate(gpus)}
    edges, gain, speed = traffic.edges, traffic.gain, traffic.speed

    def merit(order: Sequence[int]) -> tuple[int, int]:
        links = [(share, kind[order[a]][order[b]]) for a, b, share in edges]
        total = sum([gain[share][link] for share, link in links])
        slowest = min([speed[share][link] for share, link in links]) if speed else 0
        return (slowest, total) if slowest_first else (total, slowest)

    order = [place[gpu] for gpu in _grown(traffic, gpus)]
    order = max(order, list(range(len(gpus))), key=merit)
    best = merit(order)
    improved = True
    while improved:
        improved = False
        for i, j in combinations(range(len(gpus)), 2):
            swapped = list(order)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            turned = [*order[:i], *order[i : j + 1][::-1], *order[j + 1 :]]
            for other in (swapped, turned):
                figures = merit(other)
                if figures > best:
                    best, order, improved = figures, other, True
    return order


def _grown(traffic: Traffic, gpus: Sequence[int]) -> list[int]:
    """Each rank on the GPU that adds most, the lowest of equals."""
    kind = traffic.fabric.kind
    order: list[int] = []
    left = list(gpus)
    for earlier in traffic.earlier:
        best = max(
            left, key=lambda gpu: (sum(traffic.gain[share][kind[gpu][order[other]]] for other, share in earlier), -gpu)
        )
        order.append(best)
        left.remove(best)
    return order
