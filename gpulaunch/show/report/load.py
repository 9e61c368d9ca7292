"""Load over time: how many GPUs are in use, how many are free in bits and pieces, and how many jobs wait."""

from collections.abc import Sequence

from gpulaunch.show.report.canvas import WIDTH, Picture, Sheet
from gpulaunch.show.report.chart import FOOT, HEAD, HEIGHT, KEY, LEFT, Chart, draw_chart, write_key
from gpulaunch.show.report.colours import IDLE, PALE
from gpulaunch.show.report.scales import COUNT, PERCENT, number, set_scale, time_unit
from gpulaunch.show.report.series import (
    Run,
    outline,
    over_time,
    used,
    used_or_broken,
    values_of,
    wait_s,
    waiting,
)
from gpulaunch.show.topology.layout import cut

_ROW = 58  # px of a run
_GAP = 16  # px between two


def load_picture(runs: Sequence[Run]) -> Picture:
    """GPUs in use and broken up, a panel for each run; and waiting jobs of all runs, if there are any."""
    below = HEAD + len(runs) * (_ROW + _GAP) - _GAP + FOOT
    waits = any(wait for run in runs for wait in values_of(run, wait_s))
    sheet = Sheet("load", below + (HEAD + HEIGHT + FOOT if waits else 0))
    longest_s = max(run.replay.makespan_s for run in runs)
    time = time_unit(longest_s)
    label = f"time since the first arrival, {time.name}"
    _draw_use(sheet, runs, longest_s)
    sheet.write(LEFT, below - FOOT + 34, label, colour=PALE, size=11)
    if not waits:
        return sheet.finish()
    means = [
        sum(values_of(run, wait_s)) / longest_s for run in runs
    ]  # as high as the area under the line is on average
    lines = [outline(over_time(run, waiting, longest_s)) for run in runs]
    most = max(value for line in lines for _, value in line)
    chart = Chart("jobs that wait", lines, (longest_s, time), (0.0, most, COUNT))
    draw_chart(sheet, (LEFT, below + HEAD, WIDTH - LEFT - KEY, HEIGHT), chart, runs)
    write_key(sheet, below + HEAD, runs, "mean", [number(mean) for mean in means])
    sheet.write(LEFT, below + HEAD + HEIGHT + 34, label, colour=PALE, size=11)
    return sheet.finish()


def _draw_use(sheet: Sheet, runs: Sequence[Run], longest_s: float) -> None:
    """A panel for each run: in use, and on top of that what is free but broken up."""
    areas = [
        [
            [
                (at, value / run.replay.gpus)
                for at, value in outline(over_time(run, what, longest_s))
            ]
            for run in runs
        ]
        for what in (used_or_broken, used)
    ]
    most = max((value for lines in areas for line in lines for _, value in line), default=0.0)
    high = 1.0 if most > 0.5 else max(most, 0.001)
    sheet.write(
        LEFT, HEAD - 14, "GPUs, % of all: in use, and above that, paler, broken up", weight="bold"
    )
    _write_column(sheet, 78, "in use", [f"{run.replay.utilization:.1%}" for run in runs])
    _write_column(sheet, 4, "broken up", [f"{run.replay.fragmentation:.1%}" for run in runs])
    time = time_unit(longest_s)
    for i, run in enumerate(runs):
        top = HEAD + i * (_ROW + _GAP)
        axes = sheet.panel(LEFT, top, WIDTH - LEFT - KEY, _ROW)
        axes.fill_between(
            (0, run.replay.makespan_s / time.size),
            high / PERCENT.size,
            color=IDLE.light,
            linewidth=0,
        )
        for lines, alpha in zip(areas, (0.35, 0.85), strict=True):
            xs, ys = [x / time.size for x, _ in lines[i]], [y / PERCENT.size for _, y in lines[i]]
            axes.fill_between(xs, ys, color=run.colour.light, alpha=alpha, linewidth=0)
        set_scale(axes, "x", (0, longest_s), time, ticks=int((WIDTH - LEFT - KEY) / 70))
        set_scale(axes, "y", (0, high), PERCENT, ticks=2)
        axes.tick_params(length=0, pad=6, labelbottom=i == len(runs) - 1)
        axes.spines[:].set_visible(False)
        left = WIDTH - KEY + 26
        sheet.mark(left, top + _ROW / 2 - 6, 11, 11, run.colour)
        sheet.write(left + 18, top + _ROW / 2 + 4, cut(run.label, KEY - 44 - 116, 12))


def _write_column(sheet: Sheet, right: float, title: str, figures: Sequence[str]) -> None:
    """Figures at the right of panels, so far from the edge."""
    sheet.write(WIDTH - right, HEAD - 14, title, colour=PALE, size=11, ha="right")
    for i, figure in enumerate(figures):
        sheet.write(WIDTH - right, HEAD + i * (_ROW + _GAP) + _ROW / 2 + 4, figure, ha="right")
