"""Which measured job is most like another one, whose slowdowns beside others it may lend.

A job without pair data borrows from the nearest profile that has some; what comes of it is a
prediction and is called one. Likeness is a matter of what the job takes from a GPU that it has
alone.
"""
# pure: decides on plain values

import math
from collections.abc import Iterable

from gpulaunch.errors import quoted
from gpulaunch.records import Record

BOUND = 0.1
"""Beyond this distance no profile is near. Ours: the papers borrow from nobody.

Six programs of mps-sharing-2024 Table II are there at two problem sizes, one four times the other,
and at these they do not even behave alike (Fig. 1). They lie 0.11 (Cholla-MHD) to 0.37 (WarpX) from
themselves. So whoever lends is more like the job than any of these programs is like itself with a
larger problem. Within that table 10 of 13 jobs would find a lender.
"""


class Figures(Record):
    """What a job takes from one GPU that it has alone.

    Attributes:
        name: of its profile.
        sm_utilization_percentage: average, 0-100; None if unknown.
        memory_bandwidth_utilization_percentage: average, 0-100; None if unknown.
        memory_share: of the GPU's memory, 0-1; None if unknown, and where it is a framework's
            reservation.
        power_share: of the GPU's power limit, 0-1, average; None if unknown.
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


class Nearest(Record):
    """The profile that lends its pair data.

    Attributes:
        name: of it.
        distance: 0 (the same) to BOUND.
        because: one line, for people and for the profile's source.
    """

    name: str
    distance: float
    because: str


def nearest_profile(
    job: Figures, candidates: Iterable[Figures], bound: float = BOUND
) -> Nearest | None:
    """The candidate nearest to a job; None if none is within the bound.

    Args:
        job: what has no pair data. Itself, by name, is no candidate.
        candidates: what has some, each name once.
        bound: the largest distance that counts as near.

    Example:
        >>> job = Figures("mine", 80, 40)
        >>> print(nearest_profile(job, [Figures("a", 84, 43), Figures("b", 20, 5)]).because)
        nearest to 'a': SM utilization 80 against 84 %, memory bandwidth 40 against 43 %; distance
        0.035
    """
    found = [
        (distance, other)
        for other in candidates
        if (distance := distance_between(job, other)) is not None
    ]
    near = [
        (distance, other)
        for distance, other in found
        if distance <= bound and other.name != job.name
    ]
    if not near:
        return None
    distance, other = min(near, key=lambda pair: (pair[0], pair[1].name))
    return Nearest(
        other.name,
        distance,
        f"nearest to {quoted(other.name)}: {_compared(job, other)}; distance {distance:.3f}",
    )


def distance_between(a: Figures, b: Figures) -> float | None:
    """How unlike two jobs are: 0 if their figures are the same, 1 at most; None if they cannot be compared.

    It is the root of the mean of the squared differences over all figures that both have: both
    utilizations in hundredths of percent, memory as a share of the card, power as a share of its
    limit. So each of them runs from 0 to 1, and one that is missing brings two jobs neither nearer
    nor farther. Both utilizations are needed on both sides, and must mean the same: a share of the
    SMs is no share of time.

    Jobs of which one is memory-, the other compute-intensive cannot be compared: without half of
    the SMs the one does nearly as well, the other nearly half as well (cd-search-ics18 3).

    Example:
        >>> distance_between(Figures("a", 50, 10), Figures("b", 20, 10))
        0.21213203435596426
    """
    if _contradict(a.intensity, b.intensity) or _contradict(a.utilization, b.utilization):
        return None
    pairs = {title: (x, y) for title, x, y in _figures(a, b) if x is not None and y is not None}
    if not {"SM utilization", "memory bandwidth"} <= pairs.keys():
        return None
    return math.sqrt(sum(((x - y) / 100) ** 2 for x, y in pairs.values()) / len(pairs))


def _contradict(a: str | None, b: str | None) -> bool:
    return a is not None and b is not None and a != b


def _figures(a: Figures, b: Figures) -> list[tuple[str, float | None, float | None]]:
    """What is compared, in percent."""
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


def _compared(a: Figures, b: Figures) -> str:
    both = [(title, x, y) for title, x, y in _figures(a, b) if x is not None and y is not None]
    return ", ".join(f"{title} {x:.3g} against {y:.3g} %" for title, x, y in both)
