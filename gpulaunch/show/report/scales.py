"""Axes that people read: round steps, numbers without noughts that say nothing, and units of time that fit."""

from typing import Literal

from gpulaunch.files.duration import format_duration
from gpulaunch.records import Record
from gpulaunch.show.report.canvas import Axes, FuncFormatter, MaxNLocator


class Unit(Record):
    """What numbers on an axis are told in.

    Attributes:
        name: behind a comma in the axis's label.
        size: one of it, in what is shown (seconds, shares).
        steps: from one number to the next, times any power of ten.
        whole: there are no parts of one.
    """

    name: str
    size: float = 1.0
    steps: tuple[float, ...] = (1, 2, 5, 10)
    whole: bool = False


PERCENT = Unit("%", 0.01, (1, 2, 2.5, 5, 10))
PLAIN = Unit("")
COUNT = Unit("", whole=True)
_TIMES = (
    (300, "s", 1),
    (3 * 3600, "min", 60),
    (3 * 86400, "h", 3600),
    (float("inf"), "days", 86400),
)
_SEXAGESIMAL = (1, 1.5, 3, 5, 6, 10)


def time_unit(longest_s: float) -> Unit:
    """The unit for times up to so many seconds."""
    name, size = next((name, size) for most, name, size in _TIMES if longest_s <= most)
    return Unit(
        name, size, _SEXAGESIMAL if longest_s > 12 * size and name != "days" else Unit("").steps
    )


def time_text(seconds: float) -> str:
    """A length of time: to the second, and in two digits below 10 s."""
    return format_duration(seconds if seconds < 10 else round(seconds))


def number(value: float) -> str:
    """In three digits at least, with commas between thousands: 0.125, 2.5, 57.9, 1,204."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def set_scale(
    axes: Axes, which: Literal["x", "y"], ends: tuple[float, float], unit: Unit, ticks: int
) -> None:
    """Let an axis reach from one value to another, with a number at each round step.

    Args:
        axes: whose.
        which: of its two.
        ends: in what is shown; what is drawn is in units.
        unit: of the numbers.
        ticks: how many steps there are at most.
    """
    low, high = ends[0] / unit.size, ends[1] / unit.size
    high = high if high > low else low + 1
    if which == "x":
        axes.set_xlim(low, high)
    else:
        axes.set_ylim(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(ticks, steps=unit.steps, integer=unit.whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
