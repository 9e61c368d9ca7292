"""The caps of SMs that are best for jobs on one GPU, by the speed that each is predicted to have.

MPS fixes a cap when its client starts, so that those of jobs that are there are given.
"""
# pure: decides on plain values

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations
from math import fsum

from gpulaunch.leases.lease import Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.sharing.speed import Capacity, idle_power, kernels_of, pace, share_of_sms

KEPT = 0.95
"""Part of its best throughput that a job has at its knee (the 5 % of cd-search-ics18 4.2)."""

MOST_CAP = 80
"""Cap of a job that is to share, so that SMs are left for one that comes later."""

BUSY = 0.5
"""Share of the time beyond which jobs divide the SMs: without caps, blocks are dealt out as SMs get
free, and nobody can say who waits for whom.
"""

LEAST_ALONE = 10
"""Cap of a lone job at least: the smallest partition of mps-sharing-2024 Figure 1."""

_LEAST_CAP = 5  # of the SMs, that a job is given
_STEPS = (16, 4, 1)  # percentage points by which caps are moved
_MOST_MOVED = 4  # jobs whose caps are moved; for more they are even
_DIGITS = 3  # decimals of predictions that make a difference


def knee_of(demand: Demand, capacity: Capacity) -> int:
    """Return the least percentage of the SMs that keeps a lone job near its best throughput."""
    kernels = kernels_of(demand, capacity)
    tried = [1 / (1 - kernels.busy + kernels.busy / kernels.speed(n / 100)) for n in range(1, 101)]
    return next(n for n, speed in enumerate(tried, 1) if speed >= KEPT * max(tried) * (1 - 1e-9))


def best_caps(
    demands: Sequence[Demand],
    capacity: Capacity,
    objective: Objective,
    held: Sequence[int | None] = (),
) -> tuple[int, ...]:
    """Return the caps that are predicted to be best for jobs on one GPU, in % of its SMs.

    From even shares caps are moved by small steps as long as that is better.
    Of equals the ones count that leave the slowest job faster, then those that take fewer SMs.
    Jobs that are busy for more than half of the time divide the SMs, and none has more than
    MOST_CAP.

    Args:
        demands: demands of the jobs, one or more.
        capacity: what the GPU offers.
        objective: what is to be best.
        held: caps that cannot be chosen any more; None for those that can.

    Source: cd-search-ics18 4.2 and 7.4.3 start from even shares; right-sizing a lone job is
        mps-sharing-2024 Figure 1.
    """
    if len(demands) == 1 and not any(held):
        return (min(MOST_CAP, max(LEAST_ALONE, knee_of(demands[0], capacity))),)
    fixed = list(held or [None] * len(demands))
    order = sorted(range(len(demands)), key=lambda i: repr((demands[i], fixed[i])))
    demands, fixed = [demands[i] for i in order], [fixed[i] for i in order]
    free = [i for i, cap in enumerate(fixed) if cap is None]
    busy = [i for i, demand in enumerate(demands) if kernels_of(demand, capacity).busy > BUSY]
    idle_w = idle_power(capacity)

    def is_allowed(caps: Sequence[int]) -> bool:
        in_range = all(_LEAST_CAP <= caps[i] <= MOST_CAP for i in free)
        return in_range and fsum(share_of_sms(caps[i], capacity) for i in busy) <= 1 + 1e-9

    @cache
    def worth(caps: tuple[int, ...]) -> tuple[float, ...]:
        # Throughput is wanted before the limit of power, which slows down all alike.
        limit = None if objective.name == "throughput" else idle_w
        at = pace(demands, capacity, caps, limit)
        figures = at.worth(objective), min(at.speeds)
        return (*(round(figure, _DIGITS) for figure in figures), -sum(caps))

    rest = 100 - sum(cap for cap in fixed if cap is not None)
    even = min(MOST_CAP, max(_LEAST_CAP, rest // max(1, len(free))))
    best = tuple(even if cap is None else cap for cap in fixed)
    for step in _STEPS if len(free) <= _MOST_MOVED else ():
        while near := list(filter(is_allowed, _moved(best, free, step))):
            better = max(near, key=worth)
            if worth(better) <= worth(best):
                break
            best = better
    return tuple(cap for _, cap in sorted(zip(order, best, strict=True)))


def _moved(caps: tuple[int, ...], free: Sequence[int], step: int) -> Iterator[tuple[int, ...]]:
    """Yield caps of which one is more or less, or has what another gives."""
    for i, j in permutations((*free, None), 2):
        changed = list(caps)
        if i is not None:
            changed[i] -= step
        if j is not None:
            changed[j] += step
        yield tuple(changed)
