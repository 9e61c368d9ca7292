"""`-o json_status_fd=FD`: the events of a launch in JSON, for the program that started it."""

import fcntl
import json
import os
import time
from contextlib import suppress
from typing import Any

from gpulaunch.errors import UsageError, quoted
from gpulaunch.launch.launch import Events, Keeper
from gpulaunch.leases.environment import BATCH_VARIABLE
from gpulaunch.leases.table import Snapshot
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import iso

_OPTION = "-o json_status_fd"
_MOST_DIGITS = 6  # no process has a million descriptors


class JsonStatus(Events):
    """A writer of a launch's events to a descriptor; docs/guides/batch.md describes the lines.

    From here on the descriptors belong to the launcher alone: the job does not inherit them.

    Args:
        text: numbers of descriptors, separated by commas. Lines go to the first; the others stay
            open until the job has ended, as the lock of a batch does.

    Raises:
        UsageError: one of them is not open for writing, or is the job's own.
    """

    def __init__(self, text: str) -> None:
        self._fds = [_take_descriptor(word) for word in text.split(",")]
        self._started: dict[str, Any] = {}

    def waiting(self, reason: str, _seen: Snapshot) -> None:
        """Write that the launch has joined the queue."""
        self._write({"event": "waiting", "reason": reason})

    def granted(self, keeper: Keeper) -> None:
        """Write that the job has its GPUs, and is about to run."""
        lease = keeper.lease
        self._started = {
            "lease": lease.id,
            "gpus": list(keeper.grant.indices),
            "uuids": list(lease.uuids),
            "job_pid": lease.job.pid,
            "started_at": iso(time.time()),
            "shared": lease.share is not None,
            "batch": os.environ.get(BATCH_VARIABLE),
        }
        self._write({"event": "started", **self._started})

    def ended(self, exit_status: int) -> None:
        """Write that the job has ended and its GPUs are free, if it ever started."""
        if self._started:
            self._write(
                {
                    "event": "ended",
                    **self._started,
                    "exit_status": exit_status,
                    "ended_at": iso(time.time()),
                }
            )

    def _write(self, document: dict[str, Any]) -> None:
        """Write one line; if nobody reads any more, it is lost, and the launch goes on."""
        line = json.dumps(document).encode() + b"\n"
        with suppress(OSError):
            while line:
                line = line[os.write(self._fds[0], line) :]


def _take_descriptor(word: str) -> int:
    if not (word.isascii() and word.isdecimal()) or len(word) > _MOST_DIGITS:
        raise UsageError(f"{_OPTION}: {quoted(word)} is no number of a descriptor")
    fd = int(word)
    if fd <= 2:
        raise UsageError(f"{_OPTION}: descriptor {fd} is the job's own", "open another one: 9>FILE")
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError:
        raise UsageError(f"{_OPTION}: descriptor {fd} is not open") from None
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise UsageError(f"{_OPTION}: descriptor {fd} is not open to write")
    return out_of_the_way(fd)
