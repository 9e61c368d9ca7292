"""A launch of gpulaunch in the foreground: signals, stops and the terminal reach it."""

import errno
import math
import os
import re
import select
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from gpulaunch.launch.children import own_command
from gpulaunch.launch.left_overs import without_mps
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.process.companion import is_companion
from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.process.ending import descendants, end_all, family, marked_by, wait_for_all
from gpulaunch.process.job import Job, Started
from gpulaunch.process.system import is_cancelled_by_kill
from gpulaunch.records import Record
from gpulaunch.sharing.mps_daemon import take_off

LOOK_S = 0.2
"""Period of the check for a job's first line of progress."""

PATIENCE_S = 1.0
"""Time to read on after the job's end: what it left running may hold its output open for ever."""

SETTLE_S = 10.0
"""Time for a launcher whose job was killed to write its record and free the GPUs."""

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20


class Mark(Record):
    """One report of a job's progress.

    Attributes:
        at_s: when it was read, by the monotonic clock.
        done: the amount that the job said it had done so far.
    """

    at_s: float
    done: float


class EndedLaunch(Record):
    """A launch that has ended.

    Attributes:
        status: its wait status; 0 if it was cut.
        marks: its progress, in order; empty if progress was not asked for.
        cut: whether we ended it because it had run for long enough.
        interrupted: whether a signal asked it, or this process, to end.
    """

    status: int
    marks: tuple[Mark, ...] = ()
    cut: bool = False
    interrupted: bool = False


class Slice(Record):
    """The part of a job that is enough for a measurement.

    Attributes:
        progress: pattern of a line of progress; its one group is the number of iterations, or any
            other amount, that the job has done so far.
        lasting_s: seconds to run on after the first such line.
    """

    progress: re.Pattern[bytes]
    lasting_s: float


def run_launch(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    grace_s: float,
    part: Slice | None = None,
) -> EndedLaunch:
    """Run a command line of gpulaunch to its end, or until a part of it is done.

    Args:
        arguments: without the program's name.
        environment: variables to add.
        grace_s: seconds between TERM and KILL, for a job that has run for long enough.
        part: how much is enough; None for all of it. With a part, the job's output passes through
            this process.
    """
    spared = family()  # processes that this process started before
    listeners = [_OutputCopier(fd, part.progress) for fd in (1, 2) if _is_open(fd)] if part else []
    try:
        job = Job(keep=None, tied=is_cancelled_by_kill())
    finally:
        for listener in listeners:
            listener.restore()
    try:
        job.start(Started((*own_command(), *arguments), environment, frozenset()), last=False)
        status = job.wait() if part is None else _wait_for_part(job, listeners, part.lasting_s)
        cut = status is None
        if status is None:
            _end_job(job, grace_s, spared)
            status = 0
    finally:
        marks = [mark for listener in listeners for mark in listener.finish()]
        marks.sort(key=lambda mark: (mark.at_s, mark.done))
    job.forget()
    return EndedLaunch(status, tuple(marks), cut, job.interrupted)


def _is_open(fd: int) -> bool:
    with suppress(OSError):
        os.fstat(fd)
        return True
    return False


def _wait_for_part(job: Job, listeners: "Sequence[_OutputCopier]", lasting_s: float) -> int | None:
    """Wait, and return the wait status; None once the job reported progress for `lasting_s`."""
    while True:
        began_s = min(
            (mark.at_s for listener in listeners for mark in listener.marks[:1]), default=None
        )
        left_s = LOOK_S if began_s is None else began_s + lasting_s - time.monotonic()
        status = job.wait(max(0.0, left_s))
        if status is not None or began_s is not None:
            return status


def _end_job(job: Job, grace_s: float, spared: set[int]) -> None:
    """Send TERM, and after the grace KILL to the job, but not to its launcher, which reports."""
    os.kill(job.pid, signal.SIGTERM)
    os.kill(job.pid, signal.SIGCONT)  # a stopped launcher would not act on TERM
    if job.wait(grace_s) is None:
        under_a_lease = set().union(*marked_by(LEASE_VARIABLE).values())
        doomed = (family(spared) - {job.pid}) & under_a_lease
        take_off(doomed, signal.SIGKILL)
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if job.wait(SETTLE_S) is None:
            job.end(0.0)
    end_left_overs(spared, grace_s)


def end_left_overs(spared: set[int], grace_s: float) -> None:
    """End what a launch has left of its job, and then what has looked after that.

    Companions and MPS daemons end by themselves after the job; a client of a daemon that is gone
    could not be taken off it.

    Args:
        spared: processes to leave out, with their descendants.
        grace_s: seconds between TERM and KILL.
    """
    end_all(
        lambda: {pid for pid in without_mps(descendants(spared)) if not is_companion(pid)},
        grace_s,
        before_signal=take_off,
    )
    wait_for_all(descendants(spared), SETTLE_S)
    end_all(lambda: descendants(spared), grace_s)


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
                    self.marks.append(Mark(at_s, done))


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
        >>> progress_of([Mark(10.0, 98.0), Mark(11.0, 100.0), Mark(12.0, 1.0)])
        3.0
    """
    return sum(_increase(before, after) for before, after in pairwise(marks))


def _increase(before: Mark, after: Mark) -> float:
    if after.done >= before.done:
        return after.done - before.done
    return max(0.0, after.done)


def rate_of(marks: Sequence[Mark]) -> float | None:
    """Return the progress per second from the first mark to the last; None if unknown.

    Example:
        >>> rate_of([Mark(10.0, 100.0), Mark(12.0, 160.0)])
        30.0
    """
    if len(marks) < 2 or marks[-1].at_s <= marks[0].at_s:
        return None
    return progress_of(marks) / (marks[-1].at_s - marks[0].at_s) or None
