"""The process that holds a lease for its containers once its launcher has gone."""

import time
from collections.abc import Callable

from gpulaunch.containers.container_launch import ContainerLaunch
from gpulaunch.containers.standings import Followed
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table, release
from gpulaunch.process.companion import DISMISSED, Companion
from gpulaunch.process.ending import end_all
from gpulaunch.process.identity import Process
from gpulaunch.process.system import state_of

_TAKE_OVER = b"w"
_MARGIN_S = 1.0  # engines date their events by their own reading of the clock


class ContainerCompanion:
    """A process that takes over the lease when the launcher goes.

    It holds the lease until the docker command and the containers have ended.

    Args:
        container: the container launch.
        table: table in which the lease will be.
        record: record of the lease; still a draft.
        guards: whether to end the container if the launcher is killed.
        time_limit_s: longest run of the container in seconds, or None.
        grace_s: seconds between TERM and KILL.
        before_kill: called once with the processes of a container that outlive the grace.
    """

    def __init__(
        self,
        container: ContainerLaunch,
        table: Table,
        record: Draft,
        *,
        guards: bool,
        time_limit_s: float | None,
        grace_s: float,
        before_kill: Callable[[set[int]], object] | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._table = table
        self._record = record
        self._guards = guards
        self._before_kill = before_kill
        self._overdue_s = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._followed = Followed(
            container.client,
            container.engine_id,
            record.id,
            container.container_id,
            time.time() - _MARGIN_S,
        )
        self._companion = Companion(self._act, record.fd)

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._companion.pid

    def pids(self) -> set[int]:
        """Return the pids in the containers."""
        return self._followed.pids()

    def has_nothing_to_do(self) -> bool:
        """Return whether the containers have ended, once the command has; if unsure, False."""
        return self._followed.has_ended()

    def take_over(self) -> None:
        """Hand the lease over, since the launcher goes now.

        If the process has been killed meanwhile, another one is started for it.
        """
        if not self._companion.tell(_TAKE_OVER):
            Companion(self._act, self._record.fd).tell(_TAKE_OVER)

    def dismiss(self) -> None:
        """End the process, since nothing is left to watch."""
        self._companion.tell(DISMISSED)

    def end(self, command: Process) -> None:
        """End the containers and the docker command, in whatever order they depend on each other.

        Raises:
            FailedError: the engine refuses.
        """
        grace_s = self._grace_s
        self._followed.end(grace_s, self._before_kill)
        end_all(lambda: {command.pid} if state_of(command) else set(), grace_s)
        # The command may have made another container before it ended.
        self._followed.end(grace_s, self._before_kill)

    def _act(self, word: bytes) -> None:
        if word == DISMISSED:
            return
        lease = next(
            (lease for lease in self._table.own_leases() if lease.id == self._record.id), None
        )
        if lease is None:  # the launcher was killed before it had a lease
            return
        command = lease.job
        cancelled = not word and self._guards
        overdue_s = time.monotonic() if cancelled else self._overdue_s
        self._followed.wait(command, overdue_s, lambda: self.end(command))
        release(self._table, self._record, lease)
