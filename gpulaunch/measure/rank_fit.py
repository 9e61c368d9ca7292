"""The order of ranks that puts most of a graph's traffic onto the edges of a pattern."""
# pure: decides on plain values

from collections.abc import Iterator, Mapping, Sequence
from math import fsum, inf

EXACT_RANKS = 8
"""Largest number of ranks for which the best order is certain to be found."""

EFFORT = 8_000
"""Number of partial orders tried for one pattern of more than EXACT_RANKS ranks: about 0.1 s."""

_STARTS = 3
_EPSILON = 1e-12

Pair = tuple[int, int]


def most(shape: Sequence[Pair], weights: Mapping[Pair, float]) -> float:
    """Return an upper bound for any order: the heaviest pairs, as many as the pattern has edges."""
    return fsum(sorted(weights.values(), reverse=True)[: len(shape)])


def fit(
    ranks: int, shape: Sequence[Pair], weights: Mapping[Pair, float], wanted: float
) -> tuple[float, list[int]]:
    """Return the best order of ranks if it reaches `wanted`; it is exact up to EXACT_RANKS ranks.

    Starting orders are the ranks' own order, its rotations, and orders in which each place gets the
    rank that exchanges most with those around it. They are improved by swapping two ranks until no
    swap helps. The best of them is the start of a branch and bound search, which gives up after
    EFFORT partial orders if there are more than EXACT_RANKS ranks.

    Args:
        ranks: number of ranks.
        shape: the pattern's edges between places.
        weights: traffic of pairs of ranks, the lower first.
        wanted: traffic on the pattern's edges that is worth the search.

    Returns:
        The traffic on the pattern's edges, and the rank at each place: any order if `wanted` is out
        of reach, and the ranks' own order if none is better.
    """
    search = _Fit(ranks, shape, weights)
    if search.most >= wanted:
        search.climb()
        search.branch(wanted, inf if ranks <= EXACT_RANKS else EFFORT)
    return search.value, search.order


class _Fit:
    """A search for the best order; `value` and `order` are the best so far."""

    def __init__(self, ranks: int, shape: Sequence[Pair], weights: Mapping[Pair, float]) -> None:
        self.ranks = ranks
        self.weight = [[0.0] * ranks for _ in range(ranks)]
        for (a, b), weight in weights.items():
            self.weight[a][b] = self.weight[b][a] = weight
        self.near: list[list[int]] = [[] for _ in range(ranks)]
        for a, b in shape:
            self.near[a].append(b)
            self.near[b].append(a)
        self.places = self._order_places()
        self.before = [
            [p for p in self.near[place] if p in self.places[:i]]
            for i, place in enumerate(self.places)
        ]
        self.heavy = sorted(
            ((weight, 1 << a | 1 << b) for (a, b), weight in weights.items()), reverse=True
        )
        self.total = [fsum(row) for row in self.weight]
        # Traffic of an edge, if all edges carried the same.
        self.usual = fsum(self.total) / (2 * len(shape))
        self.most = most(shape, weights)
        self.order = list(range(ranks))
        self.value = self._value(self.order)
        self._floor = self._left = 0.0

    def _order_places(self) -> list[int]:
        """Return the order in which to fill the places.

        It begins at a place with few edges; each next one has as many edges as possible to those
        before it.
        """
        left = set(range(self.ranks))
        places = [min(left, key=lambda p: (len(self.near[p]), p))]
        while left := left - {places[-1]}:
            places.append(
                max(
                    left,
                    key=lambda p: (len(set(self.near[p]) & set(places)), len(self.near[p]), -p),
                )
            )
        return places

    def _value(self, order: Sequence[int]) -> float:
        return fsum(
            self.weight[order[a]][order[b]]
            for a in range(self.ranks)
            for b in self.near[a]
            if a < b
        )

    def _keep(self, order: Sequence[int]) -> None:
        value = self._value(order)
        if value > self.value * (1 + _EPSILON):
            self.order, self.value = list(order), value

    def climb(self) -> None:
        """Improve the best starting orders by swaps, and keep the best result."""
        if self.value < self.most:
            for start in sorted(self._starts(), key=self._value, reverse=True)[:_STARTS]:
                self._keep(self._improve(start))

    def _starts(self) -> Iterator[list[int]]:
        ranks = list(range(self.ranks))
        for shift in ranks:
            yield ranks[shift:] + ranks[:shift]
            yield self._grow(shift)

    def _grow(self, start: int) -> list[int]:
        """Return an order that begins with a rank and gives each place the rank that suits best."""
        order, used = [0] * self.ranks, 0
        for at, place in enumerate(self.places):
            order[place] = start if at == 0 else self._candidates(at, used, order)[0][1]
            used |= 1 << order[place]
        return order

    def _improve(self, order: list[int]) -> list[int]:
        """Swap ranks in an order until no swap improves it, and return it."""
        better = True
        while better:
            better = False
            for a in range(self.ranks):
                for b in range(a):
                    if self._gain(order, a, b) > self.most * _EPSILON:
                        order[a], order[b] = order[b], order[a]
                        better = True
        return order

    def _gain(self, order: Sequence[int], a: int, b: int) -> float:
        """Return the change in traffic if the ranks at two places were swapped."""
        one, other = self.weight[order[a]], self.weight[order[b]]
        at_a = sum(other[order[p]] - one[order[p]] for p in self.near[a] if p != b)
        return at_a + sum(one[order[p]] - other[order[p]] for p in self.near[b] if p != a)

    def branch(self, wanted: float, effort: float) -> None:
        """Search all orders that reach `wanted`, by branch and bound."""
        self._floor, self._left = wanted * (1 - _EPSILON), effort
        self._place(0, 0, [0] * self.ranks, 0.0, sum(map(len, self.before)))

    def _place(self, at: int, used: int, order: list[int], value: float, open_edges: int) -> None:
        """Try every unplaced rank at the next place, the most suitable first."""
        if at == self.ranks:
            self._keep(order)
            return
        self._left -= 1
        bound = value + self._bound_rest(used, open_edges)
        if self._left < 0 or bound <= self.value * (1 + _EPSILON) or bound < self._floor:
            return
        for _, rank, gain in self._candidates(at, used, order):
            order[self.places[at]] = rank
            self._place(
                at + 1, used | 1 << rank, order, value + gain, open_edges - len(self.before[at])
            )

    def _candidates(
        self, at: int, used: int, order: Sequence[int]
    ) -> list[tuple[float, int, float]]:
        """Return (cost, rank, gain) of the unplaced ranks, the most suitable first.

        The gain is the traffic with the neighbours already placed; the cost counts it negative and
        adds half of how far the rank's total is from the usual at this place.
        """
        found = []
        place, placed = self.places[at], [order[other] for other in self.before[at]]
        share = self.usual * len(self.near[place])
        for rank in range(self.ranks):
            if not used >> rank & 1:
                row = self.weight[rank]
                gain = sum(row[other] for other in placed)
                found.append((abs(self.total[rank] - share) / 2 - gain, rank, gain))
        found.sort()
        return found

    def _bound_rest(self, used: int, count: int) -> float:
        """Return an upper bound for `count` edges with an unplaced rank at one end at least."""
        total = 0.0
        for weight, both in self.heavy:
            if both & ~used:
                if not count:
                    break
                total += weight
                count -= 1
        return total
