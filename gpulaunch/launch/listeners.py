"""Listeners to a launch besides its user: the history, who started it, a command of the user's."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpulaunch.errors import UsageError, quoted
from gpulaunch.history.line import HistoryLine
from gpulaunch.launch.launch import Events, Keeper, Launch
from gpulaunch.leases.directory import own_table
from gpulaunch.leases.environment import BATCH_VARIABLE, LEASE_VARIABLE
from gpulaunch.leases.record import redacted, shortened
from gpulaunch.leases.table import Snapshot
from gpulaunch.process.ending import fork_orphan
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import PYTHON_IGNORES, boot_id, clean_environment, iso, this_process
from gpulaunch.records import as_list


class LaunchInHistory(Events):
    """A launch on its way into the history; it has a line from the time that it has its GPUs."""

    def __init__(self, launch: Launch, after: Sequence[str]) -> None:
        self._launch, self._after = launch, after
        self._line: HistoryLine | None = None
        self._submitted_s = time.time()

    def written_at_once(self, key: str, log: str, terminal: str | None) -> OSError | None:
        """Write the line at once: the launch has been detached, and others look for it by name.

        Args:
            terminal: socket of the program that holds its terminal, or None.

        Returns:
            Why the line cannot be written; None if it has been.
        """
        self._line = HistoryLine(**self._asked(), key=key, log=log, terminal=terminal)
        return self._line.problem

    def granted(self, keeper: Keeper) -> None:
        """Write that the launch has its GPUs."""
        lease = keeper.lease
        got = {
            "id": lease.id,
            "gpus": [gpu.name for gpu in keeper.grant.gpus],
            "sm_percentage": lease.share.sm_percentage if lease.share else None,
            "started_s": time.time(),
        }
        if self._line:
            self._line.update(**got)
        else:
            self._line = HistoryLine(**self._asked(), **got, key=os.urandom(6).hex())

    def ended(self, exit_status: int) -> None:
        """Write that the launch has ended."""
        if self._line:
            self._line.update(ended_s=time.time(), exit_status=exit_status)

    def _asked(self) -> dict[str, Any]:
        """Return the fields that are known before the launch has its GPUs."""
        launch, request = self._launch, self._launch.request
        directory = ""
        with suppress(OSError):  # it may have been removed
            directory = os.getcwd()
        return {
            "name": launch.name,
            "command": shortened(redacted(launch.command)),
            "directory": directory,
            "topology": launch.machine.topology.name,
            "described": launch.machine.key is not None,
            "table": own_table(),
            "count": request.least_gpus or request.gpus or 0,
            "profile": request.profile,
            "pattern": request.pattern.name,
            "bandwidth_sensitive": request.bandwidth_sensitive,
            "submitted_s": self._submitted_s,
            "time_limit_s": launch.time_limit_s,
            "after": list(self._after) or None,
            "launcher": as_list(this_process()),
            "boot_id": boot_id(),
        }


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


EVENT_VARIABLE = "GPULAUNCH_EVENT"
"""Variable with the event, of a command that is told of it; those with more about it begin so."""

_LIMIT_S = 60
_KILL_AFTER_S = 5  # after TERM


class Notifier(Events):
    """What runs a shell command of the user's for each event of a launch, beside this process.

    Args:
        is_awaited: whether its end is told even if it never got its GPUs, as of a detached launch.
    """

    def __init__(self, launch: Launch, command: str, *, is_awaited: bool) -> None:
        self._command = command
        self._about: dict[str, str | None] = {"name": launch.name}
        self._started_s: float | None = None
        self._is_awaited = is_awaited

    def waiting(self, _reason: str, _seen: Snapshot) -> None:
        """Hear that its user may have gone."""
        self._is_awaited = True

    def granted(self, keeper: Keeper) -> None:
        """Tell that the job has its GPUs and is about to start."""
        self._started_s = time.monotonic()
        self._about["lease"] = keeper.lease.id
        self._about["gpus"] = keeper.grant.names
        self._tell("start")

    def idle(self, seconds: float) -> None:
        """Tell that the GPUs have done nothing for a while; called from another thread."""
        # What the job orphans at this very moment goes to init instead of this process. It is
        # looked after all the same: it has the lease's record open.
        self._tell("idle", idle_s=f"{seconds:.0f}")

    def ended(self, exit_status: int) -> None:
        """Tell that the launch has ended; of one that is refused at once nobody need be told."""
        if self._started_s is not None:
            self._about["duration_s"] = f"{time.monotonic() - self._started_s:.0f}"
        elif not self._is_awaited:
            return
        self._tell("failure" if exit_status else "end", exit_status=str(exit_status))

    def _tell(self, event: str, **more: str) -> None:
        """Run the command in a session of its own, without stdin, stdout and stderr.

        It is nobody's child, and has none of this process's descriptors: no lease and no pipe lasts
        longer for it. If it cannot be run, nothing happens.
        """
        variables = clean_environment()
        variables.pop(LEASE_VARIABLE.encode(), None)  # it is no part of a job
        variables[EVENT_VARIABLE.encode()] = event.encode()
        for name, text in {**self._about, **more}.items():
            if text is not None:
                variables[f"{EVENT_VARIABLE}_{name.upper()}".encode()] = os.fsencode(text)
        shell = ["/bin/sh", "-c", self._command]
        limited = ["timeout", "-k", str(_KILL_AFTER_S), str(_LIMIT_S), *shell]

        def run() -> None:
            os.setsid()
            os.closerange(0, os.sysconf("SC_OPEN_MAX"))
            for _ in range(3):
                os.open(os.devnull, os.O_RDWR)
            for number in (*PYTHON_IGNORES, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            with suppress(FileNotFoundError):  # without coreutils it has no limit
                os.execvpe(limited[0], limited, variables)  # noqa: S606
            os.execve(shell[0], shell, variables)  # noqa: S606

        with suppress(OSError):
            fork_orphan(run)
