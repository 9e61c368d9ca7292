"""What there is to see in each picture, and how it is read: two sentences or three."""

from collections.abc import Callable, Sequence

from gpulaunch.show.report.scales import time_text
from gpulaunch.show.report.series import (
    Run,
    bandwidth,
    connected,
    mean_of,
    quality,
    sensitive,
    slowdown,
    values_of,
    wait_s,
)
from gpulaunch.show.report.timeline import Window


def compared(
    runs: Sequence[Run], measure: Callable[[Run], float], tell: Callable[[float], str]
) -> str:
    """A figure of all runs in words: the least and the largest, and whose they are."""
    figures = {run.label: measure(run) for run in runs}
    low, high = tell(min(figures.values())), tell(max(figures.values()))
    if low == high:
        return low if len(runs) == 1 else f"{low} with each policy"
    whose = {
        end: ", ".join(label for label, value in figures.items() if tell(value) == end)
        for end in (low, high)
    }
    return f"from {low} ({whose[low]}) to {high} ({whose[high]})"


def of_bandwidth(runs: Sequence[Run]) -> str:
    """Of the box plots of bandwidth."""
    mean = compared(
        runs, lambda run: mean_of(values_of(run, bandwidth, sensitive)), "{:.1f} GB/s".format
    )
    return (
        "What the links between a job's GPUs carry: further right is better. A box holds the "
        "middle half of the jobs, "
        "its thick stroke is their median, the thin line reaches from the least to the largest, "
        "and the ring is the "
        f"mean: {mean}."
    )


def of_slowdown(runs: Sequence[Run]) -> str:
    """Of the box plots of slowdown."""
    some = values_of(runs[0], slowdown, sensitive)
    mean = compared(
        runs, lambda run: mean_of(values_of(run, slowdown, sensitive if some else _any)), _times
    )
    whose = "bandwidth-sensitive jobs" if some else "all jobs"
    return f"Further left is better, and 1 is the best there is. The mean of {whose}: {mean}."


def _any(_: object) -> bool:
    return True


def _times(value: float) -> str:
    return f"{value:.2f}"


def of_curves(runs: Sequence[Run]) -> str:
    """Of jobs from worst to best."""
    worst = compared(runs, lambda run: max(values_of(run, slowdown)), _times)
    longest = compared(runs, lambda run: max(values_of(run, wait_s)), time_text)
    waits = (
        "Nobody waits."
        if not any(any(values_of(run, wait_s)) for run in runs)
        else f"The longest wait: {longest}."
    )
    return (
        "A line has all jobs of a policy, each sorted for itself: the sooner it falls, the fewer "
        "jobs are badly off. "
        f"The largest slowdown: {worst}. {waits}"
    )


def of_quality(runs: Sequence[Run]) -> str:
    """Of the distributions."""
    best = compared(runs, _share_at_best, "{:.0%}".format)
    return (
        "A line climbs where jobs are: one that stays low up to the right edge is better, for "
        "there all got the best "
        f"links that the idle machine has. Jobs that got them: {best}."
    )


def _share_at_best(run: Run) -> float:
    values = values_of(run, quality, connected)
    return sum(value >= 1 - 1e-9 for value in values) / len(values)


def of_load(runs: Sequence[Run]) -> str:
    """Of load over time."""
    end = compared(runs, lambda run: run.replay.makespan_s, time_text)
    return (
        "Strong colour is GPUs in use. Pale above it are free GPUs on sockets where others are "
        "held, so that a job of "
        "several may have to take them from two sockets; blank is free in whole sockets. The last "
        f"job ends: {end}."
    )


def of_timeline(window: Window) -> str:
    """Of a timeline: what is left out of it, above all."""
    grid, parts = window.grid, []
    if grid.machines < grid.of_machines:
        some = "machine 0" if grid.machines == 1 else f"machines 0 to {grid.machines - 1}"
        parts.append(f"{some} of {grid.of_machines:,}")
    if len(grid.gpus) < grid.of_gpus:
        parts.append(f"{len(grid.gpus)} of {grid.of_gpus} GPUs")
    if not window.whole:
        parts.append(f"the first {time_text(window.end_s)} of {time_text(window.of_s)}")
    shown = f" Shown: {', '.join(parts)}." if parts else ""
    names = "number and name where they fit" if window.named else "names in the next picture"
    return (
        "A row is a GPU, and a bar a job on it, redder if it took longer than at its best; blank "
        "is idle. "
        f"Bars have {names}, and say more where the pointer rests.{shown}"
    )
