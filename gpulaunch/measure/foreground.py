"""Launches of gpulaunch, one after the other, each in this process's place: signals, stops and terminal reach it."""

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
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.process.ending import descendants, end_all, family, marked_by
from gpulaunch.process.job import Job, Started
from gpulaunch.records import Record

LOOK_S = 0.2
"""How soon it is noticed that a job whose progress is read has begun to tell of it."""

PATIENCE_S = 1.0
"""What a job has left running may hold its output open for ever; it is not listened to for
longer.
"""

SETTLE_S = 10.0
"""For a launcher whose job has been killed: it writes down what it knows, and frees the GPUs."""

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20


class Mark(Record):
    """What a job said of its progress.

    Attributes:
        at_s: when.
        done: how much, of what it is doing now.
    """

    at_s: float
    done: float


class Over(Record):
    """A launch that has ended.

    Attributes:
        status: its wait status; 0 if it was cut.
        marks: its progress, in order; empty if nobody asked.
        cut: it was ended because it had run for long enough.
        interrupted: somebody wanted it to end, or this process.
    """

    status: int
    marks: tuple[Mark, ...] = ()
    cut: bool = False
    interrupted: bool = False


class Slice(Record):
    """How much of a job is enough.

    Attributes:
        progress: its one group is a number of iterations, or any amount, that the job says it has
            done so far.
        lasting_s: so long from the first of them.
    """

    progress: re.Pattern[bytes]
    lasting_s: float


def run_launch(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    grace_s: float,
    part: Slice | None = None,
) -> Over:
    """Run a command line of gpulaunch to its end, or for as long as is enough.

    Args:
        arguments: without the program's name.
        environment: variables to add.
        grace_s: between TERM and KILL, for a job that has run for long enough.
        part: how much is enough; None for all of it. Its output then passes through this process.
    """
    spared = family()  # what else this process has started
    listeners = [_Listener(fd, part.progress) for fd in (1, 2) if _is_open(fd)] if part else []
    try:
        job = Job(keep=None, tied="CI" in os.environ)
    finally:
        for listener in listeners:
            listener.restore()
    try:
        job.start(Started((*own_command(), *arguments), environment, frozenset()), last=False)
        status = job.wait() if part is None else _wait_for_part(job, listeners, part.lasting_s)
        cut = status is None
        if status is None:
            _end(job, grace_s, spared)
            status = 0
    finally:
        marks = [mark for listener in listeners for mark in listener.finish()]
        marks.sort(key=lambda mark: (mark.at_s, mark.done))
    job.forget()
    return Over(status, tuple(marks), cut, job.interrupted)


def _is_open(fd: int) -> bool:
    with suppress(OSError):
        os.fstat(fd)
        return True
    return False


def _wait_for_part(job: Job, listeners: "Sequence[_Listener]", lasting_s: float) -> int | None:
    """Its wait status; None once it has told of its progress for so long."""
    while True:
        began_s = min(
            (mark.at_s for listener in listeners for mark in listener.marks[:1]), default=None
        )
        left_s = LOOK_S if began_s is None else began_s + lasting_s - time.monotonic()
        status = job.wait(max(0.0, left_s))
        if status is not None or began_s is not None:
            return status


def _end(job: Job, grace_s: float, spared: set[int]) -> None:
    """End what the launcher runs: TERM, and KILL to the job alone after the grace, so that the launcher can tell."""
    os.kill(job.pid, signal.SIGTERM)
    os.kill(job.pid, signal.SIGCONT)  # a stopped one would not hear it
    if job.wait(grace_s) is None:
        under_a_lease = set().union(*marked_by(LEASE_VARIABLE).values())
        for pid in (family(spared) - {job.pid}) & under_a_lease:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if job.wait(SETTLE_S) is None:
            job.end(0.0)
    end_all(lambda: descendants(spared), grace_s)


class _Listener:
    """Stands between a job and one of this process's outputs: all passes, and what it says of its progress is noted.

    From when it is made until restore() the descriptor is the pipe that a child is to inherit.
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
        """The child has been made; the descriptor is what it was."""
        os.dup2(self._out, self._fd)
        self._thread.start()

    def finish(self) -> list[Mark]:
        """Everything that it noted."""
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
        except OSError:  # whoever read it is gone: the job must see that, too
            pass
        finally:
            os.close(self._read_end)
            os.close(self._out)

    def _note(self, line: bytes, at_s: float) -> None:
        found = self._progress.search(line)
        if found:
            with suppress(ValueError, TypeError):  # no number, or a group that took no part
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
            select.select([], [fd], [])  # whoever shares the descriptor made it non-blocking


def progress_of(marks: Sequence[Mark]) -> float:
    """How much was done from the first mark to the last; a count that falls has begun anew, from 0.

    Example:
        >>> progress_of([Mark(10.0, 98.0), Mark(11.0, 100.0), Mark(12.0, 1.0)])
        3.0
    """
    return sum(
        b.done - a.done if b.done >= a.done else max(0.0, b.done) for a, b in pairwise(marks)
    )


def rate_of(marks: Sequence[Mark]) -> float | None:
    """Progress in a second, from the first mark to the last; None if it cannot be told.

    Example:
        >>> rate_of([Mark(10.0, 100.0), Mark(12.0, 160.0)])
        30.0
    """
    if len(marks) < 2 or marks[-1].at_s <= marks[0].at_s:
        return None
    return progress_of(marks) / (marks[-1].at_s - marks[0].at_s) or None
