"""The timeline: a row for each GPU, a bar for each job, a panel for each run."""

from collections.abc import Sequence
from math import ceil

from gpulaunch.errors import printable
from gpulaunch.records import Record
from gpulaunch.show.report.bars import Bar, Grid, bars_of, close_window_s, grid_of, window_s, within
from gpulaunch.show.report.canvas import WIDTH, Axes, Picture, Rectangle, Sheet
from gpulaunch.show.report.colours import IDLE, ON_BAR, PALE, PAPER, SLOWED
from gpulaunch.show.report.scales import set_scale, time_text, time_unit
from gpulaunch.show.report.series import Run
from gpulaunch.show.topology.layout import cut, fits
from gpulaunch.simulate.measures import ReplayedJob

_LEFT = 104  # px for the names of GPUs
_RIGHT = 6
_HEAD, _FOOT = 40, 34  # px above and below a panel
_TOP = 30  # px for what the colours mean
_MOST_BARS = 3000  # of all panels together
_NAMED = 48  # px of a bar that has room for a name
_SMALLEST = 9.0  # letters


class Window(Record):
    """What part of a timeline a picture shows.

    Attributes:
        grid: which GPUs.
        end_s: until when, from the beginning on.
        of_s: how long it is.
        named: whether bars have names, where there is room.
    """

    grid: Grid
    end_s: float
    of_s: float
    named: bool

    @property
    def whole(self) -> bool:
        """Whether all of the time is shown."""
        return self.end_s >= self.of_s


def timeline_pictures(runs: Sequence[Run]) -> list[tuple[Picture, Window]]:
    """The timeline, as much as can be drawn; and if that has no room for names, its beginning more closely.

    Args:
        runs: one panel each, all over one time axis.
    """
    grid = grid_of(runs)
    all_bars = [bars_of(run, grid) for run in runs]
    longest_s = max(run.replay.makespan_s for run in runs)
    end_s = window_s(all_bars, longest_s, max(100, _MOST_BARS // len(runs)))
    close_s = close_window_s(all_bars, (WIDTH - _LEFT - _RIGHT) / _NAMED)
    windows = [("timeline", Window(grid, end_s, longest_s, named=close_s >= end_s / 2))]
    if not windows[0][1].named:
        windows.append(("timeline-beginning", Window(grid, close_s, longest_s, named=True)))
    return [(_draw(name, runs, all_bars, window), window) for name, window in windows]


def _draw(
    name: str, runs: Sequence[Run], all_bars: Sequence[Sequence[Bar]], window: Window
) -> Picture:
    grid, time = window.grid, time_unit(window.end_s)
    row = 20 if grid.rows <= 8 else 16 if grid.rows <= 16 else 13 if grid.rows <= 32 else 7
    height = row * grid.rows
    step = _HEAD + height + _FOOT
    sheet = Sheet(name, _TOP + len(runs) * step)
    _write_meaning(sheet)
    for i, (run, bars) in enumerate(zip(runs, all_bars, strict=True)):
        top = _TOP + i * step + _HEAD
        axes = sheet.panel(_LEFT, top, WIDTH - _LEFT - _RIGHT, height)
        set_scale(axes, "x", (0, window.end_s), time, ticks=12)
        axes.set_ylim(grid.rows, 0)
        _draw_ground(axes, grid, min(window.end_s, run.replay.makespan_s) / time.size)
        scale = (WIDTH - _LEFT - _RIGHT) / window.end_s
        for bar in within(bars, window.end_s):
            size = (bar.to_s - bar.from_s) * scale, bar.rows * row / bar.lanes
            _draw_bar(sheet, axes, bar, time.size, size)
            if window.named and size[1] >= _SMALLEST:
                _write_name(axes, bar, time.size, size)
        _write_rows(sheet, top, row, grid)
        sheet.mark(_LEFT, top - 22, 11, 11, run.colour)
        end = f"last job ends after {time_text(run.replay.makespan_s)}"
        sheet.write(_LEFT + 18, top - 12, run.label, weight="bold")
        sheet.write(WIDTH - _RIGHT, top - 12, end, colour=PALE, size=11, ha="right")
        if i == len(runs) - 1:
            label = f"time since the first arrival, {time.name}"
            sheet.write(_LEFT, top + height + 33, label, colour=PALE, size=11)
    return sheet.finish()


def _write_meaning(sheet: Sheet) -> None:
    """What the colours of bars say."""
    texts = (
        "at full speed, or within 5 %",
        "up to 1.5 times as long",
        "up to twice as long",
        "longer",
    )
    x = float(_LEFT)
    for (_, colour), text in zip(SLOWED, texts, strict=True):
        sheet.mark(x, 6, 22, 13, colour)
        sheet.write(x + 29, 17, text, size=11)
        x += 29 + 7.2 * len(text) + 22


def _draw_ground(axes: Axes, grid: Grid, end: float) -> None:
    """Where nothing runs, up to the last end; machines apart."""
    size = len(grid.gpus)
    for machine in range(grid.machines):
        low = machine * size + (0.08 if machine else 0)
        place = (0, low), end, (machine + 1) * size - low
        axes.add_patch(Rectangle(*place, facecolor=IDLE.light, linewidth=0))
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _draw_bar(sheet: Sheet, axes: Axes, bar: Bar, unit_s: float, size: tuple[float, float]) -> None:
    """A bar; its size is in px."""
    high = bar.rows / bar.lanes
    frame = Rectangle(
        (bar.from_s / unit_s, bar.row + bar.lane * high),
        (bar.to_s - bar.from_s) / unit_s,
        high,
        facecolor=next(colour.light for most, colour in SLOWED if bar.one.slowdown <= most),
        edgecolor=PAPER.light,
        linewidth=1.0 if min(size) >= 4 else 0.4,
        clip_on=False,
    )
    axes.add_artist(frame)
    sheet.note(frame, _told(bar.one))


def _write_name(axes: Axes, bar: Bar, unit_s: float, size: tuple[float, float]) -> None:
    """Number and name of a job, or as much of it as its bar has room for."""
    job, letters = bar.one.stay.job, 11.0 if size[1] >= 15 else 10.0
    texts = f"{job.id} {printable(job.name)}", str(job.id)
    text = next((text for text in texts if fits(text, size[0] - 4, letters)), None)
    if text:
        middle = (
            (bar.from_s + bar.to_s) / 2 / unit_s,
            bar.row + (bar.lane + 0.5) * bar.rows / bar.lanes,
        )
        axes.text(
            *middle, text, ha="center", va="center_baseline", size=letters, color=ON_BAR.light
        )


def _told(one: ReplayedJob) -> str:
    """A job in words."""
    stay, job = one.stay, one.stay.job
    gpus = ",".join(map(str, stay.gpus))
    parts = [
        f"job {job.id} {cut(printable(job.name), 300, 10)}: machine {stay.machine}, GPU {gpus}",
        f"waited {time_text(one.wait_s)}, ran {time_text(one.run_s)}",
        f"{one.slowdown:.2f} times as long as at its best",
    ]
    return "; ".join([*parts, "less than it asked for"] if one.violates else parts)


def _write_rows(sheet: Sheet, top: float, row: float, grid: Grid) -> None:
    """Names of machines and GPUs."""
    size = len(grid.gpus)
    for machine in range(grid.machines):
        first = top + machine * size * row
        if grid.of_machines > 1:
            sheet.write(2, first + 11, f"machine {machine}", size=11)
        for i, gpu in list(enumerate(grid.gpus))[:: ceil(_SMALLEST / row)]:
            text = grid.name(gpu) if grid.of_machines > 1 else f"GPU {grid.name(gpu)}"
            sheet.write(
                _LEFT - 8, first + (i + 0.5) * row + 4, text, colour=PALE, size=10.5, ha="right"
            )
