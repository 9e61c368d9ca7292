"""A place in the queue, in which a launch sleeps until it can take its GPUs."""

import time
from collections.abc import Callable, Sequence

from gpulaunch.errors import TimedOutError
from gpulaunch.files.duration import format_duration
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import is_alive, record_name
from gpulaunch.leases.table import LockedTable, Table, release
from gpulaunch.leases.ticket import Ticket
from gpulaunch.process.system import is_stopped

LOOK_EVERY_S = 5.0
"""Longest time between two looks, for changes without an event, such as use outside gpulaunch."""

FIRST_LOOK_S = 0.25
"""Time from an event to the next look; it doubles with each look.

NVML lists a process a little longer than the kernel does.
"""


class PlaceInQueue:
    """A place in the queue, held until it is taken or given up.

    Args:
        table: the allocation table, which holds the tickets.
        write: function that makes the ticket from its id and number.
        timeout_s: seconds of the longest wait, or None for no limit.
        warn: called with each warning.

    Attributes:
        ticket: the ticket in the table.
        has_slept: whether sleep() has been called.

    Raises:
        FailedError: the ticket cannot be written.
    """

    def __init__(
        self,
        table: Table,
        write: Callable[[str, int], Ticket],
        timeout_s: float | None,
        warn: Callable[[str], None],
    ) -> None:
        from gpulaunch.leases.watch import Watch  # late: only launches that wait need it

        self._table = table
        self._timeout_s = timeout_s
        self._joined = time.monotonic()
        self._pause_s = FIRST_LOOK_S
        self._in_queue = False
        self.has_slept = False
        self._draft = table.draft()
        try:
            with table.locked() as locked:
                self.ticket = write(self._draft.id, locked.next_number())
                locked.publish(self._draft, self.ticket)
        except BaseException:
            self._draft.close()
            raise
        self._in_queue = True
        self._watch = Watch(table.directory, warn)

    def sleep(
        self,
        reason: str,
        bar: Ticket | None,
        leases: Sequence[Lease],
        pids: Sequence[int],
        *,
        may_join: bool = False,
    ) -> None:
        """Sleep until what keeps the request waiting may have changed.

        The head of the queue watches the leases; a request that is barred watches only the ticket
        that bars it.

        Args:
            reason: why the request waits.
            bar: the earlier request that it may not pass, or None.
            leases: live leases of the machine.
            pids: processes that use GPUs without a lease.
            may_join: whether it may share GPUs with others, so that it watches the leases even if
                it is barred.

        Raises:
            TimedOutError: the longest wait is over.
        """
        self.has_slept = True
        blockers: list[Lease | Ticket] = [bar] if bar else []
        blockers += leases if may_join or not bar else ()
        new = self._watch.follow([record_name(blocker) for blocker in blockers])
        only_bar = bar if not may_join else None
        # A record that is newly watched may have ended before the watch began: decide again.
        if new and not (only_bar and is_alive(self._table.path_of(only_bar))):
            return
        while True:
            left_s = self._left_s(reason)
            happened = self._watch.sleep(min(self._pause_s, left_s), () if bar else pids)
            self._pause_s = FIRST_LOOK_S if happened else min(2 * self._pause_s, LOOK_EVERY_S)
            if happened or bar is None or bar.passable_until_s:
                return
            if is_stopped(bar.launcher) or not is_alive(self._table.path_of(bar)):
                return

    def _left_s(self, reason: str) -> float:
        """Return the seconds left to wait.

        Raises:
            TimedOutError: the longest wait is over.
        """
        if self._timeout_s is None:
            return float("inf")
        left_s = self._joined + self._timeout_s - time.monotonic()
        if left_s <= 0:
            raise TimedOutError(f"waited {format_duration(self._timeout_s)}: {reason}")
        return left_s

    def take(self, locked: LockedTable) -> None:
        """Remove the ticket under the lock in which the lease is published."""
        locked.remove(self.ticket)
        self._in_queue = False

    def close(self) -> None:
        """Leave the queue."""
        self._watch.close()
        if self._in_queue:
            release(self._table, self._draft, self.ticket)
        else:
            self._draft.close()
