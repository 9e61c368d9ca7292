"""Shared parts of a report's figures: colours of policies and slowdowns, units, means over time."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

from gpulaunch.decide.placement.policies import POLICIES
from gpulaunch.files.duration import format_duration
from gpulaunch.records import Record
from gpulaunch.simulate.measures import LoadStep, Replay
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.show.canvas import Figure

SLOWDOWNS = (
    (1.05, "#c3cfdc", "at full speed, or within 5 %"),
    (1.5, "#fbdc94", "up to 1.5 times as long"),
    (2.0, "#f5a35c", "up to twice as long"),
    (float("inf"), "#e2685f", "longer"),
)
"""Classes of slowdown: the largest in the class, its colour, and what the colour means."""

ON_SLOWDOWN = "#1d2731"
"""The colour of text on these colours, on light and dark ground alike."""

_PARTS = 180  # of a replay's time: finer ones could not be seen
_TIMES = (
    (300, 1, "s"),
    (3 * 3600, 60, "min"),
    (3 * 86400, 3600, "h"),
    (float("inf"), 86400, "days"),
)


class Plot(Record):
    """A figure with its words on the page.

    Attributes:
        name: The name of its files, without an ending.
        heading: Its title on the page.
        caption: How to read it, and what is left out.
        figure: The figure.
    """

    name: str
    heading: str
    caption: str
    figure: "Figure"


def policy_name(replay: Replay) -> str:
    """Return the name of a replay's policy as people write it."""
    return replay.rules.policy.replace("_", "-")


def policy_colour(replay: Replay) -> str:
    """Return the colour of a replay's policy."""
    return POLICIES[replay.rules.policy].colour


def slowdown_class(slowdown: float) -> int:
    """Return the index in SLOWDOWNS of a slowdown's class."""
    return next(i for i, (largest, _, _) in enumerate(SLOWDOWNS) if slowdown <= largest)


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit for times up to the longest: its length in seconds, and its name."""
    return next((size_s, name) for most_s, size_s, name in _TIMES if longest_s <= most_s)


def time_text(seconds: float) -> str:
    """Return a length of time in words, rounded to the second from 10 s on."""
    return format_duration(seconds if seconds < 10 else round(seconds))


def means_over_time(
    replay: Replay, value: Callable[[LoadStep], float], longest_s: float
) -> tuple[list[float], list[float]]:
    """Return the means of a value over parts of a replay's time; the area under them is exact.

    Args:
        replay: The replay.
        value: The value of a level.
        longest_s: The length of the longest replay, which has the most parts.

    Returns:
        The ends of the parts, in seconds from the first arrival on, and the mean of each part:
        the levels themselves where these are few.
    """
    times_s = [level.time_s - replay.levels[0].time_s for level in replay.levels]
    values = [value(level) for level in replay.levels]
    if len(values) <= _PARTS:
        return times_s, values[:-1]
    areas = [0.0]
    for (begin_s, end_s), height in zip(pairwise(times_s), values, strict=False):
        areas.append(areas[-1] + height * (end_s - begin_s))

    def area_until(time_s: float) -> float:
        last = bisect_right(times_s, time_s) - 1
        return areas[last] + values[last] * (time_s - times_s[last])

    parts = max(1, round(_PARTS * replay.makespan_s / longest_s))
    length_s = replay.makespan_s / parts
    ends_s = [length_s * i for i in range(parts + 1)]
    return ends_s, [(area_until(b) - area_until(a)) / length_s for a, b in pairwise(ends_s)]
