"""The queue of launches: how they join it, sleep until they can start, and wake each other."""

import os
import select
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from gpulaunch.decide.decision import State, Wait
from gpulaunch.decide.needs import leased_until_s, used_outside
from gpulaunch.errors import FailedError, TimedOutError
from gpulaunch.files.units import format_duration
from gpulaunch.launch.launch import Events, Launch, relevant, ticket_of
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.queue import ENDLESS, first_to_try, leaves_some, queued
from gpulaunch.leases.record_file import is_alive, record_name
from gpulaunch.leases.table import LockedTable, Table, release
from gpulaunch.leases.wake import (
    LOOK,
    WAKE,
    WITHOUT_EVENTS_S,
    Bell,
    Watch,
    listen,
    might_pass,
    ring,
    wait_until_dead,
)
from gpulaunch.machine.topology import same_table
from gpulaunch.process.apart import GivenUpError
from gpulaunch.process.system import is_stopped, open_pid, seconds_since_boot
from gpulaunch.records import replace

LOOK_EVERY_S = 5.0
"""Longest time between two looks, for changes without an event, such as use outside gpulaunch."""

FIRST_LOOK_S = 0.25
"""Time from an event to the next look; it doubles with each look.

NVML lists a process a little longer than the kernel does.
"""

RING_EVERY_S = 0.25
"""Shortest time between two looks because of a bell that was rung."""

MINUTE_S = 60.0
"""Time between two words on a wait."""


_waiting: "set[PlaceInQueue]" = set()


def _leave_as_a_fork() -> None:
    """Close the tickets in a forked child: a fork of who waits does not wait.

    It would keep the ticket alive after the death of its parent, and bar the queue.
    """
    for place in _waiting:
        place.close_copy()


os.register_at_fork(after_in_child=_leave_as_a_fork)


class PlaceInQueue:
    """A place in the queue, held until it is taken or given up.

    The first of those that compete watches the leases; all others sleep on the bell of the ticket
    before their own. Whoever was woken and cannot start wakes the next that might.

    Args:
        given_up: descriptor that is readable once nobody wants the place any more, or None.

    Raises:
        FailedError: the ticket cannot be written.
    """

    def __init__(self, launch: Launch, table: Table, events: Events, given_up: int | None) -> None:
        self._launch, self._table, self._events, self._given_up = launch, table, events, given_up
        self._joined_s = self._told_s = time.monotonic()
        self._rung_s = 0.0
        self._pause_s = FIRST_LOOK_S
        self._watch: Watch | None = None
        self._bell: Bell | None = None
        self._behind: tuple[str, int | None] | None = None
        self._was_woken = self._was_told_to_look = self._was_behind = self._in_queue = False
        self._woken_in_vain: set[str] = set()
        self._has_slept = False
        self._draft = table.draft()
        _waiting.add(self)
        try:
            with table.locked(launch.lock_patience_s) as locked:
                ticket = ticket_of(launch, self._draft.id, locked.next_number())
                locked.publish(self._draft, ticket)
                with suppress(OSError):  # then those behind it look now and then
                    self._bell = Bell(table.directory, ticket.id, passes=_might_pass_all(launch))
            self.ticket = replace(ticket, linked_ns=self._draft.changed_ns)
        except BaseException:
            _waiting.discard(self)
            self.close_copy()
            raise
        self._in_queue = True

    def sleep(self, decision: Wait, state: State) -> None:
        """Sleep until what keeps the launch waiting may have changed.

        Raises:
            TimedOutError: the longest wait is over.
            GivenUpError: nobody wants the place any more.
        """
        reason, behind = decision.reason, decision.behind
        if not self._has_slept:
            self._events.waiting(reason, relevant(self._launch, self._table.peek(self.ticket)))
        self._has_slept = True
        # What is newly followed may have ended before: then decide again.
        if self._listen_to(behind) if behind else self._follow(state.leases):
            return
        if behind is None and self._was_behind:
            self._events.first(reason, time.monotonic() - self._joined_s)
        self._was_behind = behind is not None
        if self._was_woken:
            self._woken_in_vain.clear()
        if self._was_woken or behind is None:  # the first also without an event: none is lost
            woken = self.wake_next(state, skipped=self._woken_in_vain, after_event=self._was_woken)
            self._woken_in_vain = {*self._woken_in_vain, woken} if woken else set()
        self._was_woken = self._was_told_to_look = False
        if behind:
            self._sleep_behind(behind, reason)
        else:
            self._sleep_as_first(reason, [pid for use in state.outside for pid in use.pids])

    def _follow(self, leases: Sequence[Lease]) -> bool:
        """Follow the leases, as the first in the queue; return whether to decide again."""
        self._stop_listening()
        if self._watch is None:
            self._watch = Watch(self._table.directory, self._events.warn)
        return self._watch.follow([record_name(lease) for lease in leases])

    def _listen_to(self, behind: Ticket) -> bool:
        """Listen to the bell of a ticket; return whether it has ended."""
        if self._behind is None or self._behind[0] != behind.id:
            self._stop_listening()
            self._behind = behind.id, listen(self._table.directory, behind.id)
            self._pause_s = FIRST_LOOK_S
        return not is_alive(self._table.path_of(behind))

    def _stop_listening(self) -> None:
        if self._behind and self._behind[1] is not None:
            os.close(self._behind[1])
        self._behind = None

    def _sleep_behind(self, behind: Ticket, reason: str) -> None:
        """Sleep until the ticket before this one ends or is stopped, or somebody rings."""
        path = self._table.path_of(behind)
        while True:
            fd = self._behind[1] if self._behind else None
            pause_s = self._pause_s if fd is not None else WITHOUT_EVENTS_S
            ready = self._poll(pause_s, reason, bell=fd)
            self._pause_s = min(2 * self._pause_s, LOOK_EVERY_S)
            if fd in ready:
                wait_until_dead([path])
            if self._was_told_to_look:
                return
            if self._was_woken or is_stopped(behind.launcher) or not is_alive(path):
                self._was_woken = True
                self._stop_listening()
                return
            if fd is None or fd in ready:  # it has no bell, or not yet
                self._stop_listening()
                again = listen(self._table.directory, behind.id) if fd is None else None
                self._behind = behind.id, again

    def _sleep_as_first(self, reason: str, pids: Iterable[int]) -> None:
        """Sleep until a lease or one of the processes ends, or it is time to look."""
        watched = self._watch.fd if self._watch else None
        pause_s = self._pause_s if watched is not None else WITHOUT_EVENTS_S
        until_s = time.monotonic() + pause_s
        process_fds: list[int] = []
        with suppress(OSError):  # no descriptors left: those that are watched will do
            process_fds.extend(fd for pid in pids if (fd := open_pid(pid)) is not None)
        inputs = process_fds if watched is None else [*process_fds, watched]
        try:
            while not (self._was_woken or self._was_told_to_look):
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    break
                ready = self._poll(left_s, reason, inputs=inputs)
                self._was_woken |= not ready.isdisjoint(process_fds)
                if self._watch and watched in ready:  # perhaps by a file that is nobody's lease
                    self._was_woken |= self._watch.has_seen_an_end()
        finally:
            for fd in process_fds:
                os.close(fd)
        self._pause_s = FIRST_LOOK_S if self._was_woken else min(2 * self._pause_s, LOOK_EVERY_S)

    def _poll(
        self,
        pause_s: float,
        reason: str,
        *,
        inputs: Iterable[int] = (),
        bell: int | None = None,
    ) -> set[int]:
        """Sleep until a descriptor is readable, or a ticket ends; return those that are ready."""
        poll = select.poll()
        for fd in inputs:
            poll.register(fd, select.POLLIN)
        if bell is not None:
            poll.register(bell, 0)
        if self._given_up is not None:
            poll.register(self._given_up, select.POLLIN)
        if self._bell:
            poll.register(self._bell.fd, select.POLLIN)
        now_s = time.monotonic()
        pause_s = min(pause_s, self._told_s + MINUTE_S - now_s, self._left_s(reason))
        ready = {fd for fd, _ in poll.poll(max(0.0, pause_s) * 1000)}
        if self._given_up in ready:
            raise GivenUpError
        if self._bell and self._bell.fd in ready:
            # Anybody can ring all the time, which must not keep this process busy.
            time.sleep(max(0.0, self._rung_s + RING_EVERY_S - time.monotonic()))
            self._rung_s = time.monotonic()
            if self._bell.hush().strip(LOOK):
                self._was_woken = True
            else:
                self._was_told_to_look = True
        if time.monotonic() - self._told_s >= MINUTE_S:
            self._told_s = time.monotonic()
            with suppress(FailedError):  # a word less, and not the end of the wait
                self._events.minute(self._told_s - self._joined_s, self._number)
        return ready

    def _left_s(self, reason: str) -> float:
        """Return the seconds left to wait."""
        timeout_s = self._launch.wait_timeout_s
        if timeout_s is None:
            return float("inf")
        left_s = self._joined_s + timeout_s - time.monotonic()
        if left_s <= 0:
            raise TimedOutError(f"waited {format_duration(timeout_s)}: {reason}")
        return left_s

    def _number(self) -> int:
        """Return the launch's place in the queue."""
        return len(relevant(self._launch, self._table.peek(self.ticket)).tickets) + 1

    def wake_next(
        self,
        state: State,
        taken: Iterable[str] = (),
        skipped: Collection[str] = (),
        *,
        after_event: bool = True,
    ) -> str | None:
        """Wake the first of the later tickets that might start now, before this one.

        After an event it wakes the next if it does not start. So one is woken for each GPU that
        comes free, and not all who wait.

        Args:
            taken: UUIDs of the GPUs that it has just taken; none if it does not start.
            skipped: ids of tickets that have been woken and did not start.
            after_event: whether anything has changed that is known.

        Returns:
            The id of the ticket that was woken; None for none.
        """
        topology, within = state.topology, state.within
        busy_until_s = leased_until_s(topology, state.leases, within)
        busy_until_s |= dict.fromkeys((*used_outside(state, busy_until_s), *taken), ENDLESS)
        uuids = {gpu.uuid for gpu in topology.gpus}
        scope = [uuid for uuid in uuids if within is None or uuid in within.uuids]
        free = [uuid for uuid in scope if uuid not in busy_until_s]
        sharers = {lease.user_id for lease in state.leases if lease.share}
        begun = {
            (lease.engine_job.title, lease.user_id)
            for lease in state.leases
            if lease.engine_job and lease.engine_job.group
        }
        job = self._launch.request.engine_job
        if taken and job and job.is_divided:
            begun.add((job.title, job.user_id))
        if not free and not sharers and not begun:
            return None
        clock_s = seconds_since_boot()
        ahead = queued(state.ahead, within) + ([] if taken else [self.ticket])
        for_all = leaves_some(ahead, free, clock_s)  # else only those that pass, of hundreds

        def is_wanted(ticket_id: str) -> bool:
            return for_all or might_pass(self._table.directory, ticket_id)

        later = (
            one.among(uuids)
            for one in self._table.later(self.ticket, is_wanted)
            if _is_rival(self._launch, one)
        )
        found = first_to_try(
            ahead, later, busy_until_s, clock_s, sharers=sharers, skipped=skipped, begun=begun
        )
        if found is None:
            return None
        ring(self._table.directory, found.id, WAKE if after_event else LOOK)
        return found.id

    def take(self, locked: LockedTable) -> None:
        """Remove the ticket under the lock in which the lease is published."""
        locked.remove(self.ticket)
        self._in_queue = False

    def close_copy(self) -> None:
        """Close a forked child's copy of the ticket, its bell and what it listens to."""
        self._draft.close()
        if self._bell:
            self._bell.close()
        if self._watch:
            self._watch.close_copy()
        self._stop_listening()

    def close(self) -> None:
        """Leave the queue."""
        _waiting.discard(self)
        self._stop_listening()
        if self._watch:
            self._watch.close()
        if self._in_queue:
            release(self._table, self._draft, self.ticket)
        self.close_copy()


def _might_pass_all(launch: Launch) -> bool:
    """Return whether a launch might pass tickets that want all that it could have."""
    request = launch.request
    return (
        request.ends_within_s is not None
        or request.choosy
        or bool(request.sharing)
        or bool(request.engine_job and request.engine_job.is_divided)
    )


def _is_rival(launch: Launch, ticket: Ticket) -> bool:
    """Return whether a ticket is of the same machine and lease, and its launcher not stopped."""
    within = launch.within.id if launch.within else None
    return (
        same_table(ticket.table, launch.machine.key)
        and ticket.within == within
        and not is_stopped(ticket.launcher)
    )
