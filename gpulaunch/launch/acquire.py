"""The acquisition of a lease: assess, wait at the head of the queue, take the GPUs.

What is slow comes before the host-wide lock: the driver, engines, the fork of the job, a daemon of
MPS. Under it the table is read and, if it has changed, decided upon again.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, State, Wait
from gpulaunch.errors import FailedError, NotShareableError
from gpulaunch.launch.launch import (
    Events,
    K,
    Launch,
    assess,
    assess_after_sleep,
    lease_of,
    see_again,
    state_met,
)
from gpulaunch.leases.lease import Lease, Share, Ticket
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.records import replace

if TYPE_CHECKING:  # few launches wait
    from gpulaunch.launch.place_in_queue import PlaceInQueue


def acquire(
    launch: Launch,
    table: Table,
    events: Events,
    make: Callable[[Launch, Table, Draft, Share | None], K],
    given_up: int | None = None,
) -> K:
    """Take the GPUs that the request gets, now or when the launch is at the head of the queue.

    Args:
        make: class of the lease's keeper, or what makes one from the same arguments; called again
            if another launcher was faster.
        given_up: descriptor that is readable once the launch is not wanted any more, or None.

    Returns:
        The keeper, with the lease, the grant and the state.

    Raises:
        GpulaunchError: the GPUs are refused, or busy and the launch does not wait: events.refusal.
        FailedError: the table cannot be used; nothing is held.
        TimedOutError: the launch has waited for its wait timeout.
        GivenUpError: the launch was given up while it waited.
    """
    launch = _without_stale_daemons(launch, table)
    place: PlaceInQueue | None = None
    tried: set[str] = set()
    try:
        decision, state = assess(launch, table, None)
        while True:
            ticket = place.ticket if place else None
            decision, state = _end_abandoned(launch, table, ticket, decision, state, tried)
            if launch.within and not state.within:
                break
            if isinstance(decision, Wait) and place is None:
                # Without the lock the table is not read at one moment: what one job has just
                # released and what it took before may both seem to be in use.
                with table.locked(launch.lock_patience_s) as locked:
                    state = state_met(launch, locked.read(), state.outside)
                decision = decide(launch.request, state)
            if isinstance(decision, Grant):
                try:
                    keeper = _take(launch, table, decision, state, place, make)
                except NotShareableError as problem:
                    events.warn(f"not shared: {problem}")
                    launch = replace(launch, request=replace(launch.request, sharing=None))
                    keeper = None
                if keeper is not None:
                    return keeper
                decision, state = assess(see_again(launch), table, ticket)
            elif isinstance(decision, Refuse) or not launch.wait:
                break
            else:
                place = place or _join_queue(launch, table, events, given_up)
                place.sleep(decision, state)
                decision, state = assess_after_sleep(launch, table, place.ticket)
    finally:
        if place:
            place.close()
    if launch.within and not state.within:  # it has ended since it was read
        events.warn(f"lease {launch.within.id} has ended, so the job gets GPUs outside of it")
        return acquire(replace(launch, within=None), table, events, make, given_up)
    assert not isinstance(decision, Grant)  # noqa: S101  it was taken, or decided upon again
    raise events.refusal(launch, decision)


def _join_queue(
    launch: Launch, table: Table, events: Events, given_up: int | None
) -> "PlaceInQueue":
    from gpulaunch.launch.place_in_queue import PlaceInQueue  # late: few launches wait

    return PlaceInQueue(launch, table, events, given_up)


def _end_abandoned(
    launch: Launch,
    table: Table,
    ticket: Ticket | None,
    decision: Decision,
    state: State,
    tried: set[str],
) -> tuple[Decision, State]:
    """End containers that should have ended; return the decision and its state, then made anew.

    Args:
        tried: ids of leases to leave alone; those that are tried are added.
    """
    if state.unlocked - tried:
        from gpulaunch.launch.free import end_abandoned  # late: few leases are containers'

        unlocked = [lease for lease in state.leases if lease.id in state.unlocked]
        if end_abandoned(table, unlocked, launch.grace_s, tried):
            return assess(launch, table, ticket)
    return decision, state


def _without_stale_daemons(launch: Launch, table: Table) -> Launch:
    """Return the launch after ending MPS daemons without jobs, which keep others off their GPUs."""
    if launch.mps is None or not os.path.isdir(launch.mps.base):
        return launch
    from gpulaunch.sharing.membership import sweep  # late: few users share

    if not sweep(launch.mps.base, table):
        return launch
    return see_again(launch)


def _take(
    launch: Launch,
    table: Table,
    grant: Grant,
    state: State,
    place: "PlaceInQueue | None",
    make: Callable[[Launch, Table, Draft, Share | None], K],
) -> K | None:
    """Take what is granted under the host-wide lock; None if another launcher was faster.

    Raises:
        NotShareableError: the GPUs were to be shared, and their MPS daemon cannot be had.
    """
    decision: Decision = grant
    with _prepare_share(launch, table, grant) as share:
        record = table.draft(place.ticket.id if place else None)
        keeper: K | None = None
        taken: Lease | None = None
        try:
            # Fork the job before taking the lock: forking is slow, and the record needs its pid.
            keeper = make(launch, table, record, share)
            with table.locked(launch.lock_patience_s) as locked:
                now_seen = state_met(
                    launch, locked.read(place.ticket if place else None), state.outside
                )
                if replace(now_seen, clock_s=state.clock_s) != state:
                    state, decision = now_seen, decide(launch.request, now_seen)
                if isinstance(decision, Grant) and _suits_daemon(launch, decision, state, share):
                    lease = lease_of(launch, decision, record.id, keeper.process)
                    lease = replace(lease, share=_share_of(decision, share))
                    locked.publish(record, lease)
                    if place:
                        place.take(locked)
                    keeper.lease, keeper.grant, keeper.state = lease, decision, state
                    taken = lease
        finally:  # also at the KeyboardInterrupt of a program that calls allocate()
            if taken is None:
                if keeper:
                    keeper.dismiss()
                record.close()  # if it is in the table already, it becomes dead
        if taken is None:
            return None
        if place:
            with suppress(FailedError):  # what this launch wanted and did not take is free
                place.wake_next(state, taken.uuids)
        return keeper


def _prepare_share(
    launch: Launch, table: Table, grant: Grant
) -> AbstractContextManager[Share | None]:
    """Return a context with the share that the lease will have; its MPS daemon stays that long."""
    option = grant.share_option
    if option is None:
        return nullcontext(launch.within.share if launch.within else None)
    from gpulaunch.sharing.membership import ready_to_share  # late: few launches share

    assert option.share  # noqa: S101  it was granted
    return ready_to_share(option.share, option.residents, launch.mps, table)


def _suits_daemon(launch: Launch, grant: Grant, state: State, prepared: Share | None) -> bool:
    """Return whether a decision that was made again needs the very MPS daemon that is ready."""
    if launch.request.sharing is None:  # the share, if any, is that of the lease around the launch
        return state.within is not None or prepared is None
    option = grant.share_option
    if option is None or prepared is None:
        return option is None and prepared is None
    daemons = {lease.share.pipe_directory for lease in option.residents if lease.share}
    return launch.mps is None or (
        option.group == prepared.group and daemons <= {prepared.pipe_directory}
    )


def _share_of(grant: Grant, ready: Share | None) -> Share | None:
    """Return the share of what is granted, with the MPS daemon that is ready."""
    option = grant.share_option
    if option is None or option.share is None or ready is None:
        return ready  # if any, that of the lease around the launch
    return replace(option.share, pipe_directory=ready.pipe_directory)
