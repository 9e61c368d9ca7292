"""Which rank sits on which GPU of a set: the pattern's edges meet the links (mapa-sc21 3.3).

Of a mapping of ranks to GPUs two figures count. Its *total* is the aggregate bandwidth: the sum of
what its links add, each times the weight of its edge relative to the heaviest (mapa-sc21 Eq. 1).
Its *slowest* is the speed of the edge that keeps the others waiting: what its link carries, divided
by the same relative weight. Both are whole numbers, of bandwidths in 1e-6 GB/s.
"""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations

from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record

EXACT_RANKS = 8
"""Number of ranks up to which the best mapping is found; beyond, one that exchanges led to."""

EFFORT = 50_000
"""Partial mappings that one mapper tries, in about 0.5 s, before exchanges have to do."""

MOST_KICKS = 20
"""Kicks that better the winner's mapping where it is not exact, up to 16 ranks: some 4 ms."""

_Matrix = list[list[list[int]]]  # for each weight of an edge, a figure of every two GPUs
_Ends = list[tuple[int, int, int]]  # two ranks, and the place of their edge's weight in the shares


class Mapping(Record):
    """The GPUs by rank.

    Attributes:
        gpus: positions, in rank order.
        slowest: speed of the slowest edge; 0 without speeds.
        total: aggregate bandwidth.
    """

    gpus: tuple[int, ...]
    slowest: int
    total: int


class Mapper:
    """Finds the best mappings of a pattern to sets of GPUs, and remembers them.

    Args:
        kind: for every two positions the kind of their link, a number.
        edges: edges of the pattern, for the number of ranks that are to be placed.
        worth: what a link of each kind adds to a total.
        speeds: what a link of each kind carries for two GPUs; None if no edge is waited for.
        ranks: number of ranks, if some may have no edge.
        effort: partial mappings to try before exchanges have to do; None for EFFORT.

    Attributes:
        edges: rank, higher rank, place of the edge's weight among all weights, heaviest first.
        ranks: number of ranks.
        speed: for each of these weights how fast an edge is, by kind of link; empty without speeds.
        floors: the speeds that an edge can have, the fastest first.
        left: partial mappings that may still be tried; below 0 once exchanges had to do.
    """

    def __init__(
        self,
        kind: Sequence[Sequence[int]],
        edges: Sequence[Edge],
        worth: Sequence[int],
        speeds: Sequence[int] | None = None,
        *,
        ranks: int = 0,
        effort: float | None = None,
    ) -> None:
        self._kind = kind
        heaviest = max((weight for *_, weight in edges), default=1.0)
        shares = sorted({weight / heaviest for *_, weight in edges}, reverse=True)
        place = {share: i for i, share in enumerate(shares)}
        self.edges: _Ends = [(a, b, place[weight / heaviest]) for a, b, weight in edges]
        self.ranks = ranks or 1 + max((b for _, b, _ in edges), default=-1)
        self.left = EFFORT if effort is None else effort
        self._shares = shares
        self._gain = [[round(link * share) for link in worth] for share in shares]
        self.speed = [[round(one / share) for one in speeds] for share in shares] if speeds else []
        self.floors = sorted({one for row in self.speed for one in row if one}, reverse=True)
        self._known: dict[tuple[bool, int, tuple[int, ...]], list[int]] = {}

    @property
    def gave_up(self) -> bool:
        """Return whether the search stopped comparing all mappings, because there were too many."""
        return self.left < 0

    def start_over(self) -> None:
        """Try so many partial mappings from now on before exchanges have to do."""
        self.left = EFFORT

    def best(self, gpus: Sequence[int], *, slowest_first: bool = False, kicks: int = 0) -> Mapping:
        """Return the best mapping to a set of GPUs; of equals the one with the lowest positions.

        Args:
            gpus: positions, ascending; as many as there are ranks.
            slowest_first: compare the slowest edge before the total, not after it.
            kicks: how long to try beyond EXACT_RANKS; see _Exchanges.best.

        Source: mapa-sc21 3.3, which leaves the choice among isomorphic matches to Eq. 1.
        """
        links = tuple([row[b] for row, b in self._pairs(gpus)])
        if not self.edges or self.tells_no_rank_apart or len(set(links)) < 2:
            return self.figures(gpus)
        key = slowest_first and bool(self.speed), kicks, links
        order = self._known.get(key)
        if order is None:
            order = self._order(*key)
            if not self.gave_up:  # next time there may be time for a better one
                self._known[key] = order
        return self.figures([gpus[i] for i in order])

    def _pairs(self, gpus: Sequence[int]) -> list[tuple[Sequence[int], int]]:
        return [(self._kind[a], b) for a, b in combinations(gpus, 2)]

    def figures(self, gpus: Sequence[int]) -> Mapping:
        """Return a mapping with its figures."""
        links = [(share, self._kind[gpus[a]][gpus[b]]) for a, b, share in self.edges]
        speeds = [self.speed[share][link] for share, link in links] if self.speed else ()
        total = sum([self._gain[share][link] for share, link in links])
        return Mapping(tuple(gpus), min(speeds, default=0), total)

    @cached_property
    def tells_no_rank_apart(self) -> bool:
        """Whether every two ranks have an edge, and all weigh the same."""
        return len(self._shares) == 1 and len(self.edges) == self.ranks * (self.ranks - 1) // 2

    @cached_property
    def degree(self) -> list[int]:
        """Number of edges that each rank has."""
        ends = [rank for a, b, _ in self.edges for rank in (a, b)]
        return [ends.count(rank) for rank in range(self.ranks)]

    def most_total(self, gpus: Sequence[int]) -> int:
        """Return at least the total of any mapping to a set.

        The heaviest edges get the best links, and no GPU has more edges than any rank.
        """
        rows = [[self._gain[0][row[b]] for b in gpus] for row in [self._kind[a] for a in gpus]]
        links = sorted([gain for i, row in enumerate(rows) for gain in row[:i]], reverse=True)
        weights = sorted([self._shares[share] for *_, share in self.edges], reverse=True)
        edges = sum([int(a * b) + 1 for a, b in zip(links, weights, strict=False)])
        most = max(self.degree)
        ends = sum([sum(sorted(row, reverse=True)[:most]) for row in rows])
        return min(edges, ends // 2)

    def _order(self, slowest_first: bool, kicks: int, links: Sequence[int]) -> list[int]:
        """Return the best order of GPUs, as places in their set, given the kinds of its links."""
        kind = [[0] * self.ranks for _ in range(self.ranks)]
        for (a, b), link in zip(combinations(range(self.ranks), 2), links, strict=True):
            kind[a][b] = kind[b][a] = link
        gain = _of_links(self._gain, kind)
        speed = _of_links(self.speed, kind) if self.speed else None
        start = self._place_greedily(gain)
        if self.ranks <= EXACT_RANKS and not self.gave_up:
            search = _BestMapping(self, kind, gain, speed, slowest_first=slowest_first)
            return search.best(start)
        if self.ranks <= EXACT_RANKS and not kicks:  # one of many sets, and there is no more time
            return start
        identity = list(range(self.ranks))
        starts = [start, identity] if kicks else [start]
        if not (slowest_first and speed):
            return _Exchanges(self, gain).best(starts, kicks)
        order = start
        for floor in self.floors:
            penalty = len(self.edges) * max(map(max, gain[0])) + 1
            worth = [
                [[g - penalty * (s < floor) for g, s in zip(*rows, strict=True)] for rows in both]
                for both in (
                    zip(*matrices, strict=True) for matrices in zip(gain, speed, strict=True)
                )
            ]
            order = _Exchanges(self, worth).best(starts, kicks)
            if all(speed[share][order[a]][order[b]] >= floor for a, b, share in self.edges):
                break
        return order

    def _place_greedily(self, gain: _Matrix) -> list[int]:
        """Return for each rank the GPU that adds most, the lowest of equals."""
        order: list[int] = []
        left = list(range(self.ranks))
        for earlier in self.earlier:
            gains = [sum([gain[share][gpu][order[a]] for a, share in earlier]) for gpu in left]
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
    def twin(self) -> list[int]:
        """For each rank the next lower one that the pattern treats alike, or -1."""
        rows: list[dict[int, int]] = [{} for _ in range(self.ranks)]
        for a, b, share in self.edges:
            rows[a][b] = rows[b][a] = share

        def others(rank: int, besides: int) -> dict[int, int]:
            return {peer: share for peer, share in rows[rank].items() if peer != besides}

        twins = []
        for rank in range(self.ranks):
            lower = [a for a in range(rank) if others(a, rank) == others(rank, a)]
            twins.append(lower[-1] if lower else -1)
        return twins

    @cached_property
    def turns(self) -> bool:
        """Whether the pattern is the same once each rank is moved on by one, as a ring is."""
        edges = {(a, b, share) for a, b, share in self.edges}
        moved = [((a + 1) % self.ranks, (b + 1) % self.ranks, share) for a, b, share in self.edges]
        return edges == {(min(a, b), max(a, b), share) for a, b, share in moved}

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

    @cached_property
    def moves(self) -> list[list["_Move"]]:
        """For each rank its exchanges and, on rings and chains, the turns of stretches."""
        edges = {edge[:2] for edge in self.edges}
        is_walk = len(self._shares) == 1 and all(b - a in (1, self.ranks - 1) for a, b in edges)
        at: list[_Ends] = [[] for _ in range(self.ranks)]
        for edge in self.edges:
            at[edge[0]].append(edge)
            at[edge[1]].append(edge)
        moves: list[list[_Move]] = [[] for _ in range(self.ranks)]
        for i, j in combinations(range(self.ranks), 2):
            other = {i: j, j: i}
            before = [edge for edge in at[i] + at[j] if edge[:2] != (i, j)]
            after = [(other.get(a, a), other.get(b, b), share) for a, b, share in before]
            found = [_Move(i, j, False, before, after)]
            if is_walk:
                found.append(_turn(i, j, self.ranks, edges))
            moves[i] += found
            moves[j] += found
        return moves


def _of_links(figures: Sequence[Sequence[int]], kind: Sequence[Sequence[int]]) -> _Matrix:
    """Return a figure of every two GPUs, given that of each kind of links, for each weight.

    It is 0 for a GPU and itself: the turn of a whole ring joins an end so, and gains nothing.
    """
    matrices = [[[row[link] for link in links] for links in kind] for row in figures]
    for matrix in matrices:
        for gpu, row in enumerate(matrix):
            row[gpu] = 0
    return matrices


class _BestMapping:
    """Branch and bound over the mappings to one set; inside, GPUs are places in it.

    Ranks are placed one after the other, and a partial mapping is given up as soon as even the best
    links for all that is left would not beat what was found. Of ranks that are alike to the
    pattern, and of GPUs that are alike to the links, only one order is tried.
    """

    def __init__(
        self,
        mapper: Mapper,
        kind: Sequence[Sequence[int]],
        gain: _Matrix,
        speed: _Matrix | None,
        *,
        slowest_first: bool,
    ) -> None:
        self._mapper, self._gain, self._speed = mapper, gain, speed
        self._slowest_first = slowest_first
        places = range(mapper.ranks)
        self._lower_twins = [
            sum(
                1 << b
                for b in range(a)
                if all(kind[a][c] == kind[b][c] for c in places if c not in (a, b))
            )
            for a in places
        ]
        self._sums: dict[object, int] = {}
        self._where = [0] * mapper.ranks
        self._order: list[int] = []

    def best(self, start: list[int]) -> list[int]:
        """Return the best order, of equals the lowest, given one that may be as good."""
        gain, speed, edges = self._gain, self._speed, self._mapper.edges
        total = sum(gain[share][start[a]][start[b]] for a, b, share in edges)
        slowest = min(speed[share][start[a]][start[b]] for a, b, share in edges) if speed else 0
        self._best = self._key(slowest, total)
        fastest = max(self._mapper.floors, default=0)
        self._enough = self._key(fastest, self._most(0, 0))
        self._extend(0, 0, fastest, 0)
        return self._order or start

    def _key(self, slowest: int, total: int) -> tuple[int, int]:
        return (slowest, total) if self._slowest_first else (total, slowest)

    def _extend(self, rank: int, used: int, slowest: int, total: int) -> None:
        mapper = self._mapper
        bound = self._key(slowest, total + self._most(rank, used))
        if bound < self._best or (self._order and bound == self._best):
            return
        if rank == mapper.ranks:
            self._best, self._order = bound, list(self._where)
            return
        mapper.left -= 1
        twin = mapper.twin[rank]
        first = self._where[twin] + 1 if twin >= 0 else 0
        # Any rank of a ring can be rank 0, so that it has the lowest GPU.
        last = 1 if rank == 0 and mapper.turns else mapper.ranks
        for gpu in range(first, last):
            if used >> gpu & 1 or self._lower_twins[gpu] & ~used:
                continue
            more, slow = total, slowest
            for other, share in mapper.earlier[rank]:
                more += self._gain[share][gpu][self._where[other]]
                if self._speed:
                    slow = min(slow, self._speed[share][gpu][self._where[other]])
            self._where[rank] = gpu
            self._extend(rank + 1, used | 1 << gpu, slow, more)
            if mapper.left < 0 or (self._order and self._best >= self._enough):
                return

    def _most(self, rank: int, used: int) -> int:
        """Return the most that the open edges could add.

        They get the best links left from each GPU, and the best pairs left; heavier edges get
        better links.
        """
        ends, among = self._mapper.open[rank]
        most = self._sums.get((rank, used))
        if most is None:
            free = [gpu for gpu in range(self._mapper.ranks) if not used >> gpu & 1]
            links = [self._gain[0][a][b] for a, b in combinations(free, 2)]
            most = self._sums[rank, used] = self._best_sum(links, among)
        for end, shares in ends:
            key = self._where[end], used, shares
            found = self._sums.get(key)
            if found is None:
                row = enumerate(self._gain[0][key[0]])
                links = [gain for gpu, gain in row if not used >> gpu & 1]
                found = self._sums[key] = self._best_sum(links, shares)
            most += found
        return most

    def _best_sum(self, links: list[int], shares: Sequence[int]) -> int:
        """Return the most that edges of these weights, heaviest first, could add over links."""
        links.sort(reverse=True)
        if not shares or not shares[-1]:  # all edges weigh the same
            return sum(links[: len(shares)])
        weights = self._mapper._shares  # noqa: SLF001
        return sum([int(link * weights[s]) + 1 for link, s in zip(links, shares, strict=False)])


class _Move(Record):
    """Two ranks that swap, or a stretch of a ring or chain that turns.

    Attributes:
        first: the lower of the two ranks, or the first of the stretch.
        last: the higher of the two ranks, or the last of the stretch.
        turns: whether it is a stretch.
        before: edges of the pattern that change.
        after: ranks that are joined now where those edges are after the move.
    """

    first: int
    last: int
    turns: bool
    before: _Ends
    after: _Ends

    def made(self, order: Sequence[int]) -> list[int]:
        """Return an order after the move."""
        first, last = self.first, self.last
        if self.turns:
            return [*order[:first], *order[first : last + 1][::-1], *order[last + 1 :]]
        return _swapped(order, first, last)


def _swapped(order: Sequence[int], a: int, b: int) -> list[int]:
    found = list(order)
    found[a], found[b] = found[b], found[a]
    return found


def _turn(first: int, last: int, count: int, edges: set[tuple[int, int]]) -> _Move:
    """Return the turn of a stretch of a walk, which changes the edges at its ends only."""
    outer = (first - 1) % count, (last + 1) % count
    before, after = [], []
    for end, beside, new_end in ((first, outer[0], last), (last, outer[1], first)):
        if (min(end, beside), max(end, beside)) in edges:
            before.append((end, beside, 0))
            after.append((new_end, beside, 0))
    return _Move(first, last, True, before, after)


class _Exchanges:
    """Mappings of many ranks to one set that get better by exchanges.

    Args:
        mapper: the pattern.
        worth: what an edge of each weight is worth between every two GPUs, as places in the set.
    """

    def __init__(self, mapper: Mapper, worth: _Matrix) -> None:
        self._mapper, self._worth = mapper, worth

    def best(self, starts: Iterable[list[int]], kicks: int) -> list[int]:
        """Return the best order that exchanges lead to.

        Args:
            starts: the orders to begin with.
            kicks: how often three ranks of the best order change places, which are drawn, and
                exchanges go on from there: iterated local search (Lourenco, Martin and Stutzle,
                Handbook of Metaheuristics, 2003).
        """
        found = max([self._settle(start, range(len(start))) for start in starts], key=self._total)
        drawn = 1
        for _ in range(kicks):
            ranks = []
            for _ in range(3):  # Python's own generator takes longer to import than all of this
                drawn = (drawn * 1103515245 + 12345) % (1 << 31)
                ranks.append((drawn >> 8) % len(found))
            kicked = _swapped(_swapped(found, ranks[0], ranks[1]), ranks[1], ranks[2])
            order = self._settle(kicked, ranks)
            if self._total(order) >= self._total(found):
                found = order
        return found

    def _total(self, order: Sequence[int]) -> int:
        return self._sum(order, self._mapper.edges)

    def _sum(self, order: Sequence[int], edges: _Ends) -> int:
        return sum([self._worth[share][order[a]][order[b]] for a, b, share in edges])

    def _settle(self, order: list[int], moved: Iterable[int]) -> list[int]:
        """Return an order after moves that better it, of ranks that moved and those they move."""
        left = dict.fromkeys(moved)
        while left:
            for move in self._mapper.moves[left.popitem()[0]]:
                if self._sum(order, move.after) > self._sum(order, move.before):
                    order = move.made(order)
                    left[move.first] = left[move.last] = None
        return order
