"""What the kernels of a job take of a GPU while they run, from what is known of the whole job."""
# pure: decides on plain values

from functools import lru_cache

from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.records import Record
from gpulaunch.sharing.curve import KEPT, keeps, saturates, throughput_at

_LEAST = 0.01
"""Least part of its time in which a job with a curve counts as busy.

Also the least time that its kernels take, as a part of that on all SMs.
"""


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
        return self.busy / max(whole / part - pause, _LEAST * self.busy)


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
    found = Kernels(max(busy, _LEAST), 1.0, bandwidth, curve)
    shares = (percentage / 100 for percentage in range(1, 100))
    enough = next((share for share in shares if keeps(found.speed(share), 1.0)), 1.0)
    return Kernels(found.busy, min(1.0, enough / KEPT), bandwidth, curve)
