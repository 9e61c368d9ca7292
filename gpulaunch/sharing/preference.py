"""Which of the GPUs that a job may share it prefers: mps-sharing-2024 IV.B, its criteria."""
# pure: decides on plain values

from collections.abc import Sequence
from math import fsum

from gpulaunch.leases.share import Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.prediction import steady_gain

_STEP = 10.0
"""Percentage points of SM utilization that make a difference in a preference. Ours."""

_DIGITS = 9  # decimals to which figures are rounded before they are compared


def rank_group(
    request: Demand, residents: Sequence[Demand], objective: Objective, capacity: Capacity
) -> tuple[float, ...]:
    """Return the sort key of a GPU where a job may run; the lowest is best.

    1. For product alone: the product that all are predicted to reach, the largest first.
    2. Average SM utilization of the jobs that are there, in steps of 10 points, the lowest first.
    3. How far the job's average power is from their mean, the farthest first: low goes with high.
    4. Their SM utilization again, exactly.

    Args:
        request: demand of the job that looks for a GPU.
        residents: demands of the jobs on the GPU.
        objective: objective of the job.
        capacity: what the GPU offers.

    Source: mps-sharing-2024 IV.B criterion 1 (lowest utilization) and recommendation 3 (opposing
        power); it ranks neither against the other. Contention matters more than power, it says, so
        utilization comes first, coarsely.
    """
    used = round(fsum(resident.sm_utilization_percentage for resident in residents), _DIGITS)
    key = (used // _STEP, -_power_apart(request, residents), used)
    if objective.name != "product":
        return key
    gain = steady_gain([request, *residents], capacity)
    product = gain.log_product(objective.throughput_weight, objective.energy_weight)
    return (-round(product, _DIGITS), *key)


def _power_apart(request: Demand, residents: Sequence[Demand]) -> float:
    """Return the distance of a job's power from the mean of the others', in W.

    It is 0 if one is unknown, or there are no others.
    """
    powers = [resident.power_w for resident in residents if resident.power_w is not None]
    if request.power_w is None or not powers or len(powers) < len(residents):
        return 0.0
    return abs(request.power_w - round(fsum(powers), _DIGITS) / len(powers))
