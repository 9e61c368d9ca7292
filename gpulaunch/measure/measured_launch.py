"""Launches of a job that is to be measured: each an ordinary one that is recorded, in a process of its own."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from tempfile import TemporaryDirectory

from gpulaunch.errors import UsageError
from gpulaunch.measure.foreground import Over, Slice, rate_of, run_launch
from gpulaunch.measure.measured_run import Run, run_of
from gpulaunch.measure.recording import STOPPED
from gpulaunch.process.job import exit_status
from gpulaunch.records import Record, replace
from gpulaunch.typing import Any

SOURCE = "gpulaunch profile"

NOT_RUN = (126, 127)
"""Exit statuses of a command that could not be executed."""

Sections = dict[str, Any]
"""Of a profile's document, by name."""


class Job(Record):
    """A job that is to be measured.

    Attributes:
        options: of its launches, as on a command line.
        command: argv.
        part: how much of it is enough; None for all of it.
        grace_s: between TERM and KILL.
    """

    options: tuple[str, ...]
    command: tuple[str, ...]
    part: Slice | None
    grace_s: float


class Launched(Record):
    """One launch of it.

    Attributes:
        over: how it ended.
        run: what was recorded; None if it never ran, or was killed with its launcher.
    """

    over: Over
    run: Run | None

    @property
    def went_well(self) -> bool:
        """Whether it did what it was to do, and nobody wanted it to end."""
        ended = self.over.cut or (self.run is not None and exit_status(self.over.status) == 0)
        return ended and not self.over.interrupted and not self.was_stopped

    @property
    def was_stopped(self) -> bool:
        """Whether it did nothing for a while, so that its time tells nothing."""
        return self.run is not None and any(
            problem.startswith(STOPPED) for problem in self.run.problems
        )

    @property
    def rate(self) -> float | None:
        """Progress in a second, or runs in a second if nobody asked for progress; None if that cannot be told."""
        if self.over.marks or self.over.cut:
            return rate_of(self.over.marks)
        return 1 / self.run.duration_s if self.run and self.run.duration_s else None


class Outcome(Record):
    """What came of the measuring.

    Attributes:
        sections: of the profile; empty if there is nothing to tell.
        status: wait status of the last launch.
        lines: for the user.
        guessed: it was read in files, and takes nothing away that was measured.
    """

    sections: Sections
    status: int
    lines: tuple[str, ...] = ()
    guessed: bool = False


def launch(
    job: Job, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Launched:
    """Launch the job once.

    Args:
        job: which.
        options: more of them, which go before its own where they set the same.
        environment: variables to add.
    """
    with TemporaryDirectory(prefix="gpulaunch-profile-") as directory:
        path = os.path.join(directory, "run.json")
        arguments = (*job.options, *options, "--no-record", "--record-to", path, "--", *job.command)
        over = run_launch(arguments, environment or {}, job.grace_s, job.part)
        run = _read(path)
        if run and over.cut:  # it was we who ended it
            run = replace(run, exit_status=0)
        return Launched(over, run if run and run.exit_status not in NOT_RUN else None)


def repeated(
    job: Job,
    count: int,
    tell: Callable[[str], None],
    what: str = "",
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Launched]:
    """Launch the job so many times; one that does not go well is the last.

    Args:
        job: which.
        count: how many times, at least 1.
        tell: where to say how far it has come.
        what: what to call these launches; nothing is said of a single one without a name.
        options: of these launches, see launch.
        environment: variables to add.
    """
    done: list[Launched] = []
    while len(done) < count and (not done or done[-1].went_well):
        number = f"run {len(done) + 1} of {count}" if count > 1 else ""
        if what or number:
            tell(": ".join(filter(None, (what, number))))
        done.append(launch(job, options, environment))
    if not done[-1].went_well and not done[-1].over.interrupted and count > len(done):
        why = (
            "was stopped"
            if done[-1].was_stopped
            else f"ended with status {exit_status(done[-1].over.status)}"
        )
        tell(f"it {why}, so there are no more runs")
    return done


def timed(done: Launched) -> float:
    """Seconds for an iteration, or for a run if nobody asked for progress.

    Raises:
        UsageError: it told nothing of its progress.
    """
    if done.rate is None:
        found = f"{len(done.over.marks)} lines with progress"
        raise UsageError(
            f"--iterations-from: {found} in what the job printed: at least 2 are needed, that go on"
        )
    return 1 / done.rate


def _read(path: str) -> Run | None:
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return run_of(json.load(file))
