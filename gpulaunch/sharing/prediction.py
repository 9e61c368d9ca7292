"""Predictions for jobs that share a GPU: their rates, its power, time and energy.

Nothing here is measured: rates and powers are models of ours over the figures that each job has
alone, and what comes of them is an estimate. docs/decisions/interference.md says what the models
leave out.
"""
# pure: decides on plain values

from collections.abc import Sequence
from functools import lru_cache
from math import fsum, log

from gpulaunch.leases.share import Objective
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.records import Record
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.curve import KEPT, keeps, saturates, throughput_at

IDLE_SHARE = 0.19
"""Power of a GPU that jobs hold and that runs no kernel, as a share of its limit.

It stands in where nobody has measured it.

Source: the line of least squares through average power over average SM utilization of the 13 tasks
    of mps-sharing-2024 Table II meets 0 % at 56.9 W, 19 % of that card's 300 W. Estimated: single
    tasks lie up to 45 W off the line.
"""

_LEAST_BUSY = 0.01
"""Least part of its time in which a job with a curve counts as busy.

Also the least time that its kernels take, as a part of that on all SMs.
"""

_MANY = 6  # jobs whose cases are too many to tell all apart


class Kernels(Record):
    """The kernels of a job while they run.

    Attributes:
        busy: share of the job's time alone in which they run, 0 to 1.
        sms: share of the SMs that they can make use of, above 0, 1 at most.
        bandwidth: share of the memory bandwidth that they use on all SMs, 0 to 1.
        curve: the job's throughput over its share of the SMs; empty if it is not known.
    """

    busy: float
    sms: float
    bandwidth: float
    curve: tuple[CurvePoint, ...]

    def speed(self, share: float) -> float:
        """Return their speed on a share of the SMs, above 0 to 1; that on all of them is 1.

        Of a curve, the time in which the job runs no kernel is taken off, which no cap makes
        longer. It is more than 1 where the curve falls.
        """
        if not self.curve:
            return min(1.0, share / self.sms)
        whole, part = throughput_at(self.curve, 100), throughput_at(self.curve, 100 * share)
        pause = 1 - self.busy
        return self.busy / max(whole / part - pause, _LEAST_BUSY * self.busy)


def kernels_of(demand: Demand) -> Kernels:
    """Return what the kernels of a job take of a GPU while they run.

    Its busy time is its SM utilization, if that was told as time. Is it a share of the SMs, busy
    time and share together tell how many SMs its kernels use; without the busy time they count as
    using all SMs in as much of the time. Where a curve reaches the whole GPU, kernels use the
    fewest SMs that keep 95 % of their speed, and as many more as it would take on a straight line
    to keep all.
    """
    used = demand.sm_utilization_percentage / 100
    busy, sms = used, 1.0
    if demand.busy_percentage and demand.utilization == "share":
        busy = max(used, demand.busy_percentage / 100)
        sms = used / busy or 1.0
    bandwidth = min(1.0, demand.memory_bandwidth_utilization_percentage / 100 / busy) if busy else 0
    if saturates(demand.curve) is None:  # nobody knows how it does on the whole GPU
        return Kernels(busy, sms, bandwidth, ())
    return _curved(busy, bandwidth, demand.curve)


@lru_cache(maxsize=1024)
def _curved(busy: float, bandwidth: float, curve: tuple[CurvePoint, ...]) -> Kernels:
    found = Kernels(max(busy, _LEAST_BUSY), 1.0, bandwidth, curve)
    shares = (percentage / 100 for percentage in range(1, 100))
    enough = next((share for share in shares if keeps(found.speed(share), 1.0)), 1.0)
    return Kernels(found.busy, min(1.0, enough / KEPT), bandwidth, curve)


def rates(demands: Sequence[Demand], percentages: Sequence[float] = ()) -> tuple[float, ...]:
    """Return the predicted speed of each job beside the others, as a share of its speed alone.

    A job's kernels run in the share u of its time. Each other job runs kernels meanwhile with the
    probability of its own busy time. Where those that run then want more SMs or more bandwidth
    than there are, that part of the job's time stretches by as much. Kernels take all SMs of their
    cap, also where a curve tells that fewer would be enough, but as far as the share of SMs in use
    tells that they leave some. Two jobs that never pause and want all have 1/2 each.

    Args:
        demands: demands of all jobs on the GPU.
        percentages: cap of each job in SMs, above 0, 100 at most; none given, none are capped.

    Cost: 5 us for each job where none has a curve; 20 us for each of a pair with curves.

    Source: ours. mps-sharing-2024 says that interference comes with utilization, and has no model.

    Example:
        >>> rates([Demand("a", 50, 0, 0), Demand("b", 50, 0, 0)])
        (0.8, 0.8)
    """
    return speeds_of([kernels_of(demand) for demand in demands], percentages)


def speeds_of(
    kernels: Sequence[Kernels], percentages: Sequence[float] = (), only: int | None = None
) -> tuple[float, ...]:
    """Return the rates of jobs by their kernels, where those are known already; see rates.

    Args:
        kernels: kernels of all jobs on the GPU.
        percentages: as in rates.
        only: place of the one job whose rate is wanted; None: all.
    """
    places = range(len(kernels)) if only is None else [only]
    shares = [percentage / 100 for percentage in percentages] or [1.0] * len(kernels)
    curved = any(one.curve for one in kernels)
    if not curved and all(
        share >= one.sms == 1.0 for one, share in zip(kernels, shares, strict=True)
    ):
        # Without curves bandwidth is never short before SMs are.
        busy = fsum([one.busy for one in kernels])
        return tuple(
            [1 / (1 + one.busy * (busy - one.busy)) for one in (kernels[i] for i in places)]
        )
    jobs = []
    for one, share in zip(kernels, shares, strict=True):
        capped = one.speed(share)
        wanted = share if one.curve else min(one.sms, share)
        jobs.append((one, wanted, capped, one.bandwidth * min(1.0, capped)))
    known: dict[tuple[int, float], float] = {}  # jobs of a kind fare alike
    for i in places:
        one, wanted, capped, drawn = jobs[i]
        if (id(one), shares[i]) in known:
            continue
        others = [(other.busy, sms, used) for other, sms, _, used in jobs[:i] + jobs[i + 1 :]]
        stretch = fsum(
            [
                chance / _speed(one, wanted, capped, wanted + sms, drawn + bandwidth)
                for (sms, bandwidth), chance in _states(others).items()
            ]
        )
        known[id(one), shares[i]] = 1 / (1 + one.busy * (stretch - 1))
    return tuple([known[id(kernels[i]), shares[i]] for i in places])


def _speed(one: Kernels, wanted: float, capped: float, sms: float, bandwidth: float) -> float:
    """Return the speed of kernels while all that run want so much, as a share of that alone.

    They have their part of the SMs all the time, or all SMs for their part of the time, whichever
    is better for them.
    """
    speed = capped
    if sms > 1:
        speed = max(one.speed(wanted / sms), capped / sms)
    return min(speed, capped / max(1.0, bandwidth))


def _states(
    others: Sequence[tuple[float, float, float]],
) -> dict[tuple[float, float], float]:
    """Return what others want of SMs and bandwidth at a time, with the probability of each case.

    Args:
        others: of each job its busy time, and what it wants then.
    """
    digits = 9 if len(others) < _MANY else 2
    states = {(0.0, 0.0): 1.0}
    for busy, sms, bandwidth in others:
        found: dict[tuple[float, float], float] = {}
        for (some, used), chance in states.items():
            both = round(some + sms, digits), round(used + bandwidth, digits)  # so that cases meet
            found[some, used] = found.get((some, used), 0.0) + chance * (1 - busy)
            found[both] = found.get(both, 0.0) + chance * busy
        states = found
    return states


def idle_power(capacity: Capacity, measured_w: float | None = None) -> float | None:
    """Return the power of the GPU without kernels: as measured, else IDLE_SHARE of its limit.

    Returns:
        W; None if that is unknown, too.
    """
    if measured_w is not None or capacity.power_limit_w is None:
        return measured_w
    return IDLE_SHARE * capacity.power_limit_w


def drawn_power(
    demands: Sequence[Demand], speeds: Sequence[float], idle_w: float | None
) -> float | None:
    """Return the power that jobs ask for together: idle power once, and each one's above it.

    What a job draws above the idle power counts at its rate. A job that draws less than the idle
    power shows that the GPU's is no more.

    Args:
        demands: demands of all jobs on the GPU, one at least.
        speeds: from rates.
        idle_w: from idle_power.

    Returns:
        W, before the limit of the card; None if a job's or the idle power is unknown.
    """
    powers = [demand.power_w for demand in demands if demand.power_w is not None]
    if idle_w is None or len(powers) < len(demands):
        return None
    idle = min(idle_w, *powers)
    return idle + fsum((power - idle) * speed for power, speed in zip(powers, speeds, strict=True))


class Pace(Record):
    """The pace of jobs on one GPU.

    Attributes:
        speeds: speed of each, as a share of its speed alone.
        power_w: power of the GPU; None if unknown.
    """

    speeds: tuple[float, ...]
    power_w: float | None


def pace(
    speeds: tuple[float, ...],
    demands: Sequence[Demand],
    capacity: Capacity,
    idle_w: float | None,
) -> Pace:
    """Return speeds, and the power that goes with them, within the card's limit.

    Where the power is beyond the limit, all are slowed down to meet it. A job that drew more than
    the limit when alone did so on a card with a higher one, which counts then.

    Args:
        speeds: from rates.
        demands: demands of all jobs on the GPU.
        capacity: what the GPU offers.
        idle_w: from idle_power.

    Source: mps-sharing-2024 V.C: longer runs seem to cancel what a lowered clock saves. Ours is
        that they do so exactly: power above idle falls as speed does. A limit without that would
        promise energy for nothing.
    """
    power = drawn_power(demands, speeds, idle_w)
    if power is None or idle_w is None or capacity.power_limit_w is None:
        return Pace(speeds, power)
    powers = [demand.power_w or 0.0 for demand in demands]
    limit, idle = max(capacity.power_limit_w, *powers), min(idle_w, *powers)
    if power <= limit:
        return Pace(speeds, power)
    throttle = (limit - idle) / (power - idle)
    return Pace(tuple(speed * throttle for speed in speeds), limit)


class Prediction(Record):
    """The predicted throughput and slowdown of jobs on one GPU, while all of them run.

    Attributes:
        stp: system throughput: sum of the jobs' speeds, 1 being that alone on the whole GPU; higher
            is better.
        antt: average normalized turnaround time: mean of their slowdowns; lower is better.
        speeds: speed of each, as a share of its speed alone.
    """

    stp: float
    antt: float
    speeds: tuple[float, ...]


def predict(
    demands: Sequence[Demand], capacity: Capacity, percentages: Sequence[float]
) -> Prediction:
    """Predict STP and ANTT of jobs at given caps of SMs.

    Args:
        demands: demands of the jobs, one or more.
        capacity: what the GPU offers.
        percentages: cap of each job, above 0, 100 at most.

    Source: STP and ANTT as in cd-search-ics18 6, which takes them from Eyerman and Eeckhout, IEEE
        Micro 28(3), 2008.
    """
    idle_w = idle_power(capacity)
    speeds = pace(rates(demands, percentages), demands, capacity, idle_w).speeds
    antt = fsum(1 / speed for speed in speeds) / len(speeds)
    return Prediction(fsum(speeds), antt, speeds)


def run_together(
    demands: Sequence[Demand],
    durations_s: Sequence[float],
    capacity: Capacity,
    percentages: Sequence[float] = (),
    idle_w: float | None = None,
) -> tuple[tuple[float, ...], float | None]:
    """Let jobs start together and run until the last ends; when one ends, the others become faster.

    Args:
        demands: demands of the jobs on one GPU.
        durations_s: how long each takes alone; above 0.
        capacity: what the GPU offers.
        percentages: cap of each job, kept to the end, as MPS does; none given, none are capped.
        idle_w: from idle_power.

    Returns:
        The end of each job in seconds from the common start, and the energy of the GPU in J until
        the last end; None if the power of a job is unknown.

    Cost: the square of the number of jobs.
    """
    left = list(durations_s)  # seconds that each would need alone from now on
    ends = [0.0] * len(left)
    now, energy = 0.0, 0.0
    known = True
    running = list(range(len(left)))
    while running:
        ours = [demands[i] for i in running]
        caps = [percentages[i] for i in running] if percentages else ()
        at = pace(rates(ours, caps), ours, capacity, idle_w)
        needed = [left[i] / speed for i, speed in zip(running, at.speeds, strict=True)]
        step = min(needed)
        now += step
        energy += (at.power_w or 0.0) * step
        known = known and at.power_w is not None
        for i, speed, need in zip(running, at.speeds, needed, strict=True):
            left[i] = 0.0 if need <= step else max(0.0, left[i] - step * speed)
            ends[i] = now
        running = [i for i in running if left[i]]
    return tuple(ends), energy if known else None


def system_throughput(alone_s: Sequence[float], together_s: Sequence[float]) -> float:
    """Return STP: the sum over jobs of time alone / time together.

    It is n for n jobs that do not disturb each other.

    Source: Eyerman and Eeckhout, System-Level Performance Metrics for Multiprogram Workloads, IEEE
        Micro 28(3), 2008.
    """
    return fsum(alone / together for alone, together in zip(alone_s, together_s, strict=True))


def normalized_turnaround(alone_s: Sequence[float], together_s: Sequence[float]) -> float:
    """Return ANTT: the mean over jobs of time together / time alone.

    It is 1 for jobs that do not disturb each other.

    Source: as system_throughput.
    """
    return fsum(
        together / alone for alone, together in zip(alone_s, together_s, strict=True)
    ) / len(alone_s)


class Gain(Record):
    """The predicted gain of sharing over running one job after the other: 1 is none.

    Attributes:
        throughput: sequential time / time.
        energy_efficiency: sequential energy / energy; None if a power is unknown.

    Source: mps-sharing-2024 IV.C.
    """

    throughput: float
    energy_efficiency: float | None

    def product(self, throughput_weight: float, energy_weight: float) -> float | None:
        """Return throughput ** weight x energy efficiency ** weight; None if that is unknown.

        That is T x E at 1 and 1, and T x T x E at 2 and 1 (IV.C).
        """
        if self.energy_efficiency is None:
            return None
        return float(self.throughput**throughput_weight * self.energy_efficiency**energy_weight)

    def log_product(self, throughput_weight: float, energy_weight: float) -> float:
        """Return the logarithm of the product, to compare by; an unknown efficiency counts as 1."""
        return throughput_weight * log(self.throughput) + energy_weight * log(
            self.energy_efficiency or 1.0
        )


def steady_gain(demands: Sequence[Demand], capacity: Capacity) -> Gain:
    """Return the gain while all of them run uncapped, whatever their durations.

    One after the other, each would do the same work.

    Args:
        demands: demands of all jobs on the GPU.
        capacity: what the GPU offers.
    """
    return gain_at(demands, pace(rates(demands), demands, capacity, idle_power(capacity)))


def gain_at(demands: Sequence[Demand], at: Pace) -> Gain:
    """Return the gain of jobs that run at some pace."""
    if not at.power_w:
        return Gain(fsum(at.speeds), None)
    alone = fsum(
        (demand.power_w or 0.0) * speed for demand, speed in zip(demands, at.speeds, strict=True)
    )
    return Gain(fsum(at.speeds), alone / at.power_w)


def worth_of(gain: Gain, objective: Objective) -> float:
    """Return what an objective wants most; an efficiency that is unknown counts as 1."""
    if objective.name == "throughput":
        return gain.throughput
    if objective.name == "energy":
        return gain.energy_efficiency or 1.0
    return gain.log_product(objective.throughput_weight, objective.energy_weight)
