"""Updates of a profile with measured sections; its other sections stay as they are."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpulaunch.errors import printable
from gpulaunch.files.data_files import make_own
from gpulaunch.measure.measured_launch import Outcome, Sections
from gpulaunch.measure.measured_pattern import communication_of
from gpulaunch.measure.measured_run import Run
from gpulaunch.measure.measured_runs import rounded, updated
from gpulaunch.measure.recording import SHARED
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
from gpulaunch.typing import Any

RECORDED = "gpulaunch --record"
RESERVATION = (
    "its memory looks like what a framework sets aside, not what the job needs: to know that, "
    "measure again with "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false (JAX) or TF_FORCE_GPU_ALLOW_GROWTH=true (TensorFlow)"
)

BROKEN_PROMISE = 0.1
"""Slowdown beyond the predicted one of which users are told, as part of the time alone. Ours."""

_MERGED = ("communication", "collocation", "shared_gpu", "counters")
"""Sections into which a measurement is merged; it replaces all others as a whole."""

_GRAPH_KEYS = ("pattern", "edges", "confidence")
"""Keys that belong to one measurement: they are replaced together."""


def keep(path: str, name: str, outcome: Outcome, command: Sequence[str]) -> list[str]:
    """Write measured sections into a profile, and return lines for the user.

    Figures of an incomplete run do not replace those of a complete one.

    Args:
        path: path of the profile's file.
        name: name of the profile, if it is new.
        outcome: result of the measurement.
        command: argv that was measured; () if nothing ran.

    Raises:
        UsageError: the file exists and is no profile.
        FailedError: it cannot be written.
    """
    if not outcome.sections:
        return []
    with alone():
        known = read_profile_file(path)
        resources = outcome.sections.get("resources", {})
        if (
            resources.get("incomplete")
            and "resources" in known
            and not known["resources"].get("incomplete")
        ):
            return [f"{path}: the run was not complete, so what is known of it from before stays"]
        differs = command and known.get("command", list(command)) != list(command)
        other = known.get("command") if differs else None
        sections: Sections = {} if known else {"version": VERSION, "name": name}
        if command and all(map(is_text, command)):
            sections["command"] = list(command)
        fresh = _drop_measured(outcome.sections, known) if outcome.guessed else outcome.sections
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
    if fresh != outcome.sections:
        lines.append(f"{path}: what was measured of its communication stays")
    return lines


def _drop_measured(sections: Sections, known: Mapping[str, Any]) -> Sections:
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
    if section not in _MERGED or not isinstance(before, Mapping) or before.get("predicted_from"):
        return fresh
    stale = ("incomplete", *(_GRAPH_KEYS if fresh.keys() & {"pattern", "edges"} else ()))
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

    A run that failed is not used. Of one that shared its GPUs with the same job from start to end,
    the slowdown beside that job is learned, if the profile has the duration alone.

    Args:
        path: path of the profile's file, which need not exist yet.
        run: the run to add.

    Raises:
        UsageError: the file exists and is no profile.
        FailedError: it cannot be written.
    """
    name = os.path.basename(path).removesuffix(".toml")
    if run.beside is not None and run.exit_status == 0 and run.problems == (SHARED,):
        return _learn_beside(path, name, run, run.beside)
    if not run.is_complete:
        why = next(iter(run.problems), None) or next(
            (gpu.problem for gpu in run.gpus if gpu.problem), None
        )
        return [f"profile {name} learns nothing from this run: {why}"] if why else []
    with alone():
        known, begins = learned_from(path, name)
        change = updated(known, run, RECORDED)
        sections = {**begins, **change.sections}
        found = communication_of(run, RECORDED)
        if found.section and not {"communication", "base"} & {*known, *begins}:
            sections["communication"] = found.section
        write_sections(path, sections)
    verdict = "is replaced by this run" if change.replaced else "does not fit this run"
    return [f"profile {name} {verdict}: {what}" for what in change.misfits]


def _learn_beside(path: str, name: str, run: Run, beside: str) -> list[str]:
    """Add how much longer a job took beside another one on the same GPUs."""
    with alone():
        known, begins = learned_from(path, name)
        resources = known.get("resources", {})
        alone_s = None if resources.get("incomplete") else resources.get("duration_s")
        models = ", ".join(sorted({gpu.model for gpu in run.gpus}))
        why = None if alone_s else "it has no duration_s"
        if resources.get("measured_on", models) != models:
            why = f"its duration_s is of {printable(resources['measured_on'])}"
        if why or not alone_s:
            return [f"profile {name} learns nothing beside {printable(beside)}: {why}"]
        slowdown = max(0.0, run.duration_s / alone_s - 1)
        fresh = {"slowdown_percentage": {beside: rounded(100 * slowdown)}, "source": RECORDED}
        section = _merge_section("shared_gpu", known, fresh)
        write_sections(path, {**begins, "shared_gpu": section})
    promised = run.promised_slowdown or 0.0
    if slowdown - promised <= BROKEN_PROMISE:
        return []
    took = f"beside {printable(beside)} it took {1 + slowdown:.3g} times as long as alone"
    predicted = f"{1 + promised:.3g} was predicted; from now on the measured slowdown counts"
    return [f"profile {name}: {took}, {predicted}"]
