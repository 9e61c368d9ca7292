"""The partition of a GPU's SMs among clients of CUDA MPS.

A percentage is a cap and no reservation, and a client keeps its own as long as it runs. So a
partition of a whole group is what would be best; a job that comes to others gets of it what they
have left.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Iterable, Sequence

from gpulaunch.errors import printable
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.cd_search import Allocation, Performance, cd_search
from gpulaunch.sharing.curve import KEPT, percentage_for, round_down, throughput_at
from gpulaunch.sharing.intensity import SMS_IF_UNKNOWN, curve_of, find_knee, is_memory_intensive
from gpulaunch.typing import Literal

LEAST_LEFT = 10
"""Percent below which SMs are not worth keeping for anybody.

Source: the smallest partition of mps-sharing-2024 Fig. 1.
"""

Mode = Literal["alone", "performance", "power", "even", "unknown"]
"""How the SMs are divided: see Partition."""


class Partition(Record):
    """Percentages for a group of jobs.

    Attributes:
        mode: alone: one job; performance, power, even: as in cd_search; unknown: an even share for
            everybody, since no job is known to be memory-intensive and some may be.
        sm_percentages: percentage of each job, in the order given, 1-100; they sum to 100 at most,
            unless a share is less than an SM.
        reason: why, in a sentence.
        estimated: names of the jobs whose share rests on the off-SM model and not on a curve.
        evaluations: how often the search asked for the performance of a job.
    """

    mode: Mode
    sm_percentages: tuple[int, ...]
    reason: str
    estimated: tuple[str, ...] = ()
    evaluations: int = 0


class Allotment(Record):
    """The share of a job that joins a GPU.

    Attributes:
        sm_percentage: its percentage, 1-100.
        optimum: what would be best for residents, newcomer and announced jobs, in this order.
        left: 100 less the residents' percentages; under 0 if their caps overlap already.
        overlaps: its cap reaches into what residents have, or what is kept for announced jobs.
        reason: why, in a sentence.
    """

    sm_percentage: int
    optimum: Partition
    left: int
    overlaps: bool
    reason: str


def partition(
    demands: Sequence[Demand], capacity: Capacity, performance: Performance | None = None
) -> Partition:
    """Return the percentages that are best for jobs that run together on one GPU.

    A job of which nobody knows whether it is memory-intensive counts as compute-intensive beside
    one that is: it loses nothing by that. Where no job is known to be, caps that overlap let each
    use what the others leave idle.

    Args:
        demands: demands of the jobs, one or more.
        capacity: what the GPU offers. Without its number of SMs, percentages stand for them.
        performance: what the search goes by; None for the jobs' curves, measured alone.

    Cost: some microseconds for each job and SM.

    Source: cd-search-ics18 4.2, 4.3, 7.4.3; for one job mps-sharing-2024 Fig. 1; where classes are
        unknown NVIDIA, Multi-Process Service, on limiting resources: 100 % / (0.5 n) rather than
        100 % / n. Departures: docs/decisions/partition.md.
    """
    if len(demands) == 1:
        return _partition_alone(demands[0], capacity)
    classes = [is_memory_intensive(demand, capacity) for demand in demands]
    found = cd_search(
        [known is True for known in classes],
        capacity.sm_count or SMS_IF_UNKNOWN,
        performance or _performance_by_curves(demands, capacity),
    )
    mode: Mode = "unknown" if found.mode == "even" and None in classes else found.mode
    memory = [demand for demand, known in zip(demands, classes, strict=True) if known]
    estimated = [demand for demand in memory if _is_estimated(demand, capacity)]
    uncurved = [demand for demand in memory if curve_of(demand, capacity) is None]
    if mode == "unknown":
        percentages = _make_overlapping(len(classes))
    else:
        percentages = _make_percentages(classes, found, capacity.sm_count)
    reasons = [*_explain(demands, classes, mode, estimated), *_explain_uncurved(uncurved)]
    names = tuple(demand.name for demand in estimated)
    return Partition(mode, percentages, "; ".join(reasons), names, found.evaluations)


def _partition_alone(demand: Demand, capacity: Capacity) -> Partition:
    """Return the share of a lone job; all SMs where nobody could use what it would leave."""
    known = find_knee(demand, capacity)
    if known is None:
        return Partition("alone", (100,), "alone, and its curve is not known: all SMs")
    estimated = (demand.name,) if known.estimated else ()
    if 100 - known.sm_percentage < LEAST_LEFT:
        return Partition("alone", (100,), "alone, and it makes use of all SMs", estimated)
    how = ", as estimated from its counters" if known.estimated else ""
    reason = (
        f"alone: {known.sm_percentage} % of the SMs keep it within 5 % of its best throughput{how}"
    )
    return Partition("alone", (known.sm_percentage,), reason, estimated)


def _performance_by_curves(demands: Sequence[Demand], capacity: Capacity) -> Performance:
    """Return performance on the jobs' own curves, whatever the others have.

    A job that is only said to be memory-intensive has no curve: until one says how few SMs are
    enough, whatever is less than an even share counts as too little.
    """
    curves = [curve_of(demand, capacity) for demand in demands]
    sm_count = capacity.sm_count or SMS_IF_UNKNOWN
    even = max(1, sm_count // len(demands))

    def performance(job: int, sms: Sequence[int]) -> float:
        curve = curves[job]
        if curve is None:
            return 1.0 if sms[job] >= even else KEPT * sms[job] / even
        return throughput_at(curve.points, 100 * sms[job] / sm_count)

    return performance


def _is_estimated(demand: Demand, capacity: Capacity) -> bool:
    curve = curve_of(demand, capacity)
    return curve is not None and curve.estimated


def _make_percentages(
    classes: Sequence[bool | None], found: Allocation, sm_count: int | None
) -> tuple[int, ...]:
    """Return percentages for SMs that a search found.

    Memory-intensive jobs get what gives them their SMs, but no more than an even share; the others
    divide what is left.
    """
    jobs = len(classes)
    most = max(1, 100 // jobs)
    needed = [
        min(most, percentage_for(sms, sm_count or SMS_IF_UNKNOWN)) if known else 0
        for known, sms in zip(classes, found.sms, strict=True)
    ]
    others = sum(not known for known in classes)
    share = round_down((100 - sum(needed)) // others, sm_count) if others else 0
    return tuple(percentage or share for percentage in needed)


def _make_overlapping(jobs: int) -> tuple[int, ...]:
    """Return twice an even share for each job."""
    return (max(1, min(100, 200 // jobs)),) * jobs


def _explain(
    demands: Sequence[Demand],
    classes: Sequence[bool | None],
    mode: Mode,
    estimated: Sequence[Demand],
) -> Iterable[str]:
    """Yield why, in clauses; names are sorted, so that the order of jobs makes no difference."""
    pairs = list(zip(demands, classes, strict=True))
    memory = _names(demand for demand, known in pairs if known)
    unknown = _names(demand for demand, known in pairs if known is None)
    kept = "the fewest SMs that keep within 5 % of an even share's throughput"
    if mode == "performance":
        yield f"memory-intensive: {memory}: {kept}; the rest is divided evenly"
    elif mode == "power":
        yield f"all are memory-intensive: {kept}; the rest stays idle"
    elif mode == "even":
        yield "all are compute-intensive: an even share each"
    else:
        yield "twice an even share each, so that none idles while others pause"
    if unknown:
        yield f"neither a curve nor counters say whether memory-intensive: {unknown}"
    if estimated:
        yield f"estimated from counters: {_names(estimated)}"


def _explain_uncurved(demands: Sequence[Demand]) -> Iterable[str]:
    if demands:
        yield f"no curve says how few SMs are enough, so an even share each: {_names(demands)}"


def _names(demands: Iterable[Demand]) -> str:
    counts = Counter(printable(demand.name) for demand in demands)
    return ", ".join(
        f"{count} x {name}" if count > 1 else name for name, count in sorted(counts.items())
    )


def allot_newcomer(
    residents: Sequence[tuple[Demand, int]],
    newcomer: Demand,
    announced: Sequence[Demand],
    capacity: Capacity,
) -> Allotment:
    """Return what a job gets that comes to a GPU where no resident can be resized.

    1. Without residents: its part of the partition of all that are announced; alone, what it can
       make use of.
    2. Residents leave 10 % or more, apart from what announced jobs will get: a memory-intensive job
       takes its part of the partition, or what is left if that is less; any other job takes all
       that is left.
    3. They leave less: its part of the partition. Caps overlap then, and jobs meet on the same SMs.

    Args:
        residents: for each job that is there its demand and its percentage, 1-100. Their order
            makes no difference.
        newcomer: demand of the job that comes.
        announced: demands of jobs of the group that are still to come, without the newcomer.
        capacity: what the GPU offers.

    Source: cd-search-ics18 4: a new arrival restarts the search. Departure: here it cannot, since
        MPS fixes a client's percentage when it starts; so the search's result counts for the
        newcomer alone.
    """
    optimum = partition([*(demand for demand, _ in residents), newcomer, *announced], capacity)
    own = optimum.sm_percentages[len(residents)]
    reserved = sum(optimum.sm_percentages[len(residents) + 1 :])
    left = 100 - sum(percentage for _, percentage in residents)
    room = left - reserved
    if not residents:
        reason = optimum.reason
        if announced:
            reason = f"its part of {len(announced) + 1} announced jobs: {reason}"
        return Allotment(own, optimum, left, overlaps=own > room, reason=reason)
    kept = f", less {reserved} % for jobs to come" if reserved else ""
    there = f"the jobs that are there leave {max(0, left)} %{kept}: "
    if room < LEAST_LEFT:
        reason = f"{there}too little, so it gets its part of the best partition, {own} %"
        return Allotment(own, optimum, left, overlaps=own > room, reason=reason)
    if is_memory_intensive(newcomer, capacity) and own <= room:
        return Allotment(
            own,
            optimum,
            left,
            overlaps=False,
            reason=f"{there}it is memory-intensive and needs {own} %",
        )
    taken = round_down(room, capacity.sm_count)
    return Allotment(
        taken, optimum, left, overlaps=taken > room, reason=f"{there}it gets all of that"
    )
