"""Results of a batch: a file of JSON lines, one for each ended job, never changed.

The first line names the batch. A line is written by one call, and taken back if it does not fit on
the disk, so that the lines before it stay intact; a torn line is skipped when the file is read.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FailedError, UsageError, WouldWaitError, call_failed
from gpulaunch.history.line import is_own_file
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import iso, parse_time
from gpulaunch.records import Record, as_dict, field_names


class Result(Record):
    """The result of a job.

    Attributes:
        id: place of the job in the file of jobs, from 0.
        name: name of the job.
        digest: digest of what was run; a changed job at this place has another one.
        exit_status: exit status of the launch.
        gpus: indices of its GPUs, in rank order; empty if it never started.
        uuids: UUIDs of its GPUs, in rank order.
        lease: id of the lease; None if it never started.
        interrupted: whether the batch has ended it.
        submitted_s: its arrival, in seconds from the beginning of the batch.
        started_s: when it got its GPUs, on the same clock; None if it never started.
        ended_s: when its launch ended, on the same clock.
    """

    id: int
    name: str
    digest: str
    exit_status: int
    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    lease: str | None
    interrupted: bool
    submitted_s: float
    started_s: float | None
    ended_s: float | None

    @property
    def is_final(self) -> bool:
        """True if the job has run to its own end."""
        return self.started_s is not None and not self.interrupted


class ResultsFile:
    """The results of one batch, locked against other batches.

    Args:
        path: path of the file.
        warn: called with the text of a warning.
        resume: whether there may be results already.

    Attributes:
        batch: id of the batch.
        began_s: beginning of the batch, in seconds since 1970.
        results: last result written of each job, by id.
        lock: descriptor of the file; it stays locked until all copies of the descriptor are closed.

    Raises:
        FailedError: the file cannot be written.
        UsageError: the file has other content; or there are results, and resume is not set.
        WouldWaitError: another batch has locked it, or jobs of a killed batch are still ending.
    """

    def __init__(self, path: str, warn: Callable[[str], None], *, resume: bool) -> None:
        self.path = path
        self.batch = ""
        self.began_s = 0.0
        self.results: dict[int, Result] = {}
        try:
            self.lock = out_of_the_way(
                os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
            )
            if not is_own_file(self.lock, os.geteuid()):  # else somebody could change results
                raise UsageError(f"{path}: is no regular file of your own")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WouldWaitError(
                f"{path}: another batch is writing there, or its jobs are still ending"
            ) from None
        except OSError as problem:
            raise call_failed(self.path, problem) from None
        self._read(warn)
        if not self.batch:
            self._begin()
        elif not resume:
            hint = "--resume continues them; to begin anew, remove the file or give --results FILE"
            raise UsageError(f"{path} already holds results of a batch", hint)

    def _begin(self) -> None:
        """Write the first line; if that fails, remove the file again."""
        self.batch, self.began_s = os.urandom(6).hex(), time.time()
        try:
            self._append({"batch": self.batch, "began_at": iso(self.began_s)})
        except FailedError:
            os.unlink(self.path)
            raise

    def add(self, result: Result) -> None:
        """Write the result of a job.

        Raises:
            FailedError: the result cannot be written; the file is unchanged.
        """
        self._append(as_dict(result))
        self.results[result.id] = result

    def _append(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document).encode() + b"\n"
        status = os.fstat(self.lock)
        size = status.st_size
        if not status.st_nlink:  # it was removed, so the line could never be read
            raise FailedError(f"{self.path}: no such file or directory")
        # A torn line must not tear this one, too.
        if size and os.pread(self.lock, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = 0
        try:
            while written < len(line):
                written += os.write(self.lock, line[written:])
            os.fsync(self.lock)
        except OSError as problem:
            with suppress(OSError):
                if os.fstat(self.lock).st_size == size + written:
                    os.ftruncate(self.lock, size)
            raise call_failed(self.path, problem) from None

    def _read(self, warn: Callable[[str], None]) -> None:
        with open(f"/proc/self/fd/{self.lock}", "rb") as file:  # even if it was renamed
            lines = file.readlines()
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    self._take(dict(json.loads(line)))
            except (TypeError, ValueError, LookupError):
                if not self.batch:
                    break
                warn(f"{self.path}:{number}: passed over: this line is torn, or not a batch's")
        if lines and not self.batch:
            raise UsageError(f"{self.path} holds something other than results of a batch")

    def _take(self, document: dict[str, Any]) -> None:
        if not self.batch:
            self.began_s = parse_time(document["began_at"]).timestamp()
            self.batch = str(document["batch"])
        else:
            document["gpus"], document["uuids"] = tuple(document["gpus"]), tuple(document["uuids"])
            fields = {name: document[name] for name in field_names(Result)}
            self.results[document["id"]] = Result(**fields)
