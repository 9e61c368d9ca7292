"""The jobs and GPUs that a plan is made for, and what a group of them is predicted to cost."""
# pure: decides on plain values

from collections.abc import Sequence
from math import fsum

from gpulaunch.leases.share import Client, Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.interference import BOUNDS, Bounds, judge
from gpulaunch.sharing.partition import partition
from gpulaunch.sharing.prediction import Gain, Solo, Together, run_together

_NOISE = 1e-6  # percent that a sum may be beyond its bound; the rule itself rounds


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


class Shared(Record):
    """Workflows that start together on one GPU.

    Attributes:
        sm_percentages: cap of each; empty for a single one.
        run: predicted ends and energy.
    """

    sm_percentages: tuple[int, ...]
    run: Together


def share(flows: Sequence[Workflow], site: PlanSite) -> Shared:
    """Predict what workflows take that start together on one GPU."""
    demands = [flow.demand for flow in flows]
    caps: tuple[int, ...] = ()
    if len(flows) > 1:
        found = partition(demands, site.capacity, site.objective, adjust=False)
        caps = found.sm_percentages
    solos = [Solo(flow.demand, flow.alone_s) for flow in flows]
    return Shared(caps, run_together(solos, site.capacity, caps, site.idle_w))


def may_share(flows: Sequence[Workflow], site: PlanSite) -> bool:
    """Return whether workflows may share a GPU.

    Three or more never outweigh a sum, which is found faster than all reasons.
    """
    if len(flows) > 2:
        demands, bounds = [flow.demand for flow in flows], site.bounds
        busy = fsum([demand.sm_utilization_percentage for demand in demands])
        drawn = fsum([demand.memory_bandwidth_utilization_percentage for demand in demands])
        held = 100 * sum([demand.memory_bytes for demand in demands]) / site.capacity.memory_bytes
        if (
            busy > bounds.sm_percentage + _NOISE
            or drawn > bounds.memory_bandwidth_percentage + _NOISE
            or held > bounds.memory_percentage + _NOISE
        ):
            return False
    return not refusals(flows, site)


def refusals(flows: Sequence[Workflow], site: PlanSite) -> tuple[str, ...]:
    """Return why workflows may not share a GPU; nothing if they may."""
    return judge(
        [flow.job.client for flow in flows], site.capacity, site.bounds, quick=True
    ).reasons


def sum_known(values: Sequence[float | None]) -> float | None:
    """Return a sum; None if a summand is unknown."""
    known = [value for value in values if value is not None]
    return fsum(known) if len(known) == len(values) else None


def add_up(costs: Sequence[Cost], time_s: float, site: PlanSite) -> Cost:
    """Return the cost of all GPUs until the last job ends; those that wait do so at idle power.

    Args:
        costs: cost of each group.
        time_s: the end of the last.
        site: the GPUs.
    """
    energy_j = sum_known([cost.energy_j for cost in costs])
    waiting_s = max(0.0, site.gpus * time_s - fsum(cost.time_s for cost in costs))
    if energy_j is None or site.idle_w is None:
        return Cost(time_s, None)
    return Cost(time_s, energy_j + site.idle_w * waiting_s)
