"""Several measured runs of a job -> the [resources] and [runs] of its profile, and what one more run changes there."""
# pure: decides on plain values

from collections.abc import Iterator, Mapping, Sequence
from math import fsum, sqrt
from statistics import quantiles, stdev

from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.measure.measured_run import SHARE, TIME_ACTIVE, Run, figures_of, is_reservation
from gpulaunch.records import Record
from gpulaunch.typing import Any

WITHIN_POINTS = 10.0
"""How far a run's average utilization may be from that of the runs before, in points, and still
fit. Ours.
"""

WITHIN_MEMORY = 0.10
"""The same for memory, as part of it: who shares was promised no more. Ours."""

WITHIN_SPREADS = 3.0
"""Runs that differ among themselves may differ so many standard deviations from their mean."""

ENOUGH_RUNS = 3
"""So many have a standard deviation that says something; and so many misfits in a row are the
job's new ways.
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
    """Under which 95 % of the values are, on the line between the two nearest.

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
    """The document's [resources] and [runs].

    Args:
        runs: one or more of the same job, in their order.
        source: what to say where the figures come from.
    """
    last = runs[-1]
    found = [figures_of(run) for run in runs]
    keys = [key for key in found[0] if all(key in figures for figures in found)]
    combined = {key: _combined(key, [figures[key] for figures in found]) for key in keys}
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
    return {"resources": resources, "runs": _runs(found, keys, max(1, len(last.gpus)))}


def _combined(key: str, values: Sequence[float]) -> float:
    """The most of the memory, since who shares must not be short of it; of all else the average."""
    return _shown(key, max(values) if key == "memory_mib" else fsum(values) / len(values))


def rounded(value: float) -> float:
    """A figure as a profile shows it: five digits."""
    return float(f"{value:.{_DIGITS}g}")


def _shown(key: str, value: float) -> float:
    """The same; of memory whole MiB."""
    return int(value) if key in _WHOLE else rounded(value)


def _runs(found: Sequence[Mapping[str, float]], keys: Sequence[str], gpus: int) -> Document:
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
        sections: what [resources] and [runs] are now.
        misfits: what of the run does not fit what was known, a line each.
        replaced: what was known is gone: the job has changed.
    """

    sections: Document
    misfits: tuple[str, ...] = ()
    replaced: bool = False


def updated(known: Mapping[str, Any], run: Run, source: str) -> Updated:
    """Add one run to what a profile knows.

    A run that does not fit is not mixed in, but counted; the third in a row replaces what was
    known, for then the job has changed. So does a run that is complete replace one that was not.

    Args:
        known: the profile's document.
        run: complete.
        source: what to say where new figures come from.
    """
    fresh = resources_of([run], source)
    before, runs = known.get("resources", {}), known.get("runs", {})
    if not before or before.get("incomplete"):
        return Updated(fresh)
    misfits = tuple(_misfits(before, runs, fresh))
    if not misfits:
        return Updated(_mixed(before, runs, fresh, source))
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


def _mixed(
    before: Mapping[str, Any], runs: Mapping[str, Any], fresh: Document, source: str
) -> Document:
    """What is known after one more run: mean and standard deviation as if all had been kept (Welford).

    What this run does not tell stays as it was; of the memory the most counts, which has no
    deviation.
    """
    now, gpus, count = fresh["resources"], fresh["runs"]["gpus"], runs.get("count", 1)
    resources, spread = {**before, **now}, dict(runs.get("spread", {}))
    for key in before.keys() & now.keys() - _NO_MEANS:
        mean = before[key] + (now[key] - before[key]) / (count + 1)
        squares = spread.get(key, 0.0) ** 2 * (count - 1) + (now[key] - before[key]) * (
            now[key] - mean
        )
        spread[key] = rounded(sqrt(max(0.0, squares) / count))
        resources[key] = _shown(key, mean)
    resources["memory_mib"] = max(before.get("memory_mib", 0), now.get("memory_mib", 0))
    if not resources["memory_mib"]:
        del resources["memory_mib"]
    resources["samples"] = before.get("samples", 0) + now["samples"]
    known_source = str(before.get("source", source))
    resources["source"] = known_source if source in known_source else f"{known_source}; {source}"
    kept = {key: value for key, value in runs.items() if key != "misfits"}
    learned = {"count": count + 1, "gpus": runs.get("gpus", gpus), "spread": spread}
    return {"resources": resources, "runs": {**kept, **learned}}
