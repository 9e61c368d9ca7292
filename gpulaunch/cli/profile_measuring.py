"""`gpulaunch profile -o FILE -- COMMAND`: measure a job, and write the result."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial

from gpulaunch.cli.launch import tell_of
from gpulaunch.cli.output import say
from gpulaunch.cli.profile_options import is_on, launch_words, sharing
from gpulaunch.cli.profile_reading import target_of
from gpulaunch.containers.engines import engine_of_program, runs_containers
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Given, Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.measure.foreground import Slice
from gpulaunch.measure.measured_launch import MeasuredJob, Outcome
from gpulaunch.measure.plain_runs import measure_use
from gpulaunch.measure.update_profile import check_own, keep
from gpulaunch.process.job import exit_like, exit_status

SLICE_S = 30.0
MOST_RUNS = 100


def measure_job(mode: str, given: Given, command: Sequence[str]) -> int:
    """Measure a job, and write the result."""
    if "json" in given:
        raise UsageError(
            "--json: stdout belongs to the job", "see 'gpulaunch profiles show FILE --json'"
        )
    wanted = target_of(given)
    part, warn, tell = _read_slice(given), tell_of(Options(given, os.environ)), _printer_of(given)
    shared = sharing(given)
    if shared and mode != "pair":
        raise UsageError(
            f"{given[shared[0]][0]}: a GPU's counters are those of all jobs on it",
            "--pair OTHER takes it",
        )
    if is_on(given, "wait") and mode != "use":
        raise UsageError(f"--wait: {given[mode][0]} measures on GPUs that are free now")
    check_own(wanted.path)
    job = MeasuredJob(
        tuple(launch_words(given)), tuple(command), part, Options(given, os.environ).grace_s
    )
    outcome = _measure_by_mode(mode, given, job)
    for line in outcome.lines:
        tell(line)
    for line in keep(wanted.path, wanted.name, outcome, job.command):
        warn(line)
    if outcome.sections:
        shown = shlex.quote(wanted.path)
        tell(f"written to {wanted.path}; to see it: gpulaunch profiles show {shown}")
    elif exit_status(outcome.status) == 0:
        warn(f"nothing could be measured, and nothing is written to {wanted.path}")
    return exit_like(outcome.status)


def _measure_by_mode(mode: str, given: Given, job: MeasuredJob) -> Outcome:
    warn, tell = tell_of(Options(given, os.environ)), _printer_of(given)
    if mode == "use":
        return measure_use(job, _read_runs(given, 1), tell)
    if mode == "sensitivity":
        from gpulaunch.measure.sensitivity import measure_sensitivity

        return measure_sensitivity(
            job, _read_exclusive_launch(given, job), _read_runs(given, 1), warn, tell
        )
    if mode == "sweep":
        from gpulaunch.measure.sweep import measure_sweep

        return measure_sweep(
            job, _read_exclusive_launch(given, job), _read_shares(given), warn, tell
        )
    from gpulaunch.measure.pair import RUNS, find_others, measure_pair

    others = find_others(given["pair"][1])
    shares = is_on(given, "share")
    return measure_pair(
        job,
        _read_exclusive_launch(given, job),
        others,
        _read_runs(given, RUNS),
        warn,
        tell,
        shares=shares,
    )


def _read_exclusive_launch(given: Given, job: MeasuredJob) -> Launch:
    """Read the job's launch on GPUs of its own, to know which it would get."""
    options = Options({**given, "share": ("--exclusive", "false")}, os.environ)
    name, warn = options.name, tell_of(options)
    if not runs_containers(os.path.basename(job.command[0])):
        return read_launch(options, job.command, name=name, warn=warn)
    from gpulaunch.containers.command import read_command
    from gpulaunch.launch.read_container import read_container_launch

    engine = engine_of_program(job.command[0])
    command = read_command(job.command, engine.grammar)
    found = read_container_launch(options, engine, command, name=name, warn=warn)
    if not isinstance(found, Launch):
        raise UsageError(
            f"'{printable(' '.join(job.command[:3]))}' takes no GPUs here, so there is nothing to "
            "measure"
        )
    return found


def _read_shares(given: Given) -> list[int]:
    """Return the shares of --sweep, ascending, without duplicates."""
    text = given["sweep"][1]
    words = [word.strip().removesuffix("%") for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= 100 for word in words):
        raise UsageError(
            f"--sweep: {quoted(text)} is no list of shares such as 10,25,50,100, from 1 to 100 %"
        )
    shares = sorted(set(map(int, words)))
    if len(shares) < 2:
        raise UsageError(f"--sweep: {quoted(text)} is 1 share: at least 2 make a curve")
    return shares


def _printer_of(given: Given) -> Callable[[str], None]:
    """Return the function that prints progress and results of measuring."""
    return tell_of(Options(given, os.environ)) if "quiet" in given else partial(say, "info")


def _read_runs(given: Given, usual: int) -> int:
    if "runs" not in given:
        return usual
    text = given["runs"][1]
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MOST_RUNS:
        raise UsageError(f"--runs: {quoted(text)} is no number from 1 to {MOST_RUNS}")
    return int(text)


def _read_slice(given: Given) -> Slice | None:
    if "iterations_from" not in given:
        if "slice" in given:
            raise UsageError(
                "--slice: only a job that tells of its progress can be cut",
                "add --iterations-from REGEX",
            )
        return None
    text = given["iterations_from"][1]
    try:
        progress = re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as problem:
        raise UsageError(
            f"--iterations-from: {quoted(text)} is no regular expression: {problem}"
        ) from None
    if progress.groups != 1:
        raise UsageError(
            f"--iterations-from: {quoted(text)} has {progress.groups} groups: one is needed, the "
            "number"
        )
    return Slice(progress, _read_duration(*given["slice"]) if "slice" in given else SLICE_S)


def _read_duration(flag: str, text: str) -> float:
    from gpulaunch.files.duration import parse_duration

    try:
        return parse_duration(text)
    except UsageError as problem:
        raise UsageError(f"{flag}: {problem.message}") from None
