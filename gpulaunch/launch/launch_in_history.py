"""The line of a launch in the history."""

import os
import time
from collections.abc import Sequence
from typing import Any

from gpulaunch.history.line import HistoryLine
from gpulaunch.launch.launch import Acquired, Events, Launch
from gpulaunch.leases.directory import own_table
from gpulaunch.leases.record import redacted, shortened
from gpulaunch.process.system import boot_id, this_process
from gpulaunch.records import as_list


class LaunchInHistory(Events):
    """A launch on its way into the history; it has a line from the time that it has its GPUs.

    Args:
        launch: the launch, which begins now.
        after: launches that it comes after, as `--after` names them.
    """

    def __init__(self, launch: Launch, after: Sequence[str]) -> None:
        self._launch, self._after = launch, after
        self._line: HistoryLine | None = None
        self._submitted_s = time.time()

    def written_at_once(self, key: str, log: str, terminal: str | None) -> OSError | None:
        """Write the line at once: the launch has been detached, and others look for it by name.

        Args:
            key: its key in the history.
            log: file of its output.
            terminal: socket of the program that holds its terminal, or None.

        Returns:
            Why the line cannot be written; None if it has been.
        """
        self._line = HistoryLine(**self._asked(), key=key, log=log, terminal=terminal)
        return self._line.problem

    def granted(self, acquired: Acquired[Any]) -> None:
        """Write that the launch has its GPUs."""
        lease = acquired.lease
        got = {
            "id": lease.id,
            "gpus": [gpu.name for gpu in acquired.grant.gpus],
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
        return {
            "name": launch.name,
            "command": shortened(redacted(launch.command)),
            "directory": _working_directory(),
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


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return ""
