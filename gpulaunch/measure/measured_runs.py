"""The [resources] and [runs] of a profile, from measured runs, and their update by one more run."""
# pure: decides on plain values

from collections.abc import Iterator, Mapping, Sequence
from math import fsum, sqrt
from statistics import quantiles, stdev

from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.measure.measured_run import SHARE, TIME_ACTIVE, Run, figures_of, is_reservation
from gpulaunch.records import Record
from gpulaunch.typing import Any

WITHIN_POINTS = 10.0
"""Largest difference in points between a run's average utilization and that of the runs before,
if the run is to fit. Our choice.
"""

WITHIN_MEMORY = 0.10
"""Largest relative difference in memory, if the run is to fit: jobs that share were promised no
more. Our choice.
"""

WITHIN_SPREADS = 3.0
"""Largest difference in standard deviations, where runs differ by more than WITHIN_POINTS."""

ENOUGH_RUNS = 3
"""Number of runs from which a standard deviation is used, and of misfits in a row after which the
job is taken to have changed.
"""

_DIGITS = 5  # significant
_WHOLE = ("memory_mib", "memory_mean_mib")
_NO_MEANS = {
    *("memory_mib", "memory_is_reservation", "utilization", "samples", "incomplete"),
    *("measured_on", "driver", "date", "source"),
}
_COMPARED = {
    "sm_utilization_percentage": "average SM utilization",
    "memory_bandwidth_utilization_percentage": "average memory-bandwidth utilization",
}

Document = dict[str, Any]


def percentile_95(values: Sequence[float]) -> float:
    """Return the 95th percentile of the values, interpolated between the two nearest.

    Source: topo-aware-sc17 4.2 and 5.1: profiles are the 95th percentile of five executions. It
        does not say how it interpolates.

    Example:
        >>> percentile_95([1.0, 2.0, 3.0, 4.0, 5.0])
        4.8
    """
    return (
        round(quantiles(values, n=20, method="inclusive")[-1], 9) if len(values) > 1 else values[0]
    )


def resources_of(runs: Sequence[Run], source: str) -> Document:
    """Return the document's [resources] and [runs].

    Args:
        runs: one or more runs of one job, in their order.
        source: the source that the section names.
    """
    last = runs[-1]
    found = [figures_of(run) for run in runs]
    keys = [key for key in found[0] if all(key in figures for figures in found)]
    combined = {key: _combine(key, [figures[key] for figures in found]) for key in keys}
    resources: Document = dict(combined)
    if "sm_utilization_percentage" in combined:
        resources["utilization"] = SHARE if all(run.has_gpm for run in runs) else TIME_ACTIVE
    if any(map(is_reservation, runs)):
        resources["memory_is_reservation"] = True
    if not all(run.is_complete for run in runs):
        resources["incomplete"] = True
    resources["samples"] = sum(
        max((gpu.figures.samples for gpu in run.gpus), default=0) for run in runs
    )
    models = sorted({gpu.model for gpu in last.gpus})
    if models:
        resources["measured_on"] = ", ".join(models)
    if last.driver:
        resources["driver"] = last.driver
    resources["date"] = last.date
    resources["source"] = source
    return {"resources": resources, "runs": _runs_section(found, keys, max(1, len(last.gpus)))}


def _combine(key: str, values: Sequence[float]) -> float:
    """Return the average; of memory the maximum, so that a job that shares is not short of it."""
    return _round_figure(key, max(values) if key == "memory_mib" else fsum(values) / len(values))


def rounded(value: float) -> float:
    """Round a figure to the five digits that a profile shows."""
    return float(f"{value:.{_DIGITS}g}")


def _round_figure(key: str, value: float) -> float:
    """Round a figure for a profile, memory to whole MiB."""
    return int(value) if key in _WHOLE else rounded(value)


def _runs_section(found: Sequence[Mapping[str, float]], keys: Sequence[str], gpus: int) -> Document:
    runs: Document = {"count": len(found), "gpus": gpus}
    if len(found) > 1:
        values = {key: [figures[key] for figures in found] for key in keys}
        runs["spread"] = {
            key: rounded(stdev(each)) for key, each in values.items() if key != "memory_mib"
        }
        runs["percentile_95"] = {key: rounded(percentile_95(each)) for key, each in values.items()}
    return runs


class Updated(Record):
    """A profile after one more run.

    Attributes:
        sections: the new [resources] and [runs].
        misfits: a line for each figure of the run that does not fit those known before.
        replaced: whether the run replaced all that was known, since the job has changed.
    """

    sections: Document
    misfits: tuple[str, ...] = ()
    replaced: bool = False


def updated(known: Mapping[str, Any], run: Run, source: str) -> Updated:
    """Return the sections of a profile after one more run.

    A run that does not fit is only counted; the third in a row replaces what was known, for then
    the job has changed. A complete run always replaces an incomplete one.

    Args:
        known: the profile's document.
        run: a complete run.
        source: the source that new figures name.
    """
    fresh = resources_of([run], source)
    before, runs = known.get("resources", {}), known.get("runs", {})
    if not before or before.get("incomplete"):
        return Updated(fresh)
    misfits = tuple(_misfits(before, runs, fresh))
    if not misfits:
        return Updated(_merge_run(before, runs, fresh, source))
    in_a_row = runs.get("misfits", 0) + 1
    if in_a_row >= ENOUGH_RUNS:
        return Updated(fresh, misfits, replaced=True)
    return Updated(
        {"resources": dict(before), "runs": {"count": 1, **runs, "misfits": in_a_row}}, misfits
    )


def _misfits(before: Mapping[str, Any], runs: Mapping[str, Any], fresh: Document) -> Iterator[str]:
    now = fresh["resources"]
    for key, what in _COMPARED.items():
        if key in before and key in now and not _is_near(key, before, runs, now):
            yield f"{what} {now[key]:.4g} % instead of {before[key]:.4g} %"
    most, used = before.get("memory_mib"), now.get("memory_mib", 0)
    if most and abs(used - most) > WITHIN_MEMORY * most:
        yield f"maximum memory {used} MiB instead of {most} MiB"
    for key, what in (("measured_on", "measured on"), ("utilization", "utilization is")):
        if before.get(key) and now.get(key) and before[key] != now[key]:
            yield f"{what} {now[key]} instead of {before[key]}"
    gpus = fresh["runs"]["gpus"]
    if runs.get("gpus", gpus) != gpus:
        yield f"on {gpus_text(gpus)} instead of {runs['gpus']}"


def _is_near(
    key: str, before: Mapping[str, Any], runs: Mapping[str, Any], now: Mapping[str, Any]
) -> bool:
    spread = runs.get("spread", {}).get(key, 0.0) if runs.get("count", 1) >= ENOUGH_RUNS else 0.0
    return bool(abs(now[key] - before[key]) <= max(WITHIN_POINTS, WITHIN_SPREADS * spread))


def _merge_run(
    before: Mapping[str, Any], runs: Mapping[str, Any], fresh: Document, source: str
) -> Document:
    """Merge a run into the mean and standard deviation, as if all runs had been kept (Welford).

    Figures that this run lacks stay as they were. Memory is the maximum, without a deviation.
    """
    now, gpus, count = fresh["resources"], fresh["runs"]["gpus"], runs.get("count", 1)
    resources, spread = {**before, **now}, dict(runs.get("spread", {}))
    for key in before.keys() & now.keys() - _NO_MEANS:
        mean = before[key] + (now[key] - before[key]) / (count + 1)
        squares = spread.get(key, 0.0) ** 2 * (count - 1) + (now[key] - before[key]) * (
            now[key] - mean
        )
        spread[key] = rounded(sqrt(max(0.0, squares) / count))
        resources[key] = _round_figure(key, mean)
    resources["memory_mib"] = max(before.get("memory_mib", 0), now.get("memory_mib", 0))
    if not resources["memory_mib"]:
        del resources["memory_mib"]
    resources["samples"] = before.get("samples", 0) + now["samples"]
    known_source = str(before.get("source", source))
    resources["source"] = known_source if source in known_source else f"{known_source}; {source}"
    kept = {key: value for key, value in runs.items() if key != "misfits"}
    learned = {"count": count + 1, "gpus": runs.get("gpus", gpus), "spread": spread}
    return {"resources": resources, "runs": {**kept, **learned}}
