"""A queue of jobs whose figures are known -> who shares which GPU, in which order.

All times and energies are predictions, by the model of speed.py.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import combinations
from math import fsum

from gpulaunch.errors import printable
from gpulaunch.leases.lease import Client, Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.speed import Capacity, pace, worth_of

_TOGETHER = 24
"""Jobs among which partners are sought; in a longer queue those of like duration."""

_MOST_MEASURED = 2.47
"""Throughput of a group, one job after the other being 1, above which none was measured.

Source: mps-sharing-2024 V.B: at most 147 % more.
"""

_DIGITS = 9  # decimals to which predictions are rounded before they are compared


class PlannedJob(Record):
    """Tasks that run one after the other: one client of a GPU.

    Attributes:
        duration_s: duration of one task, alone on the GPU; above 0.
        tasks: number of tasks; 1 or more.
        after: names of the jobs that must have ended.
    """

    name: str
    client: Client
    duration_s: float
    tasks: int = 1
    after: tuple[str, ...] = ()

    @property
    def demand(self) -> Demand:
        """Demand of any of its tasks."""
        return self.client.demand

    @property
    def alone_s(self) -> float:
        """Time that it takes alone on a GPU."""
        return self.tasks * self.duration_s


class PlanSite(Record):
    """The GPUs that the queue will run on.

    Attributes:
        gpus: number of GPUs; 1 or more.
    """

    capacity: Capacity
    gpus: int = 1
    objective: Objective = Objective()


class Cost(Record):
    """Time and energy; the energy is None if a power is unknown."""

    time_s: float
    energy_j: float | None

    def gain_over(self, other: "Cost") -> "Gain":
        """Return what this brings against another cost."""
        energies = (
            other.energy_j / self.energy_j if self.energy_j and other.energy_j is not None else None
        )
        return Gain(other.time_s / self.time_s, energies)


class Gain(Record):
    """The predicted gain of sharing over running one job after the other: 1 is none.

    Attributes:
        throughput: sequential time / time.
        energy_efficiency: sequential energy / energy; None if a power is unknown.

    Source: mps-sharing-2024 IV.C.
    """

    throughput: float
    energy_efficiency: float | None


class GroupMember(Record):
    """A job in a group.

    Attributes:
        sm_percentage: its cap; None if it has the GPU to itself.
    """

    job: PlannedJob
    sm_percentage: int | None
    end_s: float


class Group(Record):
    """Jobs that start together on one GPU.

    The next group there starts when the last of them has ended.

    Attributes:
        gpu: 0 to gpus - 1.
        notes: worth knowing, such as power beyond the limit.
        why_alone: why nobody joins, if it has a single member.
    """

    gpu: int
    start_s: float
    members: tuple[GroupMember, ...]
    cost: Cost
    stp: float
    antt: float
    notes: tuple[str, ...]
    why_alone: str | None


class Plan(Record):
    """The groups that a queue is divided into, and what they are predicted to take.

    Attributes:
        sequential: its cost if no job shared, each starting in the order of the queue when a GPU
            gets free.
    """

    groups: tuple[Group, ...]
    cost: Cost
    sequential: Cost
    gain: Gain


def make_plan(jobs: Sequence[PlannedJob], site: PlanSite) -> Plan:
    """Divide a queue into groups that share a GPU, by the division that is predicted to be best.

    While there are GPUs enough, jobs get one each. Whenever jobs get ready that others waited for,
    those that have not started are divided anew.

    Args:
        jobs: jobs in the order of the queue, each fit to run alone; `after` has no circles. The
            order matters to the sequential baseline only.

    Cost: 10 jobs in 10 to 25 ms, 100 to 300 ms where all have curves; 300 jobs in some seconds.

    Source: mps-sharing-2024 IV and V. Departures: docs/decisions/interference.md.
    """
    ascending = sorted(jobs, key=lambda job: (job.demand.sm_utilization_percentage, job.name))
    groups = _schedule(ascending, site, _divide)
    baseline = _schedule(jobs, site, lambda ready, _: [[job] for job in ready])
    cost, sequential = _total_of(groups, site), _total_of(baseline, site)
    return Plan(groups, cost, sequential, cost.gain_over(sequential))


def _schedule(
    jobs: Sequence[PlannedJob],
    site: PlanSite,
    divided: Callable[[Sequence[PlannedJob], PlanSite], list[list[PlannedJob]]],
) -> tuple[Group, ...]:
    """Start groups when GPUs get free, and when the jobs end that others wait for.

    `divided` returns the groups of those that can start, in their order.
    """
    groups: list[Group] = []
    ends: dict[str, float] = {}
    free = [(0.0, gpu) for gpu in range(site.gpus)]  # a heap: when each GPU gets free
    waiting = list(jobs)
    planned: list[list[PlannedJob]] = []
    while waiting:
        now, gpu = heappop(free)
        done = {name for name, end in ends.items() if end <= now}
        ready = [job for job in waiting if done.issuperset(job.after)]
        if not ready:
            heappush(free, (min(end for end in ends.values() if end > now), gpu))
            continue
        if len(ready) != sum(map(len, planned)):
            planned = divided(ready, site)
        chosen = planned.pop(0)
        why_alone = _why_alone(chosen[0], ready, site) if len(chosen) == 1 else None
        group = _predict_group(chosen, gpu, now, site, why_alone)
        groups.append(group)
        for member in group.members:
            ends[member.job.name] = member.end_s
            waiting.remove(member.job)
        heappush(free, (now + group.cost.time_s, gpu))
    return tuple(groups)


def _why_alone(job: PlannedJob, ready: Sequence[PlannedJob], site: PlanSite) -> str:
    others = [other for other in ready if other != job]
    if not others:
        return "no other job can start then"
    if len(ready) <= site.gpus:
        return "there is a GPU for each"
    reasons = {one.name: judge([job.client, one.client], site.capacity).reasons for one in others}
    allowed = [name for name, why in reasons.items() if not why]
    if allowed:
        return f"beside {printable(allowed[0])}: other groups are predicted to bring more"
    name, why = next(iter(reasons.items()))
    return f"beside {printable(name)}: {'; '.join(why)}"


def _predict_group(
    jobs: Sequence[PlannedJob], gpu: int, start_s: float, site: PlanSite, why_alone: str | None
) -> Group:
    verdict = judge([job.client for job in jobs], site.capacity)
    caps = verdict.caps if len(jobs) > 1 else ()
    ends_s, cost = run_together(jobs, caps, site)
    alone = [job.alone_s for job in jobs]
    stp = fsum(one / end for one, end in zip(alone, ends_s, strict=True))
    notes = verdict.notes
    if stp > _MOST_MEASURED:
        notes += (f"no group is known that reached more than {_MOST_MEASURED} times",)
    return Group(
        gpu=gpu,
        start_s=start_s,
        members=tuple(
            GroupMember(job, cap, start_s + end)
            for job, cap, end in zip(jobs, caps or (None,), ends_s, strict=True)
        ),
        cost=cost,
        stp=stp,
        antt=fsum(end / one for one, end in zip(alone, ends_s, strict=True)) / len(jobs),
        notes=notes,
        why_alone=why_alone,
    )


def run_together(
    jobs: Sequence[PlannedJob], caps: Sequence[int], site: PlanSite
) -> tuple[tuple[float, ...], Cost]:
    """Let jobs start together on one GPU; when one ends, the others become faster.

    Args:
        caps: cap of each, kept to the end, as MPS does; none given, none is capped.

    Returns:
        The end of each job in seconds from the common start, and the cost until the last end.

    Cost: the square of the number of jobs.
    """
    left = [job.alone_s for job in jobs]
    ends = [0.0] * len(left)
    now, energy_j, known = 0.0, 0.0, True
    running = list(range(len(left)))
    while running:
        own_caps = [caps[i] for i in running] if caps else ()
        at = pace([jobs[i].demand for i in running], site.capacity, own_caps)
        needed = [left[i] / speed for i, speed in zip(running, at.speeds, strict=True)]
        step = min(needed)
        now += step
        energy_j += (at.power_w or 0.0) * step
        known = known and at.power_w is not None
        for i, speed, need in zip(running, at.speeds, needed, strict=True):
            left[i] = 0.0 if need <= step else max(0.0, left[i] - step * speed)
            ends[i] = now
        running = [i for i in running if left[i]]
    return tuple(ends), Cost(now, energy_j if known else None)


def _total_of(groups: Sequence[Group], site: PlanSite) -> Cost:
    """Return the time until the last job ends, and the energy of all GPUs until then."""
    time_s = max((group.start_s + group.cost.time_s for group in groups), default=0.0)
    return _add_up([group.cost for group in groups], time_s, site)


def _add_up(costs: Sequence[Cost], time_s: float, site: PlanSite) -> Cost:
    """Return the cost of all GPUs until the last job ends; those that wait do so at idle power."""
    energies = [cost.energy_j for cost in costs if cost.energy_j is not None]
    idle_w = site.capacity.idle_w
    if idle_w is None or len(energies) < len(costs):
        return Cost(time_s, None)
    waiting_s = max(0.0, site.gpus * time_s - fsum(cost.time_s for cost in costs))
    return Cost(time_s, fsum(energies) + idle_w * waiting_s)


_Places = frozenset[int]
"""Jobs by their places."""

_Division = tuple[_Places, ...]


def _divide(jobs: Sequence[PlannedJob], site: PlanSite) -> list[list[PlannedJob]]:
    """Return the groups into which jobs are divided, in the order in which they start.

    At first all are alone; then single ones move and change places as long as that is better, which
    it never is beside an empty GPU: that one draws power, too, and the others get slower.
    """
    by_duration = sorted(range(len(jobs)), key=lambda place: (jobs[place].alone_s, place))
    found: list[_Places] = []
    for first in range(0, len(jobs), _TOGETHER):
        places = sorted(by_duration[first : first + _TOGETHER])
        best = _Search([jobs[place] for place in places], site).best_division()
        found += [frozenset(places[at] for at in group) for group in best]
    ordered = _Search(jobs, site).in_order(found)
    return [[jobs[place] for place in sorted(group)] for group in ordered]


class _Search:
    """The search for the best division of jobs, with the costs of groups that were tried."""

    def __init__(self, jobs: Sequence[PlannedJob], site: PlanSite) -> None:
        self._jobs, self._site = jobs, site
        self._costs: dict[_Places, Cost | None] = {}
        self._alone = tuple(frozenset([place]) for place in range(len(jobs)))
        costs = self._costs_of(self._alone)
        self._sequential = _add_up(costs, sum(cost.time_s for cost in costs), site)

    def best_division(self) -> _Division:
        """Return a division in which no job is better off elsewhere."""
        division, best = self._alone, self._worth(self._alone)
        better = True
        while better:
            better = False
            for changed in self._near(division):
                worth = self._worth(changed)
                if worth > best:
                    division, best, better = changed, worth, True
                    break
        return division

    def in_order(self, division: Iterable[_Places]) -> list[_Places]:
        """Return groups in the order in which they start.

        On several GPUs the longest come first, so that all end at about the same time; then those
        with the lowest utilization (mps-sharing-2024 IV.B criterion 1).
        """

        def key(group: _Places) -> tuple[float, float, str]:
            (cost,) = self._costs_of([group])
            jobs = [self._jobs[place] for place in group]
            first = min((job.demand.sm_utilization_percentage, job.name) for job in jobs)
            return (-cost.time_s if self._site.gpus > 1 else 0.0, *first)

        return sorted(division, key=key)

    def _cost(self, group: _Places) -> Cost | None:
        """Return the cost of a group; None if it may not share a GPU."""
        if group not in self._costs:
            jobs = [self._jobs[place] for place in sorted(group)]
            verdict = judge([job.client for job in jobs], self._site.capacity)
            caps = verdict.caps if len(jobs) > 1 else ()
            self._costs[group] = (
                run_together(jobs, caps, self._site)[1]
                if len(jobs) == 1 or verdict.compatible
                else None
            )
        return self._costs[group]

    def _costs_of(self, division: Iterable[_Places]) -> list[Cost]:
        """Return the costs of groups that may all share a GPU."""
        return [cost for cost in map(self._cost, division) if cost]

    def _worth(self, division: _Division) -> tuple[float, float]:
        """Return what the objective wants most of groups that start when GPUs get free.

        Of equals the division with the most throughput is worth more.
        """
        ends = [0.0] * self._site.gpus
        costs = self._costs_of(self.in_order(division))
        for cost in costs:
            heapreplace(ends, ends[0] + cost.time_s)
        gain = _add_up(costs, max(ends), self._site).gain_over(self._sequential)
        objective = self._site.objective
        wanted = worth_of(gain.throughput, gain.energy_efficiency, objective)
        return round(wanted, _DIGITS), round(gain.throughput, _DIGITS)

    def _near(self, division: _Division) -> Iterator[_Division]:
        """Yield divisions in which a job has moved, or changed places with another."""
        for one, other in combinations((*division, frozenset[int]()), 2):
            rest = tuple(group for group in division if group not in (one, other))
            moves = [(one - {place}, other | {place}) for place in one]
            moves += [(one | {place}, other - {place}) for place in other]
            for mine in one:
                moves += [(one - {mine} | {yours}, other - {yours} | {mine}) for yours in other]
            for changed in moves:
                groups = tuple(group for group in changed if group)
                if all(map(self._cost, groups)):
                    yield (*rest, *groups)
