"""Bounds of a set's scores by its links, counted by kind, in 1e-6 GB/s.

In every function `counts` is the number of links of each kind, among the GPUs of a set or from one
of them.
"""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import gcd

from gpulaunch.decide.placement.effective import mapa_equation
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.decide.placement.traffic import Traffic

Order = list[tuple[int, int]]
"""Kinds with their figures, the largest first."""


class CutBounds:
    """Bounds of the model `cut`, for sets of one size.

    Args:
        fabric: the links.
        size: number of GPUs in a set, at least 2.
    """

    def __init__(self, fabric: Fabric, size: int) -> None:
        kinds = list(enumerate(fabric.kinds))
        self._size = size
        self._wired = [place for place, kind in kinds if kind.count]
        self._direct = [(place, kind.planned) for place, kind in kinds if kind.direct]
        self._over_pcie = _widest_first(
            (place, kind.hop) for place, kind in kinds if not kind.count
        )
        self._hops = _widest_first((place, kind.hop) for place, kind in kinds)
        self._step = gcd(*(planned for _, planned in self._direct)) or 1
        self._switched = max(fabric.into_switch)
        self._nvls = round(max(fabric.nvls) * 2 * (size - 1) / (size + 1))

    def most(self, counts: Sequence[int]) -> int:
        """Return at least the effective bandwidth of a set.

        With NVLinks enough to connect it no cut is wider than what its GPUs have on average, in
        whole links; a ring or a tree over whatever is faster for each two GPUs is as fast as the
        last of its links.
        """
        joined = self.most_joined(counts)
        if self._wires(counts) < self._size - 1:
            return joined
        narrowest = 2 * self.links_of_gpu(counts) // self._size // self._step * self._step
        return max(narrowest + self._switched, joined, self._nvls)

    def most_joined(self, counts: Sequence[int]) -> int:
        """Return at least what a set carries that no cut of NVLinks bounds.

        That is the widest links that join all its parts. With NVLinks too few to connect it so many
        parts must be joined over PCIe, and the last of those links decides.
        """
        wires = self._wires(counts)
        if wires < self._size - 1:
            return _nth(self._over_pcie, counts, self._size - 1 - wires)
        return max(_nth(self._hops, counts, self._size - 1), _nth(self._over_pcie, counts, 1))

    def _wires(self, counts: Sequence[int]) -> int:
        return sum([counts[place] for place in self._wired])

    def links_of_gpu(self, counts: Sequence[int]) -> int:
        """Return what direct NVLinks carry together: no cut is wider than those of one GPU."""
        return sum([counts[place] * planned for place, planned in self._direct])


def most_mapa(fabric: Fabric, edges: int, counts: Sequence[int]) -> int:
    """Return at least Eq. 2 of any ring with so many edges over these links."""
    doubles = singles = slow = 0
    for count, kind in zip(counts, fabric.kinds, strict=True):
        if kind.count > 1:
            doubles += count
        elif kind.count:
            singles += count
        else:
            slow += count
    return _most_of_rings(edges, min(doubles, edges), min(singles, edges), min(slow, edges))


@lru_cache(maxsize=4096)
def _most_of_rings(edges: int, doubles: int, singles: int, slow: int) -> int:
    mixes = (
        (x, y, edges - x - y)
        for x in range(doubles + 1)
        for y in range(min(singles, edges - x) + 1)
        if edges - x - y <= slow
    )
    return round(max(mapa_equation(*mix) for mix in mixes) * UNIT)


class TrafficBounds:
    """Bounds of a pattern's mappings.

    Args:
        traffic: the pattern over the links.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._shares = [
            traffic.shares[share] for share in sorted(share for _, _, share in traffic.edges)
        ]
        self._equal = len(traffic.shares) == 1
        self._worth = _widest_first(enumerate(traffic.gain[0]))
        self._speed = _widest_first(enumerate(traffic.speed[0])) if traffic.speed else []
        self._profiles = [
            [traffic.shares[share] for share in profile] for profile in traffic.profiles
        ]

    def most_total(self, counts: Sequence[int]) -> int:
        """Return at least the total of any mapping: the heaviest edges on the best links."""
        if self._equal:
            return self.most_of(counts, len(self._shares))
        worths = _first(self._worth, counts, len(self._shares))
        return sum(
            int(worth * share) + 1 for worth, share in zip(worths, self._shares, strict=False)
        )

    def most_of(self, counts: Sequence[int], edges: int) -> int:
        """Return the most that so many edges could add to a total."""
        total = 0
        for place, worth in self._worth:
            taken = min(edges, counts[place])
            total += taken * worth
            edges -= taken
        return total

    def most_slowest(self, counts: Sequence[int]) -> int:
        """Return at least the speed of the slowest edge of any mapping.

        That has the heaviest edges on the fastest links.
        """
        speeds = _first(self._speed, counts, len(self._shares))
        return min(
            (round(speed / share) for speed, share in zip(speeds, self._shares, strict=False)),
            default=0,
        )

    def speeds(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return for each kind of rank the most that its slowest edge reaches on a GPU.

        Args:
            counts: links of the GPU by kind; where they are too few for a kind of rank, it gets 0.
        """
        links = _first(self._speed, counts, max(map(len, self._profiles)))
        found = []
        for shares in self._profiles:
            speeds = [round(speed / share) for speed, share in zip(links, shares, strict=False)]
            found.append(min(speeds) if len(shares) <= len(links) else 0)
        return tuple(found)


def _widest_first(figures: Iterable[tuple[int, int]]) -> Order:
    return sorted(figures, key=lambda figure: -figure[1])


def _nth(order: Order, counts: Sequence[int], number: int) -> int:
    """Return the figure of the number-th best link; 0 if there are not so many."""
    for place, figure in order:
        number -= counts[place]
        if number <= 0:
            return figure
    return 0


def _first(order: Order, counts: Sequence[int], number: int) -> list[int]:
    """Return the figures of the best links."""
    return [figure for place, figure in order for _ in range(counts[place])][:number]
