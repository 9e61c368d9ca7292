"""Measures of a replay: of each job, and of all together."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from statistics import fmean, quantiles

from gpulaunch.lab.simulate.event_loop import Rules, Stay
from gpulaunch.lab.simulate.time_model import Yardstick, yardstick_of
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

_HOUR_S = 3600.0
_SLO_ROUNDING = 1e-9


class ReplayedJob(Record):
    """The measures of one job. Times are in seconds from the beginning of the trace.

    Attributes:
        id: place of the job in the trace, from 0.
        machine: number of the machine that it ran on, from 0.
        gpus: indices of its GPUs, in rank order.
        sensitive: whether its speed depends on its links.
        utility: utility when it started, 0 to 1 (topo-aware-sc17 Eq. 2); None if it asked for none.
        effective_bandwidth: effective bandwidth of its GPUs by the cut model, GB/s; None without
            communication (mapa-sc21 3.4).
        aggregate_bandwidth: aggregate bandwidth of its GPUs by the cut model, GB/s; None without
            communication (Eq. 1).
        quality: aggregate bandwidth as a share of the best that the idle machine has (mapa-sc21
            Figure 4).
        nvlink_ring: whether a ring over NVLinks alone joins its GPUs; None without communication.
        slowdown: its run time divided by that alone on the best GPUs; at least 1 but for rounding.
        violates: whether it ran with less utility, or slower links, than it asked for
            (topo-aware-sc17 5.1: SLO).
    """

    id: int
    name: str
    machine: int
    gpus: tuple[int, ...]
    sensitive: bool
    arrival_s: float
    started_s: float
    ended_s: float
    utility: float | None
    effective_bandwidth: float | None
    aggregate_bandwidth: float | None
    quality: float | None
    nvlink_ring: bool | None
    slowdown: float
    violates: bool

    @property
    def wait_s(self) -> float:
        """Seconds from arrival to start."""
        return self.started_s - self.arrival_s

    @property
    def run_s(self) -> float:
        """Seconds from its start to its end."""
        return self.ended_s - self.started_s

    @property
    def turnaround_s(self) -> float:
        """Seconds from its arrival to its end."""
        return self.ended_s - self.arrival_s


class Replay(Record):
    """One run of a simulator over one trace.

    Attributes:
        jobs: measures of each job, in the order of starts.
        utilization: share of GPU time until the last end in which a GPU was held, 0 to 1.
    """

    topology: str
    rules: Rules
    jobs: tuple[ReplayedJob, ...]
    utilization: float

    @property
    def makespan_s(self) -> float:
        """Seconds from the first arrival to the last end."""
        first_s = min(one.arrival_s for one in self.jobs)
        return max(one.ended_s for one in self.jobs) - first_s

    @property
    def throughput_jobs_per_hour(self) -> float:
        """Number of jobs divided by the makespan, per hour."""
        return len(self.jobs) * _HOUR_S / self.makespan_s if self.makespan_s else 0.0

    @property
    def violations(self) -> int:
        """Number of jobs that ran with less than they asked for."""
        return sum(one.violates for one in self.jobs)


def quartiles(values: Iterable[float]) -> dict[str, float] | None:
    """Return least, quartiles, largest and mean of values; None if there are none.

    Quartiles are linear between values, as in mapa-sc21.
    """
    found = sorted(values)
    if not found:
        return None
    low, median, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return {
        "min": found[0],
        "p25": low,
        "p50": median,
        "p75": high,
        "max": found[-1],
        "mean": fmean(found),
    }


def measure(topology: Topology, stays: Sequence[Stay], rules: Rules) -> Replay:
    """Return the measures of a replay from the stays of all jobs, in the order of starts."""
    yardstick, own = yardstick_of(topology, "cut"), yardstick_of(topology, rules.model)
    jobs = tuple(_measure_job(stay, yardstick, own) for stay in stays)
    whole_s = max(stay.ended_s for stay in stays) - min(stay.job.arrival_s for stay in stays)
    whole_s *= len(topology.gpus) * rules.machines
    utilization = _sum_held(stays) / whole_s if whole_s else 0.0
    return Replay(topology.name, rules, jobs, utilization)


def _measure_job(stay: Stay, yardstick: Yardstick, own: Yardstick) -> ReplayedJob:
    """Return the measures of one job; its needs are judged by the model that its policy used."""
    job, request = stay.job, stay.job.request
    scores = yardstick.scores(request.pattern, stay.gpus)
    ideal = None
    if scores.aggregate_bandwidth is not None:
        ideal = yardstick.best(request.pattern, len(stay.gpus), "aggregate_bandwidth")
    got = own.scores(request.pattern, stay.gpus).effective_bandwidth
    return ReplayedJob(
        id=job.id,
        name=job.name,
        machine=stay.machine,
        gpus=stay.gpus,
        sensitive=request.bandwidth_sensitive and len(stay.gpus) > 1,
        arrival_s=job.arrival_s,
        started_s=stay.started_s,
        ended_s=stay.ended_s,
        utility=stay.utility,
        effective_bandwidth=scores.effective_bandwidth,
        aggregate_bandwidth=scores.aggregate_bandwidth,
        quality=(scores.aggregate_bandwidth or 0.0) / ideal if ideal else None,
        nvlink_ring=yardstick.has_nvlink_ring(frozenset(stay.gpus)) if ideal else None,
        slowdown=(stay.ended_s - stay.started_s) / job.duration_s,
        violates=(stay.utility is not None and stay.utility < request.least_utility - _SLO_ROUNDING)
        or (got is not None and got < request.least_gb_per_s - _SLO_ROUNDING),
    )


def _sum_held(stays: Iterable[Stay]) -> float:
    """Return the GPU seconds that were held by stays in order; those that jobs share count once."""
    held_until_s: dict[tuple[int, int], float] = {}
    held_s = 0.0
    for stay in stays:
        for gpu in stay.gpus:
            place = stay.machine, gpu
            free_s = max(stay.started_s, held_until_s.get(place, 0.0))
            if stay.ended_s > free_s:
                held_s += stay.ended_s - free_s
                held_until_s[place] = stay.ended_s
    return held_s
