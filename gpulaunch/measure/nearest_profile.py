"""The nearest profile to a job, from which it may borrow slowdowns under sharing.

A job without pair data borrows from the nearest profile that has some; the result is marked as a
prediction. Distance is measured between what the two jobs use of a GPU that they have alone.
"""
# pure: decides on plain values

import math
from collections.abc import Iterable

from gpulaunch.errors import quoted
from gpulaunch.records import Record

BOUND = 0.1
"""Largest distance of a profile that counts as near. Our choice: the papers do not borrow.

Six programs of mps-sharing-2024 Table II are there at two problem sizes, one four times the other,
at which they behave differently (Fig. 1). Their distances between the two sizes are 0.11
(Cholla-MHD) to 0.37 (WarpX). So a near profile is more like the job than any of these programs is
like itself with a larger problem. Within that table 10 of 13 jobs would find a near profile.
"""


class SoloUse(Record):
    """The use of one GPU by a job that has it alone.

    Attributes:
        name: name of the job's profile.
        sm_utilization_percentage: average, 0-100; None if unknown.
        memory_bandwidth_utilization_percentage: average, 0-100; None if unknown.
        memory_share: share of the GPU's memory, 0-1; None if unknown, or if it is a framework's
            reservation.
        power_share: share of the GPU's power limit, 0-1, average; None if unknown.
        intensity: "memory" or "compute"; None if unknown.
        utilization: "share" or "time-active", what the two percentages mean; None if unknown.
    """

    name: str
    sm_utilization_percentage: float | None
    memory_bandwidth_utilization_percentage: float | None
    memory_share: float | None = None
    power_share: float | None = None
    intensity: str | None = None
    utilization: str | None = None


class NearestProfile(Record):
    """The profile that lends its pair data.

    Attributes:
        name: name of the profile.
        distance: 0 (equal figures) to the bound.
        because: one line for the user and for the profile's source.
    """

    name: str
    distance: float
    because: str


def nearest_profile(
    job: SoloUse, candidates: Iterable[SoloUse], bound: float = BOUND
) -> NearestProfile | None:
    """Return the candidate nearest to a job; None if none is within the bound.

    Args:
        job: a job without pair data; candidates of its name are left out.
        candidates: jobs with pair data, each name once.
        bound: the largest distance that counts as near.

    Example:
        >>> job = SoloUse("mine", 80, 40)
        >>> print(nearest_profile(job, [SoloUse("a", 84, 43), SoloUse("b", 20, 5)]).because)
        nearest to 'a': SM utilization 80 against 84 %, memory bandwidth 40 against 43 %; distance
        0.035
    """
    near = []
    for other in candidates:
        distance = distance_between(job, other)
        if distance is not None and distance <= bound and other.name != job.name:
            near.append((distance, other))
    if not near:
        return None
    distance, nearest = min(near, key=lambda pair: (pair[0], pair[1].name))
    figures = _describe_figures(job, nearest)
    because = f"nearest to {quoted(nearest.name)}: {figures}; distance {distance:.3f}"
    return NearestProfile(nearest.name, distance, because)


def distance_between(a: SoloUse, b: SoloUse) -> float | None:
    """Return the distance of two jobs, 0 (equal figures) to 1; None if they cannot be compared.

    It is the root mean square difference over all figures that both jobs have: the two
    utilizations, memory as a share of the card, power as a share of its limit, each from 0 to 1. A
    missing figure leaves the distance unchanged. Both utilizations are needed on both sides, and
    must have one meaning: a share of the SMs is no share of time.

    A memory-intensive and a compute-intensive job cannot be compared: without half of the SMs the
    first does nearly as well, the second nearly half as well (cd-search-ics18 3).

    Example:
        >>> distance_between(SoloUse("a", 50, 10), SoloUse("b", 20, 10))
        0.21213203435596426
    """
    if _contradict(a.intensity, b.intensity) or _contradict(a.utilization, b.utilization):
        return None
    pairs = {
        title: (x, y) for title, x, y in _pair_figures(a, b) if x is not None and y is not None
    }
    if not {"SM utilization", "memory bandwidth"} <= pairs.keys():
        return None
    return math.sqrt(sum(((x - y) / 100) ** 2 for x, y in pairs.values()) / len(pairs))


def _contradict(a: str | None, b: str | None) -> bool:
    return a is not None and b is not None and a != b


def _pair_figures(a: SoloUse, b: SoloUse) -> list[tuple[str, float | None, float | None]]:
    """Return the title and both values of each figure that is compared, in percent."""
    return [
        ("SM utilization", a.sm_utilization_percentage, b.sm_utilization_percentage),
        (
            "memory bandwidth",
            a.memory_bandwidth_utilization_percentage,
            b.memory_bandwidth_utilization_percentage,
        ),
        ("memory", _percentage(a.memory_share), _percentage(b.memory_share)),
        ("power", _percentage(a.power_share), _percentage(b.power_share)),
    ]


def _percentage(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _describe_figures(a: SoloUse, b: SoloUse) -> str:
    both = [(title, x, y) for title, x, y in _pair_figures(a, b) if x is not None and y is not None]
    return ", ".join(f"{title} {x:.3g} against {y:.3g} %" for title, x, y in both)
