"""A panel of lines, and the key beside it that says whose they are."""

from collections.abc import Sequence

from gpulaunch.records import Record
from gpulaunch.show.report.canvas import WIDTH, Axes, Sheet
from gpulaunch.show.report.colours import PALE
from gpulaunch.show.report.scales import PERCENT, Unit, set_scale
from gpulaunch.show.report.series import Points, Run
from gpulaunch.show.topology.layout import cut

LEFT = 56  # px for the numbers at the left of a panel
KEY = 280  # px for the key at its right
HEAD, FOOT = 34, 56  # px above and below it
HEIGHT = 200  # px of it

_LINE = 21  # px of a line of the key


class Chart(Record):
    """What is drawn on a panel.

    Attributes:
        title: with the unit of what goes up.
        lines: of each run, in its order.
        x: last value and unit; the first value is 0.
        y: first and last value, and unit.
    """

    title: str
    lines: Sequence[Points]
    x: tuple[float, Unit]
    y: tuple[float, float, Unit]


def draw_chart(
    sheet: Sheet, place: tuple[float, float, float, float], chart: Chart, runs: Sequence[Run]
) -> Axes:
    """A panel with its lines.

    Args:
        sheet: where.
        place: left, top, width and height of the panel, px.
        chart: what.
        runs: one for each line.
    """
    left, top, width, height = place
    axes = sheet.panel(left, top, width, height)
    sheet.write(left, top - 14, chart.title, weight="bold")
    (last, across), (low, high, up) = chart.x, chart.y
    for i, (run, points) in enumerate(zip(runs, chart.lines, strict=True)):
        xs, ys = [x / across.size for x, _ in points], [y / up.size for _, y in points]
        axes.plot(xs, ys, color=run.colour.light, linewidth=_thickness(i, len(runs)), clip_on=False)
    set_scale(axes, "x", (0, last), across, ticks=max(2, int(width / 70)))
    room = 0.0 if (high, up) == (1.0, PERCENT) else 0.04 * (high - low)
    set_scale(axes, "y", (low, high + room), up, ticks=5)
    axes.grid(axis="y")
    axes.tick_params(length=0, pad=6)
    axes.spines["left"].set_visible(False)
    return axes


def _thickness(place: int, of: int) -> float:
    """The first lines are the thickest: where several run together, each is still seen."""
    return 1.7 + min(0.6, 3 / of) * (of - 1 - place)


def write_key(
    sheet: Sheet, top: float, runs: Sequence[Run], title: str, figures: Sequence[str]
) -> None:
    """Lines by name, each with a figure, at the right of a panel.

    Args:
        sheet: where.
        top: upper edge of the panel.
        runs: one for each line.
        title: what the figures are.
        figures: of each run.
    """
    left = WIDTH - KEY + 26
    sheet.write(WIDTH - 4, top - 14, title, colour=PALE, size=11, ha="right")
    for i, (run, figure) in enumerate(zip(runs, figures, strict=True)):
        y, thick = top + 12 + i * _LINE, _thickness(i, len(runs))
        sheet.mark(left, y - 4 - thick / 2, 18, thick, run.colour)
        sheet.write(left + 26, y, cut(run.label, KEY - 60 - 7 * len(figure), 12))
        sheet.write(WIDTH - 4, y, figure, ha="right")
