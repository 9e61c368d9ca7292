"""Lines, one for each run: jobs from worst to best, and allocation quality."""

from collections.abc import Callable, Sequence

from gpulaunch.show.report.canvas import WIDTH, Picture, Sheet
from gpulaunch.show.report.chart import FOOT, HEAD, HEIGHT, KEY, LEFT, Chart, draw_chart, write_key
from gpulaunch.show.report.colours import PALE
from gpulaunch.show.report.scales import COUNT, PERCENT, PLAIN, Unit, time_text, time_unit
from gpulaunch.show.report.series import (
    Measure,
    Run,
    connected,
    distribution,
    gpu_numbers,
    jobs_text,
    mean_of,
    of_gpus,
    quality,
    slowdown,
    stairs,
    thinned,
    values_of,
    wait_s,
    worst_first,
)

_GAP = 34  # px between panels
_POINTS = 400  # of a curve


def curves_picture(runs: Sequence[Run]) -> Picture:
    """Slowdown and wait of jobs, each sorted from worst to best; without waits if nobody waits."""
    longest_s = max(wait for run in runs for wait in values_of(run, wait_s))
    unit, step = time_unit(longest_s), HEAD + HEIGHT + FOOT
    sheet = Sheet("worst-to-best", 2 * step if longest_s else step)
    title = "slowdown: run time, as a multiple of that alone on the best GPUs"
    _draw_curves(sheet, 0, runs, title, slowdown, (1.0, 1.1, PLAIN), "{:.2f}".format)
    if longest_s:
        title = f"wait from arrival to start, {unit.name}"
        _draw_curves(sheet, step, runs, title, wait_s, (0.0, 0.0, unit), time_text)
    return sheet.finish()


def _draw_curves(
    sheet: Sheet,
    top: float,
    runs: Sequence[Run],
    title: str,
    measure: Measure,
    y: tuple[float, float, Unit],
    tell: Callable[[float], str],
) -> None:
    """A panel with jobs from worst to best; `y` is its beginning, its least end, and its unit."""
    curves = [worst_first(run, measure) for run in runs]
    most, high = max(map(len, curves)), max(y[1], *(curve[0] for curve in curves))
    lines = [
        [
            (0.0, curve[0]),
            *((place + 0.5, value) for place, value in thinned(curve, _POINTS)),
            (len(curve), curve[-1]),
        ]
        for curve in curves
    ]
    chart = Chart(title, lines, (most, COUNT), (y[0], high, y[2]))
    draw_chart(sheet, (LEFT, top + HEAD, WIDTH - LEFT - KEY, HEIGHT), chart, runs)
    write_key(sheet, top + HEAD, runs, "mean", [tell(mean_of(curve)) for curve in curves])
    sheet.write(
        LEFT, top + HEAD + HEIGHT + 34, "jobs, from the worst to the best", colour=PALE, size=11
    )


def quality_picture(runs: Sequence[Run]) -> Picture:
    """What share of the best aggregate bandwidth jobs got, by their number of GPUs."""
    numbers = gpu_numbers(runs, connected)
    sheet = Sheet("quality", HEAD + HEIGHT + FOOT)
    width = (WIDTH - LEFT - KEY + _GAP) / len(numbers) - _GAP
    for i, count in enumerate(numbers):
        which = of_gpus(count, connected)
        title = f"{count} GPUs: {jobs_text(len(values_of(runs[0], quality, which)))}"
        lines = [stairs(distribution(run, quality, which)) for run in runs]
        chart = Chart(title, lines, (1.0, PERCENT), (0.0, 1.0, PERCENT))
        axes = draw_chart(sheet, (LEFT + i * (width + _GAP), HEAD, width, HEIGHT), chart, runs)
        axes.grid(axis="x")
        if i:
            axes.set_yticklabels([])
    write_key(
        sheet,
        HEAD,
        runs,
        "mean of all",
        [f"{mean_of(values_of(run, quality)):.1%}" for run in runs],
    )
    across = "across: allocated aggregate bandwidth, % of the best that the idle machine has"
    sheet.write(
        LEFT, HEAD + HEIGHT + 34, f"{across}; up: % of jobs with at most that", colour=PALE, size=11
    )
    return sheet.finish()
