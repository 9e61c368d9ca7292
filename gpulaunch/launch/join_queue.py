"""The waiting of launches: how they join the queue, and wake each other."""

from collections.abc import Collection, Iterable
from contextlib import suppress

from gpulaunch.decide.decide import used_outside
from gpulaunch.decide.needs import leased_until_s
from gpulaunch.errors import FailedError
from gpulaunch.launch.assess import Assessment, read_snapshot
from gpulaunch.launch.launch import Callbacks, Launch
from gpulaunch.launch.make_records import make_ticket
from gpulaunch.launch.place_in_queue import PlaceInQueue, WordsOnWaiting
from gpulaunch.leases.bell import LOOK, WAKE, might_pass, ring
from gpulaunch.leases.queue import ENDLESS, first_to_try, leaves_some, queued
from gpulaunch.leases.table import Table
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.table_key import same_table
from gpulaunch.process.system import is_stopped, seconds_since_boot


def join_queue(launch: Launch, table: Table, callbacks: Callbacks) -> PlaceInQueue:
    """Put a launch at the end of the queue.

    Args:
        launch: the launch that has to wait.
        table: the allocation table.
        callbacks: functions that tell how the wait goes.

    Raises:
        FailedError: the ticket cannot be written.
    """
    request = launch.request

    def write(ticket_id: str, number: int) -> Ticket:
        return make_ticket(launch, ticket_id, number)

    def minute(waited_s: float) -> None:
        with suppress(FailedError):  # a word less, and not the end of the wait
            callbacks.minute(
                waited_s, lambda: len(read_snapshot(launch, table, place.ticket).tickets) + 1
            )

    place = PlaceInQueue(
        table,
        write,
        passes=request.ends_within_s is not None
        or request.is_choosy
        or bool(request.sharing)
        or bool(request.engine_job and request.engine_job.is_divided),
        timeout_s=launch.wait_timeout_s,
        warn=callbacks.warn,
        words=WordsOnWaiting(callbacks.first, minute),
        given_up=callbacks.given_up,
    )
    return place


def wake_next(
    launch: Launch,
    table: Table,
    assessment: Assessment,
    ticket: Ticket,
    taken: Iterable[str] = (),
    skipped: Collection[str] = (),
    *,
    after_event: bool = True,
) -> str | None:
    """Wake the first of the later tickets that might start now, before this one.

    After an event it wakes the next if it does not start. So one is woken for each GPU that comes
    free, and not all who wait.

    Args:
        launch: the launch that does not start now, or has just started.
        table: the allocation table.
        assessment: its last assessment.
        ticket: its ticket.
        taken: UUIDs of the GPUs that it has just taken.
        skipped: ids of tickets that have been woken and did not start.
        after_event: whether anything has changed that is known.

    Returns:
        The id of the ticket that was woken; None for none.
    """
    situation = assessment.situation
    topology, within = situation.topology, situation.within
    busy_until_s = leased_until_s(topology, situation.leases, within)
    busy_until_s |= dict.fromkeys((*used_outside(situation, busy_until_s), *taken), ENDLESS)
    uuids = {gpu.uuid for gpu in topology.gpus}
    scope = [uuid for uuid in uuids if within is None or uuid in within.uuids]
    free = [uuid for uuid in scope if uuid not in busy_until_s]
    sharers = {lease.user_id for lease in situation.leases if lease.share}
    begun = {
        (lease.engine_job.title, lease.user_id)
        for lease in situation.leases
        if lease.engine_job and lease.engine_job.group
    }
    job = launch.request.engine_job
    if taken and job and job.is_divided:
        begun.add((job.title, job.user_id))
    if not free and not sharers and not begun:
        return None
    clock_s = seconds_since_boot()
    ahead = queued(situation.ahead, within) + ([] if taken else [ticket])
    for_all = leaves_some(ahead, free, clock_s)  # else only those that pass, of hundreds

    def is_wanted(ticket_id: str) -> bool:
        return for_all or might_pass(table.directory, ticket_id)

    later = (one.among(uuids) for one in table.later(ticket, is_wanted) if _is_rival(launch, one))
    found = first_to_try(
        ahead, later, busy_until_s, clock_s, sharers=sharers, skipped=skipped, begun=begun
    )
    if found is None:
        return None
    ring(table.directory, found.id, WAKE if after_event else LOOK)
    return found.id


def _is_rival(launch: Launch, ticket: Ticket) -> bool:
    """Return whether a ticket is of the same machine and lease, and its launcher not stopped."""
    within = launch.within.id if launch.within else None
    return (
        same_table(ticket.table, launch.machine.key)
        and ticket.within == within
        and not is_stopped(ticket.launcher)
    )
