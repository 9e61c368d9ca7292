"""Throughput over the share of a GPU's SMs: how many a job can use, and what MPS makes of it.

A curve is what Demand.curve holds: one point or more, by ascending share. It may fall: with more
SMs some jobs drive their own data out of the cache (cd-search-ics18 3.2).
"""
# pure: decides on plain values

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter

from gpulaunch.profiles.demand import Counters, CurvePoint, Demand
from gpulaunch.sharing.capacity import Capacity

KEPT = 0.95
"""Part of its performance that a job must keep where SMs are taken from it.

Source: the 5 % of cd-search-ics18 4.2 and 4.3.
"""

FULL_PERCENTAGE = 90.0
"""A curve that reaches this share of the SMs tells how the job does on the whole GPU. Ours."""

LEAST_GROWTH = 0.5
"""Between saturation (0) and linear growth (1), what still counts as linear. Ours."""

DRAM_EFFICIENCY = 0.5
"""Part of DRAM bandwidth that a job can get.

Source: BW_Util of cd-search-ics18 Eq. 2, assumed by the paper "for simplicity".
"""

SMS_IF_UNKNOWN = 100
"""Parts that a GPU is divided into whose SMs are not known: whole percentages."""

_NOISE = 1 - 1e-9
"""Figures that differ by less, relatively, are equal."""


_share_of = attrgetter("sm_percentage")


def throughput_at(curve: Sequence[CurvePoint], sm_percentage: float) -> float:
    """Return the throughput with a share of the SMs, in the curve's unit.

    Between two points it is on the line that joins them, under the first on that to 0. Past the
    last it stays what it was there: nobody knows that it grows.

    Args:
        curve: one point or more.
        sm_percentage: 0-100.

    Example:
        >>> throughput_at([CurvePoint(50, 30.0), CurvePoint(100, 20.0)], 75)
        25.0
    """
    if sm_percentage >= curve[-1].sm_percentage:
        return curve[-1].throughput
    after = bisect_left(curve, sm_percentage, key=_share_of)
    here, before = curve[after], curve[after - 1] if after else CurvePoint(0.0, 0.0)
    part = (sm_percentage - before.sm_percentage) / (here.sm_percentage - before.sm_percentage)
    return before.throughput + part * (here.throughput - before.throughput)


def saturates(curve: Sequence[CurvePoint]) -> bool | None:
    """Return whether more SMs stop to help, which makes a job memory-intensive.

    Two measured points are compared: the last, and the one nearest to half of its share. Linear
    growth from the one to the other counts as 1, none as 0; under LEAST_GROWTH the curve saturates.
    From half of the GPU to all of it that is a gain of less than 50 %. A curve that grows but ends
    before FULL_PERCENTAGE may still saturate beyond.

    Returns:
        None if the curve cannot tell.

    Source: cd-search-ics18 1 and 3: performance "saturates" if memory-intensive, and is "almost
        linear" in SMs if compute-intensive. The paper gives no bound between the two; its curves
        come nowhere near this one.

    Example:
        >>> saturates([CurvePoint(50, 30.0), CurvePoint(100, 40.0)])
        True
    """
    if len(curve) < 2:
        return None
    last = curve[-1]
    middle = min(curve[:-1], key=lambda point: abs(point.sm_percentage - last.sm_percentage / 2))
    growth = (last.throughput / middle.throughput - 1) / (
        last.sm_percentage / middle.sm_percentage - 1
    )
    if growth < LEAST_GROWTH:
        return True
    return False if last.sm_percentage >= FULL_PERCENTAGE else None


def fewest_sms(curve: Sequence[CurvePoint], sm_count: int) -> int:
    """Return the fewest SMs that keep a lone job within 5 % of its best throughput; 1 to sm_count.

    Source: mps-sharing-2024 Fig. 1: past a size that it calls right, a larger partition brings less
        and less. It has no figure for that; the 5 % are cd-search-ics18's.
    """
    best = max(point.throughput for point in curve)
    for sms in range(1, sm_count):
        if keeps(throughput_at(curve, 100 * sms / sm_count), best):
            return sms
    return sm_count


def keeps(performance: float, before: float) -> bool:
    """Return whether a performance is within 5 % of what it was, or better."""
    return performance >= KEPT * before * _NOISE


def percentage_for(sms: int, sm_count: int) -> int:
    """Return the least whole percentage that gives a client so many SMs: MPS rounds down.

    Example:
        >>> percentage_for(7, 24)
        30
    """
    return -(-100 * sms // sm_count)


def round_down(percentage: int, sm_count: int | None) -> int:
    """Return the least percentage that gives a client as many whole SMs.

    It is one SM and 1 % at least.

    Args:
        percentage: any; under 1 counts as 1, and over 100 as 100.
        sm_count: SMs of the GPU; None if unknown: there is nothing to round to.

    Example:
        >>> round_down(33, 24)
        30
    """
    within = min(100, max(1, percentage))
    return percentage_for(max(1, within * sm_count // 100), sm_count) if sm_count else within


def is_memory_intensive(demand: Demand, capacity: Capacity) -> bool | None:
    """Return whether a job's performance saturates before it has all SMs.

    Args:
        demand: demand of the job; its curve is asked first, then its counters, then what its
            profile claims.
        capacity: what the GPU offers.

    Returns:
        None if nothing is known.

    Source: cd-search-ics18 4.1.2. Departure: a curve goes before the model. The paper would take
        it, too, were it not for the cost of measuring one while the job runs (4.1.1).
    """
    measured = saturates(demand.curve)
    if measured is not None:
        return measured
    model = model_off_sm(demand.counters, capacity)
    if model is not None:
        asked, given = model
        return asked > given
    return None if demand.intensity is None else demand.intensity == "memory"


def model_off_sm(counters: Counters | None, capacity: Capacity) -> tuple[float, float] | None:
    """Return both sides of the off-SM bandwidth model, in GB/s.

    Returns:
        BW_Total_SMs of Eq. 1, what all SMs would ask for if they never waited, and BW_Off_SM of
        Eq. 2, what network, last-level cache and DRAM can give; None if the job's counters or a
        figure of the GPU is unknown.

    Source: cd-search-ics18 Eq. 1 and 2. Departures: accesses are divided by 1000, since they are
        counted per 1,000 instructions; all SMs ask, since that is the question (4.1.1), though the
        paper profiles on half of them; one figure stands for the bandwidth of both network and
        cache, as it was measured through both.
    """
    instructions = capacity.giga_instructions_per_s_per_sm
    llc, dram = capacity.llc_gb_per_s, capacity.dram_gb_per_s
    if counters is None or capacity.sm_count is None:
        return None
    if instructions is None or llc is None or dram is None:
        return None
    accesses = counters.llc_accesses_per_kilo_instruction / 1000
    hit_rate = counters.llc_hit_rate
    asked = instructions * accesses * counters.bytes_per_access * capacity.sm_count
    given = llc * hit_rate + dram * (1 - hit_rate) * DRAM_EFFICIENCY
    return asked, min(llc, given)


def find_knee(demand: Demand, capacity: Capacity) -> int | None:
    """Return the least percentage of the SMs that keeps a lone job within 5 % of its best.

    Args:
        demand: demand of the job.
        capacity: what the GPU offers; without its number of SMs the answer is to 1 %.

    Returns:
        None if its curve does not reach the whole GPU, or it has none.

    Source: mps-sharing-2024 Fig. 1, right-sizing a single client.
    """
    return _knee_of(demand.curve, capacity.sm_count or SMS_IF_UNKNOWN)


@lru_cache(maxsize=1024)
def _knee_of(curve: tuple[CurvePoint, ...], sm_count: int) -> int | None:
    if saturates(curve) is None:
        return None
    return percentage_for(fewest_sms(curve, sm_count), sm_count)
