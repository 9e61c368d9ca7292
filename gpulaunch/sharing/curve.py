"""Throughput over the share of a GPU's SMs, as measured; and what MPS makes of a percentage.

A curve is what Demand.curve holds: one point or more, by ascending share. It may fall: with more
SMs some jobs drive their own data out of the cache (cd-search-ics18 3.2).
"""
# pure: decides on plain values

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from gpulaunch.profiles.demand import CurvePoint

KEPT = 0.95
"""Part of its performance that a job must keep where SMs are taken from it.

Source: the 5 % of cd-search-ics18 4.2 and 4.3.
"""

FULL_PERCENTAGE = 90.0
"""A curve that reaches this share of the SMs tells how the job does on the whole GPU. Ours."""

LEAST_GROWTH = 0.5
"""Between saturation (0) and linear growth (1), what still counts as linear. Ours."""

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
