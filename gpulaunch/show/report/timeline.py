"""The timeline of GPUs: a panel for each policy, a row for each GPU, a bar for each job."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product

from gpulaunch.errors import printable
from gpulaunch.records import Record, replace
from gpulaunch.show.canvas import INK, PAPER, add_legend, add_rectangle, new_figure
from gpulaunch.show.report.series import (
    ON_SLOWDOWN,
    SLOWDOWNS,
    Plot,
    policy_name,
    slowdown_class,
    time_text,
    time_unit,
)
from gpulaunch.simulate.measures import Replay, ReplayedJob
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.show.canvas import Axes, Figure

_MOST_ROWS = 20  # of a panel, if these are not all of one machine
_MOST_GPUS = 80  # of a machine's GPUs
_MOST_BARS = 3000  # of all panels together
_BARS_ACROSS = 20  # bars of median length across the picture, if they are to have room for names
_LETTERS = 10  # px of names on bars
_WIDTH_OF_LETTER = 0.62 * _LETTERS  # most are narrower
_LONGEST_NAME = 48  # letters


class Bar(Record):
    """A job on GPUs whose rows are next to each other, or on its part of a GPU that jobs share.

    Attributes:
        job: The job.
        row: Where the bar begins, in rows from the top.
        height: How high the bar is, in rows; less than one where jobs share a GPU.
        from_s: When the job starts, from the first arrival on.
        to_s: When the job ends.
    """

    job: ReplayedJob
    row: float
    height: float
    from_s: float
    to_s: float


def rows_of(replays: Sequence[Replay]) -> list[tuple[int, int]]:
    """Return the machine and the GPU of each row, for as many machines as are shown."""
    machines = replays[0].rules.machines
    size = replays[0].gpus // machines
    gpus = {gpu for replay in replays for one in replay.jobs for gpu in one.gpus}
    if max(gpus) < size:  # else they are MIG instances, whose numbers have gaps
        gpus = set(range(size))
    shown = min(machines, max(1, _MOST_ROWS // len(gpus)))
    return list(product(range(shown), sorted(gpus)[:_MOST_GPUS]))


def bars_of(replay: Replay, rows: Sequence[tuple[int, int]]) -> list[Bar]:
    """Return the bars of all jobs on the GPUs that have rows, by their start."""
    place = {gpu: row for row, gpu in enumerate(rows)}
    jobs_on_row: dict[int, list[ReplayedJob]] = defaultdict(list)
    for one in replay.jobs:
        for gpu in one.gpus:
            if (one.machine, gpu) in place:
                jobs_on_row[place[one.machine, gpu]].append(one)
    begin_s = replay.levels[0].time_s
    bars: list[Bar] = []
    last: dict[int, int] = {}  # job id -> index of its last bar
    for row, jobs in sorted(jobs_on_row.items()):
        for one, (lane, lanes) in zip(jobs, _assign_lanes(jobs), strict=True):
            above = bars[last[one.id]] if one.id in last else None
            if above and lanes == 1 and above.height >= 1 and above.row + above.height == row:
                bars[last[one.id]] = replace(above, height=above.height + 1)
                continue
            last[one.id] = len(bars)
            span_s = one.started_s - begin_s, one.ended_s - begin_s
            bars.append(Bar(one, row + lane / lanes, 1 / lanes, *span_s))
    return sorted(bars, key=lambda bar: (bar.from_s, bar.row))


def _assign_lanes(jobs: Sequence[ReplayedJob]) -> list[tuple[int, int]]:
    """Return the lane of each job on a GPU, and how many lanes there are while jobs overlap.

    Args:
        jobs: The jobs on the GPU, by their starts.
    """
    found: list[tuple[int, int]] = []
    lanes: list[int] = []  # of overlapping jobs since the last moment without a job
    ends_s: list[float] = []  # end of the last job in each lane
    for one in jobs:
        if all(end_s <= one.started_s for end_s in ends_s):
            found += [(lane, len(ends_s)) for lane in lanes]
            lanes, ends_s = [], []
        free = [lane for lane, end_s in enumerate(ends_s) if end_s <= one.started_s]
        lanes.append(free[0] if free else len(ends_s))
        ends_s[lanes[-1] : lanes[-1] + 1] = [one.ended_s]
    return found + [(lane, len(ends_s)) for lane in lanes]


def drawable_s(panels: Sequence[Sequence[Bar]], longest_s: float, most: int) -> float:
    """Return how much of a timeline can be drawn before a panel has more than `most` bars."""
    ends_s = [bars[most].from_s for bars in panels if len(bars) > most]
    return min([longest_s, *(end_s for end_s in ends_s if end_s > 0)])


def timeline_plots(replays: Sequence[Replay]) -> Iterator[Plot]:
    """Draw the timeline, and its beginning if the timeline has no room for the names of jobs."""
    rows = rows_of(replays)
    panels = [bars_of(replay, rows) for replay in replays]
    longest_s = max(replay.makespan_s for replay in replays)
    end_s = drawable_s(panels, longest_s, max(100, _MOST_BARS // len(replays)))
    lengths_s = sorted(bar.to_s - bar.from_s for bars in panels for bar in bars)
    close_s = _BARS_ACROSS * lengths_s[len(lengths_s) // 2]
    named = close_s >= end_s / 2
    names = "number and name if they fit" if named else "names in the next picture"
    caption = (
        "A row is a GPU, and a bar a job on it, redder if it took longer than at its best; blank "
        f"is idle. Bars have {names}, and say more where the pointer rests."
        f"{_describe_omissions(replays[0], rows, end_s, longest_s)}"
    )
    figure = _draw_panels(replays, rows, panels, end_s, named=named)
    yield Plot("timeline", "Timeline of GPUs", caption, figure)
    if not named:
        caption = "Bars have number and name if they fit."
        caption += _describe_omissions(replays[0], rows, close_s, longest_s)
        figure = _draw_panels(replays, rows, panels, close_s, named=True)
        yield Plot("timeline-beginning", "Its beginning", caption, figure)


def _describe_omissions(
    replay: Replay, rows: Sequence[tuple[int, int]], end_s: float, of_s: float
) -> str:
    """Return a sentence that says which part a timeline shows; "" for everything."""
    parts = []
    machines, of_machines = rows[-1][0] + 1, replay.rules.machines
    if machines < of_machines:
        some = "machine 0" if machines == 1 else f"machines 0 to {machines - 1}"
        parts.append(f"{some} of {of_machines:,}")
    gpus, of_gpus = len(rows) // machines, replay.gpus // of_machines
    if gpus < of_gpus:
        parts.append(f"{gpus} of {of_gpus} GPUs")
    if end_s < of_s:
        parts.append(f"the first {time_text(end_s)} of {time_text(of_s)}")
    return f" Shown: {', '.join(parts)}." if parts else ""


def _draw_panels(
    replays: Sequence[Replay],
    rows: Sequence[tuple[int, int]],
    panels: Sequence[Sequence[Bar]],
    end_s: float,
    *,
    named: bool,
) -> "Figure":
    """Draw a panel for each replay, up to a time."""
    size_s, unit = time_unit(end_s)
    height, step = (16, 1) if len(rows) <= _MOST_ROWS else (10, 2)  # px, rows with a label
    figure = new_figure(80 + len(replays) * (height * len(rows) + 52))
    add_legend(figure, {text: colour for _, colour, text in SLOWDOWNS})
    grid = figure.subplots(len(replays), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, replay in zip(grid, replays, strict=True):
        axes.set_title(policy_name(replay))
        end = f"last job ends after {time_text(replay.makespan_s)}"
        axes.set_title(end, loc="right", size="medium", weight="normal")
        idle = min(end_s, replay.makespan_s) / size_s
        axes.axvspan(0, idle, color=INK, alpha=0.06, linewidth=0)
        axes.tick_params(labelbottom=True)
    labels = [_label(*row, rows[0][1], replays[0]) for row in rows]
    axes.set_yticks([i + 0.5 for i in range(0, len(rows), step)], labels[::step])
    axes.set_ylim(len(rows), 0)
    axes.set_xlim(0, end_s / size_s)
    axes.locator_params(axis="x", nbins=12)
    axes.set_xlabel(f"time since the first arrival, {unit}")
    figure.draw_without_rendering()  # lays out the axes, so that the size of bars is known
    figure.set_layout_engine("none")
    for axes, bars in zip(grid, panels, strict=True):
        _draw_bars(axes, [bar for bar in bars if bar.from_s < end_s], end_s, size_s, named=named)
        for row in range(1, len(rows)):
            if rows[row][0] > rows[row - 1][0]:
                axes.axhline(row, color=INK, alpha=0.4, linewidth=0.8)
    return figure


def _label(machine: int, gpu: int, first_gpu: int, replay: Replay) -> str:
    """Return the label of a row: the GPU's index, or card:instance for MIG (see mig_index)."""
    machines = replay.rules.machines
    name = str(gpu) if gpu < max(replay.gpus // machines, 100) else f"{gpu // 100 - 1}:{gpu % 100}"
    if gpu != first_gpu:
        return name
    return f"machine {machine}, GPU {name}" if machines > 1 else f"GPU {name}"


def _draw_bars(
    axes: "Axes", bars: Sequence[Bar], end_s: float, size_s: float, *, named: bool
) -> None:
    """Draw the bars of a panel up to a time, each with a note, and with a name if there is room."""
    width_of_s = axes.get_window_extent().width / end_s
    height_of_row = axes.get_window_extent().height / axes.get_ylim()[0]
    for bar in bars:
        length_s = min(bar.to_s, end_s) - bar.from_s
        width = length_s * width_of_s
        add_rectangle(
            axes,
            (bar.from_s / size_s, bar.row),
            (length_s / size_s, bar.height),
            _describe_job(bar.job),
            facecolor=SLOWDOWNS[slowdown_class(bar.job.slowdown)][1],
            edgecolor=PAPER,
            linewidth=1.0 if width >= 4 else 0.4,
        )
        if named and bar.height * height_of_row >= _LETTERS - 1:
            middle = (bar.from_s + length_s / 2) / size_s, bar.row + bar.height / 2
            text = _name_job(bar.job, width / _WIDTH_OF_LETTER - 1)
            name = axes.text(*middle, text, ha="center", va="center_baseline")
            name.set(size=_LETTERS, color=ON_SLOWDOWN)


def _name_job(one: ReplayedJob, most: float) -> str:
    """Return number and name of a job, or the part of it that fits into that many letters."""
    texts = f"{one.id} {printable(one.name)}", str(one.id), ""
    return next(text for text in texts if len(text) <= max(0, most))


def _describe_job(one: ReplayedJob) -> str:
    """Return a sentence about where and how a job ran."""
    parts = [
        f"job {one.id} {printable(one.name)[:_LONGEST_NAME]}: machine {one.machine}",
        f"GPU {','.join(map(str, one.gpus))}; waited {time_text(one.wait_s)}",
        f"ran {time_text(one.run_s)}; {one.slowdown:.2f} times as long as at its best",
    ]
    return ", ".join(parts) + ("; less than it asked for" if one.violates else "")
