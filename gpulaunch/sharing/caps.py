"""The caps of SMs that are best for jobs on one GPU.

MPS fixes a cap when its client starts, so that those of jobs that are there are given. The first
caps are those with the best predicted speeds. Jobs that share again try the next ones, one step a
launch, and keep the best: CD-search across launches.
"""
# pure: decides on plain values

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import permutations
from math import fsum

from gpulaunch.leases.lease import Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record
from gpulaunch.sharing.speed import Capacity, Pace, kernels_of, pace, share_of_sms, speeds

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

LEAST_TRIED, MOST_TRIED = 5, 95
"""Caps that are tried, in % of the SMs."""

_SEARCH_STEPS = (10, 5)
"""Percentage points by which caps are moved, one step a launch: cd-search-ics18 4.2 takes a tenth
of the SMs, and half of that at last.
"""

Caps = tuple[int, ...]


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

    def is_allowed(caps: Sequence[int]) -> bool:
        in_range = all(_LEAST_CAP <= caps[i] <= MOST_CAP for i in free)
        return in_range and fsum(share_of_sms(caps[i], capacity) for i in busy) <= 1 + 1e-9

    @cache
    def worth(caps: tuple[int, ...]) -> tuple[float, ...]:
        # Throughput is wanted before the limit of power, which slows down all alike.
        if objective.name == "throughput":
            at = Pace(speeds(demands, capacity, caps))
        else:
            at = pace(demands, capacity, caps)
        figures = at.worth(objective), min(at.speeds)
        return (*(round(figure, _DIGITS) for figure in figures), -sum(caps))

    rest = 100 - sum(cap for cap in fixed if cap is not None)
    even = min(MOST_CAP, max(_LEAST_CAP, rest // max(1, len(free))))
    best = tuple(even if cap is None else cap for cap in fixed)
    ways = list(permutations((*free, None), 2))
    for step in _STEPS if len(free) <= _MOST_MOVED else ():
        while near := list(filter(is_allowed, [_moved(best, *way, step) for way in ways])):
            better = max(near, key=worth)
            if worth(better) <= worth(best):
                break
            best = better
    return tuple(cap for _, cap in sorted(zip(order, best, strict=True)))


def _moved(caps: Caps, giver: int | None, taker: int | None, step: int) -> Caps:
    """Return caps of which one is less, another one more, or both."""
    changed = list(caps)
    if giver is not None:
        changed[giver] -= step
    if taker is not None:
        changed[taker] += step
    return tuple(changed)


class Search(Record):
    """The search of a set of jobs that shared a GPU the last time.

    Attributes:
        names: names of all jobs of the set, ascending; a job may share with its own kind.
        trials: the speed of each, as a share of its speed alone, by the caps of all in % of the
            SMs.
        tried: caps of all launches, also of those of which not all jobs have told their speed.
        gpus: UUIDs of the GPUs of the model that the trials are of.
    """

    names: tuple[str, ...]
    demands: tuple[Demand, ...]
    memory_bound: tuple[bool, ...]
    trials: Mapping[Caps, tuple[float, ...]]
    tried: frozenset[Caps]
    gpus: frozenset[str]

    @property
    def most(self) -> Caps:
        """The caps that were measured with the most system throughput."""
        return max(self.trials, key=lambda caps: (fsum(self.trials[caps]), caps))

    @property
    def reached(self) -> float:
        """The most system throughput that was measured."""
        return fsum(self.trials[self.most])

    def expected(self, caps: Caps, capacity: Capacity) -> tuple[float, ...]:
        """Return the speed of each job at some caps: as measured, else as predicted.

        Who was slower than predicted in the best launch is expected to be it by as much again.
        """
        if caps in self.trials:
            return self.trials[caps]
        before = speeds(self.demands, capacity, self.most)
        found = speeds(self.demands, capacity, caps)
        return tuple(
            speed * min(1.0, measured / predicted)
            for speed, measured, predicted in zip(
                found, self.trials[self.most], before, strict=True
            )
        )

    def best(self, is_allowed: Callable[[Caps], bool]) -> Caps | None:
        """Return the allowed caps that were measured with the most system throughput."""
        allowed = filter(is_allowed, self.trials)
        return max(allowed, key=lambda caps: (fsum(self.trials[caps]), caps), default=None)

    def next_caps(self, is_allowed: Callable[[Caps], bool]) -> Caps | None:
        """Return the caps that the jobs are to try at their next launch; None if it is over.

        They are a step away from the best caps so far. Who is bound by memory gives SMs away first,
        then the others, then the same by smaller steps; once none of them was better, it is over.

        Args:
            is_allowed: whether nobody loses too much at some caps, as measured or predicted.

        Source: cd-search-ics18 4.2: step by step, with the class as the direction. Departures: its
            step is 40,000 cycles, ours a launch, so that each is halved once and not down to a
            single SM.
        """
        best = self.best(is_allowed) or self.most
        bound = self.memory_bound
        ways = sorted(
            permutations(range(len(bound)), 2),
            key=lambda way: (not bound[way[0]], bound[way[1]], way),
        )
        for step in _SEARCH_STEPS:
            for giver, taker in ways:
                moved = _moved(best, giver, taker, step)
                if moved[giver] < LEAST_TRIED or moved[taker] > MOST_TRIED:
                    continue
                caps = tuple(cap for _, cap in sorted(zip(self.names, moved, strict=True)))
                if caps not in self.tried and is_allowed(caps):
                    return caps
        return None

    def left_of(self, caps: Caps, held: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return name and cap of the jobs of the set that are not there yet.

        Returns:
            Nothing, too, if a job is there that is not of the set, or has another cap.
        """
        left = list(zip(self.names, caps, strict=True))
        for job in held:
            if job not in left:
                return []
            left.remove(job)
        return left


def joined(
    names: Sequence[str], told: Mapping[str, Mapping[Caps, float]]
) -> dict[Caps, tuple[float, ...] | None]:
    """Return the speeds of a set by its caps, as Search.trials; None if not all jobs have told.

    Args:
        names: names of all, ascending.
        told: by name, the speed of each by the caps of all, its own first, then those of the others
            in the order of their names.
    """
    said: dict[Caps, dict[tuple[str, int], float]] = {}
    for name in names:
        others = [*names]
        others.remove(name)
        for (own, *theirs), speed in told[name].items():
            if len(theirs) == len(others):
                jobs = sorted([(name, own), *zip(others, theirs, strict=True)])
                said.setdefault(tuple(cap for _, cap in jobs), {})[name, own] = speed
    found: dict[Caps, tuple[float, ...] | None] = {}
    for caps, speed_of in said.items():
        jobs = list(zip(names, caps, strict=True))
        is_known = speed_of.keys() >= {*jobs}
        found[caps] = tuple(speed_of[job] for job in jobs) if is_known else None
    return found
