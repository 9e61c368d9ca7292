"""A queue of jobs whose figures are known -> who shares which GPU, in which order.

All times and energies are predictions, by the models of prediction.py.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import fsum, isqrt

from gpulaunch.errors import printable
from gpulaunch.records import Record, replace
from gpulaunch.sharing.grouping import divide
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.prediction import Gain, normalized_turnaround, system_throughput, worth_of
from gpulaunch.sharing.workload import (
    Cost,
    PlannedJob,
    PlanSite,
    Workflow,
    add_up,
    refusals,
    share,
    sum_known,
)


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
    """Divide a queue into groups that share a GPU, by the division that is predicted to be best.

    While there are GPUs enough, jobs get one each. Whenever jobs get ready that others waited for,
    those that have not started are divided anew.

    Args:
        jobs: jobs in the order of the queue, each fit to run alone; `after` has no circles. The
            order matters to the sequential baseline only.
        site: the GPUs.

    Cost: 10 jobs in 10 to 25 ms, 50 to 150 ms where all have curves; 300 jobs in some seconds.

    Source: mps-sharing-2024 IV and V. Departures: docs/decisions/interference.md.
    """
    ascending = sorted(
        jobs, key=lambda job: (job.client.demand.sm_utilization_percentage, job.name)
    )
    flows = [flow for job in ascending for flow in _make_workflows(job)]
    groups = _schedule(flows, site, divide)
    alone = [Workflow(job, 1, job.repetitions) for job in jobs]
    baseline = _schedule(alone, site, lambda ready, _: [[flow] for flow in ready])
    cost, sequential = _total_of(groups, site), _total_of(baseline, site)
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


def _schedule(
    workflows: Sequence[Workflow],
    site: PlanSite,
    divided: Callable[[Sequence[Workflow], PlanSite], list[list[Workflow]]],
) -> tuple[Group, ...]:
    """Start groups when GPUs get free, and when the jobs end that others wait for.

    Args:
        workflows: all workflows.
        site: the GPUs.
        divided: returns the groups of those that can start, in their order.
    """
    groups: list[Group] = []
    left = Counter(flow.job.name for flow in workflows)  # those that have not started, by job
    ends: dict[str, float] = {}
    free = [(0.0, gpu) for gpu in range(site.gpus)]  # a heap: when each GPU gets free
    waiting = list(workflows)
    planned: list[list[Workflow]] = []
    while waiting:
        now, gpu = heappop(free)
        done = {name for name, end in ends.items() if not left[name] and end <= now}
        ready = [flow for flow in waiting if done.issuperset(flow.job.after)]
        if not ready:
            heappush(free, (min(end for end in ends.values() if end > now), gpu))
            continue
        if len(ready) != sum(map(len, planned)):
            planned = divided(ready, site)
        chosen = planned.pop(0)
        why_alone = _why_alone(chosen[0], ready, site) if len(chosen) == 1 else None
        group = replace(_predict_group(chosen, gpu, now, site), why_alone=why_alone)
        groups.append(group)
        for member in group.members:
            name = member.workflow.job.name
            left[name] -= 1
            ends[name] = max(member.end_s, ends.get(name, 0.0))
            waiting.remove(member.workflow)
        heappush(free, (now + group.cost.time_s, gpu))
    return tuple(groups)


def _why_alone(flow: Workflow, ready: Sequence[Workflow], site: PlanSite) -> str:
    """Return what keeps others from joining a workflow."""
    others = [other for other in ready if other != flow]
    if not others:
        return "no other job can start then"
    if len(ready) <= site.gpus:
        return "there is a GPU for each"
    reasons = {other.job.name: refusals([flow, other], site) for other in others}
    allowed = [name for name, why in reasons.items() if not why]
    if allowed:
        return f"beside {printable(allowed[0])}: other groups are predicted to bring more"
    name, why = next(iter(reasons.items()))
    return f"beside {printable(name)}: {'; '.join(why)}"


def _predict_group(flows: Sequence[Workflow], gpu: int, start_s: float, site: PlanSite) -> Group:
    """Return a group with its predicted costs."""
    shared = share(flows, site)
    run, caps = shared.run, shared.sm_percentages
    cost, alone = Cost(run.time_s, run.energy_j), [flow.alone_s for flow in flows]
    return Group(
        gpu=gpu,
        start_s=start_s,
        members=tuple(
            GroupMember(flow, cap, start_s + end)
            for flow, cap, end in zip(flows, caps or (None,), run.ends_s, strict=True)
        ),
        cost=cost,
        gain=cost.gain_over(Cost(fsum(alone), sum_known([flow.alone_j for flow in flows]))),
        stp=system_throughput(alone, run.ends_s),
        antt=normalized_turnaround(alone, run.ends_s),
        notes=judge([flow.job.client for flow in flows], site.capacity, site.bounds).notes,
        why_alone=None,
    )


def _total_of(groups: Sequence[Group], site: PlanSite) -> Cost:
    """Return the time until the last job ends, and the energy of all GPUs until then."""
    time_s = max((group.start_s + group.cost.time_s for group in groups), default=0.0)
    return add_up([group.cost for group in groups], time_s, site)


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
