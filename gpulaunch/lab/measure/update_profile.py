"""What a profile knows of measurements: its [resources] and [runs], and their update by more runs.

Sections that were not measured stay as they are in the file.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import sqrt
from statistics import quantiles
from typing import Any

from gpulaunch.errors import printable
from gpulaunch.files.document import make_own
from gpulaunch.lab.measure.run import (
    SHARED,
    Run,
    RunBeside,
    communication_of,
    figures_of,
    is_reservation,
    rounded,
)
from gpulaunch.machine.gpu import gpus_text
from gpulaunch.profiles.profile import VERSION
from gpulaunch.profiles.profile_file import (
    alone,
    check_profile_path,
    is_text,
    learned_from,
    own_profiles,
    read_profile_file,
    write_sections,
)
from gpulaunch.records import Record

RECORDED = "gpulaunch --record"
RESERVATION = (
    "its memory looks like what a framework sets aside, not what the job needs: to know that, "
    "measure again with "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false (JAX) or TF_FORCE_GPU_ALLOW_GROWTH=true (TensorFlow)"
)

_FASTEST = 1.2
"""Speed beside others, alone being 1, beyond which the job did something else. Ours."""

BROKEN_PROMISE = 0.1
"""Slowdown beyond the predicted one of which users are told, as part of the time alone. Ours."""

_MERGED = ("communication", "collocation", "shared_gpu")
"""Sections into which a measurement is merged; it replaces all others as a whole."""

_GRAPH_KEYS = ("pattern", "edges", "confidence")
"""Keys that belong to one measurement: they are replaced together."""

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

_NO_MEANS = {
    *("memory_mib", "memory_is_reservation", "utilization", "incomplete"),
    *("measured_on", "source"),
}
_COMPARED = {
    "sm_utilization_percentage": "average SM utilization",
    "memory_bandwidth_utilization_percentage": "average memory-bandwidth utilization",
}

Document = dict[str, Any]
"""A profile's document, or sections of it by name."""


def percentile_95(values: Sequence[float]) -> float:
    """Return the 95th percentile of the values, interpolated between the two nearest.

    Source: topo-aware-sc17 4.2 and 5.1: profiles are the 95th percentile of five executions. It
        does not say how it interpolates.

    Example:
        >>> percentile_95([1.0, 2.0, 3.0, 4.0, 5.0])
        4.8
    """
    if len(values) == 1:
        return values[0]
    return round(quantiles(values, n=20, method="inclusive")[-1], 9)


def resources_of(runs: Sequence[Run], source: str) -> Document:
    """Return the document's [resources] and [runs].

    Args:
        runs: one or more runs of one job, in their order.
    """
    sections = _sections_of(runs[0], source)
    for run in runs[1:]:
        sections = _merge_run(sections, _sections_of(run, source), source)
    return sections


def _sections_of(run: Run, source: str) -> Document:
    """Return the [resources] and [runs] of a profile that only this run is known for."""
    resources: Document = {key: _round_figure(key, value) for key, value in figures_of(run).items()}
    if "sm_utilization_percentage" in resources:
        resources["utilization"] = "share" if run.has_gpm else "time-active"
    if is_reservation(run):
        resources["memory_is_reservation"] = True
    if not run.is_complete:
        resources["incomplete"] = True
    if run.gpus:
        resources["measured_on"] = run.models
    resources["source"] = source
    return {"resources": resources, "runs": {"count": 1, "gpus": max(1, len(run.gpus))}}


def _round_figure(key: str, value: float) -> float:
    """Round a figure for a profile, memory to whole MiB."""
    return int(value) if key == "memory_mib" else rounded(value)


def updated(known: Mapping[str, Any], run: Run, source: str) -> tuple[Document, list[str]]:
    """Return the [resources] and [runs] of a profile after one more run.

    A run that does not fit is only counted; the third in a row replaces what was known, for then
    the job has changed. A complete run always replaces an incomplete one.

    Returns:
        The sections, and a line for each figure of the run that does not fit those known before.
    """
    fresh = _sections_of(run, source)
    before, runs = known.get("resources", {}), known.get("runs", {})
    # What was tried beside others stands for speeds against a duration that no longer counts.
    anew = {**fresh, **({"search": None} if "search" in known else {})}
    if not before or before.get("incomplete"):
        return anew, []
    misfits = list(_misfits(before, runs, fresh))
    if not misfits:
        return _merge_run(known, fresh, source), []
    in_a_row = runs.get("misfits", 0) + 1
    if in_a_row >= ENOUGH_RUNS:
        return anew, [f"is replaced by this run: {what}" for what in misfits]
    kept = {"resources": dict(before), "runs": {"count": 1, **runs, "misfits": in_a_row}}
    return kept, [f"does not fit this run: {what}" for what in misfits]


def _misfits(before: Mapping[str, Any], runs: Mapping[str, Any], fresh: Document) -> Iterator[str]:
    now = fresh["resources"]
    spreads = runs.get("spread", {}) if runs.get("count", 1) >= ENOUGH_RUNS else {}
    for key, what in _COMPARED.items():
        within = max(WITHIN_POINTS, WITHIN_SPREADS * spreads.get(key, 0.0))
        if key in before and key in now and abs(now[key] - before[key]) > within:
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


def _merge_run(known: Mapping[str, Any], fresh: Document, source: str) -> Document:
    """Merge a run into the mean and standard deviation, as if all runs had been kept (Welford).

    Figures that this run lacks stay as they were. Memory is the maximum, without a deviation.
    """
    before, runs = known["resources"], known.get("runs", {})
    now, gpus, count = fresh["resources"], fresh["runs"]["gpus"], runs.get("count", 1)
    resources, spread = {**before, **now}, dict(runs.get("spread", {}))
    for key in now:
        if key not in before or key in _NO_MEANS:
            continue
        change = now[key] - before[key]
        mean = before[key] + change / (count + 1)
        squares = spread.get(key, 0.0) ** 2 * (count - 1) + change * (now[key] - mean)
        spread[key] = rounded(sqrt(max(0.0, squares) / count))
        resources[key] = _round_figure(key, mean)
    if "memory_mib" in resources:
        resources["memory_mib"] = max(before.get("memory_mib", 0), now.get("memory_mib", 0))
    known_source = str(before.get("source", source))
    resources["source"] = known_source if source in known_source else f"{known_source}; {source}"
    kept = {key: value for key, value in runs.items() if key != "misfits"}
    learned = {"count": count + 1, "gpus": runs.get("gpus", gpus), "spread": spread}
    return {"resources": resources, "runs": {**kept, **learned}}


class Outcome(Record):
    """The result of a measurement.

    Attributes:
        sections: sections for the profile; empty if nothing was found.
        status: wait status of the last launch.
    """

    sections: Document
    status: int
    lines: tuple[str, ...] = ()


def keep(
    path: str, name: str, found: Document, command: Sequence[str] = (), *, guessed: bool = False
) -> list[str]:
    """Write measured sections into a profile, and return lines for the user.

    Figures of an incomplete run do not replace those of a complete one.

    Args:
        name: name of the profile, if it is new.
        command: argv that was measured; () if nothing ran.
        guessed: whether they were read from files, so that they must not replace measured figures.

    Raises:
        UsageError: the file exists and is no profile.
        FailedError: it cannot be written.
    """
    if not found:
        return []
    with alone():
        known = read_profile_file(path)
        resources = found.get("resources", {})
        if (
            resources.get("incomplete")
            and "resources" in known
            and not known["resources"].get("incomplete")
        ):
            return [f"{path}: the run was not complete, so what is known of it from before stays"]
        differs = command and known.get("command", list(command)) != list(command)
        other = known.get("command") if differs else None
        sections: Document = {} if known else {"version": VERSION, "name": name}
        if command and all(map(is_text, command)):
            sections["command"] = list(command)
        fresh = _drop_measured(found, known) if guessed else found
        if resources and "search" in known:  # its speeds are against a duration of before
            sections["search"] = None
        sections |= {key: _merge_section(key, known, value) for key, value in fresh.items()}
        write_sections(path, sections)
    lines = []
    if resources.get("incomplete"):
        lines.append(f"{path}: the run was not complete, and is marked so")
    if other:
        lines.append(
            f"{path}: its other figures are of another command: {' '.join(map(printable, other))}"
        )
    if resources.get("memory_is_reservation"):
        lines.append(f"{path}: {RESERVATION}")
    if fresh != found:
        lines.append(f"{path}: what was measured of its communication stays")
    return lines


def _drop_measured(sections: Document, known: Mapping[str, Any]) -> Document:
    """Return sections that were read from files, without what counters and runs know better."""
    communication = dict(sections.get("communication", {}))
    if known.get("communication", {}).get("edges"):
        communication = {
            key: value for key, value in communication.items() if key not in _GRAPH_KEYS
        }
    if known.get("sensitivity"):
        communication.pop("bandwidth_sensitive", None)
    if not communication:
        return sections
    kept = {**sections, "communication": communication}
    return {key: value for key, value in kept.items() if value.keys() - {"source"}}


def _merge_section(section: str, known: Mapping[str, Any], fresh: Any) -> Any:  # noqa: ANN401
    before = known.get(section)
    if section not in _MERGED or not isinstance(before, Mapping):
        return fresh
    stale = _GRAPH_KEYS if fresh.keys() & {"pattern", "edges"} else ()
    merged = {key: value for key, value in before.items() if key not in stale} | fresh
    for key, value in fresh.items():
        if isinstance(value, Mapping) and isinstance(before.get(key), Mapping):
            merged[key] = {**before[key], **value}
    sources = (before.get("source"), fresh.get("source"))
    if (
        before.keys() - fresh.keys() - {"confidence"}
        and all(sources)
        and sources[1] not in str(sources[0])
    ):
        merged["source"] = "; ".join(map(str, sources))
    return merged


def check_own(path: str) -> None:
    """Check, before a job starts, that its profile can be updated.

    The folder of the user's own profiles is made if it is missing.

    Raises:
        UsageError: the file exists and is no profile.
        FailedError: it cannot be written.
    """
    if os.path.dirname(path) == own_profiles():
        with suppress(OSError):
            make_own(own_profiles())
    check_profile_path(path)


def learn(path: str, run: Run) -> list[str]:
    """Add a run to what a profile knows, and return lines for the user.

    A run that failed is not used. Of one that shared its GPUs with the same jobs for most of its
    time, the speed beside these is learned, if the profile has the duration alone.

    Args:
        path: path of the profile's file, which need not exist yet.

    Raises:
        UsageError: the file exists and is no profile.
        FailedError: it cannot be written.
    """
    name = os.path.basename(path).removesuffix(".toml")
    if run.beside is not None and run.exit_status == 0 and run.problems == (SHARED,):
        return _learn_beside(path, name, run, run.beside)
    if not run.is_complete:
        return [f"profile {name} learns nothing from this run: {why}" for why in run.problems[:1]]
    with alone():
        known, begins = learned_from(path, name)
        measured, misfits = updated(known, run, RECORDED)
        sections = {**begins, **measured}
        communication, _ = communication_of(run, RECORDED)
        if communication and not {"communication", "base"} & {*known, *begins}:
            sections["communication"] = communication
        write_sections(path, sections)
    return [f"profile {name} {misfit}" for misfit in misfits]


def _learn_beside(path: str, name: str, run: Run, beside: RunBeside) -> list[str]:
    """Add how fast a job was beside others on the same GPUs, at their caps."""
    others = " and ".join(map(printable, beside.names))
    with alone():
        known, begins = learned_from(path, name)
        resources = known.get("resources", {})
        alone_s = None if resources.get("incomplete") else resources.get("duration_s")
        why = None if alone_s else "it has no duration_s"
        if resources.get("measured_on", run.models) != run.models:
            why = f"its duration_s is of {printable(resources['measured_on'])}"
        if why or not alone_s:
            return [f"profile {name} learns nothing beside {others}: {why}"]
        speed = beside.speed(run.duration_s, alone_s)
        if speed > _FASTEST:
            why = f"it ran {speed:.3g} times as fast as its duration_s says it does alone"
            return [f"profile {name} learns nothing beside {others}: {why}"]
        slowdown = min(max(0.0, 1 / speed - 1), 100.0)
        sections = {**begins, "search": _add_step(known.get("search", {}), run, beside, speed)}
        if len(beside.names) == 1:
            fresh = {
                "slowdown_percentage": {beside.names[0]: rounded(100 * slowdown)},
                "source": RECORDED,
            }
            sections["shared_gpu"] = _merge_section("shared_gpu", known, fresh)
        write_sections(path, sections)
    predicted = 1 / beside.speed_beside - 1 if beside.speed_beside else 0.0
    if slowdown - predicted <= BROKEN_PROMISE:
        return []
    took = f"beside {others} it took {1 + slowdown:.3g} times as long as alone"
    wanted = f"{1 + predicted:.3g} was predicted; from now on the measured slowdown counts"
    return [f"profile {name}: {took}, {wanted}"]


def _add_step(known: Mapping[str, Any], run: Run, beside: RunBeside, speed: float) -> Document:
    """Return the search for the best caps with one more launch; of a new set, a new search."""
    steps: dict[tuple[int, ...], float] = {}
    if (known.get("beside"), known.get("measured_on")) == (list(beside.names), run.models):
        steps = dict(zip(map(tuple, known["caps"]), known["speed"], strict=False))
    steps[beside.caps] = rounded(speed)  # the last measurement counts
    return {
        "beside": list(beside.names),
        "caps": list(map(list, steps)),
        "speed": list(steps.values()),
        "measured_on": run.models,
        "source": RECORDED,
    }
