"""The order of the queue: first in, first out, with exceptions for requests that may pass.

Each ticket says until when others may pass it. So no launcher can move in front of others by its
own settings, and all agree without a shared counter.
"""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Sequence

from gpulaunch.leases.lease import Lease
from gpulaunch.leases.ticket import Ticket

CHOOSY_S = 1800.0
"""Time for which others may pass a request that waits for better GPUs than the free ones."""


def competing(
    tickets: Iterable[Ticket], within: Lease | None, uuids: Collection[str]
) -> list[Ticket]:
    """Return the tickets that want some of the same GPUs, in their order.

    Args:
        tickets: tickets of one machine.
        within: the lease that the GPUs are to be taken from, or None. Launches outside it cannot
            get its GPUs, and only its insiders can launch inside it, whatever a ticket says.
        uuids: UUIDs of the GPUs that would do.
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

    Within a ticket's time limit, a request may pass it if the ticket wants more GPUs and cannot
    start on the free ones, or if the ticket is choosy. Only the launcher of a choosy ticket can
    tell whether the free GPUs will do, so it would bar all others. A choosy request does not pass a
    choosy ticket: both may want the same GPUs.

    Args:
        ahead: competing tickets that come first.
        gpus: number of GPUs that the request wants.
        free: UUIDs of the GPUs that are not in use.
        clock_s: seconds since boot.
        choosy: whether the request is choosy.
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
