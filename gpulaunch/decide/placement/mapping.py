"""Which rank sits on which GPU of a set: the pattern's edges meet the links (mapa-sc21 3.3)."""
# pure: decides on plain values

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

from gpulaunch.decide.placement.embedding import Embedding
from gpulaunch.decide.placement.exchanges import Exchanges, Move, moves_of
from gpulaunch.decide.placement.rank_search import RankSearch
from gpulaunch.decide.placement.traffic import Mapping, Traffic

EXACT_RANKS = 8
"""Number of ranks up to which the best mapping is found; beyond, one that exchanges led to."""

EFFORT = 50_000
"""Partial mappings that one decision tries, in about 0.4 s, before good mappings have to do."""

LEAST_EFFORT = 20
"""Partial mappings that are tried after that to see how fast the edges of a set can be."""

_QUICKER = 10  # so many steps of an embedding take as long as one of a search for the best sum


class Mapper:
    """Finds the best mappings of a pattern to sets of GPUs, and remembers them.

    Args:
        traffic: the pattern over the links.
        slowest: by mask the slowest edge of the mapping whose slowest edge is the fastest, 1e-6
            GB/s; None if it is not known.
    """

    def __init__(self, traffic: Traffic, slowest: Sequence[int] | None = None) -> None:
        self.traffic = traffic
        self._known_slowest = slowest
        self._kind = traffic.fabric.kind
        self._left = EFFORT
        self._known: dict[object, int] = {}
        self._orders: dict[object, list[int]] = {}
        self._embeddings: dict[int, Embedding] = {}

    @property
    def gave_up(self) -> bool:
        """Return whether the search stopped comparing all mappings, because there were too many."""
        return self._left < 0

    def start_over(self, effort: int) -> None:
        """Try so many partial mappings from now on before good mappings have to do."""
        self._left = effort

    def best(self, gpus: Sequence[int], *, slowest_first: bool = False, kicks: int = 0) -> Mapping:
        """Return the best mapping to a set of GPUs; of equals the one with the lowest positions.

        Args:
            gpus: positions, ascending; as many as there are ranks.
            slowest_first: compare the slowest edge before the total, not after it.
            kicks: how long to try beyond EXACT_RANKS; see Exchanges.best.

        Source: mapa-sc21 3.3, which leaves the choice among isomorphic matches to Eq. 1.
        """
        if not self.traffic.edges:
            return Mapping(tuple(gpus), 0, 0)
        if self._are_alike(gpus):
            return self.traffic.figures(gpus)
        if len(gpus) <= EXACT_RANKS:
            slowest = self.slowest(gpus, slowest_first=slowest_first)
            total = self.total(gpus, slowest_first=slowest_first)
            found: list[int] = []
            if not self.gave_up:
                _, found = self._search(gpus, slowest, total, total, eager=False)
            if found and not self.gave_up:
                return self.traffic.figures(found)
        return self.near_best(gpus, slowest_first=slowest_first, kicks=kicks)

    def slowest(self, gpus: Sequence[int], *, slowest_first: bool) -> int:
        """Return the slowest edge of the best mapping to a set; see best."""
        if not self.traffic.speed:
            return 0
        if self._are_alike(gpus):
            return self.traffic.figures(gpus).slowest
        if not slowest_first:
            least = self.total(gpus, slowest_first=False)
            return self._figure("slowest", gpus, least, slowest_first=False)
        mask = self.traffic.fabric.mask(gpus)
        if self._known_slowest:
            return self._known_slowest[mask]
        return self.fastest(mask)

    def total(self, gpus: Sequence[int], *, slowest_first: bool) -> int:
        """Return the total of the best mapping to a set; see best."""
        if self._are_alike(gpus):
            return self.traffic.figures(gpus).total
        floor = self.slowest(gpus, slowest_first=True) if slowest_first else 0
        return self._figure("total", gpus, floor, slowest_first=slowest_first)

    def fastest(self, mask: int) -> int:
        """Return how fast all edges can be, 1e-6 GB/s, on any GPUs of a set."""
        return next(floor for floor in self.traffic.floors if self._fits(mask, floor))

    def tighten(self, mask: int, most: int) -> int:
        """Return a bound of the slowest edge of a set if it has that; else a lower bound."""
        if self._fits(mask, most):
            return most
        return next(floor for floor in self.traffic.floors if floor < most)

    def _fits(self, mask: int, floor: int) -> bool:
        """Return whether a mapping was found, to a set or a part of it, with edges no slower."""
        if floor == self.traffic.floors[-1]:
            return True
        embedding = self._embedding(floor)
        before = embedding.steps
        fits = embedding.fits(mask, _QUICKER * max(self._left, LEAST_EFFORT))
        self._left -= (embedding.steps - before) // _QUICKER
        return fits

    def _embedding(self, floor: int) -> Embedding:
        if floor not in self._embeddings:
            self._embeddings[floor] = Embedding(self.traffic, floor)
        return self._embeddings[floor]

    def _figure(self, name: str, gpus: Sequence[int], least: int, *, slowest_first: bool) -> int:
        """Return a figure of the best mapping, given the least that the other one has to be."""
        _, links = _canonical_order(self._kind, gpus)
        key = (name, slowest_first, *links)  # sets whose links are alike have the same figures
        if key not in self._known:
            found: int | None = None
            if len(gpus) <= EXACT_RANKS and not self.gave_up:
                if name == "total":
                    found, _ = self._search(gpus, least)
                else:
                    found = self._fastest_floor(gpus, least)
            if found is None or self.gave_up:
                found = getattr(self.near_best(gpus, slowest_first=slowest_first), name)
            self._known[key] = found
        return self._known[key]

    def _search(
        self,
        gpus: Sequence[int],
        floor: int,
        least: int = 0,
        enough: int | None = None,
        *,
        eager: bool = True,
    ) -> tuple[int, list[int]]:
        """Search mappings to a set; see RankSearch.best. An eager one is of ranks renumbered."""
        traffic = self.traffic.connected if eager else self.traffic
        search = RankSearch(traffic, gpus, floor, self._left)
        found = search.best(least, enough, eager=eager)
        self._left = search.left
        return found

    def _fastest_floor(self, gpus: Sequence[int], total: int) -> int:
        """Return the fastest slowest edge of all mappings to a set with at least this total."""
        floors = self.traffic.floors[::-1]
        # floors[low] is reached, floors[high] is not; any mapping reaches the lowest.
        low, high = 0, len(floors)
        while high - low > 1 and not self.gave_up:
            middle = (low + high) // 2
            if self._search(gpus, floors[middle], total, total)[0] >= total:
                low = middle
            else:
                high = middle
        return floors[low]

    def near_best(self, gpus: Sequence[int], *, slowest_first: bool, kicks: int = 0) -> Mapping:
        """Return a mapping that exchanges led to; see Exchanges.best."""
        if self._are_alike(gpus):
            return self.traffic.figures(gpus)
        order, links = _canonical_order(self._kind, gpus)
        key = (slowest_first, kicks, *links)
        if key not in self._orders:
            ordered = [gpus[i] for i in order]
            floor = 0
            if slowest_first and self.traffic.speed:
                floor = self.slowest(gpus, slowest_first=True)
            exchanges = Exchanges(self.traffic, self._moves, ordered, floor)
            starts = [_place_greedily(self.traffic, ordered)] + [ordered] * (kicks > 0)
            found = exchanges.best([[*map(ordered.index, start)] for start in starts], kicks)
            if self.traffic.figures([ordered[i] for i in found]).slowest < floor:
                fast = self._embedding(floor).find(self.traffic.fabric.mask(gpus))
                found = exchanges.best([[*map(ordered.index, fast)]], kicks)
            self._orders[key] = found
        return self.traffic.figures([gpus[order[i]] for i in self._orders[key]])

    @cached_property
    def _moves(self) -> list[list[Move]]:
        return moves_of(self.traffic)

    def _are_alike(self, gpus: Sequence[int]) -> bool:
        """Return whether every mapping to a set is as good as any other."""
        return (
            self.traffic.alike
            or self.traffic.fabric.alike
            or len({self._kind[a][b] for a, b in combinations(gpus, 2)}) == 1
        )


def _canonical_order(
    kind: Sequence[Sequence[int]], gpus: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return an order of a set, and the kinds of its links in it.

    Sets with the same links mostly share it.
    """
    rows = [[kind[a][b] for b in gpus] for a in gpus]
    profiles = [sorted(row) for row in rows]
    number = {profile: i for i, profile in enumerate(sorted(set(map(tuple, profiles))))}
    seen = [number[tuple(profile)] for profile in profiles]
    profiles = [
        sorted(link * len(gpus) + seen[other] for other, link in enumerate(row)) for row in rows
    ]
    order: list[int] = []
    left = set(range(len(gpus)))

    def sort_key(gpu: int) -> tuple[list[int], list[int], int]:
        return [rows[gpu][other] for other in order], profiles[gpu], gpu

    while left:
        order.append(min(left, key=sort_key))
        left.remove(order[-1])
    return order, [rows[order[b]][order[a]] for b in range(len(order)) for a in range(b)]


def _place_greedily(traffic: Traffic, gpus: Sequence[int]) -> list[int]:
    """Return for each rank the GPU that adds most, the lowest of equals."""
    kind = traffic.fabric.kind
    order: list[int] = []
    left = list(gpus)
    for earlier in traffic.earlier:
        gains = {}
        for gpu in left:
            links = [(share, kind[gpu][order[other]]) for other, share in earlier]
            gains[gpu] = sum(traffic.gain[share][link] for share, link in links), -gpu
        best = max(left, key=gains.__getitem__)
        order.append(best)
        left.remove(best)
    return order
