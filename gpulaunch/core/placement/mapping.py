"""Which rank sits on which GPU of a set: the pattern's edges meet the links (mapa-sc21 3.3)."""

from collections.abc import Callable, Sequence
from itertools import combinations

from gpulaunch.core.placement.rank_search import RankSearch
from gpulaunch.core.placement.traffic import Mapping, Traffic

EXACT_RANKS = 8
"""Up to so many ranks the best mapping is found; beyond that, a mapping that no swap and no reversal improves."""


class Mapper:
    """Finds the best mappings of a pattern to sets of GPUs, and remembers them.

    Args:
        traffic: the pattern over the links.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self._kind = traffic.fabric.kind
        self._known: dict[object, int] = {}
        self._orders: dict[object, list[int]] = {}

    def best(self, gpus: Sequence[int], *, slowest_first: bool = False, effort: int = 0) -> Mapping:
        """The best mapping to a set of GPUs; of equals the one with the lowest positions, rank by rank.

        Args:
            gpus: positions, ascending.
            slowest_first: compare the slowest edge before the total, not after it.
            effort: beyond EXACT_RANKS so many beginnings are tried to better what swaps led to; about 10 us each.

        Source: mapa-sc21 3.3, which leaves the choice among isomorphic matches to Eq. 1.
        """
        traffic, kind = self.traffic, self._kind
        if not traffic.edges:
            return Mapping(tuple(gpus), 0, 0)
        if traffic.alike or len({kind[a][b] for a, b in combinations(gpus, 2)}) == 1:
            return traffic.figures(gpus)
        if len(gpus) > EXACT_RANKS:
            found = self.near_best(gpus, slowest_first=slowest_first)
            return _bettered(traffic, gpus, found, effort, slowest_first=slowest_first) if effort else found
        if slowest_first:
            slowest = self.best_slowest(gpus)
            total = self.best_total(gpus, slowest)
        else:
            total = self.best_total(gpus)
            slowest = self.best_slowest(gpus, total)
        return traffic.figures(RankSearch(traffic, gpus, slowest).first(total))

    def best_total(self, gpus: Sequence[int], floor: int = 0) -> int:
        """Largest total of all mappings to a set, none of whose edges is slower than floor; -1 if there is none.

        Args:
            gpus: positions, ascending; as many as there are ranks, at most EXACT_RANKS.
            floor: 1e-6 GB/s.
        """
        return self._remembered("total", gpus, floor, lambda: RankSearch(self.traffic.connected, gpus, floor).best())

    def best_slowest(self, gpus: Sequence[int], total: int = 0) -> int:
        """The fastest slowest edge of all mappings to a set whose total is not less than that given; see best_total."""
        return self._remembered("slowest", gpus, total, lambda: self._fastest_floor(gpus, total))

    def near_best(self, gpus: Sequence[int], *, slowest_first: bool) -> Mapping:
        """A mapping that no swap of two GPUs and no reversal of a stretch improves; see best."""
        kind = self._kind
        if len({kind[a][b] for a, b in combinations(gpus, 2)}) == 1:
            return self.traffic.figures(gpus)
        order, links = _arranged(kind, gpus)
        key = (slowest_first, *links)
        if key not in self._orders:
            self._orders[key] = _improved(self.traffic, [gpus[i] for i in order], slowest_first=slowest_first)
        return self.traffic.figures([gpus[order[i]] for i in self._orders[key]])

    def _remembered(self, what: str, gpus: Sequence[int], bound: int, search: Callable[[], int]) -> int:
        """Sets whose links are alike have the same figures; in what order the GPUs come makes no difference."""
        key = (what, bound, *_arranged(self._kind, gpus)[1])
        if key not in self._known:
            self._known[key] = search()
        return self._known[key]

    def _fastest_floor(self, gpus: Sequence[int], total: int) -> int:
        if not self.traffic.speed:
            return 0
        kind = self._kind
        kinds = {kind[a][b] for a, b in combinations(gpus, 2)}
        floors = sorted({speeds[k] for speeds in self.traffic.speed for k in kinds}, reverse=True)
        return next((floor for floor in floors if RankSearch(self.traffic.connected, gpus, floor).reaches(total)), 0)


def _bettered(traffic: Traffic, gpus: Sequence[int], start: Mapping, effort: int, *, slowest_first: bool) -> Mapping:
    """The best that a search which gives up can add to a mapping."""
    found = start
    while True:
        better = None
        if slowest_first and traffic.speed:
            better = RankSearch(traffic.connected, gpus, found.slowest + 1).better(0, effort)
        better = better or RankSearch(traffic.connected, gpus, found.slowest if slowest_first else 0).better(
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
