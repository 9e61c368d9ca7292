"""Launches of a job under measurement: ordinary, recorded, each in a process of its own.

One runs in the foreground, where signals, stops and the terminal reach it. Another may run beside
it in the background until it is told to end.
"""

import errno
import json
import math
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from tempfile import TemporaryDirectory

from gpulaunch.errors import FailedError, TimedOutError, UsageError
from gpulaunch.lab.measure.run import STOPPED, Run, run_of
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.process.ending import family, marked_by
from gpulaunch.process.job import Job, exit_status
from gpulaunch.process.libc import ALL_SIGNALS, change_mask, end_with_parent, out_of_the_way
from gpulaunch.process.system import clean_environment, is_cancelled_by_kill, own_command
from gpulaunch.records import Record, replace
from gpulaunch.sharing.mps_daemon import take_off

LOOK_S = 0.2
"""Period of the check for a job's first line of progress."""

PATIENCE_S = 1.0
"""Time to read on after the job's end: what it left running may hold its output open for ever."""

SETTLE_S = 10.0
"""Time for a launcher whose job was killed to write its record and free the GPUs."""

BESIDE_S = 120.0
"""Time for a job that is to run beside another one to be at work."""

NOT_RUN = (126, 127)
"""Exit statuses of a command that could not be executed."""

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20


class MeasuredJob(Record):
    """A job that is to be measured.

    Attributes:
        progress: pattern of a line of progress; its one group is the number of iterations, or any
            other amount, that the job has done so far. None if all of the job is to run.
        slice_s: with `progress`, seconds to run on after the first such line.
        grace_s: seconds between TERM and KILL.
        runs: number of runs, 1 or more; of a comparison, for each of what is compared.
    """

    options: tuple[str, ...]
    command: tuple[str, ...]
    progress: re.Pattern[bytes] | None
    slice_s: float
    grace_s: float
    runs: int
    warn: Callable[[str], None]
    tell: Callable[[str], None]


Mark = tuple[float, float]
"""One report of a job's progress: when it was read, by the monotonic clock, and the amount that the
job said it had done so far.
"""


class Launched(Record):
    """One launch of a job, which has ended.

    Attributes:
        status: its wait status; 0 if it was cut.
        run: the recording; None if the job never ran, or was killed with its launcher.
        marks: its progress, in order; empty if progress was not asked for.
        cut: whether we ended it because it had run for long enough.
        interrupted: whether a signal asked it, or this process, to end.
    """

    status: int
    run: Run | None
    marks: tuple[Mark, ...]
    cut: bool
    interrupted: bool

    @property
    def went_well(self) -> bool:
        """Whether the job succeeded, uninterrupted and never stopped."""
        ended = self.cut or (self.run is not None and exit_status(self.status) == 0)
        return ended and not self.interrupted and not self.was_stopped

    @property
    def was_stopped(self) -> bool:
        """Whether the job was stopped (SIGSTOP) for a while, so that its duration is no measure."""
        return self.run is not None and any(
            problem.startswith(STOPPED) for problem in self.run.problems
        )

    def timed(self) -> float:
        """Return the seconds of an iteration, or of a run where progress was not asked for.

        Raises:
            UsageError: the job printed too little progress.
        """
        if not self.marks and not self.cut and self.run and self.run.duration_s:
            return self.run.duration_s
        done = progress_of(self.marks)
        lasting_s = self.marks[-1][0] - self.marks[0][0] if self.marks else 0.0
        if done <= 0 or lasting_s <= 0:
            raise UsageError(
                f"--iterations-from: {len(self.marks)} lines with progress in what the job "
                "printed: at least 2 are needed, that go on"
            )
        return lasting_s / done

    def at_work(self) -> tuple[float, float]:
        """Return when the job worked, by the monotonic clock: between its marks, else until now."""
        if self.marks:
            return self.marks[0][0], self.marks[-1][0]
        now_s = time.monotonic()
        return now_s - (self.run.duration_s if self.run else 0.0), now_s


def launch(job: MeasuredJob, options: Sequence[str] = ()) -> Launched:
    """Launch the job once, and return how it ended and what was recorded.

    If a slice of it is enough, its output passes through this process.
    """
    spared = family()
    with TemporaryDirectory(prefix="gpulaunch-profile-") as directory:
        path = os.path.join(directory, "run.json")
        own = ["-o", "record=false", "-o", f"record_to={path}"]
        listeners = []
        if job.progress is not None:
            own += ["-o", "leftovers=end"]  # what the job leaves must not be in the next run
            for fd in (1, 2):
                with suppress(OSError):  # it is closed
                    listeners.append(_OutputCopier(fd, job.progress))
        try:
            process = Job(keep=None, tied=is_cancelled_by_kill())
        finally:
            for listener in listeners:
                listener.restore()
        command = (*own_command(), *job.options, *options, *own, "--", *job.command)
        try:
            process.start(command, {}, last=False)
            status = (
                process.wait()
                if job.progress is None
                else _wait_for_slice(process, listeners, job.slice_s)
            )
            cut = status is None
            if status is None:
                _end_job(process, job.grace_s, spared)
                status = 0
        finally:
            marks = sorted(mark for listener in listeners for mark in listener.finish())
        process.forget()
        run = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                run = run_of(json.load(file))
    if run and cut:  # we ended it: the status of the signal is no failure
        run = replace(run, exit_status=0)
    if run and run.exit_status in NOT_RUN:
        run = None
    return Launched(status, run, tuple(marks), cut, process.interrupted)


def repeated(
    job: MeasuredJob, what: str = "", options: Sequence[str] = (), count: int | None = None
) -> list[Launched]:
    """Launch the job as often as wanted, or `count` times, and stop after a launch that fails.

    Args:
        what: name of these launches in the progress; a single launch without one is not reported.
    """
    count = count or job.runs
    done: list[Launched] = []
    while len(done) < count and (not done or done[-1].went_well):
        number = f"run {len(done) + 1} of {count}" if count > 1 else ""
        if what or number:
            job.tell(": ".join(filter(None, (what, number))))
        done.append(launch(job, options))
    if not done[-1].went_well and not done[-1].interrupted and count > len(done):
        why = f"ended with status {exit_status(done[-1].status)}"
        if done[-1].was_stopped:
            why = "was stopped"
        job.tell(f"it {why}, so there are no more runs")
    return done


def _wait_for_slice(job: Job, listeners: "Sequence[_OutputCopier]", slice_s: float) -> int | None:
    """Wait, and return the wait status; None once the job reported progress for `slice_s`."""
    while True:
        firsts = [listener.marks[0] for listener in listeners if listener.marks]
        began_s = min(firsts)[0] if firsts else None
        left_s = LOOK_S if began_s is None else began_s + slice_s - time.monotonic()
        status = job.wait(max(0.0, left_s))
        if status is not None or began_s is not None:
            return status


def _end_job(job: Job, grace_s: float, spared: set[int]) -> None:
    """Send TERM, and after the grace KILL to the job, but not to its launcher, which reports.

    Processes that are spared run beside the job.
    """
    os.kill(job.pid, signal.SIGTERM)
    os.kill(job.pid, signal.SIGCONT)  # a stopped launcher would not act on TERM
    if job.wait(grace_s) is not None:
        return
    under_a_lease = set().union(*marked_by(LEASE_VARIABLE).values())
    doomed = (family(spared) - {job.pid}) & under_a_lease
    take_off(doomed, signal.SIGKILL)
    for pid in doomed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if job.wait(SETTLE_S) is None:
        job.end(0.0)


class _OutputCopier:
    """A thread that copies a job's output to one of this process's and notes its progress.

    From construction until restore() the descriptor is a pipe, for the child to inherit.
    """

    def __init__(self, fd: int, progress: re.Pattern[bytes]) -> None:
        self._fd, self._progress = fd, progress
        self.marks: list[Mark] = []
        self._rest = b""
        self._out = out_of_the_way(os.dup(fd))
        self._read_end, write_end = os.pipe()
        os.dup2(write_end, fd)
        os.close(write_end)
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def restore(self) -> None:
        """Restore the descriptor and start to read; call it once the child is forked."""
        os.dup2(self._out, self._fd)
        self._thread.start()

    def finish(self) -> list[Mark]:
        """Read to the end, for PATIENCE_S at most, and return the progress noted."""
        self._thread.join(PATIENCE_S)
        return list(self.marks)

    def _listen(self) -> None:
        try:
            while chunk := os.read(self._read_end, _CHUNK):
                at_s = time.monotonic()
                _write_all(self._out, chunk)
                *lines, self._rest = re.split(rb"[\r\n]", self._rest + chunk)
                self._rest = self._rest[-_LONGEST_LINE:]
                for line in lines:
                    self._note(line, at_s)
            self._note(self._rest, time.monotonic())
        except OSError:  # the reader of our output is gone: the closed pipe tells the job so
            pass
        finally:
            os.close(self._read_end)
            os.close(self._out)

    def _note(self, line: bytes, at_s: float) -> None:
        found = self._progress.search(line)
        if found:
            with suppress(ValueError, TypeError):  # no number, or a group that did not match
                done = float(found[1])
                if math.isfinite(done):
                    self.marks.append((at_s, done))


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError as problem:
            if problem.errno != errno.EAGAIN:
                raise
            select.select([], [fd], [])  # another process that shares it made it non-blocking


def progress_of(marks: Sequence[Mark]) -> float:
    """Return the progress from the first mark to the last; a count that falls began anew at 0.

    Example:
        >>> progress_of([(10.0, 98.0), (11.0, 100.0), (12.0, 1.0)])
        3.0
    """
    total = 0.0
    for (_, before), (_, after) in pairwise(marks):
        total += after - before if after >= before else max(0.0, after)
    return total


_LOOP = """\
trap 'kill $job 2>/dev/null; wait $job; exit' TERM
while :; do "$@" & job=$!; wait $job || exit; done"""
_FOREVER = ("sh", "-c", _LOOP, "sh")
"""Shell that restarts the job whenever it succeeds, under one lease, and passes TERM on to it."""


class Other(Record):
    """A program that runs beside a job.

    Attributes:
        name: key of its slowdown in the profile.
        says: text that its output contains once it is at work; None if it prints no such text.
    """

    name: str
    command: tuple[str, ...]
    gpus: int
    says: bytes | None = None


class Background:
    """A program that runs again and again in a session of its own, under a lease of its own."""

    def __init__(self, other: Other, options: Sequence[str], grace_s: float) -> None:
        self._other, self._options, self._grace_s = other, options, grace_s
        self._progress: list[Mark] = []

    def __enter__(self) -> "Background":
        """Launch the job, and wait until it has its GPUs and is at work.

        Raises:
            FailedError: the job ended first.
            TimedOutError: it was not at work within BESIDE_S.
        """
        read_end, write_end = (out_of_the_way(fd) for fd in os.pipe())
        own: tuple[str, ...] = ()
        if not self._other.says:
            own = ("-o", f"json_status_fd={write_end}")
        job = (*_FOREVER, *self._other.command)
        try:
            # The command is the user's own program.
            self._process = subprocess.Popen(  # noqa: S603
                [*own_command(), *own, *self._options, "--", *job],
                # CI: the launcher ends with its parent, and ends all of its job.
                env=clean_environment() | {b"CI": b"true"},
                stdin=subprocess.DEVNULL,
                stdout=write_end if self._other.says else subprocess.DEVNULL,
                pass_fds=(write_end,) if own else (),
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509  no threads here
            )
        finally:
            os.close(write_end)
        self._pidfd = os.pidfd_open(self._process.pid)
        try:
            self._await(read_end, self._other.says or b'"started"')
            drain = threading.Thread(
                target=_drain, args=(os.dup(read_end), self._progress), daemon=True
            )
            drain.start()
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.close(read_end)
        return self

    def __exit__(self, *_: object) -> None:
        """End the job, which frees its GPUs: TERM has the launcher do it, and KILL if it does not.

        Signals go through the pidfd: this process adopts orphans, so a wait elsewhere in it may
        have reaped the launcher already.
        """
        # The launcher has the same grace for the job, and again for what that leaves running.
        patience_s = 2 * self._grace_s + SETTLE_S
        for number, lasting_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            if select.select([self._pidfd], [], [], lasting_s)[0]:
                break
        self._process.wait()
        os.close(self._pidfd)

    def rate(self, began_s: float, ended_s: float) -> float | None:
        """Return the rounds a second that it did between two times; None if it has not told."""
        marks = [mark for mark in self._progress if began_s <= mark[0] <= ended_s]
        done = progress_of(marks)
        return done / (marks[-1][0] - marks[0][0]) if done else None

    def check(self) -> None:
        """Raise FailedError if the job does not run any more."""
        if select.select([self._pidfd], [], [], 0)[0]:
            ended = f"{self._other.name} ended{self._ending_text()}"
            raise FailedError(f"{ended}, though it was to run beside the job")

    def _await(self, fd: int, word: bytes) -> None:
        deadline_s, heard = time.monotonic() + BESIDE_S, b""
        while word not in heard:
            left_s = deadline_s - time.monotonic()
            ready = select.select([fd, self._pidfd], [], [], max(0.0, left_s))[0]
            if fd in ready and (part := os.read(fd, _CHUNK)):
                heard = (heard + part)[-_CHUNK:]
            elif self._pidfd in ready:
                ended = f"{self._other.name} ended{self._ending_text()}"
                raise FailedError(f"{ended} before it could run beside the job")
            elif left_s <= 0:
                raise TimedOutError(f"{self._other.name} was not at work after {BESIDE_S:g} s")

    def _ending_text(self) -> str:
        """Return " with status N", or nothing if the status is 0 or was lost.

        This process adopts orphans, so a wait elsewhere in it may have taken the status.
        """
        status = self._process.wait()
        return f" with status {status}" if status else ""


def _drain(fd: int, progress: list[Mark]) -> None:
    """Read a pipe's output, so that its writer never blocks on a full one, and note progress."""
    # A thread that does not block SIGCHLD takes it from the one that waits for a job.
    change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
    with os.fdopen(fd, "rb") as lines, suppress(OSError):
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                progress.append((float(said["at_s"]), float(said["done"])))
