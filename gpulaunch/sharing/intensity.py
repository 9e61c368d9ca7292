"""The memory intensity of a job, and the number of SMs that it can use: cd-search-ics18 4.1.

What was measured comes first: the job's curve. Without one, the off-SM bandwidth model tells the
class by a profiler's counters.
"""
# pure: decides on plain values

from functools import lru_cache

from gpulaunch.profiles.demand import Counters, CurvePoint, Demand
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.curve import fewest_sms, percentage_for, saturates

DRAM_EFFICIENCY = 0.5
"""Part of DRAM bandwidth that a job can get.

Source: BW_Util of cd-search-ics18 Eq. 2, assumed by the paper "for simplicity".
"""

SMS_IF_UNKNOWN = 100
"""Parts that a GPU is divided into whose SMs are not known: whole percentages."""


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
