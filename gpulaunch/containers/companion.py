"""The process that holds a lease for its containers once its launcher has gone."""

import time
from collections.abc import Callable

from gpulaunch.containers.engine import ContainerLaunch
from gpulaunch.containers.standings import Followed
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table, release
from gpulaunch.process.companion import DISMISSED, Companion
from gpulaunch.process.ending import KILL_S, end_all
from gpulaunch.process.identity import Process
from gpulaunch.process.system import is_cancelled_by_kill, state_of

_TAKE_OVER = b"w"
_MARGIN_S = 1.0  # engines date their events by their own reading of the clock


class ContainerCompanion:
    """A process that takes over the lease when the launcher goes.

    It holds the lease until the docker command and the containers have ended.

    Attributes:
        followed: the containers of the lease.

    Args:
        container: the container launch.
        table: table in which the lease will be.
        record: record of the lease; still a draft.
        time_limit_s: longest run of the container in seconds, or None.
        grace_s: seconds between TERM and KILL.
        before_signal: called with the processes of a container before they get TERM or KILL.
        beside_others: whether the command makes other leases' containers, too.
        forks: whether there is a process at all, or only what is known of the containers.
    """

    def __init__(
        self,
        container: ContainerLaunch,
        table: Table,
        record: Draft,
        *,
        time_limit_s: float | None,
        grace_s: float,
        before_signal: Callable[[set[int], int], object] | None = None,
        beside_others: bool = False,
        forks: bool = True,
    ) -> None:
        self._grace_s = grace_s
        self._table = table
        self._record = record
        self._ends_when_killed = is_cancelled_by_kill()
        self._before_signal = before_signal
        self._overdue_s = None if time_limit_s is None else time.monotonic() + time_limit_s
        self.followed = Followed(
            container.client,
            container.engine_id,
            record.id,
            container.container_id,
            time.time() - _MARGIN_S,
            beside_others=beside_others,
        )
        self._companion = Companion(self._act, record.fd) if forks else None

    def take_over(self, *, ends: bool) -> None:
        """Hand the lease over, since the launcher goes now.

        If the process has been killed meanwhile, another one is started for it.

        Args:
            ends: whether to end the containers, as if the launcher was killed.
        """
        if self._companion is None:
            return
        word = b"" if ends else _TAKE_OVER
        if not self._companion.tell(word):
            Companion(self._act, self._record.fd).tell(word)

    def dismiss(self) -> None:
        """End the process, since nothing is left to watch."""
        if self._companion:
            self._companion.tell(DISMISSED)

    def end(self, command: Process, grace_s: float) -> bool:
        """End the containers and the docker command, in whatever order they depend on each other.

        Args:
            command: the docker command.
            grace_s: seconds between TERM and KILL for the containers.

        Returns:
            Whether there was a container to end.

        Raises:
            FailedError: the engine refuses.
        """
        found = self.followed.end(grace_s, self._before_signal)
        # It tells the containers' status, and ends by itself a moment after them.
        patience_s = max(grace_s, KILL_S)
        end_all(lambda: {command.pid} if state_of(command) else set(), patience_s)
        # The command may have made another container before it ended.
        return self.followed.end(grace_s, self._before_signal) or found

    def _act(self, word: bytes) -> None:
        if word == DISMISSED:
            return
        lease = next(
            (lease for lease in self._table.own_leases() if lease.id == self._record.id), None
        )
        if lease is None:  # the launcher was killed before it had a lease
            return
        command = lease.job
        cancelled = not word and self._ends_when_killed
        overdue_s = time.monotonic() if cancelled else self._overdue_s
        self.followed.wait(
            command,
            overdue_s,
            end=lambda: self.end(command, self._grace_s),
            is_pointless=lambda: self._record.is_removed,
        )
        release(self._table, self._record, lease)
