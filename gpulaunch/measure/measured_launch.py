"""Launches of a job under measurement: ordinary, recorded, each in a process of its own."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from tempfile import TemporaryDirectory

from gpulaunch.errors import UsageError
from gpulaunch.measure.foreground import EndedLaunch, Slice, rate_of, run_launch
from gpulaunch.measure.measured_run import Run, run_of
from gpulaunch.measure.recording import STOPPED
from gpulaunch.process.job import exit_status
from gpulaunch.records import Record, replace
from gpulaunch.typing import Any

SOURCE = "gpulaunch profile"

NOT_RUN = (126, 127)
"""Exit statuses of a command that could not be executed."""

Sections = dict[str, Any]
"""Sections of a profile's document, by name."""


class MeasuredJob(Record):
    """A job that is to be measured.

    Attributes:
        options: options of its launches, as on a command line.
        command: argv.
        part: how much of the job is enough; None for all of it.
        grace_s: seconds between TERM and KILL.
    """

    options: tuple[str, ...]
    command: tuple[str, ...]
    part: Slice | None
    grace_s: float


class Launched(Record):
    """One launch of the job.

    Attributes:
        over: how it ended.
        run: the recording; None if the job never ran, or was killed with its launcher.
    """

    over: EndedLaunch
    run: Run | None

    @property
    def went_well(self) -> bool:
        """Whether the job succeeded, uninterrupted and never stopped."""
        ended = self.over.cut or (self.run is not None and exit_status(self.over.status) == 0)
        return ended and not self.over.interrupted and not self.was_stopped

    @property
    def was_stopped(self) -> bool:
        """Whether the job was stopped (SIGSTOP) for a while, so that its duration is no measure."""
        return self.run is not None and any(
            problem.startswith(STOPPED) for problem in self.run.problems
        )

    @property
    def rate(self) -> float | None:
        """Progress per second, or runs per second without progress; None if unknown."""
        if self.over.marks or self.over.cut:
            return rate_of(self.over.marks)
        return 1 / self.run.duration_s if self.run and self.run.duration_s else None


class Outcome(Record):
    """The result of a measurement.

    Attributes:
        sections: sections for the profile; empty if nothing was found.
        status: wait status of the last launch.
        lines: lines to print for the user.
        guessed: whether it was read from files, so that it must not replace measured figures.
    """

    sections: Sections
    status: int
    lines: tuple[str, ...] = ()
    guessed: bool = False


def launch(
    job: MeasuredJob, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Launched:
    """Launch the job once and return how it ended and what was recorded.

    Args:
        job: the job to launch.
        options: further options, which override the job's own.
        environment: variables to add.
    """
    with TemporaryDirectory(prefix="gpulaunch-profile-") as directory:
        path = os.path.join(directory, "run.json")
        recorded = ("-o", "record=false", "-o", f"record_to={path}")
        arguments = (*job.options, *options, *recorded, "--", *job.command)
        over = run_launch(arguments, environment or {}, job.grace_s, job.part)
        run = _read_run(path)
        if run and over.cut:  # we ended it: the status of the signal is no failure
            run = replace(run, exit_status=0)
        return Launched(over, run if run and run.exit_status not in NOT_RUN else None)


def repeated(
    job: MeasuredJob,
    count: int,
    tell: Callable[[str], None],
    what: str = "",
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Launched]:
    """Launch the job `count` times, and stop after a launch that fails.

    Args:
        job: the job to launch.
        count: number of launches, at least 1.
        tell: called with each line of progress.
        what: name of these launches in the progress; a single launch without one is not reported.
        options: further options of these launches, see launch.
        environment: variables to add.
    """
    done: list[Launched] = []
    while len(done) < count and (not done or done[-1].went_well):
        number = f"run {len(done) + 1} of {count}" if count > 1 else ""
        if what or number:
            tell(": ".join(filter(None, (what, number))))
        done.append(launch(job, options, environment))
    if not done[-1].went_well and not done[-1].over.interrupted and count > len(done):
        why = f"ended with status {exit_status(done[-1].over.status)}"
        if done[-1].was_stopped:
            why = "was stopped"
        tell(f"it {why}, so there are no more runs")
    return done


def timed(done: Launched) -> float:
    """Return the seconds of an iteration, or of a run where progress was not asked for.

    Raises:
        UsageError: the job printed too little progress.
    """
    if done.rate is None:
        found = f"{len(done.over.marks)} lines with progress"
        raise UsageError(
            f"--iterations-from: {found} in what the job printed: at least 2 are needed, that go on"
        )
    return 1 / done.rate


def _read_run(path: str) -> Run | None:
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return run_of(json.load(file))
