"""A job's pattern over the links of a machine: what an edge adds, and which ranks are alike.

Of a mapping of ranks to GPUs two figures count. Its *total* is the aggregate bandwidth: the sum of
w over the pattern's edges, each times its weight relative to the heaviest (mapa-sc21 Eq. 1). Its
*slowest* is the speed of the edge that keeps the others waiting: what its link carries, divided by
the same relative weight. Both are whole numbers of 1e-6 GB/s.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record


class Mapping(Record):
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
        edges: edges of the pattern, for the number of ranks that are to be placed.
        speeds: what a link of each kind carries for two GPUs, 1e-6 GB/s; None if no edge is waited
            for.
        worth: what a link of each kind adds to a total; None for w.

    Attributes:
        ranks: number of ranks.
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
        place = {share: i for i, share in enumerate(self.shares)}
        self.edges = [(a, b, place[weight / heaviest]) for a, b, weight in edges]
        self.gain = [[round(link * share) for link in worth] for share in self.shares]
        self.speed = (
            [[round(speed / share) for speed in speeds] for share in self.shares]
            if speeds
            else None
        )

    @cached_property
    def floors(self) -> list[int]:
        """The speeds that an edge can have, the fastest first."""
        return sorted({speed for speeds in self.speed or () for speed in speeds[:-1]}, reverse=True)

    @cached_property
    def earlier(self) -> list[list[tuple[int, int]]]:
        """Return for each rank its neighbours of lower rank, with the shares of the edges."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        for a, b, share in self.edges:
            found[b].append((a, share))
        return found

    @cached_property
    def open(self) -> list[tuple[list[tuple[int, tuple[int, ...]]], tuple[int, ...]]]:
        """Return for each number of placed ranks the shares of the open edges, heaviest first.

        First the edges of each placed rank to the others, then those among the others.
        """
        found = []
        for placed in range(self.ranks + 1):
            ends: dict[int, list[int]] = {}
            for a, b, share in self.edges:
                if a < placed <= b:
                    ends.setdefault(a, []).append(share)
            among = tuple(sorted(share for a, _, share in self.edges if placed <= a))
            found.append(
                ([(end, tuple(sorted(shares))) for end, shares in sorted(ends.items())], among)
            )
        return found

    @cached_property
    def twin(self) -> list[int]:
        """Return for each rank the next lower one that the pattern treats alike, or -1."""
        rows = [dict.fromkeys(range(self.ranks), -1) for _ in range(self.ranks)]
        for a, b, share in self.edges:
            rows[a][b] = rows[b][a] = share

        def are_twins(a: int, b: int) -> bool:
            others = (rank for rank in range(self.ranks) if rank not in (a, b))
            return all(rows[a][rank] == rows[b][rank] for rank in others)

        twins = []
        for rank in range(self.ranks):
            lower = (before for before in reversed(range(rank)) if are_twins(rank, before))
            twins.append(next(lower, -1))
        return twins

    @cached_property
    def later_twins(self) -> list[int]:
        """Return for each rank the number of higher ranks that the pattern treats alike."""
        found = [0] * self.ranks
        for rank in range(self.ranks):
            before = self.twin[rank]
            while before >= 0:
                found[before] += 1
                before = self.twin[before]
        return found

    @cached_property
    def degree(self) -> list[int]:
        """Number of edges that each rank has."""
        ends = Counter(rank for a, b, _ in self.edges for rank in (a, b))
        return [ends[rank] for rank in range(self.ranks)]

    @cached_property
    def connected_order(self) -> list[int]:
        """The ranks, so that each but the first has as many edges to the ones before as can be.

        Which links are used shows early then, and a search that is only after figures ends sooner.
        """
        order = [max(range(self.ranks), key=lambda rank: (self.degree[rank], -rank))]
        while len(order) < self.ranks:
            placed = set(order)
            pulls = [0] * self.ranks
            for a, b, _ in self.edges:
                pulls[a] += b in placed
                pulls[b] += a in placed
            left = [rank for rank in range(self.ranks) if rank not in placed]
            keys = {rank: (pulls[rank], self.degree[rank], -rank) for rank in left}
            order.append(max(left, key=keys.__getitem__))
        return order

    @cached_property
    def connected(self) -> "Traffic":
        """This traffic with the ranks renumbered in connected_order."""
        fabric, edges, speeds, worth = self._given
        place = {rank: i for i, rank in enumerate(self.connected_order)}
        moved = [
            (min(place[a], place[b]), max(place[a], place[b]), weight) for a, b, weight in edges
        ]
        connected = Traffic(fabric, moved, speeds, worth)
        connected.turns = self.turns  # whatever the ranks are called
        return connected

    @cached_property
    def alike(self) -> bool:
        """Whether the pattern tells no rank from any other.

        Then every two have an edge, and all weigh the same.
        """
        return len(self.shares) == 1 and len(self.edges) == self.ranks * (self.ranks - 1) // 2

    @cached_property
    def turns(self) -> bool:
        """Whether some turn of the pattern onto itself brings any rank in the place of rank 0.

        Known are those of rings, by one rank, and of grids of two ranks each way, end for end.
        """
        edges, ranks = set(self.edges), range(self.ranks)

        def stays(places: list[int]) -> bool:
            moved = [(places[a], places[b], share) for a, b, share in self.edges]
            return edges == {(min(a, b), max(a, b), share) for a, b, share in moved}

        if stays([(rank + 1) % self.ranks for rank in ranks]):
            return True
        ways = [1 << way for way in range((self.ranks - 1).bit_length())]
        is_grid = 1 << len(ways) == self.ranks
        return is_grid and all(stays([rank ^ way for rank in ranks]) for way in ways)

    def most_total(self, gpus: Sequence[int]) -> int:
        """Return at least the total of any mapping to a set.

        The heaviest edges get the best links, and no GPU has more edges than any rank.
        """
        rows = self._rows(self.gain[0], gpus)
        links = sorted([gain for i, row in enumerate(rows) for gain in row[:i]], reverse=True)
        shares = [self.shares[share] for share in sorted(share for _, _, share in self.edges)]
        edges = sum([int(gain * share) + 1 for gain, share in zip(links, shares, strict=False)])
        most = max(self.degree)
        ends = sum([sum(sorted(row, reverse=True)[:most]) for row in rows])
        return min(edges, ends // 2)

    def _rows(self, figure: Sequence[int], gpus: Sequence[int]) -> list[list[int]]:
        """Return a figure of each link of each GPU of a set."""
        return [[figure[row[b]] for b in gpus] for row in [self.fabric.kind[a] for a in gpus]]

    def figures(self, gpus: Sequence[int]) -> Mapping:
        """Return a mapping with its figures."""
        kind = self.fabric.kind
        links = [(share, kind[gpus[a]][gpus[b]]) for a, b, share in self.edges]
        slowest = (
            min(self.speed[share][link] for share, link in links) if self.speed and links else 0
        )
        return Mapping(tuple(gpus), slowest, sum(self.gain[share][link] for share, link in links))
