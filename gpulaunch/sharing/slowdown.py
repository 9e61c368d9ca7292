"""Interference as the mean slowdown of jobs beside each other: topo-aware-sc17 Eq. 4."""
# pure: decides on plain values

from collections.abc import Sequence

NOISE = 0.02
"""Slowdowns below are taken for noise of measurement."""


def mean_slowdown(slowdowns: Sequence[float]) -> float:
    """Return the mean slowdown of the jobs that a placement affects; 0 if there are none.

    These are the running jobs and the new one.

    Args:
        slowdowns: slowdown of each job: its time with the others, divided by its time alone, less
            1. Those under 2 % count as 0.

    Source: topo-aware-sc17 Eq. 4. Departure: as printed, with the time alone on top, it falls as
        interference grows, so that minimising it would seek interference.

    Example:
        >>> mean_slowdown([0.3, 0.01, 0.0])
        0.09999999999999999
    """
    if not slowdowns:
        return 0.0
    return sum(slowdown for slowdown in slowdowns if slowdown >= NOISE) / len(slowdowns)
