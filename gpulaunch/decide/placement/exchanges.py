"""Mappings of many ranks that get better by exchanges: ranks swap, stretches of rings turn."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from itertools import combinations

from gpulaunch.decide.placement.traffic import Traffic
from gpulaunch.records import Record

_Edge = tuple[int, int, int]  # two ranks, and the place of the edge's weight in Traffic.shares


class Move(Record):
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
    before: list[_Edge]
    after: list[_Edge]

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


def moves_of(traffic: Traffic) -> list[list[Move]]:
    """Return the moves that a pattern's ranks can make, for each rank."""
    count = traffic.ranks
    edges = {edge[:2] for edge in traffic.edges}
    is_walk = len(traffic.shares) == 1 and all(b - a in (1, count - 1) for a, b in edges)
    at = [[edge for edge in traffic.edges if rank in edge[:2]] for rank in range(count)]
    moves: list[list[Move]] = [[] for _ in range(count)]
    for i, j in combinations(range(count), 2):
        other = {i: j, j: i}
        before = [edge for edge in at[i] + at[j] if edge[:2] != (i, j)]
        after = [(other.get(a, a), other.get(b, b), share) for a, b, share in before]
        found = [Move(i, j, False, before, after)]
        if is_walk:
            found.append(_turn(i, j, count, edges))
        moves[i] += found
        moves[j] += found
    return moves


def _turn(first: int, last: int, count: int, edges: set[tuple[int, int]]) -> Move:
    """Return the turn of a stretch of a walk, which changes the edges at its ends only."""
    outer = (first - 1) % count, (last + 1) % count
    before, after = [], []
    for end, beside, new_end in ((first, outer[0], last), (last, outer[1], first)):
        if (min(end, beside), max(end, beside)) in edges:
            before.append((end, beside, 0))
            after.append((new_end, beside, 0))
    return Move(first, last, True, before, after)


class Exchanges:
    """Mappings to one set; inside, GPUs are places in it.

    Args:
        traffic: the pattern over the links.
        moves: its moves.
        gpus: positions in the fabric.
        floor: speed under which an edge costs more than all others can add, 1e-6 GB/s.
    """

    def __init__(
        self,
        traffic: Traffic,
        moves: Sequence[Sequence[Move]],
        gpus: Sequence[int],
        floor: int,
    ) -> None:
        self._edges = traffic.edges
        self._moves = moves
        kind = [[traffic.fabric.kind[a][b] for b in gpus] for a in gpus]
        penalty = len(traffic.edges) * max(traffic.gain[0]) + 1
        self._worth = [
            [[gain[link] - penalty * (speed[link] < floor) for link in row] for row in kind]
            for gain, speed in zip(traffic.gain, traffic.speed or traffic.gain, strict=True)
        ]

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
        worth = self._worth
        return sum([worth[share][order[a]][order[b]] for a, b, share in self._edges])

    def _settle(self, order: list[int], moved: Iterable[int]) -> list[int]:
        """Return an order after moves that better it, of ranks that moved and those they move."""
        worth = self._worth
        left = dict.fromkeys(moved)
        while left:
            for move in self._moves[left.popitem()[0]]:
                after = sum([worth[share][order[a]][order[b]] for a, b, share in move.after])
                if after > sum([worth[share][order[a]][order[b]] for a, b, share in move.before]):
                    order = move.made(order)
                    left[move.first] = left[move.last] = None
        return order
