"""The use of each GPU by one job, as far as sharing depends on it."""
# pure: decides on plain values

from bisect import bisect_left
from collections.abc import Sequence

from gpulaunch.records import Record

_FULL_PERCENTAGE = 90.0  # a curve that ends below does not tell how the job does on the whole GPU
_LEAST_GROWTH = 0.5  # between saturation (0) and linear growth (1), what still counts as linear


class CurvePoint(Record):
    """A job's throughput at one share of the SMs.

    Attributes:
        sm_percentage: share of the GPU's SMs, above 0, 100 at most.
        throughput: throughput in any unit that is the same for all points of a curve; above 0.
    """

    sm_percentage: float
    throughput: float


def tells_all(curve: Sequence[CurvePoint]) -> bool:
    """Return whether a curve has a point near the whole GPU, and one to compare it with."""
    return len(curve) > 1 and curve[-1].sm_percentage >= _FULL_PERCENTAGE


def throughput_at(curve: Sequence[CurvePoint], sm_percentage: float) -> float:
    """Return the throughput with a share of the SMs, in the curve's unit.

    Between two points it is on the line that joins them, under the first on that to 0, and past the
    last what it is there.

    Example:
        >>> throughput_at([CurvePoint(50, 30.0), CurvePoint(100, 20.0)], 75)
        25.0
    """
    if sm_percentage >= curve[-1].sm_percentage:
        return curve[-1].throughput
    after = bisect_left(curve, sm_percentage, key=lambda point: point.sm_percentage)
    here, before = curve[after], curve[after - 1] if after else CurvePoint(0.0, 0.0)
    part = (sm_percentage - before.sm_percentage) / (here.sm_percentage - before.sm_percentage)
    return before.throughput + part * (here.throughput - before.throughput)


def saturates(curve: Sequence[CurvePoint]) -> bool:
    """Return whether a curve grows by less than half of what a line would, from its middle on."""
    last = curve[-1]
    half = min(curve[:-1], key=lambda one: abs(one.sm_percentage - last.sm_percentage / 2))
    more = last.sm_percentage / half.sm_percentage - 1
    return last.throughput / half.throughput - 1 < _LEAST_GROWTH * more


class Demand(Record):
    """A job's use of one GPU when it runs alone there.

    Attributes:
        sm_utilization_percentage: average SM utilization, 0-100.
        memory_bandwidth_utilization_percentage: average, 0-100.
        power_w: average power; None if unknown.
        curve: throughput over the share of SMs, by ascending share; empty if not measured.
        intensity: "memory" or "compute", where no curve tells; None if unknown.
        utilization: what both utilizations are: "share" of the SMs and of the bandwidth in use, as
            GPM tells, or "time-active": of the time in which a kernel ran and in which memory was
            accessed, as NVML tells; None if unknown, as published figures are.
        busy_percentage: share of the time in which a kernel ran, 0-100, where the utilizations are
            shares; None if unknown.
        feels: how much longer it takes beside a neighbour that presses with 1, as part of its time
            alone; None if not measured.
        presses: how much longer a neighbour takes that feels 1; None if not measured.
    """

    name: str
    sm_utilization_percentage: float
    memory_bandwidth_utilization_percentage: float
    memory_bytes: int
    power_w: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    intensity: str | None = None
    utilization: str | None = None
    busy_percentage: float | None = None
    feels: float | None = None
    presses: float | None = None
