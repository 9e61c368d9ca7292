"""Which rank sits on which GPU of a set: the pattern's edges meet the links (mapa-sc21 3.3).

Of a mapping of ranks to GPUs two figures count. Its *total* is the aggregate bandwidth: the sum of
what its links add, each times the weight of its edge relative to the heaviest (mapa-sc21 Eq. 1).
Its *slowest* is the speed of the edge that keeps the others waiting: what its link carries, divided
by the same relative weight. Both are whole numbers, of bandwidths in 1e-6 GB/s.
"""
# pure: decides on plain values

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from math import inf

from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record

EXACT_RANKS = 8
"""Number of ranks up to which the best mapping is found; beyond, one that exchanges led to."""

EFFORT = 50_000
"""Partial mappings that one mapper tries, in about 1 s, before exchanges have to do."""

MOST_KICKS = 24
"""Kicks that better a mapping that is not exact, up to 16 ranks, in some 20 ms; fewer beyond."""

_Kinds = Sequence[Sequence[int]]  # for every two GPUs the kind of their link, a number
_Ends = list[tuple[int, int, int]]  # two ranks, and the place of their edge's weight in the shares


class Mapping(Record):
    """The GPUs by rank.

    Attributes:
        gpus: positions, in rank order.
        slowest: speed of the slowest edge; 0 without speeds.
    """

    gpus: tuple[int, ...]
    slowest: int
    total: int


class Mapper:
    """Finds the best mappings of a pattern to sets of GPUs, and remembers them.

    Args:
        kind: for every two positions the kind of their link, a number.
        worth: what a link of each kind adds to a total.
        speeds: what a link of each kind carries for two GPUs; None if no edge is waited for.
        ranks: number of ranks, if some may have no edge.

    Attributes:
        edges: rank, higher rank, place of the edge's weight among all weights, heaviest first.
        shares: the weights of edges relative to the heaviest, which is the first.
        gain: for each of these weights what an edge adds to a total, by kind of link.
        speed: likewise how fast it is; empty without speeds.
        left: partial mappings that may still be tried; below 0 once exchanges had to do.
    """

    def __init__(
        self,
        kind: _Kinds,
        edges: Sequence[Edge],
        worth: Sequence[int],
        speeds: Sequence[int] | None = None,
        *,
        ranks: int = 0,
    ) -> None:
        self._kind = kind
        heaviest = max((weight for *_, weight in edges), default=1.0)
        shares = sorted({weight / heaviest for *_, weight in edges}, reverse=True)
        place = {share: i for i, share in enumerate(shares)}
        self.edges: _Ends = [(a, b, place[weight / heaviest]) for a, b, weight in edges]
        self.ranks = ranks or 1 + max((b for _, b, _ in edges), default=-1)
        self.left: float = EFFORT
        self.shares = shares
        self.gain = [[round(link * share) for link in worth] for share in shares]
        self.speed = [[round(one / share) for one in speeds] for share in shares] if speeds else []
        self._known: dict[tuple[bool, tuple[int, ...]], list[int]] = {}

    @property
    def gave_up(self) -> bool:
        """Return whether the search stopped comparing all mappings, because there were too many."""
        return self.left < 0

    def best(self, gpus: Sequence[int], *, slowest_first: bool = False) -> Mapping:
        """Return the best mapping to a set of GPUs; of equals the one with the lowest positions.

        Args:
            gpus: positions, ascending; as many as there are ranks.
            slowest_first: compare the slowest edge before the total, not after it.

        Source: mapa-sc21 3.3, which leaves the choice among isomorphic matches to Eq. 1.
        """
        links = tuple([self._kind[a][b] for a, b in combinations(gpus, 2)])
        if not self.edges or self.tells_no_rank_apart or len(set(links)) < 2:
            return self.figures(gpus)
        key = slowest_first and bool(self.speed), links
        if key not in self._known:
            self._known[key] = self._order(*key)
        return self.figures([gpus[i] for i in self._known[key]])

    def figures(self, gpus: Sequence[int]) -> Mapping:
        """Return a mapping with its figures."""
        links = [(share, self._kind[gpus[a]][gpus[b]]) for a, b, share in self.edges]
        speeds = [self.speed[share][link] for share, link in links] if self.speed else ()
        total = sum([self.gain[share][link] for share, link in links])
        return Mapping(tuple(gpus), min(speeds, default=0), total)

    @cached_property
    def tells_no_rank_apart(self) -> bool:
        """Whether every two ranks have an edge, and all weigh the same."""
        return len(self.shares) == 1 and len(self.edges) == self.ranks * (self.ranks - 1) // 2

    @cached_property
    def degree(self) -> list[int]:
        """Number of edges that each rank has."""
        ends = [rank for a, b, _ in self.edges for rank in (a, b)]
        return [ends.count(rank) for rank in range(self.ranks)]

    def most_total(self, gpus: Sequence[int]) -> int:
        """Return at least the total of any mapping to a set: heaviest edges over the best links."""
        links = [self.gain[0][self._kind[a][b]] for a, b in combinations(gpus, 2)]
        return self.best_sum(links, self.open[0][1])

    def best_sum(self, links: list[int], shares: Sequence[int]) -> int:
        """Return the most that edges of these weights, heaviest first, could add over links."""
        links.sort(reverse=True)
        if not shares or not shares[-1]:  # all edges weigh the same
            return sum(links[: len(shares)])
        weights = [self.shares[share] for share in shares]
        return sum([int(link * weight) + 1 for link, weight in zip(links, weights, strict=False)])

    def most_slowest(self, gpus: Sequence[int]) -> int:
        """Return at least the slowest edge of any mapping to a set.

        Each GPU has as many links that are as fast as any rank has edges, and one of them as many
        as the rank that has most.
        """
        fewest, most = min(self.degree), max(self.degree)
        slowest, of_one = inf, 0
        for a in gpus:
            links = [self.speed[-1][self._kind[a][b]] for b in gpus if b != a]
            links.sort(reverse=True)
            slowest = min(slowest, links[fewest - 1])
            of_one = max(of_one, links[most - 1])
        return int(min(slowest, of_one))

    def _order(self, slowest_first: bool, links: Sequence[int]) -> list[int]:
        """Return the best order of GPUs, as places in their set, given the kinds of its links."""
        kind = [[0] * self.ranks for _ in range(self.ranks)]
        for (a, b), link in zip(combinations(range(self.ranks), 2), links, strict=True):
            kind[a][b] = kind[b][a] = link
        if self.ranks <= EXACT_RANKS:
            return _BestMapping(self, kind, slowest_first=slowest_first).best()
        exchanges = _Exchanges(self, kind, by_speed=slowest_first)
        order = exchanges.best(self._place_greedily(kind))
        if slowest_first:  # faster edges than the slowest gain nothing: now better the total
            ends = [(share, kind[order[a]][order[b]]) for a, b, share in self.edges]
            exchanges.fastest = min(self.speed[share][link] for share, link in ends)
            order = exchanges.best(order)
        return order

    def _place_greedily(self, kind: _Kinds) -> list[int]:
        """Return for each rank the GPU that adds most, the lowest of equals."""
        order: list[int] = []
        left = list(range(self.ranks))
        for earlier in self.earlier:
            gains = [
                sum([self.gain[share][kind[gpu][order[a]]] for a, share in earlier]) for gpu in left
            ]
            order.append(left.pop(gains.index(max(gains))))
        return order

    @cached_property
    def earlier(self) -> list[list[tuple[int, int]]]:
        """For each rank its neighbours of lower rank, with the weights of the edges."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        for a, b, share in self.edges:
            found[b].append((a, share))
        return found

    @cached_property
    def open(self) -> list[tuple[list[tuple[int, tuple[int, ...]]], tuple[int, ...]]]:
        """For each number of placed ranks the weights of the open edges, heaviest first.

        First the edges of each placed rank to the others, then those among the others.
        """
        found = []
        for placed in range(self.ranks + 1):
            ends: dict[int, list[int]] = {}
            for a, b, share in self.edges:
                if a < placed <= b:
                    ends.setdefault(a, []).append(share)
            among = tuple(sorted(share for a, _, share in self.edges if placed <= a))
            found.append(([(end, tuple(sorted(ends[end]))) for end in sorted(ends)], among))
        return found


class _BestMapping:
    """Branch and bound over the mappings to one set; inside, GPUs are places in it.

    Ranks are placed one after the other, and a partial mapping is given up as soon as even the best
    links for all that is left would not beat what was found. Of GPUs that are alike to the links,
    only one order is tried.
    """

    def __init__(self, mapper: Mapper, kind: _Kinds, *, slowest_first: bool) -> None:
        self._mapper, self._kind = mapper, kind
        self._slowest_first = slowest_first
        self._gain = [[mapper.gain[0][link] for link in row] for row in kind]  # of heaviest edges
        self._lower_twins = [0] * mapper.ranks
        for b, a in combinations(range(mapper.ranks), 2):
            others = [c for c in range(mapper.ranks) if c not in (a, b)]
            if all(kind[a][c] == kind[b][c] for c in others):
                self._lower_twins[a] |= 1 << b
        self._where = [0] * mapper.ranks
        self._best = (0, 0)
        self._order: list[int] = []

    def best(self) -> list[int]:
        """Return the best order, of equals the lowest, or a good one if there are too many."""
        fastest = max(map(max, self._mapper.speed), default=0)
        self._enough = self._key(fastest, self._most(0, 0))
        self._extend(0, 0, fastest, 0)
        return self._order

    def _key(self, slowest: int, total: int) -> tuple[int, int]:
        return (slowest, total) if self._slowest_first else (total, slowest)

    def _extend(self, rank: int, used: int, slowest: int, total: int) -> None:
        mapper = self._mapper
        bound = self._key(slowest, total + self._most(rank, used))
        if self._order and bound <= self._best:
            return
        if rank == mapper.ranks:
            self._best, self._order = bound, list(self._where)
            return
        mapper.left -= 1
        for gpu in range(mapper.ranks):
            if used >> gpu & 1 or self._lower_twins[gpu] & ~used:
                continue
            more, slow = total, slowest
            for other, share in mapper.earlier[rank]:
                link = self._kind[gpu][self._where[other]]
                more += mapper.gain[share][link]
                if mapper.speed:
                    slow = min(slow, mapper.speed[share][link])
            self._where[rank] = gpu
            self._extend(rank + 1, used | 1 << gpu, slow, more)
            if self._order and (mapper.left < 0 or self._best >= self._enough):
                return

    def _most(self, rank: int, used: int) -> int:
        """Return the most that the open edges could add.

        Those of a placed rank get the best links that are left to its GPU, the others the best
        pairs that are left; heavier edges get better links.
        """
        ends, among = self._mapper.open[rank]
        free = [gpu for gpu in range(self._mapper.ranks) if not used >> gpu & 1]
        most = self._mapper.best_sum([self._gain[a][b] for a, b in combinations(free, 2)], among)
        for end, shares in ends:
            row = self._gain[self._where[end]]
            most += self._mapper.best_sum([row[gpu] for gpu in free], shares)
        return most


class _Exchanges:
    """Mappings of many ranks to one set that get better as two ranks change places.

    Attributes:
        fastest: the speed beyond which an edge is fast enough, where speeds count before totals.
    """

    def __init__(self, mapper: Mapper, kind: _Kinds, *, by_speed: bool) -> None:
        self._mapper, self._kind, self._by_speed = mapper, kind, by_speed
        self.fastest: float = inf
        self._at: list[_Ends] = [[] for _ in kind]
        for edge in mapper.edges:
            self._at[edge[0]].append(edge)
            self._at[edge[1]].append(edge)

    def best(self, start: Sequence[int]) -> list[int]:
        """Return the best order that exchanges lead to.

        Again and again three ranks of the best order, which are drawn, change places, and exchanges
        go on from there: iterated local search (Lourenco, Martin and Stutzle, Handbook of
        Metaheuristics, 2003).
        """
        found = self._settle(start)
        drawn = 1
        for _ in range(min(MOST_KICKS, MOST_KICKS * 16**2 // len(found) ** 2)):
            kicked = list(found)
            for _ in range(2):  # Python's own generator takes longer to import than all of this
                drawn = (drawn * 1103515245 + 12345) % (1 << 31)
                a, b = (drawn >> 8) % len(found), (drawn >> 16) % len(found)
                kicked[a], kicked[b] = kicked[b], kicked[a]
            order = self._settle(kicked)
            if self._worth(order, self._mapper.edges) >= self._worth(found, self._mapper.edges):
                found = order
        return found

    def _worth(self, order: Sequence[int], edges: _Ends) -> tuple[float, ...]:
        """Return the speeds of edges, if they count, the slowest first; then what they add."""
        mapper = self._mapper
        links = [(share, self._kind[order[a]][order[b]]) for a, b, share in edges]
        total = sum([mapper.gain[share][link] for share, link in links])
        if not self._by_speed:
            return (total,)
        speeds = [mapper.speed[share][link] for share, link in links]
        return (*sorted([min(speed, self.fastest) for speed in speeds]), total)

    def _settle(self, start: Sequence[int]) -> list[int]:
        """Return an order that no exchange of two ranks betters."""
        order = list(start)
        better = True
        while better:
            better = False
            for a, b in combinations(range(len(order)), 2):
                edges = self._at[a] + [edge for edge in self._at[b] if edge[0] != a]
                before = self._worth(order, edges)
                order[a], order[b] = order[b], order[a]
                if self._worth(order, edges) > before:
                    better = True
                else:
                    order[a], order[b] = order[b], order[a]
        return order
