"""Box plots: what jobs got and how long they took, one row for each run."""

from collections.abc import Sequence
from typing import Any

from gpulaunch.records import Record
from gpulaunch.show.report.canvas import WIDTH, Axes, Picture, Rectangle, Sheet
from gpulaunch.show.report.colours import INK, PALE, PAPER
from gpulaunch.show.report.scales import PLAIN, set_scale
from gpulaunch.show.report.series import (
    Box,
    Measure,
    Run,
    Which,
    bandwidth,
    boxes,
    gpu_numbers,
    insensitive,
    jobs_text,
    of_gpus,
    sensitive,
    slowdown,
)

_LABELS = 130  # px for the names of runs, at the left
_FIGURES = 120  # px for the numbers at the right of a panel
_ROW = 26  # px of a run
_GAP = 24  # px between panels
_HEAD, _FOOT = 34, 56  # px above and below them


class _Panel(Record):
    """Jobs that are shown together."""

    title: str
    boxes: list[Box]


class _Axis(Record):
    """The axis of all panels.

    Attributes:
        label: of what is shown.
        low: where it begins.
        least: where it ends at least.
        digits: behind the point, of figures.
    """

    label: str
    low: float
    least: float
    digits: int


def bandwidth_picture(runs: Sequence[Run]) -> Picture:
    """Effective bandwidth of sensitive jobs: of all, and by their number of GPUs."""
    rows = [
        [_panel(runs, "all bandwidth-sensitive", bandwidth, sensitive)],
        *_by_gpus(runs, bandwidth),
    ]
    return _draw("bandwidth", rows, _Axis("effective bandwidth, GB/s", 0.0, 1.0, 1))


def slowdown_picture(runs: Sequence[Run]) -> Picture:
    """Slowdown of sensitive and insensitive jobs, and of the sensitive ones by their number of GPUs."""
    both = (("bandwidth-sensitive", sensitive), ("not bandwidth-sensitive", insensitive))
    panels = [_panel(runs, title, slowdown, which) for title, which in both]
    rows = [[panel for panel in panels if panel.boxes[0].jobs], *_by_gpus(runs, slowdown)]
    return _draw(
        "slowdown",
        rows,
        _Axis("run time, as a multiple of that alone on the best GPUs", 1.0, 1.1, 2),
    )


def _panel(runs: Sequence[Run], title: str, measure: Measure, which: Which) -> _Panel:
    found = boxes(runs, measure, which)
    return _Panel(f"{title}: {jobs_text(found[0].jobs)}", found)


def _by_gpus(runs: Sequence[Run], measure: Measure) -> list[list[_Panel]]:
    """A row of panels, if there is more than one number of GPUs."""
    numbers = gpu_numbers(runs, sensitive)
    panels = [_panel(runs, f"{n} GPUs", measure, of_gpus(n, sensitive)) for n in numbers]
    return [panels] if len(panels) > 1 else []


def _draw(name: str, rows: Sequence[Sequence[_Panel]], axis: _Axis) -> Picture:
    height = len(rows[0][0].boxes) * _ROW
    step = _HEAD + height + _FOOT
    sheet = Sheet(name, len(rows) * step)
    largest = [
        box.quartiles.most for row in rows for panel in row for box in panel.boxes if box.quartiles
    ]
    high = max(*largest, axis.least)
    room = 0.025 * (high - axis.low)
    for r, row in enumerate(rows):
        figures = _FIGURES if r == 0 else 0
        width = (WIDTH - _LABELS - 10 + _GAP) / len(row) - _GAP - figures
        for i, panel in enumerate(row):
            left, top = _LABELS + i * (width + figures + _GAP), r * step + _HEAD
            axes = sheet.panel(left, top, width, height)
            sheet.write(left, top - 12, panel.title, weight="bold")
            _draw_boxes(axes, panel.boxes, named=i == 0)
            set_scale(
                axes, "x", (axis.low - room, high + room), PLAIN, ticks=max(6, int(width / 80))
            )
            if figures:
                _write_figures(sheet, left + width, top, panel.boxes, axis.digits)
        sheet.write(_LABELS, top + height + 34, axis.label, colour=PALE, size=11)
    return sheet.finish()


def _draw_boxes(axes: Axes, found: Sequence[Box], *, named: bool) -> None:
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_yticks(range(len(found)), [box.run.label if named else "" for box in found])
    axes.tick_params(axis="y", length=0, labelcolor=INK.light, labelsize=12)
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)
    axes.grid(axis="x")
    for i, box in enumerate(found):
        if box.quartiles is None:
            continue
        colour, four = box.run.colour.light, box.quartiles
        axes.plot((four.least, four.most), (i, i), color=colour, linewidth=1.5)
        for end in (four.least, four.most):
            axes.plot((end, end), (i - 0.17, i + 0.17), color=colour, linewidth=1.5)
        frame = Rectangle(
            (four.low, i - 0.3),
            four.high - four.low,
            0.6,
            facecolor=colour,
            alpha=0.45,
            linewidth=0,
        )
        axes.add_patch(frame)
        axes.plot((four.median, four.median), (i - 0.36, i + 0.36), color=colour, linewidth=4)
        dot: dict[str, Any] = {
            "markerfacecolor": PAPER.light,
            "markeredgecolor": colour,
            "markeredgewidth": 2,
            "markersize": 8,
        }
        axes.plot(box.mean, i, "o", **dot)


def _write_figures(
    sheet: Sheet, left: float, top: float, found: Sequence[Box], digits: int
) -> None:
    """Median and mean, right of a panel."""
    for place, title in ((_FIGURES / 2, "median"), (_FIGURES - 8, "mean")):
        sheet.write(left + place, top - 12, title, colour=PALE, size=11, ha="right")
        for i, box in enumerate(found):
            value = box.quartiles and (box.mean if title == "mean" else box.quartiles.median)
            text = "-" if value is None else f"{value:,.{digits}f}"
            sheet.write(left + place, top + (i + 0.5) * _ROW + 4, text, ha="right")
