"""The capacity of a GPU for jobs that share it, and a speed for each.

A speed is a share of the job's speed alone on the whole GPU. All speeds are predictions, from what
each job does alone; docs/results/sharing-measured.md holds them against what was measured.
"""
# pure: decides on plain values

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import fsum, log, prod
from typing import Any

from gpulaunch.leases.lease import Objective
from gpulaunch.machine.gpu import GpuModel
from gpulaunch.profiles.demand import CurvePoint, Demand, saturates, tells_all, throughput_at
from gpulaunch.records import Record, field_names

MEMORY_HEADROOM_PERCENTAGE = 10.0
"""What a job may hold beyond its measured peak. Ours: samples miss short peaks, batches differ."""

_BYTES_PER_CLOCK = 64
"""Bytes that one SM can draw a clock, from Volta on.

An H100 gives 1424 GB/s to a copy on 10 % of its SMs, 94 % of the most to 20 % of them: 64 bytes a
clock at 1.7 GHz (docs/results/sharing-measured.md).
"""

_MIB = 1 << 20


class Capacity(Record):
    """The figures of one GPU that sharing is decided by; None for those that are unknown.

    Attributes:
        most_clients: number of clients that MPS takes on it at once.
        sms_fill_memory: share of the SMs that can use all of the memory's bandwidth.
        measured_idle_w: power without kernels; None where idle_w is only an estimate.
    """

    memory_bytes: int
    most_clients: int
    sm_count: int | None = None
    power_limit_w: float | None = None
    sms_fill_memory: float | None = None
    measured_idle_w: float | None = None

    @property
    def idle_w(self) -> float | None:
        """Power of the GPU without kernels, W: as measured, else a share of its limit."""
        if self.measured_idle_w is not None or self.power_limit_w is None:
            return self.measured_idle_w
        return IDLE_SHARE * self.power_limit_w


def capacity_by(model: GpuModel | None, memory_bytes: int, most_clients: int) -> Capacity:
    """Return what a GPU offers, by the figures of its model.

    Args:
        model: the model; None if nobody knows its figures.
    """
    if model is None:
        return Capacity(memory_bytes, most_clients)
    clock_ghz = model.max_clock_mhz / 1000
    return Capacity(
        memory_bytes,
        most_clients,
        sm_count=model.sm_count,
        power_limit_w=model.power_limit_w,
        sms_fill_memory=(
            model.dram_bandwidth_gb_per_s / (model.sm_count * clock_ghz * _BYTES_PER_CLOCK)
        ),
    )


def least_of(capacities: Mapping[str, Capacity], uuids: Iterable[str]) -> Capacity:
    """Return what every one of some GPUs offers; nothing where nothing is known of any of them."""
    known = [capacities[uuid] for uuid in uuids if uuid in capacities]
    if not known:
        return Capacity(0, 0)
    found: dict[str, Any] = {}
    for name in field_names(Capacity):
        values = [getattr(capacity, name) for capacity in known]
        found[name] = None if None in values else min(values)
    return Capacity(**found)


def with_headroom(peak_bytes: int, sizes: Sequence[int]) -> int:
    """Return the memory limit of a job that is known by its peak.

    It is more, but no more than the smallest GPU has that could hold the peak.

    Args:
        peak_bytes: the most that it was measured to hold.
        sizes: memory of each GPU that it may get, in bytes.
    """
    limit = math.ceil(peak_bytes * (100 + MEMORY_HEADROOM_PERCENTAGE) / 100 / _MIB) * _MIB
    fitting = [size for size in sizes if size >= peak_bytes]  # it stays fit for the smallest
    return max(peak_bytes, min([limit, *(fitting or sizes)]))


_DRAM_EFFICIENCY = 0.5
"""Part of the memory's bandwidth that a job can get: BW_Util of cd-search-ics18 Eq. 2. A job that
uses more counts as bound by memory.
"""

_MOST_DRAM = 0.9
"""Part of the memory's bandwidth that a copy gets: 3,012 of an H100's 3,352 GB/s."""

_SHARES = (5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100)
"""Points of an estimated curve, % of the SMs."""

_CROWDING = 0.25
"""Slowdown while neighbours run, where neither SMs nor bandwidth are short.

Source: the fits published with gpulet (USENIX ATC 2022): in disjoint partitions jobs slow each
    other down by a factor of 1.25 in the mean, since caches and memory are common.
"""

IDLE_SHARE = 0.19
"""Power of a GPU that runs no kernel, as a share of its limit, where nobody has measured it.

Source: the line of least squares through average power over average SM utilization of the 13 tasks
    of mps-sharing-2024 Table II meets 0 % at 56.9 W of that card's 300. Single tasks lie up to 45 W
    off.
"""


class Kernels(Record):
    """The kernels of a job while they run.

    Attributes:
        busy: share of the job's time alone in which they run, above 0.
        bandwidth: share of the memory's bandwidth that they use on all SMs.
        curve: their speed over the share of the SMs; 1 on all.
        fills_memory: whether what they use on all SMs is all that the memory gives.
    """

    busy: float
    sms: float
    bandwidth: float
    curve: tuple[CurvePoint, ...]
    fills_memory: bool

    def speed(self, share: float) -> float:
        """Return their speed on a share of the SMs."""
        return throughput_at(self.curve, 100 * share)

    @property
    def best(self) -> float:
        """Their speed on the share of the SMs that suits them best; above 1 if the curve falls."""
        return max(point.throughput for point in self.curve)

    def offered(self, share: float) -> float:
        """Return the bandwidth that they ask for at once on a share of the SMs.

        It grows with the SMs as at the beginning of the curve, also where their speed does not any
        more: more SMs have more requests in flight.
        """
        steepness = max(point.throughput / point.sm_percentage for point in self.curve)
        wanted = max(self.speed(share), 100 * steepness * min(share, self.sms))
        return self.bandwidth * wanted / self.best


@lru_cache(maxsize=1024)
def kernels_of(demand: Demand, capacity: Capacity) -> Kernels:
    """Return what the kernels of a job take of a GPU.

    A job without a curve has an estimated one: a straight line to the SMs that it fills. Of one
    that is bound by memory, the part of the time in which it fills the memory needs no more SMs
    than it takes to do that, and only the rest is on a line.
    """
    used = max(demand.sm_utilization_percentage / 100, 0.001)
    busy, sms = used, 1.0
    if demand.busy_percentage and demand.utilization == "share":
        busy = max(used, demand.busy_percentage / 100)
        sms = used / busy
    bandwidth = min(1.0, demand.memory_bandwidth_utilization_percentage / 100 / busy)
    is_bound = is_memory_bound(demand)
    if tells_all(demand.curve):
        whole = throughput_at(demand.curve, 100)
        # The time in which the job runs no kernel is taken off: no cap makes it longer.
        curve = tuple(
            CurvePoint(
                point.sm_percentage,
                busy / max(whole / point.throughput - (1 - busy), 0.01 * busy),
            )
            for point in demand.curve
        )
        return Kernels(busy, 1.0, bandwidth, curve, is_bound and bandwidth > _DRAM_EFFICIENCY)
    fill = capacity.sms_fill_memory
    if not is_bound or not fill:
        return Kernels(busy, sms, bandwidth, (CurvePoint(100 * sms, 1.0),), fills_memory=False)
    waits = min(1.0, max(bandwidth, _DRAM_EFFICIENCY) / _MOST_DRAM)
    curve = tuple(
        CurvePoint(
            n, 1 / (waits * max(1.0, 100 * fill / n) + (1 - waits) * max(1.0, 100 * sms / n))
        )
        for n in _SHARES
    )
    return Kernels(busy, 1.0, bandwidth, curve, fills_memory=False)


def is_memory_bound(demand: Demand) -> bool:
    """Return whether more SMs stop to help a job before it has all of them.

    Its curve tells, else its profile, else whether it uses more than half of the memory's
    bandwidth.

    Source: cd-search-ics18 4.1. The paper has no bound between curves that saturate and that do
        not, and goes by a profiler's counters where there is no curve.
    """
    if tells_all(demand.curve):
        return saturates(demand.curve)
    if demand.intensity:
        return demand.intensity == "memory"
    used = demand.busy_percentage or demand.sm_utilization_percentage or 100.0
    return demand.memory_bandwidth_utilization_percentage > _DRAM_EFFICIENCY * used


def share_of_sms(cap: float, capacity: Capacity) -> float:
    """Return the share of the SMs that a client gets under a cap in %: MPS rounds down to whole."""
    if capacity.sm_count is None:
        return cap / 100
    return max(1, int(cap * capacity.sm_count / 100)) / capacity.sm_count


def speeds(
    demands: Sequence[Demand], capacity: Capacity, caps: Sequence[float] = ()
) -> tuple[float, ...]:
    """Return the speed of each job beside the others, before the limit of the card's power.

    While a job's kernels run, those of each other one run in its busy share of the time. Caps that
    overlap share the SMs. Memory divides its bandwidth by what is offered. Where neither is short,
    neighbours are in the way in caches and memory all the same. Two jobs that were both measured
    beside artificial loads go by how much the one presses and the other feels.

    Args:
        caps: cap of each job in % of the SMs; none given, none is capped.

    Example:
        >>> speeds([Demand("a", 50, 0, 0), Demand("b", 50, 0, 0)], Capacity(0, 48))
        (0.8, 0.8)
    """
    jobs = [kernels_of(demand, capacity) for demand in demands]
    given = [share_of_sms(cap, capacity) for cap in caps] or [1.0] * len(jobs)
    wanted = [min(share, job.sms) for job, share in zip(jobs, given, strict=True)]
    is_full = any(job.fills_memory for job in jobs)
    room = max(job.bandwidth for job in jobs) if is_full else 1.0
    in_use = fsum(job.busy * share for job, share in zip(jobs, wanted, strict=True))
    shares = [
        share / max(1.0, share + in_use - job.busy * share)
        for job, share in zip(jobs, wanted, strict=True)
    ]
    offers = [job.offered(share) for job, share in zip(jobs, shares, strict=True)]
    offered = fsum(job.busy * offer for job, offer in zip(jobs, offers, strict=True))
    found = []
    for i, (job, want, share, offer) in enumerate(zip(jobs, wanted, shares, offers, strict=True)):
        kernels = job.speed(share)
        feels = demands[i].feels
        others = (*demands[:i], *demands[i + 1 :])
        presses = [other.presses for other in others if other.presses is not None]
        if feels is not None and len(presses) == len(others):
            kernels /= 1 + feels * fsum(presses)
        else:
            meanwhile = 1 - prod(1 - other.busy for other in (*jobs[:i], *jobs[i + 1 :]))
            kernels = min(kernels, job.speed(want) / (1 + _CROWDING * meanwhile))
            if job.bandwidth:
                pressed = max(room, offer + offered - job.busy * offer)
                kernels = min(kernels, job.best * offer * room / pressed / job.bandwidth)
        found.append(1 / (1 - job.busy + job.busy / kernels))
    return tuple(found)


class Pace(Record):
    """Jobs on one GPU while all of them run.

    Attributes:
        power_w: power of the GPU; None if a job's or the idle power is unknown.
        alone_w: power that they would draw, each alone, for as much work; None likewise.
    """

    speeds: tuple[float, ...]
    power_w: float | None = None
    alone_w: float | None = None

    @property
    def stp(self) -> float:
        """System throughput: sum of the speeds; higher is better (as in cd-search-ics18 6)."""
        return fsum(self.speeds)

    @property
    def antt(self) -> float:
        """Average normalized turnaround time: mean slowdown; lower is better (ibid.)."""
        return fsum(1 / speed for speed in self.speeds) / len(self.speeds)

    def worth(self, objective: Objective) -> float:
        """Return what an objective wants most; see worth_of."""
        efficiency = self.alone_w / self.power_w if self.power_w and self.alone_w else None
        return worth_of(self.stp, efficiency, objective)


def worth_of(throughput: float, efficiency: float | None, objective: Objective) -> float:
    """Return what an objective wants most, one after the other being 1 (or its logarithm, 0).

    Where the energy efficiency is not known, throughput stands for it.

    Source: mps-sharing-2024 IV.C.
    """
    if objective.name == "throughput":
        return throughput
    if objective.name == "energy":
        return efficiency or throughput
    weights = objective.throughput_weight, objective.energy_weight
    return weights[0] * log(throughput) + weights[1] * log(efficiency or 1.0)


def pace(demands: Sequence[Demand], capacity: Capacity, caps: Sequence[float] = ()) -> Pace:
    """Return how jobs run on one GPU within the limit of the card's power.

    Power above idle counts at each job's speed. Beyond the limit all are slowed down to meet it. A
    job that drew more than the limit when alone did so on a card with a higher one, which counts
    then; one that drew less than the idle GPU shows that this draws no more.

    Args:
        demands: demands of all jobs on the GPU, one at least.

    Source: ours; within 6 % on a V100 (docs/results/sharing-measured.md).
    """
    found = speeds(demands, capacity, caps)
    powers = [demand.power_w for demand in demands if demand.power_w is not None]
    if capacity.idle_w is None or len(powers) < len(demands):
        return Pace(found)
    idle_w = min(capacity.idle_w, *powers)
    above_w = fsum((power - idle_w) * speed for power, speed in zip(powers, found, strict=True))
    if limit_w := capacity.power_limit_w:
        most_w = max(limit_w, *powers) - idle_w
        if above_w > most_w:
            found = tuple(speed * most_w / above_w for speed in found)
            above_w = most_w
    alone_w = fsum(power * speed for power, speed in zip(powers, found, strict=True))
    return Pace(found, idle_w + above_w, alone_w)
