"""CD-search across launches: jobs that share again try the next caps, and keep the best.

MPS fixes a client's cap when it starts, so one launch is one step. The prediction is only the first
one; what was measured says where the next goes.
"""
# pure: decides on plain values

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from math import fsum

from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record
from gpulaunch.sharing.speed import Capacity, speeds

LEAST_CAP, MOST_CAP = 5, 95
"""Caps that are tried, in % of the SMs."""

_STEPS = (10, 5)
"""Percentage points by which caps are moved, one step a launch: cd-search-ics18 4.2 takes a tenth
of the SMs, and half of that at last.
"""

Caps = tuple[int, ...]


class Search(Record):
    """The search of a set of jobs that shared a GPU the last time.

    Attributes:
        names: names of all jobs of the set, ascending; a job may share with its own kind.
        demands: demand of each.
        memory_bound: whether each is bound by memory.
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
        steps = (self._moved(best, *way, step) for step in _STEPS for way in ways)
        return next(
            (caps for caps in steps if caps and caps not in self.tried and is_allowed(caps)), None
        )

    def _moved(self, caps: Caps, giver: int, taker: int, step: int) -> Caps | None:
        """Return the caps after one job has given SMs to another; None if they go too far."""
        moved = list(caps)
        moved[giver] -= step
        moved[taker] += step
        if moved[giver] < LEAST_CAP or moved[taker] > MOST_CAP:
            return None
        return tuple(cap for _, cap in sorted(zip(self.names, moved, strict=True)))

    def left_of(self, caps: Caps, held: Sequence[tuple[str, int]]) -> list[tuple[str, int]] | None:
        """Return name and cap of the jobs of the set that are not there yet.

        Args:
            caps: caps of the set.
            held: name and cap of each job that is there.

        Returns:
            None if a job is there that is not of the set, or has another cap.
        """
        left = list(zip(self.names, caps, strict=True))
        for job in held:
            if job not in left:
                return None
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
