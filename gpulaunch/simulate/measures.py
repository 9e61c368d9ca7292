"""Measures of a replay: of each job, and of all together."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import quantiles

from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record
from gpulaunch.simulate.event_loop import Rules, Stay
from gpulaunch.simulate.machines import Remembered
from gpulaunch.simulate.yardstick import Yardstick

_HOUR_S = 3600.0
_SLO_ROUNDING = 1e-9


class ReplayedJob(Record):
    """The measures of one job.

    Attributes:
        stay: the stay of the job.
        effective_bandwidth: effective bandwidth of its GPUs by the yardstick, GB/s; None without
            communication (mapa-sc21 3.4).
        aggregate_bandwidth: aggregate bandwidth of its GPUs by the yardstick, GB/s; None without
            communication (Eq. 1).
        quality: aggregate bandwidth as a share of the best that the idle machine has (mapa-sc21
            Figure 4).
        nvlink_ring: whether a ring over NVLinks alone joins its GPUs; None without communication.
        slowdown: its run time divided by that alone on the best GPUs; at least 1 but for rounding.
        violates: whether it ran with less utility, or slower links, than it asked for
            (topo-aware-sc17 5.1: SLO).
    """

    stay: Stay
    effective_bandwidth: float | None
    aggregate_bandwidth: float | None
    quality: float | None
    nvlink_ring: bool | None
    slowdown: float
    violates: bool

    @property
    def id(self) -> int:
        """Place of the job in the trace, from 0."""
        return self.stay.job.id

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.stay.job.name

    @property
    def arrival_s(self) -> float:
        """Arrival, in seconds from the beginning of the trace."""
        return self.stay.job.arrival_s

    @property
    def machine(self) -> int:
        """Number of the machine that it ran on, from 0."""
        return self.stay.machine

    @property
    def gpus(self) -> tuple[int, ...]:
        """Indices of its GPUs, in rank order."""
        return self.stay.gpus

    @property
    def started_s(self) -> float:
        """Start, in seconds from the beginning of the trace."""
        return self.stay.started_s

    @property
    def ended_s(self) -> float:
        """End, in seconds from the beginning of the trace."""
        return self.stay.ended_s

    @property
    def utility(self) -> float | None:
        """Utility when it started, 0 to 1 (topo-aware-sc17 Eq. 2); None if it asked for none."""
        return self.stay.utility

    @property
    def wait_s(self) -> float:
        """Seconds from its arrival to its start."""
        return self.stay.started_s - self.stay.job.arrival_s

    @property
    def run_s(self) -> float:
        """Seconds from its start to its end."""
        return self.stay.ended_s - self.stay.started_s

    @property
    def turnaround_s(self) -> float:
        """Seconds from its arrival to its end."""
        return self.stay.ended_s - self.stay.job.arrival_s

    @property
    def sensitive(self) -> bool:
        """True if its speed depends on its links."""
        return self.stay.job.request.bandwidth_sensitive and len(self.stay.gpus) > 1


class LoadStep(Record):
    """The load of the machines from a time on.

    Attributes:
        time_s: beginning of the load, in seconds.
        used: number of GPUs that are held.
        broken: number of free GPUs on sockets where others are held.
        waiting: number of waiting jobs.
    """

    time_s: float
    used: int
    broken: int
    waiting: int


class Replay(Record):
    """One run of a simulator over one trace.

    Attributes:
        topology: name of the machine.
        rules: rules of the replay.
        seed: seed of the trace; None if it was not generated.
        jobs: measures of each job, in the order of starts.
        levels: load over time.
        gpus: number of GPUs of all machines.
    """

    topology: str
    rules: Rules
    seed: int | None
    jobs: tuple[ReplayedJob, ...]
    levels: tuple[LoadStep, ...]
    gpus: int

    @property
    def makespan_s(self) -> float:
        """Seconds from the first arrival to the last end."""
        first = min(one.stay.job.arrival_s for one in self.jobs)
        return max(one.stay.ended_s for one in self.jobs) - first

    @property
    def throughput_jobs_per_hour(self) -> float:
        """Number of jobs divided by the makespan, per hour."""
        return len(self.jobs) * _HOUR_S / self.makespan_s if self.makespan_s else 0.0

    @property
    def utilization(self) -> float:
        """Share of GPU time until the last end in which a GPU was held, 0 to 1."""
        return self._mean("used", self.gpus)

    @property
    def fragmentation(self) -> float:
        """Mean share of GPUs that were free on a socket where others were held, 0 to 1."""
        return self._mean("broken", self.gpus)

    @property
    def violations(self) -> int:
        """Number of jobs that ran with less than they asked for."""
        return sum(one.violates for one in self.jobs)

    def _mean(self, what: str, of: int) -> float:
        spans = zip(self.levels, self.levels[1:], strict=False)
        area = sum(getattr(level, what) * (after.time_s - level.time_s) for level, after in spans)
        return area / (of * self.makespan_s) if self.makespan_s else 0.0


class Quartiles(Record):
    """Minimum, 25th, 50th and 75th percentile, maximum, linear between values, as in mapa-sc21."""

    least: float
    low: float
    median: float
    high: float
    most: float


def quartiles(values: Iterable[float]) -> Quartiles | None:
    """Return the quartiles of values; None if there are none."""
    found = sorted(values)
    if not found:
        return None
    low, median, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Quartiles(found[0], low, median, high, found[-1])


def measure(
    topology: Topology,
    stays: Sequence[Stay],
    rules: Rules,
    seed: int | None,
    remembered: Remembered | None = None,
) -> Replay:
    """Return the measures of a replay.

    Args:
        topology: topology of the machines.
        stays: stays of all jobs, in the order of starts.
        rules: rules of the replay.
        seed: seed of the trace.
        remembered: decisions of simulations of this machine.
    """
    remembered = remembered or Remembered(topology)
    yardstick, own = remembered.yardstick(rules.yardstick), remembered.yardstick(rules.model)
    jobs = tuple(_measure_job(stay, yardstick, own) for stay in stays)
    gpus = len(topology.gpus) * rules.machines
    return Replay(topology.name, rules, seed, jobs, tuple(_find_levels(stays, yardstick)), gpus)


def _measure_job(stay: Stay, yardstick: Yardstick, own: Yardstick) -> ReplayedJob:
    """Return the measures of one job; its needs are judged by the model that its policy used."""
    request = stay.job.request
    scores = yardstick.scores(request.pattern, stay.gpus)
    best = yardstick.best(request.pattern, len(stay.gpus))
    ideal = best.aggregate_bandwidth if scores.aggregate_bandwidth is not None else None
    got = own.scores(request.pattern, stay.gpus).effective_bandwidth
    return ReplayedJob(
        stay=stay,
        effective_bandwidth=scores.effective_bandwidth,
        aggregate_bandwidth=scores.aggregate_bandwidth,
        quality=(scores.aggregate_bandwidth or 0.0) / ideal if ideal else None,
        nvlink_ring=yardstick.has_nvlink_ring(frozenset(stay.gpus)) if ideal else None,
        slowdown=(stay.ended_s - stay.started_s) / stay.job.duration_s,
        violates=(stay.utility is not None and stay.utility < request.utility.least - _SLO_ROUNDING)
        or (got is not None and got < request.wishes.least_gb_per_s - _SLO_ROUNDING),
    )


def _find_levels(stays: Sequence[Stay], yardstick: Yardstick) -> list[LoadStep]:
    """Return the load of the machines at every time when it changes."""
    events = [(stay.job.arrival_s, 1, 0, stay) for stay in stays]
    events += [(stay.started_s, -1, 1, stay) for stay in stays]
    events += [(stay.ended_s, 0, -1, stay) for stay in stays]
    events.sort(key=lambda event: event[0])
    holders: dict[tuple[int, int], int] = {}
    on_socket: dict[tuple[int, int], int] = {}
    used = broken = waiting = 0
    levels = []
    for time_s, together in groupby(events, key=lambda event: event[0]):
        for _, queued, change, stay in together:
            waiting += queued
            for gpu in stay.gpus if change else ():
                key = stay.machine, gpu
                before = holders.get(key, 0)
                holders[key] = before + change
                if (before == 0) == (before + change == 0):
                    continue
                socket = stay.machine, yardstick.socket[gpu]
                size, held = yardstick.socket_size[socket[1]], on_socket.get(socket, 0)
                on_socket[socket] = held + change
                used += change
                broken += _count_broken(size, held + change) - _count_broken(size, held)
        levels.append(LoadStep(time_s, used, broken, waiting))
    return levels


def _count_broken(size: int, held: int) -> int:
    return size - held if held else 0
