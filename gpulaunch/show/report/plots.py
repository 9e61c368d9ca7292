"""Figures that compare policies: links, slowdowns and waits of jobs, and GPUs in use over time."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from gpulaunch.show.canvas import INK, PAPER, add_legend, new_figure
from gpulaunch.show.report.series import (
    ON_SLOWDOWN,
    SLOWDOWNS,
    Plot,
    means_over_time,
    policy_colour,
    policy_name,
    slowdown_class,
    time_unit,
)
from gpulaunch.simulate.measures import Replay
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.show.canvas import Axes

_ROW = 28  # px of a policy
_AROUND = 80  # px for titles and axes
_LEAST_JOBS = 5  # of a box by number of GPUs: quartiles of fewer have no meaning
_MOST_PANELS = 4  # of boxes by number of GPUs, the most frequent ones


def policy_plots(replays: Sequence[Replay]) -> Iterator[Plot]:
    """Draw the figures that compare policies, without those that would be empty.

    Args:
        replays: One for each policy, all of the same jobs.
    """
    if any(one.sensitive for one in replays[0].jobs):
        yield _bandwidth_plot(replays)
    if any(slowdown_class(one.slowdown) for replay in replays for one in replay.jobs):
        yield _slowdown_plot(replays)
    if any(one.wait_s for replay in replays for one in replay.jobs):
        yield _wait_plot(replays)
    yield _load_plot(replays)


def _bandwidth_plot(replays: Sequence[Replay]) -> Plot:
    """Draw boxes of effective bandwidth, of all sensitive jobs and by their number of GPUs."""
    jobs = [[one for one in replay.jobs if one.sensitive] for replay in replays]
    counts = Counter(len(one.gpus) for one in jobs[0])
    sizes = sorted(size for size, n in counts.most_common(_MOST_PANELS) if n >= _LEAST_JOBS)
    panels = [tuple(counts), *((size,) for size in sizes if len(counts) > 1)]
    figure = new_figure(_AROUND + _ROW * len(replays))
    grid = figure.subplots(
        1,
        len(panels),
        squeeze=False,
        sharex=True,
        sharey=True,
        width_ratios=[2] + [1] * (len(panels) - 1),
    )
    for axes, panel in zip(grid[0], panels, strict=True):
        some = [[one for one in run if len(one.gpus) in panel] for run in jobs]
        values = [[one.effective_bandwidth or 0.0 for one in run] for run in some]
        _draw_boxes(axes, replays, values)
        title = f"{panel[0]} GPUs" if len(panel) == 1 else "bandwidth-sensitive"
        axes.set_title(f"{title}: {len(some[0])} jobs")
    grid[0][0].locator_params(axis="x", nbins=5)
    grid[0][0].set_xlabel("effective bandwidth, GB/s")
    caption = (
        "What the links between a job's GPUs carry: further right is better. A box holds the "
        "middle half of the jobs, its stroke is their median and the ring their mean; the line "
        "reaches from the least to the most."
    )
    return Plot("bandwidth", "What jobs got", caption, figure)


def _draw_boxes(axes: "Axes", replays: Sequence[Replay], values: Sequence[Sequence[float]]) -> None:
    """Draw a box for each policy, from the top down."""
    for row, (replay, some) in enumerate(zip(replays, values, strict=True)):
        colour = policy_colour(replay)
        line = {"color": colour, "linewidth": 1.5}
        ring = {"marker": "o", "markersize": 8, "markeredgecolor": colour, "markeredgewidth": 2}
        axes.boxplot(
            [some],
            positions=[row],
            orientation="horizontal",
            widths=0.6,
            whis=(0, 100),
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour + "73", "linewidth": 0},
            medianprops={"color": colour, "linewidth": 4},
            whiskerprops=line,
            capprops=line,
            meanprops=ring | {"markerfacecolor": PAPER},
        )
    axes.grid(axis="x")
    axes.set_xlim(left=0)
    _set_rows(axes, replays)


def _set_rows(axes: "Axes", replays: Sequence[Replay]) -> None:
    """Let the rows of policies run from the top down, with their names beside them."""
    axes.set_yticks(range(len(replays)), map(policy_name, replays))
    axes.set_ylim(len(replays) - 0.5, -0.5)


def _slowdown_plot(replays: Sequence[Replay]) -> Plot:
    """Draw the shares of jobs by slowdown, sensitive ones and others apart."""
    slowed = {one.sensitive for r in replays for one in r.jobs if slowdown_class(one.slowdown)}
    kinds = sorted(slowed, reverse=True)
    figure = new_figure(_AROUND + 30 + _ROW * len(replays))
    panels = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        values = [[one.slowdown for one in r.jobs if one.sensitive == kind] for r in replays]
        _draw_classes(axes, replays, values)
        axes.set_title(f"{'' if kind else 'not '}bandwidth-sensitive: {len(values[0])} jobs")
    add_legend(figure, {text: colour for _, colour, text in SLOWDOWNS})
    caption = (
        "Run time, as a multiple of that alone on the best GPUs: the share of jobs by how much "
        "longer they ran, with the mean and the worst at the right. The timeline below has the "
        "same colours."
    )
    return Plot("slowdown", "How much longer they ran", caption, figure)


def _draw_classes(
    axes: "Axes", replays: Sequence[Replay], values: Sequence[Sequence[float]]
) -> None:
    """Draw a bar for each policy, divided into classes of slowdown."""
    counts = [Counter(map(slowdown_class, some)) for some in values]
    rows, begins = range(len(replays)), [0.0] * len(replays)
    for i, (_, colour, _) in enumerate(SLOWDOWNS):
        shares = [100 * count[i] / count.total() for count in counts]
        bars = axes.barh(rows, shares, left=begins, height=0.7, color=colour)
        texts = [f"{share:.0f}" if share >= 4 else "" for share in shares]
        axes.bar_label(bars, texts, label_type="center", color=ON_SLOWDOWN)
        begins = [begin + share for begin, share in zip(begins, shares, strict=True)]
    for row, some in zip(rows, values, strict=True):
        axes.text(102, row, f"mean {fmean(some):.2f}, worst {max(some):.2f}", va="center")
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of these jobs")
    _set_rows(axes, replays)


def _wait_plot(replays: Sequence[Replay]) -> Plot:
    """Draw boxes of the time from arrival to start, of all jobs."""
    size_s, unit = time_unit(max(one.wait_s for replay in replays for one in replay.jobs))
    figure = new_figure(_AROUND + _ROW * len(replays))
    axes = figure.subplots()
    _draw_boxes(axes, replays, [[one.wait_s / size_s for one in replay.jobs] for replay in replays])
    axes.set_title(f"all: {len(replays[0].jobs)} jobs")
    axes.set_xlabel(f"wait, {unit}")
    caption = (
        "From arrival to start: further left is better. A box holds the middle half of the jobs, "
        "its stroke is their median and the ring their mean."
    )
    return Plot("wait", "How long they waited", caption, figure)


def _load_plot(replays: Sequence[Replay]) -> Plot:
    """Draw GPUs in use and broken up over time, a panel for each policy."""
    longest_s = max(replay.makespan_s for replay in replays)
    size_s, unit = time_unit(longest_s)
    figure = new_figure(_AROUND + 84 * len(replays))
    panels = figure.subplots(len(replays), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, replay in zip(panels, replays, strict=True):
        ends_s, used = means_over_time(replay, lambda level: level.used, longest_s)
        _, held = means_over_time(replay, lambda level: level.used + level.broken, longest_s)
        ends = [end_s / size_s for end_s in ends_s]
        for means, alpha in ((held, 0.35), (used, 0.85)):
            shares = [100 * mean / replay.gpus for mean in means]
            axes.stairs(shares, ends, fill=True, color=policy_colour(replay), alpha=alpha)
        axes.axvspan(0, replay.makespan_s / size_s, color=INK, alpha=0.06, linewidth=0, zorder=0)
        axes.set_title(policy_name(replay))
        figures = f"in use {replay.utilization:.1%}, broken up {replay.fragmentation:.1%}"
        axes.set_title(figures, loc="right", size="medium", weight="normal")
    axes.set_xlim(0, longest_s / size_s)
    axes.set_ylim(0)
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.set_xlabel(f"time since the first arrival, {unit}")
    caption = (
        "Of all GPUs. Strong colour is in use. Pale above it are free GPUs on sockets where others "
        "are held, so that a job of several may have to take them from two sockets; blank is free "
        "in whole sockets."
    )
    return Plot("load", "Load over time", caption, figure)
