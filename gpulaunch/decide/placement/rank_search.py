"""An exact search over the mappings of ranks to the GPUs of one set, by branch and bound.

Ranks are placed one after the other, and a partial mapping is given up as soon as even the best
links for all that is left would not beat what was found. Of ranks that are alike to the pattern,
and of GPUs that are alike to the links, only one order is tried.
"""
# pure: decides on plain values

from collections.abc import Sequence
from itertools import combinations

from gpulaunch.decide.placement.traffic import Traffic


class RankSearch:
    """The mappings to one set; inside, GPUs are places in it.

    Args:
        traffic: pattern of as many ranks as there are GPUs.
        gpus: positions in the fabric.
        floor: edges may not be slower, 1e-6 GB/s.
        effort: partial mappings to try at most; about 10 us each.

    Attributes:
        left: what is left of the effort; negative if the search gave up.
    """

    def __init__(self, traffic: Traffic, gpus: Sequence[int], floor: int, effort: int) -> None:
        self.left = effort
        self._gpus = gpus
        self._traffic = traffic
        self._count = len(gpus)
        kind = [[traffic.fabric.kind[a][b] for b in gpus] for a in gpus]
        self._gain = [[[gains[link] for link in row] for row in kind] for gains in traffic.gain]
        self._fast: list[list[list[bool]]] | None = None
        self._degree = [self._count] * self._count
        if traffic.speed and floor:
            self._fast = [
                [[speeds[link] >= floor for link in row] for row in kind]
                for speeds in traffic.speed
            ]
            self._degree = [sum(row) - row[gpu] for gpu, row in enumerate(self._fast[-1])]
        self._lower_twins = [
            sum(1 << other for other in range(gpu) if _are_alike(kind, gpu, other))
            for gpu in range(self._count)
        ]
        self._rows: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self._sums: dict[tuple[int, int], int] = {}
        self._order = [0] * self._count
        self._best_order: list[int] = []

    def best(
        self, least: int = 0, enough: int | None = None, *, eager: bool
    ) -> tuple[int, list[int]]:
        """Return the largest total found, and its mapping: GPUs by rank.

        Args:
            least: totals below are of no interest.
            enough: total at which to stop; None for the most there can be.
            eager: try first what adds most, not what comes first.

        Returns:
            least - 1 and nothing if no mapping was found whose edges are fast enough.
        """
        self._found = least - 1
        self._enough = self._most(0, 0) if enough is None else enough
        self._eager = eager
        self._extend(0, 0, 0)
        return self._found, [self._gpus[i] for i in self._best_order]

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
        self.left -= 1
        for gain, lower in steps:
            self._order[rank] = -lower
            self._extend(rank + 1, used | 1 << -lower, total + gain)
            if self._found >= self._enough or self.left < 0:
                return

    def _most(self, rank: int, used: int) -> int:
        """Return the most that the open edges could add.

        They get the best links left from each GPU, and the best pairs left; heavier edges get
        better links.
        """
        ends, among = self._traffic.open[rank]
        most = self._sums.get((rank, used))
        if most is None:
            free = self._free_gpus(used)
            links = [self._gain[0][a][b] for a, b in combinations(free, 2)]
            most = self._sums[rank, used] = self._best_sum(links, among)
        for end, shares in ends:
            gpu = self._order[end]
            key = (gpu, used, shares)
            found = self._rows.get(key)
            if found is None:
                row = self._gain[0][gpu]
                found = self._rows[key] = self._best_sum(
                    [row[other] for other in self._free_gpus(used)], shares
                )
            most += found
        return most

    def _best_sum(self, gains: list[int], shares: tuple[int, ...]) -> int:
        """Return the most that edges of these shares, heaviest first, could add over some links."""
        gains.sort(reverse=True)
        if not shares or not shares[-1]:  # all edges weigh the same
            return sum(gains[: len(shares)])
        weights = self._traffic.shares
        return sum(
            [int(gain * weights[share]) + 1 for gain, share in zip(gains, shares, strict=False)]
        )

    def _free_gpus(self, used: int) -> list[int]:
        return [gpu for gpu in range(self._count) if not used >> gpu & 1]

    def _steps(self, rank: int, used: int) -> list[tuple[int, int]]:
        """Return what placing this rank adds on each GPU where that is allowed.

        The GPU is negative, so that lower is more. Of ranks that are alike the later ones get
        higher GPUs, so enough of those must be left.
        """
        traffic, order, fast = self._traffic, self._order, self._fast
        earlier, degree = traffic.earlier[rank], traffic.degree[rank]
        twin = traffic.twin[rank]
        first = order[twin] + 1 if twin >= 0 else 0
        free = self._free_gpus(used)
        if rank == 0 and traffic.turns:
            free = free[: 1 + traffic.later_twins[0]]
        steps = []
        for gpu in free[: len(free) - traffic.later_twins[rank]]:
            if gpu < first or self._lower_twins[gpu] & ~used or self._degree[gpu] < degree:
                continue
            if fast and not all(fast[share][gpu][order[other]] for other, share in earlier):
                continue
            steps.append(
                (sum([self._gain[share][gpu][order[other]] for other, share in earlier]), -gpu)
            )
        return steps


def _are_alike(kind: list[list[int]], a: int, b: int) -> bool:
    """Return whether two places have the same links to all others."""
    return all(kind[a][k] == kind[b][k] for k in range(len(kind)) if k not in (a, b))
