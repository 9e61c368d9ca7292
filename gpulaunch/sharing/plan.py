"""A queue of jobs whose figures are known -> who shares which GPU, in which order.

All times and energies are predictions, by the models of prediction.py.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import fsum, isqrt

from gpulaunch.errors import printable
from gpulaunch.leases.share import Client, Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record, replace
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.interference import BOUNDS, Bounds, judge, rank_partner
from gpulaunch.sharing.partition import partition
from gpulaunch.sharing.prediction import (
    Gain,
    Solo,
    normalized_turnaround,
    run_together,
    system_throughput,
    worth_of,
)


class PlannedJob(Record):
    """An entry of the queue.

    Attributes:
        name: a name that no other entry has.
        client: what it uses of a GPU, and its objective.
        duration_s: duration of one task, alone on the GPU; above 0.
        repetitions: number of tasks; 1 or more.
        parallel: number of workflows that the tasks are divided among, each running its tasks one
            after the other; a divisor of repetitions.
        after: names of the jobs that must have ended.
    """

    name: str
    client: Client
    duration_s: float
    repetitions: int = 1
    parallel: int = 1
    after: tuple[str, ...] = ()


class PlanSite(Record):
    """The GPUs that the queue will run on.

    Attributes:
        capacity: what one GPU offers.
        gpus: number of GPUs; 1 or more.
        objective: objective of all jobs.
        idle_w: power of a GPU without kernels; None if unknown.
        bounds: what jobs may use together of one GPU.
    """

    capacity: Capacity
    gpus: int = 1
    objective: Objective = Objective()
    idle_w: float | None = None
    bounds: Bounds = BOUNDS


class Workflow(Record):
    """Tasks of a job that run one after the other: one client of a GPU.

    Attributes:
        job: the job.
        number: number of the workflow among those of its job, from 1.
        tasks: number of tasks.
    """

    job: PlannedJob
    number: int
    tasks: int

    @property
    def demand(self) -> Demand:
        """Demand of any of its tasks."""
        return self.job.client.demand

    @property
    def alone_s(self) -> float:
        """Time that it takes alone on a GPU."""
        return self.tasks * self.job.duration_s

    @property
    def alone_j(self) -> float | None:
        """Energy that it takes alone."""
        return None if self.demand.power_w is None else self.demand.power_w * self.alone_s


class GroupMember(Record):
    """A workflow in a group.

    Attributes:
        workflow: the workflow.
        sm_percentage: its cap; None if it has the GPU to itself.
        end_s: its predicted end, from the start of the plan.
    """

    workflow: Workflow
    sm_percentage: int | None
    end_s: float


class Cost(Record):
    """Time and energy; the energy is None if a power is unknown."""

    time_s: float
    energy_j: float | None

    def gain_over(self, other: "Cost") -> Gain:
        """Return what this brings against another cost."""
        energies = (
            other.energy_j / self.energy_j if self.energy_j and other.energy_j is not None else None
        )
        return Gain(other.time_s / self.time_s, energies)


class Group(Record):
    """Workflows that start together on one GPU.

    The next group there starts when the last of them has ended.

    Attributes:
        gpu: 0 to gpus - 1.
        start_s: start, from the start of the plan.
        members: its workflows.
        cost: predicted cost.
        gain: predicted gain against the same workflows one after the other.
        stp: predicted system throughput.
        antt: predicted average normalized turnaround time.
        notes: worth knowing, such as power beyond the limit.
        why_alone: why nobody joins, if it has a single member.
    """

    gpu: int
    start_s: float
    members: tuple[GroupMember, ...]
    cost: Cost
    gain: Gain
    stp: float
    antt: float
    notes: tuple[str, ...]
    why_alone: str | None


class Configuration(Record):
    """A way to run all tasks of one job on one GPU, in so many workflows of so many tasks."""

    tasks: int
    workflows: int
    cost: Cost
    gain: Gain


class Configurations(Record):
    """The ways to run one job that are compared.

    Attributes:
        job: the job.
        choices: the ways, by number of workflows.
        best: the best way by the objective; of equals the one with the fewest workflows.
        limits: why there are no more workflows; empty if every task could be one.
    """

    job: PlannedJob
    choices: tuple[Configuration, ...]
    best: Configuration
    limits: tuple[str, ...]


class Plan(Record):
    """The groups that a queue is divided into, and what they are predicted to take.

    Attributes:
        groups: the groups, by start, then by GPU.
        cost: predicted cost of the whole queue: all GPUs, until the last job ends.
        sequential: its cost if no job shared, each starting in the order of the queue when a GPU
            gets free.
        gain: predicted gain.
        configurations: ways to run each job with more than one task.
    """

    groups: tuple[Group, ...]
    cost: Cost
    sequential: Cost
    gain: Gain
    configurations: tuple[Configurations, ...]


def make_plan(jobs: Sequence[PlannedJob], site: PlanSite) -> Plan:
    """Divide a queue into groups that share a GPU, as mps-sharing-2024 IV.B does.

    Whenever a GPU is free, the job with the lowest SM utilization of those that can start begins a
    group. The others are asked by rank_partner, and join if judge lets them. While there are GPUs
    enough, jobs get one each.

    Args:
        jobs: jobs in the order of the queue, each fit to run alone; `after` has no circles. The
            order matters to the sequential baseline only.
        site: the GPUs.

    Cost: 300 jobs in 1 s.

    Source: mps-sharing-2024 IV and V. Departures: docs/decisions/interference.md.
    """
    ascending = sorted(
        jobs, key=lambda job: (job.client.demand.sm_utilization_percentage, job.name)
    )
    groups = _schedule(
        [flow for job in ascending for flow in _make_workflows(job)], site, _choose_lowest
    )
    baseline = _schedule([Workflow(job, 1, job.repetitions) for job in jobs], site, _choose_first)
    cost, sequential = _add_up(groups, site), _add_up(baseline, site)
    repeated = [job for job in jobs if job.repetitions > 1]
    return Plan(
        groups,
        cost,
        sequential,
        cost.gain_over(sequential),
        tuple(compare_configurations(job, site) for job in repeated),
    )


def _make_workflows(job: PlannedJob) -> Iterator[Workflow]:
    return (
        Workflow(job, number + 1, job.repetitions // job.parallel) for number in range(job.parallel)
    )


Chosen = tuple[Sequence[Workflow], str | None]
"""Workflows that start together; and if it is one, why nobody joins."""


def _schedule(
    workflows: Sequence[Workflow],
    site: PlanSite,
    choose: Callable[[Sequence[Workflow], int, PlanSite], Chosen],
) -> tuple[Group, ...]:
    """Start groups when GPUs get free, and when the jobs end that others wait for.

    Args:
        workflows: all workflows.
        site: the GPUs.
        choose: given those that can start, in this order, and the number of free GPUs, returns
            those that start on the next GPU.
    """
    groups: list[Group] = []
    left = Counter(flow.job.name for flow in workflows)  # those that have not started, by job
    ends: dict[str, float] = {}
    free = [(0.0, gpu) for gpu in range(site.gpus)]  # a heap: when each GPU gets free
    waiting = list(workflows)
    while waiting:
        now, gpu = heappop(free)
        done = {name for name, end in ends.items() if not left[name] and end <= now}
        ready = [flow for flow in waiting if done.issuperset(flow.job.after)]
        if not ready:
            heappush(free, (min(end for end in ends.values() if end > now), gpu))
            continue
        chosen, why_alone = choose(ready, 1 + sum(time <= now for time, _ in free), site)
        group = replace(_predict_group(chosen, gpu, now, site), why_alone=why_alone)
        groups.append(group)
        for member in group.members:
            name = member.workflow.job.name
            left[name] -= 1
            ends[name] = max(member.end_s, ends.get(name, 0.0))
            waiting.remove(member.workflow)
        heappush(free, (now + group.cost.time_s, gpu))
    return tuple(groups)


def _choose_first(ready: Sequence[Workflow], _free: int, _site: PlanSite) -> Chosen:
    return ready[:1], None


def _choose_lowest(ready: Sequence[Workflow], free: int, site: PlanSite) -> Chosen:
    """Choose the workflow with the lowest utilization, and those that may join it, best first.

    Others join as far as GPUs are short. One that is refused is refused for good: one more client
    never turns a refusal into a grant.
    """
    most = -(-len(ready) // free)
    members, candidates = [ready[0]], list(ready[1:])
    while candidates and len(members) < most and not _refusal(members, _NOTHING, site):
        candidates = _sort_by_preference(candidates, members, site)
        while candidates and _refusal(members, candidates[0].job.client, site):
            candidates.pop(0)
        if candidates:
            members.append(candidates.pop(0))
    why_alone = _why_alone(ready, most, site) if len(members) == 1 else None
    return members, why_alone


_NOTHING = Client(
    Demand("", 0.0, 0.0, 0), Objective("energy", throughput_tolerance_percentage=100.0)
)
"""A client that uses nothing: where even this one may not join, nobody may."""


def _refusal(members: Sequence[Workflow], client: Client, site: PlanSite) -> tuple[str, ...]:
    clients = [member.job.client for member in members]
    return judge([*clients, client], site.capacity, site.bounds).reasons


def _sort_by_preference(
    candidates: Sequence[Workflow], members: Sequence[Workflow], site: PlanSite
) -> list[Workflow]:
    demands = [member.demand for member in members]

    def key(flow: Workflow) -> tuple[tuple[float, ...], str, int]:
        return (
            rank_partner(flow.demand, demands, site.objective, site.capacity),
            flow.job.name,
            flow.number,
        )

    return sorted(candidates, key=key)


def _why_alone(ready: Sequence[Workflow], most: int, site: PlanSite) -> str:
    """Return what keeps the best candidate from joining the first."""
    if len(ready) == 1:
        return "no other job can start then"
    if most == 1:
        return "there is a GPU for each"
    best = _sort_by_preference(ready[1:], ready[:1], site)[0]
    return (
        f"beside {printable(best.job.name)}: "
        f"{'; '.join(_refusal(ready[:1], best.job.client, site))}"
    )


def _predict_group(flows: Sequence[Workflow], gpu: int, start_s: float, site: PlanSite) -> Group:
    """Return a group with its predicted costs."""
    demands = [flow.demand for flow in flows]
    together = len(flows) > 1
    caps = partition(demands, site.capacity, site.objective).sm_percentages if together else ()
    solos = [Solo(flow.demand, flow.alone_s) for flow in flows]
    run = run_together(solos, site.capacity, caps, site.idle_w)
    cost, alone = Cost(run.time_s, run.energy_j), [flow.alone_s for flow in flows]
    return Group(
        gpu=gpu,
        start_s=start_s,
        members=tuple(
            GroupMember(flow, cap, start_s + end)
            for flow, cap, end in zip(flows, caps or (None,), run.ends_s, strict=True)
        ),
        cost=cost,
        gain=cost.gain_over(Cost(fsum(alone), _sum_known([flow.alone_j for flow in flows]))),
        stp=system_throughput(alone, run.ends_s),
        antt=normalized_turnaround(alone, run.ends_s),
        notes=judge([flow.job.client for flow in flows], site.capacity, site.bounds).notes,
        why_alone=None,
    )


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) if len(known) == len(values) else None


def _add_up(groups: Sequence[Group], site: PlanSite) -> Cost:
    """Return the time until the last job ends, and the energy of all GPUs until then.

    GPUs that wait do so at idle power.
    """
    time_s = max((group.start_s + group.cost.time_s for group in groups), default=0.0)
    energy_j = _sum_known([group.cost.energy_j for group in groups])
    waiting_s = max(0.0, site.gpus * time_s - fsum(group.cost.time_s for group in groups))
    if energy_j is None or site.idle_w is None:
        return Cost(time_s, None)
    return Cost(time_s, energy_j + site.idle_w * waiting_s)


def compare_configurations(job: PlannedJob, site: PlanSite) -> Configurations:
    """Compare the ways to run all tasks of one job on one GPU.

    The number of tasks stays the same: a in each of b workflows, a x b of them. b goes up to what
    judge allows.

    Source: mps-sharing-2024 V.D, Figure 5.
    """
    choices: list[Configuration] = []
    limits: tuple[str, ...] = ()
    for workflows in _divisors(job.repetitions):
        clients = [job.client] * min(workflows, site.capacity.most_clients + 1)
        limits = judge(clients, site.capacity, site.bounds).reasons
        if limits:
            break
        tasks = job.repetitions // workflows
        group = _predict_group([Workflow(job, 1, tasks)] * workflows, 0, 0.0, site)
        choices.append(Configuration(tasks, workflows, group.cost, group.gain))
    best = max(
        choices,
        key=lambda choice: (round(worth_of(choice.gain, site.objective), 9), -choice.workflows),
    )
    return Configurations(job, tuple(choices), best, limits)


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
