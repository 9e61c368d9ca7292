"""Order of the queue: first in, first out, and when a later request may pass an earlier one.

Each ticket says until when it may be passed. So no launcher's settings can push it in front of
others, and all agree without a shared counter.
"""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Sequence

from gpulaunch.leases.lease import Lease
from gpulaunch.leases.ticket import Ticket

CHOOSY_S = 1800.0
"""So long others pass who waits for better GPUs than those that are free; then nobody does."""


def competing(
    tickets: Iterable[Ticket], within: Lease | None, uuids: Collection[str]
) -> list[Ticket]:
    """Return the tickets that want some of the same GPUs, in their order.

    Args:
        tickets: of one machine.
        within: the lease that the GPUs are to be taken from, or None. Its GPUs are out of reach for
            launches outside it, and only its insiders can launch inside it, whatever a ticket says.
        uuids: GPUs that would do.
    """
    wanted = set(uuids)
    if within:
        tickets = [
            ticket
            for ticket in tickets
            if ticket.within == within.id and ticket.user_id in within.insiders
        ]
    else:
        tickets = [ticket for ticket in tickets if ticket.within is None]
    found = (ticket for ticket in tickets if wanted.intersection(ticket.uuids))
    return sorted(found, key=lambda ticket: ticket.number)


def barring(
    ahead: Sequence[Ticket],
    gpus: int,
    free: Collection[str],
    clock_s: float,
    *,
    choosy: bool = False,
) -> Ticket | None:
    """Return the last of the earlier tickets that a request may not pass; None if it may start.

    A request passes a ticket that is not older than its limit if that ticket cannot start on what
    is free and wants more GPUs, or if it is choosy. Only the launcher of a choosy ticket can tell
    whether what is free will do, so it would bar everybody. A choosy request does not pass a choosy
    ticket: it may want the same.

    Args:
        ahead: competing tickets that come first.
        gpus: how many the request wants.
        free: UUIDs of the GPUs that nobody uses.
        clock_s: seconds since boot.
        choosy: whether the request is.
    """
    return next(
        (t for t in reversed(ahead) if not _may_pass(t, gpus, free, clock_s, choosy=choosy)), None
    )


def _may_pass(
    ticket: Ticket, gpus: int, free: Collection[str], clock_s: float, *, choosy: bool
) -> bool:
    could_start = sum(uuid in free for uuid in ticket.uuids) >= ticket.gpus
    is_smaller = gpus < ticket.gpus and not could_start
    return clock_s < ticket.passable_until_s and (is_smaller or (ticket.choosy and not choosy))
