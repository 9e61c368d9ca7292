"""`gpulaunch batch --plan`: the jobs of a batch in the groups and on the GPUs that a plan has."""

from collections.abc import Mapping, Sequence

from gpulaunch.batch.tasks import Task
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import UsageError, counted
from gpulaunch.files.units import format_duration
from gpulaunch.machine.gpu import Gpu
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.records import replace
from gpulaunch.sharing.plan import Plan, PlannedJob, PlanSite, make_plan
from gpulaunch.sharing.speed import idle_power, least_of


def plan_tasks(tasks: Sequence[Task]) -> tuple[list[Task], str]:
    """Return the jobs of a batch with the GPU, the cap and the predecessors that a plan gives them.

    Planned are jobs that share, want one GPU, leave their share of it open, are there from the
    beginning, and whose duration is known; on the GPUs that all of them may have. All others come
    after them, in their order.

    Args:
        tasks: the jobs.

    Returns:
        All jobs in the order of their start, and what the plan predicts, in a line.

    Raises:
        UsageError: none can be planned, or there is no GPU that all may have.
    """
    jobs, planned = [], []
    for one in tasks:
        sharing, duration_s = one.launch.request.sharing, _planned_duration(one)
        if sharing and duration_s:
            planned.append(one)
            jobs.append(PlannedJob(str(one.id), sharing.client, duration_s))
    if not planned:
        raise UsageError(
            "no job can be planned: none shares one GPU from the beginning and has a duration_s",
            "write share = true and duration_s, or a profile that has its duration",
        )
    gpus = _common_gpus(planned)
    sharing = planned[0].launch.request.sharing
    assert sharing is not None  # noqa: S101  else it would not be planned
    capacity = least_of(sharing.capacities, [gpu.uuid for gpu in gpus])
    objective = sharing.client.objective
    site = PlanSite(capacity, len(gpus), objective, idle_power(capacity))
    plan = make_plan(jobs, site)
    by_name = {str(one.id): one for one in planned}
    ordered = _in_order(plan, by_name, [gpu.uuid for gpu in gpus])
    last = tuple(task.id for task in ordered)
    for one in tasks:
        if one not in planned:
            ordered.append(replace(one, after=(*last, *one.after)))
    return ordered, _message(plan, len(jobs), len(tasks))


def _common_gpus(planned: Sequence[Task]) -> list[Gpu]:
    """Return the GPUs that all jobs may have and share."""
    gpus = list(planned[0].launch.machine.topology.gpus)
    for one in planned:
        launch = one.launch
        admitted = admitted_gpus(launch.request, launch.machine.topology, launch.within)
        sharable = launch.request.sharing.capacities if launch.request.sharing else {}
        gpus = [gpu for gpu in gpus if gpu in admitted and gpu.uuid in sharable]
    if not gpus:
        raise UsageError("no job can be planned: there is no GPU that all may have and share")
    return gpus


def _planned_duration(one: Task) -> float | None:
    """Return how long a job takes alone, in seconds; None if it is not to be planned."""
    request, settings = one.launch.request, one.settings
    if request.sharing is None or request.gpus != 1 or one.arrival_s or one.after:
        return None
    if request.sharing.sm_percentage is not None:
        return None
    name = settings.get("profile") or request.profile
    duration_s = one.duration_s
    if duration_s is None and name:
        duration_s = load_profile(name).resources.duration_s
    return duration_s or None


def _in_order(plan: Plan, tasks: Mapping[str, Task], uuids: Sequence[str]) -> list[Task]:
    """Return tasks, group after group; a group waits for the one before it on its GPU."""
    ordered: list[Task] = []
    before: dict[int, tuple[int, ...]] = {}
    for group in plan.groups:
        members = [tasks[member.job.name] for member in group.members]
        terms = [sharing for task in members if (sharing := task.launch.request.sharing)]
        names = tuple(sorted(sharing.client.demand.name for sharing in terms))
        is_searching = all(
            sharing.tries and sharing.search and sharing.search.names == names for sharing in terms
        )
        for task, member in zip(members, group.members, strict=True):
            settings = {**task.settings, "only": uuids[group.gpu]}
            # What is recorded searches for its caps, one step a task, from those of the plan.
            if member.sm_percentage is not None and not is_searching:
                settings["sm_percentage"] = str(member.sm_percentage)
            after = before.get(group.gpu, ())
            ordered.append(replace(task, settings=settings, after=after))
        before[group.gpu] = tuple(task.id for task in members)
    return ordered


def _message(plan: Plan, planned: int, jobs: int) -> str:
    what = counted(planned, "job")
    groups = counted(len(plan.groups), "group")
    where = counted(len({group.gpu for group in plan.groups}), "GPU")
    taken, alone = (format_duration(cost.time_s) for cost in (plan.cost, plan.sequential))
    rest = f"; {jobs - planned} not planned" if jobs > planned else ""
    return (
        f"planned: {what} in {groups} on {where}, predicted to take {taken}, "
        f"{alone} without sharing{rest}"
    )
