"""The order of the queue: first in, first out, except for requests that delay nobody.

The rule is that of EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995): a
later request may start if that cannot delay the head of the queue. What it goes by is in the
records, so all launchers agree without a shared counter.
"""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from gpulaunch.leases.lease import Lease, Ticket

CHOOSY_S = 1800.0
"""Time for which others may pass a request that waits for better GPUs than the free ones."""

ENDLESS = float("inf")

_LATE_S = 60.0  # a lease that is overdue for longer is ended by nobody


class Claimant(Protocol):
    """What comes after tickets in the queue, as a request does."""

    @property
    def choosy(self) -> bool:
        """True if it may wait although enough GPUs are free."""

    @property
    def in_order(self) -> bool:
        """True if it passes nobody, and nobody may pass it."""

    @property
    def ends_within_s(self) -> float | None:
        """Seconds within which it has ended for certain once it has started; None for no limit."""


def queued(tickets: Iterable[Ticket], within: Lease | None) -> list[Ticket]:
    """Return the tickets that want GPUs of the same machine or lease, in their order.

    Args:
        within: the lease that the GPUs are to be taken from, or None. Launches outside it cannot
            get its GPUs, and only its insiders can launch inside it, whatever a ticket says.
    """
    if within:
        tickets = [
            ticket
            for ticket in tickets
            if ticket.within == within.id and ticket.user_id in within.insiders
        ]
    else:
        tickets = [ticket for ticket in tickets if ticket.within is None]
    return sorted(tickets, key=lambda ticket: ticket.place)


def competing(tickets: Iterable[Ticket], uuids: Collection[str]) -> list[Ticket]:
    """Return those of some tickets that want one of these GPUs."""
    wanted = set(uuids)
    return [ticket for ticket in tickets if wanted.intersection(ticket.uuids)]


def last_before(ahead: Sequence[Ticket], later: Claimant, clock_s: float) -> Ticket | None:
    """Return the request that one comes after; None if it is the first of those that compete."""
    for one in reversed(ahead):
        if not _lets_pass(one, later.choosy, clock_s):
            return one
    return None


def barring(
    ahead: Sequence[Ticket],
    uuids: Collection[str],
    later: Claimant,
    count: int,
    busy_until_s: Mapping[str, float],
    clock_s: float,
) -> list[Ticket]:
    """Return the earlier tickets whose GPUs a request may not take.

    It may pass a ticket if it has ended before that one can start, by the time limits of what
    runs, and may take GPUs that none of the tickets here wants. Only the launcher of a choosy
    ticket can tell whether the free GPUs will do, so it would bar all others; within its limit
    those pass that are not choosy themselves. Two that are may want the same GPUs, so of these only
    a smaller one passes, while the other has too few.

    Args:
        ahead: all tickets that come first, in their order.
        uuids: UUIDs of the GPUs that would do; tickets that want none of them are left out.
        count: number of GPUs that it asks for.
        busy_until_s: seconds since boot at which each GPU that is in use is free at the latest, by
            UUID; ENDLESS if there is no limit.
    """
    ahead = [
        ticket
        for ticket in ahead
        if not _lets_pass(ticket, later.choosy, clock_s)
        and not _lets_smaller_pass(ticket, count, busy_until_s, clock_s)
    ]
    if not later.in_order and later.ends_within_s is not None:
        order = QueueOrder(busy_until_s, clock_s)
        ahead = [ticket for ticket in ahead if order.add(ticket, clock_s + later.ends_within_s)]
    return competing(ahead, uuids)


def first_to_try(
    ahead: Iterable[Ticket],
    later: Iterable[Ticket],
    busy_until_s: Mapping[str, float],
    clock_s: float,
    *,
    sharers: Collection[int] = (),
    skipped: Collection[str] = (),
    begun: Collection[tuple[str, int]] = (),
) -> Ticket | None:
    """Return the first of some tickets that might start now, as far as others can tell.

    Args:
        ahead: tickets that come before them, in their order.
        later: the tickets, in their order.
        busy_until_s: as for barring().
        sharers: ids of the users whose jobs share GPUs, which others of theirs may join.
        skipped: ids of tickets that have been tried.
        begun: title and user id of the steps of which a rank has started, and taken the GPUs of the
            other ranks here, too.
    """
    order = QueueOrder(busy_until_s, clock_s, sharers)
    for ticket in ahead:
        if not _lets_pass(ticket, False, clock_s):
            order.add(ticket)
    for ticket in later:
        is_next = (ticket.step, ticket.user_id) in begun or order.might_start(ticket)
        if ticket.id not in skipped and is_next:
            return ticket
        order.add(ticket)
    return None


def leaves_some(ahead: Iterable[Ticket], free: Collection[str], clock_s: float) -> bool:
    """Return whether a GPU is free that none of these tickets wants; those are for all."""
    left = set(free)
    for ticket in ahead:
        if not _lets_pass(ticket, False, clock_s):
            left.difference_update(ticket.uuids)
    return bool(left)


def _lets_pass(ticket: Ticket, is_later_choosy: bool, clock_s: float) -> bool:
    """Return whether a ticket is choosy and lets a later request pass whatever that takes."""
    return ticket.choosy and not is_later_choosy and clock_s < ticket.passable_until_s


def _lets_smaller_pass(
    ticket: Ticket, count: int, busy_until_s: Mapping[str, float], clock_s: float
) -> bool:
    """Return whether a choosy ticket that cannot start lets a smaller request pass, choosy too."""
    if not (ticket.choosy and clock_s < ticket.passable_until_s):
        return False
    free = sum(uuid not in busy_until_s for uuid in ticket.uuids)
    return count < ticket.gpus and free < ticket.gpus


class QueueOrder:
    """Tickets in the order of the queue, and who of them waits for GPUs and not for others.

    A head is a ticket that wants a GPU that no earlier one wants. All others wait behind a head.

    Args:
        busy_until_s: as for barring().
        sharers: as for first_to_try().

    Attributes:
        latest_start_s: when the last of the heads can start, in seconds since boot.
    """

    def __init__(
        self,
        busy_until_s: Mapping[str, float],
        clock_s: float,
        sharers: Collection[int] = (),
    ) -> None:
        self._busy_until_s, self._clock_s, self._sharers = busy_until_s, clock_s, sharers
        self._wanted: set[str] = set()
        self._heads: list[tuple[frozenset[str], float]] = []
        self.latest_start_s = 0.0

    def add(self, ticket: Ticket, ends_s: float | None = None) -> bool:
        """Add the next ticket; return whether it bars a request that comes after it.

        Args:
            ends_s: when that has ended for certain if it starts now; None if nobody asks for one.
        """
        is_head = not self._wanted.issuperset(ticket.uuids)
        bars = False
        if is_head or ticket.in_order:
            start_s = self._clock_s if ticket.in_order else self._earliest_start_s(ticket)
            bars = ends_s is not None and ends_s > start_s
            self._heads.append((frozenset(ticket.uuids), start_s))
            self.latest_start_s = max(self.latest_start_s, start_s)
        elif ends_s is not None:
            bars = len(self.free_for(ticket)) >= ticket.gpus
        self._wanted.update(ticket.uuids)
        return bars

    def might_start(self, ticket: Ticket) -> bool:
        """Return whether the next ticket might start, for all that others know of it."""
        may_join = ticket.may_join and ticket.user_id in self._sharers
        return may_join or len(self.free_for(ticket)) >= ticket.gpus

    def free_for(self, ticket: Ticket) -> set[str]:
        """Return the free GPUs that the next ticket could take without delaying the heads."""
        ends_s = ENDLESS
        if ticket.ends_within_s is not None and not ticket.in_order:
            ends_s = self._clock_s + ticket.ends_within_s
        free = {uuid for uuid in ticket.uuids if uuid not in self._busy_until_s}
        for uuids, start_s in self._heads:
            if ends_s > start_s or ends_s == ENDLESS:
                free -= uuids
        return free

    def _earliest_start_s(self, ticket: Ticket) -> float:
        """Return when a head can start by the limits of what runs, in seconds since boot.

        What is overdue may end at any moment, and counts as free; if it is long overdue, nobody
        ends it, and it is endless.
        """
        overdue_s = self._clock_s - _LATE_S
        ends = (self._busy_until_s.get(uuid, self._clock_s) for uuid in ticket.uuids)
        times = sorted(end_s if end_s > overdue_s else ENDLESS for end_s in ends)
        return times[ticket.gpus - 1] if ticket.gpus <= len(times) else ENDLESS
