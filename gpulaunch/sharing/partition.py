"""The partition of a GPU's SMs among clients of CUDA MPS: the best of some by what is predicted.

A percentage is a cap and no reservation, and a client keeps its own as long as it runs. So what
residents have is given, and only what newcomers get is chosen.
"""
# pure: decides on plain values

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Literal

from gpulaunch.leases.share import Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record, replace
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.cd_search import Performance, cd_search
from gpulaunch.sharing.curve import (
    KEPT,
    SMS_IF_UNKNOWN,
    find_knee,
    is_memory_intensive,
    percentage_for,
    round_down,
)
from gpulaunch.sharing.prediction import (
    Kernels,
    gain_at,
    idle_power,
    kernels_of,
    pace,
    rates,
    speeds_of,
    worth_of,
)

LEAST_LEFT = 10
"""Percent below which SMs are not worth keeping for anybody.

Source: the smallest partition of mps-sharing-2024 Fig. 1.
"""

THROUGHPUT = Objective()

Mode = Literal["alone", "no caps", "even", "knees", "performance", "power", "adjusted"]
"""How a partition came about: see Partition."""

_STEPS = (16, 8, 4, 2, 1)
"""Percentage points by which caps are moved to look for better ones nearby."""

MOST_MOVED = 4
"""Jobs up to which caps are moved; with each one more there are many more ways."""

_DIGITS = 3  # decimals of predictions that make a difference

Held = Sequence[int | None]
"""For each job the percentage that it has already, or None if it is still to be chosen."""


class Partition(Record):
    """Percentages for a group of jobs.

    Attributes:
        mode: what it was found by. alone: one job; no caps: 100 % for all that come; even: an even
            share each; knees: the fewest SMs that each needs; performance, power: as in cd_search;
            adjusted: small steps from no caps or even shares.
        sm_percentages: percentage of each job, in the order given, 1-100.
        gain: predicted throughput of all while they run, against one after the other.
        reason: why, in a sentence.
    """

    mode: Mode
    sm_percentages: tuple[int, ...]
    gain: float
    reason: str


class Allotment(Record):
    """The share of a job that joins a GPU.

    Attributes:
        sm_percentage: its percentage, 1-100.
        optimum: what would be best for residents and newcomer, in this order, could
            all be chosen.
        left: 100 less the residents' percentages; under 0 if their caps overlap already.
        reason: why, in a sentence.
    """

    sm_percentage: int
    optimum: Partition
    left: int
    reason: str


def partition(
    demands: Sequence[Demand],
    capacity: Capacity,
    objective: Objective = THROUGHPUT,
    held: Held = (),
    *,
    adjust: bool = True,
) -> Partition:
    """Return the percentages that are predicted to be best for jobs that run together on one GPU.

    No caps, even shares, knees, and what cd_search finds are compared by the objective, and then
    caps near the best of them. Of equals the one counts in which the slowest job is faster, then
    the one that takes fewer SMs; for energy it is the one that takes the fewest SMs of those within
    5 % of the best. A job of which nothing but its busy time is known counts as slower under any
    cap, so where that is true of all, there are none. Three jobs and more that are all to come get
    no caps or even ones unless others are predicted to bring 5 % more throughput.

    Args:
        demands: demands of the jobs, one or more.
        capacity: what the GPU offers. Without its number of SMs, percentages stand for them.
        objective: what is to be best.
        held: percentages that cannot be chosen any more; none given, all can.
        adjust: whether to look for better caps near the best.

    Cost: 20 us where nothing is known but busy times, else 0.5 ms, and some ms to adjust.

    Source: cd-search-ics18 4.2, 4.3, 7.4.3; for one job mps-sharing-2024 Fig. 1. Departures:
        docs/decisions/partition.md.
    """
    if len(demands) == 1 and not any(held):
        return _partition_alone(demands[0], capacity)
    everyone = zip(demands, held or [None] * len(demands), range(len(demands)), strict=True)
    order = sorted(everyone, key=lambda one: repr(one[:2]))  # which comes first makes no difference
    found = _best(
        [one[0] for one in order], [one[1] for one in order], capacity, objective, adjust=adjust
    )
    percentages = {place: own for (*_, place), own in zip(order, found.sm_percentages, strict=True)}
    return replace(found, sm_percentages=tuple(percentages[place] for place in sorted(percentages)))


def _best(
    demands: Sequence[Demand],
    fixed: Held,
    capacity: Capacity,
    objective: Objective,
    *,
    adjust: bool,
) -> Partition:
    compared = _Comparison(demands, capacity, objective, fixed)
    if all(kernels.sms == 1.0 and not kernels.curve for kernels in compared.kernels):
        return compared.describe("no caps", compared.with_caps(100))
    found: dict[tuple[int, ...], Mode] = {}
    for mode, percentages in _candidates(demands, compared.kernels, capacity, fixed):
        found.setdefault(compared.with_held(percentages), mode)
    best = max(found, key=compared.preferred)
    if objective.name == "energy":
        least = KEPT * compared.throughput_of(best)
        best = min((one for one in found if compared.throughput_of(one) >= least), key=sum)
        return compared.describe(found[best], best)
    plain = max(list(found)[:2], key=compared.preferred)
    mode = found[best]
    if adjust and len(demands) <= MOST_MOVED:
        near = compared.climb(best)
        mode = "adjusted" if near != best and mode in ("no caps", "even") else mode
        best = near
    unsure = len(demands) > 2 and not any(fixed)
    if unsure and KEPT * compared.throughput_of(best) < compared.throughput_of(plain):
        mode, best = found[plain], plain
    return compared.describe(mode, best)


class _Comparison:
    """Compares partitions of some jobs by an objective."""

    def __init__(
        self,
        demands: Sequence[Demand],
        capacity: Capacity,
        objective: Objective,
        held: Held,
    ) -> None:
        self._demands, self._capacity, self._objective = demands, capacity, objective
        self._held = held
        self.kernels = [kernels_of(demand) for demand in demands]
        self._idle_w = idle_power(capacity)
        self._known: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._throughput: dict[tuple[int, ...], float] = {}

    def with_held(self, percentages: Sequence[int]) -> tuple[int, ...]:
        """Return percentages with those that cannot be chosen in their places."""
        return tuple(
            one if held is None else held for one, held in zip(percentages, self._held, strict=True)
        )

    def with_caps(self, percentage: int) -> tuple[int, ...]:
        """Return the same percentage for all that can be chosen."""
        return self.with_held([percentage] * len(self._demands))

    def worth(self, percentages: tuple[int, ...]) -> tuple[float, ...]:
        """Return what the objective wants most, then the speed of the slowest.

        Where the energy is not known, throughput stands for it.
        """
        if percentages not in self._known:
            speeds = speeds_of(self.kernels, percentages)
            at = pace(speeds, self._demands, self._capacity, self._idle_w)
            gain = gain_at(self._demands, at)
            self._throughput[percentages] = gain.throughput
            objective = self._objective if gain.energy_efficiency else THROUGHPUT
            figures = worth_of(gain, objective), min(at.speeds)
            self._known[percentages] = tuple(round(figure, _DIGITS) for figure in figures)
        return self._known[percentages]

    def preferred(self, percentages: tuple[int, ...]) -> tuple[float, ...]:
        """Return the worth of a partition, then how many SMs it keeps free."""
        return *self.worth(percentages), -sum(percentages)

    def throughput_of(self, percentages: tuple[int, ...]) -> float:
        """Return the predicted throughput of all, against one after the other."""
        self.worth(percentages)
        return self._throughput[percentages]

    def climb(self, percentages: tuple[int, ...]) -> tuple[int, ...]:
        """Return the percentages that small steps lead to, each better than the one before."""
        for step in _STEPS:
            better = percentages
            while better:
                percentages = better
                near = max(self._near(percentages, step), key=self.preferred, default=percentages)
                better = near if self.worth(near) > self.worth(percentages) else ()
        return self._trimmed(percentages)

    def _trimmed(self, percentages: tuple[int, ...]) -> tuple[int, ...]:
        """Return percentages in which no job has more than it can use, where that costs nothing.

        Caps that overlap for no gain are first made smaller alike.
        """
        over = max(100, sum(percentages))
        alike = self.with_held([max(1, round(100 * one / over)) for one in percentages])
        if self.worth(alike) >= self.worth(percentages):
            percentages = alike
        for place, kernels in enumerate(self.kernels):
            enough = ceil(100 * kernels.sms)
            if self._held[place] is None and kernels.curve and enough < percentages[place]:
                fewer = (*percentages[:place], enough, *percentages[place + 1 :])
                if self.worth(fewer) >= self.worth(percentages):
                    percentages = fewer
        return percentages

    def _near(self, percentages: tuple[int, ...], step: int) -> Iterator[tuple[int, ...]]:
        """Yield percentages of which one is more or less, or one has what another gives."""
        free = [i for i, held in enumerate(self._held) if held is None]
        for i in free:
            for j in [None, *free]:
                changed = list(percentages)
                changed[i] -= step
                if j is not None and j != i:
                    changed[j] += step
                elif j == i:
                    changed[i] += 2 * step
                if all(1 <= one <= 100 for one in changed):
                    yield tuple(changed)

    def describe(self, mode: Mode, percentages: tuple[int, ...]) -> Partition:
        """Return a partition with its reason."""
        gain = self.throughput_of(percentages)
        reason = f"{_REASONS[mode]}; predicted throughput {gain:.3g} of one after the other"
        if mode != "no caps":
            share = _even_share(len(self._demands), self._capacity)
            even = self.throughput_of(self.with_caps(share))
            reason += f", {even:.3g} with even shares"
        return Partition(mode, percentages, gain, reason)


_REASONS: dict[Mode, str] = {
    "no caps": "no caps, so that each uses what the others leave idle",
    "even": "an even share each",
    "knees": "the fewest SMs that keep each within 5 % of its best throughput",
    "performance": "memory-intensive jobs get the SMs that they need, the others the rest",
    "adjusted": "caps at which each is predicted to lose least by the others",
    "power": "the SMs that memory-intensive jobs need; the rest stays idle",
}


def _partition_alone(demand: Demand, capacity: Capacity) -> Partition:
    """Return the share of a lone job; all SMs where nobody could use what it would leave."""
    knee = _knee_of(demand, capacity)
    if knee is None:
        known = find_knee(demand, capacity) is not None
        why = "it makes use of all SMs" if known else "its curve is not known"
        return Partition("alone", (100,), 1.0, f"no cap, since {why}")
    reason = f"alone: {knee} % of the SMs keep it within 5 % of its best throughput"
    return Partition("alone", (knee,), rates([demand], [knee])[0], reason)


def _candidates(
    demands: Sequence[Demand], kernels: Sequence[Kernels], capacity: Capacity, held: Held
) -> Iterator[tuple[Mode, Sequence[int]]]:
    """Yield percentages to compare, and what they come from."""
    jobs, sm_count = len(demands), capacity.sm_count
    yield "no caps", [100] * jobs
    yield "even", [_even_share(jobs, capacity)] * jobs
    yield _search(demands, kernels, capacity)
    knees = [_knee_of(demand, capacity) for demand in demands]
    yield "knees", [knee or 100 for knee in knees]
    needed = sum(own or knee or 0 for own, knee in zip(held, knees, strict=True))
    others = sum(own is None and knee is None for own, knee in zip(held, knees, strict=True))
    if others and needed < 100:
        rest = round_down((100 - needed) // others, sm_count)
        yield "knees", [knee or rest for knee in knees]


def _even_share(jobs: int, capacity: Capacity) -> int:
    """Return the least percentage that gives each of so many jobs its whole SMs: 34 of a third."""
    if capacity.sm_count is None:
        return max(1, 100 // jobs)
    return min(100, percentage_for(max(1, capacity.sm_count // jobs), capacity.sm_count))


def _knee_of(demand: Demand, capacity: Capacity) -> int | None:
    """Return a job's knee, if it leaves SMs that are worth having."""
    knee = find_knee(demand, capacity)
    return None if knee is None or 100 - knee < LEAST_LEFT else knee


def _search(
    demands: Sequence[Demand], kernels: Sequence[Kernels], capacity: Capacity
) -> tuple[Mode, list[int]]:
    """Return what the search of cd-search-ics18 finds with predicted performance."""
    sm_count = capacity.sm_count or SMS_IF_UNKNOWN
    classes = [is_memory_intensive(demand, capacity) is True for demand in demands]

    def percentages(sms: Sequence[int]) -> list[int]:
        return [min(100, percentage_for(n, sm_count)) for n in sms]

    performance: Performance = lambda job, sms: speeds_of(kernels, percentages(sms), job)[0]  # noqa: E731
    found = cd_search(classes, sm_count, performance)
    return found.mode, percentages(found.sms)


def allot_newcomer(
    residents: Sequence[tuple[Demand, int]],
    newcomer: Demand,
    capacity: Capacity,
    objective: Objective = THROUGHPUT,
) -> Allotment:
    """Return what a job gets that comes to a GPU where no resident can be resized.

    It is its part of the best partition in which residents have what they have. Alone it starts at
    what it can make use of, so that others find room.

    Args:
        residents: for each job that is there its demand and its percentage, 1-100. Their order
            makes no difference.
        newcomer: demand of the job that comes.
        capacity: what the GPU offers.
        objective: what is to be best.

    Source: cd-search-ics18 4: a new arrival restarts the search. Departure: here it cannot, since
        MPS fixes a client's percentage when it starts.
    """
    demands = [*(demand for demand, _ in residents), newcomer]
    held = [*(percentage for _, percentage in residents), None]
    optimum = partition(demands, capacity, objective)
    found = partition(demands, capacity, objective, held) if residents else optimum
    own = found.sm_percentages[-1]
    left = 100 - sum(percentage for _, percentage in residents)
    reason = found.reason
    if residents and found.mode != "no caps":
        reason = f"the jobs that are there have {100 - left} %: {reason}"
    return Allotment(own, optimum, left, reason)
