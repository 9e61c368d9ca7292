"""The acquisition of a lease: assess, wait at the head of the queue, take the GPUs.

The idiom is look, take the lock, look again: deciding is slow, so it is done without the host-wide
lock, and changes since then are checked under it.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from gpulaunch.decide.decide import Grant, Refuse, Situation, Wait, admitted_gpus
from gpulaunch.errors import NotShareableError
from gpulaunch.launch.assess import (
    Assessment,
    assess,
    assess_after_sleep,
    assess_now,
    granted_gpus,
    read_snapshot,
    relevant,
)
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.place_in_queue import PlaceInQueue
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.queue import CHOOSY_S
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import LockedTable, Snapshot, Table
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.find import look_again
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.process.identity import Process
from gpulaunch.process.system import boot_id, now, seconds_since_boot, this_process
from gpulaunch.records import Record, replace
from gpulaunch.typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:  # few launches share
    from gpulaunch.leases.share import Share

MOST_LOST_RACES = 5
"""Without --wait, give up after this many lost races."""

MOST_LOST_RACES_TO_SHARERS = 50
"""Limit for launches that share. Another launch that comes first takes nothing from them, so a
lost race says little."""


class Callbacks(Record):
    """Functions that a launch calls on its way; none may raise.

    Attributes:
        warn: called with each warning.
        waiting: called with the reason why the launch joins the queue, and with the live leases
            and earlier tickets.
    """

    warn: Callable[[str], None]
    waiting: Callable[[str, Snapshot], None]


class Holder(Protocol):
    """The future holder of a lease, made before the lease is taken so that its pid is recorded."""

    @property
    def process(self) -> Process:
        """The process that the record names as the job."""

    def dismiss(self) -> None:
        """Undo everything: the GPUs went to another launch."""


C = TypeVar("C", bound=Holder)


class Acquired(Record, Generic[C]):
    """A lease that this process has just taken.

    Attributes:
        grant: the decision, with the GPUs and the reason.
        situation: the state of the machine in which they were granted.
        lease: the lease as recorded.
        record: the open file of its record.
        holder: the holder that `prepare` made.
    """

    grant: Grant
    situation: Situation
    lease: Lease
    record: Draft
    holder: C


class _Terms(Record):
    """The way in which the GPUs will be held.

    Attributes:
        share: the launch's part of shared GPUs; None for GPUs of its own.
    """

    share: "Share | None"


def acquire(
    launch: Launch,
    table: Table,
    callbacks: Callbacks,
    prepare: "Callable[[Draft, Share | None], C]",
) -> Acquired[C] | Wait | Refuse:
    """Take the GPUs that the request gets, now or when the launch is at the head of the queue.

    Args:
        launch: the launch that needs the GPUs.
        table: the allocation table of leases and tickets.
        callbacks: functions to call on the way.
        prepare: function that makes the holder from the draft of the lease's record and its
            share; called again after each lost race.

    Returns:
        The lease, or the decision if that was no Grant and the launch does not wait.

    Raises:
        FailedError: the table cannot be used; nothing is held.
        TimedOutError: the launch has waited for its wait timeout.
    """
    launch = _without_stale_daemons(launch, table)
    place: PlaceInQueue | None = None
    lost_races = 0
    try:
        assessment = assess_now(launch, table, None)
        while True:
            decision = assessment.decision
            if launch.within and launch.within not in assessment.snapshot.leases:
                # The lease around this launch has ended since it was read.
                callbacks.warn(
                    f"lease {launch.within.id} has ended, so this is a launch of its own"
                )
                launch = replace(launch, within=None)
                _leave_queue(place)
                place = None
                assessment = assess_now(launch, table, None)
            elif isinstance(decision, Grant):
                try:
                    acquired = _take(launch, table, assessment, place, prepare)
                except NotShareableError as problem:
                    callbacks.warn(f"not shared: {problem}")
                    launch = replace(launch, request=replace(launch.request, sharing=None))
                    acquired = None
                if acquired is not None:
                    return acquired
                lost_races += 1
                if place is None and launch.patience.wait:
                    # From now on a launch that comes later cannot take these GPUs first.
                    place = _join_queue(launch, table, callbacks.warn)
                elif place is None and lost_races == _most_lost_races(launch):
                    gpus = gpus_text(len(decision.placement.gpus))
                    return Wait(f"{gpus} chosen, but others were faster {lost_races} times")
                seen_anew = replace(launch, machine=look_again(launch.machine))
                assessment = assess_now(seen_anew, table, _ticket_number(place))
            elif isinstance(decision, Refuse) or not launch.patience.wait:
                return decision
            else:
                place = place or _join_queue(launch, table, callbacks.warn)
                _sleep_in_queue(launch, table, assessment, place, callbacks)
                assessment = assess_after_sleep(launch, table, place.ticket.number)
    finally:
        _leave_queue(place)


def _most_lost_races(launch: Launch) -> int:
    return MOST_LOST_RACES_TO_SHARERS if launch.request.sharing else MOST_LOST_RACES


def _without_stale_daemons(launch: Launch, table: Table) -> Launch:
    """Return the launch after ending MPS daemons without jobs, which keep others off their GPUs."""
    if launch.mps is None or not os.path.isdir(launch.mps.base):
        return launch
    from gpulaunch.sharing.share_group import sweep  # late: few users share

    if not sweep(launch.mps.base, table):
        return launch
    return replace(launch, machine=look_again(launch.machine))


def _ticket_number(place: PlaceInQueue | None) -> int | None:
    """Return the number of the launch's ticket; None if it is not in the queue."""
    return place.ticket.number if place else None


def _leave_queue(place: PlaceInQueue | None) -> None:
    if place:
        place.close()


def _sleep_in_queue(
    launch: Launch, table: Table, assessment: Assessment, place: PlaceInQueue, callbacks: Callbacks
) -> None:
    """Sleep until deciding again may have another answer; say why before the first time."""
    if not place.has_slept:
        callbacks.waiting(
            assessment.decision.reason, read_snapshot(launch, table, place.ticket.number)
        )
    place.sleep(
        assessment.decision.reason,
        assessment.barred_by,
        assessment.snapshot.leases,
        [pid for use in assessment.outside for pid in use.pids],
        may_join=launch.request.sharing is not None,  # even where it is barred from free GPUs
    )


def _take(
    launch: Launch,
    table: Table,
    assessment: Assessment,
    place: PlaceInQueue | None,
    prepare: "Callable[[Draft, Share | None], C]",
) -> Acquired[C] | None:
    """Take what was granted; None if another launcher was faster.

    Raises:
        NotShareableError: the GPUs were to be shared, and their MPS daemon cannot be had.
    """
    with _prepare_share(launch, table, assessment.decision) as share:
        record = table.draft(place.ticket.id if place else None)
        holder: C | None = None
        acquired: Acquired[C] | None = None
        try:
            # Fork the job before taking the lock: forking is slow, and the record needs its pid.
            holder = prepare(record, share)
            with table.locked() as locked:
                acquired = _publish(launch, assessment, place, locked, record, holder, share)
        except BaseException:  # includes the KeyboardInterrupt of a program that calls allocate()
            _discard(record, holder)
            raise
        if acquired is None:
            _discard(record, holder)
        return acquired


def _prepare_share(
    launch: Launch, table: Table, decision: Wait | Refuse | Grant
) -> "AbstractContextManager[Share | None]":
    """Return a context with the share that the lease will have; its MPS daemon stays that long."""
    option = decision.share_option if isinstance(decision, Grant) else None
    if option is None:
        return nullcontext(launch.within.share if launch.within else None)
    from gpulaunch.decide.share_options import share_of  # late: few launches share
    from gpulaunch.sharing.membership import ready_to_share

    return ready_to_share(share_of(launch.request, option), option.residents, launch.mps, table)


def _publish(
    launch: Launch,
    assessment: Assessment,
    place: PlaceInQueue | None,
    locked: LockedTable,
    record: Draft,
    holder: C,
    share: "Share | None",
) -> Acquired[C] | None:
    """Write the lease into the table, under its lock; None if the GPUs are gone."""
    # Another launcher may have taken these GPUs since we decided: look again under the lock.
    snapshot = relevant(launch, locked.read(_ticket_number(place)))
    terms: _Terms | None = _Terms(share)
    before = assessment.snapshot
    if snapshot != before and _can_decide_again(launch, assessment, snapshot):
        assessment = assess(launch, snapshot, assessment.outside)
        before = snapshot
        terms = _renew_terms(launch, assessment, share)
    grant = assessment.decision
    if not isinstance(grant, Grant) or terms is None:
        return None
    if not _is_still_valid(launch, grant, before, snapshot):
        return None
    lease = replace(_make_lease(launch, grant, record, holder), share=terms.share)
    locked.publish(record, lease)
    if place:
        place.take(locked)
    return Acquired(grant, assessment.situation, lease, record, holder)


def _can_decide_again(launch: Launch, assessment: Assessment, snapshot: Snapshot) -> bool:
    """Return whether deciding on a new snapshot is quick enough for the host-wide lock.

    With leases gone there are more GPUs to choose from than before, so it may take longer.
    """
    if not assessment.quick or launch.request.is_choosy:
        return False
    return all(lease in snapshot.leases for lease in assessment.snapshot.leases)


def _renew_terms(launch: Launch, assessment: Assessment, prepared: "Share | None") -> _Terms | None:
    """Return the terms of a decision that was made again; None if they need another MPS daemon.

    Args:
        launch: the launch that needs the GPUs.
        assessment: the new decision.
        prepared: the share whose daemon is ready; None if none is.
    """
    if launch.request.sharing is None:  # the share, if any, is that of the lease around the launch
        return _Terms(prepared) if assessment.situation.within or prepared is None else None
    decision = assessment.decision
    option = decision.share_option if isinstance(decision, Grant) else None
    if option is None or prepared is None:
        return _Terms(None) if option is None and prepared is None else None
    from gpulaunch.decide.share_options import share_of  # late: few launches share

    share = share_of(launch.request, option)
    daemons = {lease.share.pipe_directory for lease in option.residents if lease.share}
    if launch.mps and (share.group != prepared.group or daemons - {prepared.pipe_directory}):
        return None
    return _Terms(replace(share, pipe_directory=prepared.pipe_directory))


def _is_still_valid(launch: Launch, grant: Grant, before: Snapshot, now_seen: Snapshot) -> bool:
    """Return whether a grant holds in a newer snapshot: nobody took its GPUs or came first.

    Leases that have ended since do no harm.
    """
    granted = {gpu.uuid for gpu in granted_gpus(launch, grant)}
    new_leases = [lease for lease in now_seen.leases if lease not in before.leases]
    return (
        all(granted.isdisjoint(lease.uuids) for lease in new_leases)
        and not (new_leases and launch.request.is_choosy)  # new neighbours may change its score
        and all(ticket in before.tickets for ticket in now_seen.tickets)
        and (launch.within in now_seen.leases) == (launch.within in before.leases)
    )


def _discard(record: Draft, holder: Holder | None) -> None:
    """Give up a record; if it is in the table already, it becomes dead."""
    if holder:
        holder.dismiss()
    record.close()


def _make_lease(launch: Launch, grant: Grant, record: Draft, holder: Holder) -> Lease:
    return Lease(
        id=record.id,
        user_id=os.geteuid(),
        table=launch.machine.key,
        uuids=tuple(gpu.uuid for gpu in granted_gpus(launch, grant)),
        launcher=this_process(),
        job=holder.process,
        command=launch.command,
        profile=launch.request.profile,
        assumed=launch.request.assumed,
        name=launch.name,
        started_at=now(),
        ancestors=(launch.within.id, *launch.within.ancestors) if launch.within else (),
        boot_id=boot_id(),
        engine=launch.container.engine_id if launch.container else None,
        container=launch.container.container_id if launch.container else None,
        host_gb_per_s=launch.request.wishes.host_gb_per_s,
        apart_from=launch.request.wishes.apart_from,
        clock_s=seconds_since_boot(),
    )


def _join_queue(launch: Launch, table: Table, warn: Callable[[str], None]) -> PlaceInQueue:
    def write(ticket_id: str, number: int) -> Ticket:
        return _make_ticket(launch, ticket_id, number)

    return PlaceInQueue(table, write, launch.patience.timeout_s, warn)


def _make_ticket(launch: Launch, ticket_id: str, number: int) -> Ticket:
    admitted = admitted_gpus(launch.request, launch.machine.topology, launch.within)
    choosy = launch.request.is_choosy
    passable_s = launch.patience.passable_s or (CHOOSY_S if choosy else 0.0)
    return Ticket(
        id=ticket_id,
        number=number,
        user_id=os.geteuid(),
        table=launch.machine.key,
        within=launch.within.id if launch.within else None,
        uuids=tuple(gpu.uuid for gpu in admitted),
        gpus=launch.request.gpus or len(admitted),
        passable_until_s=seconds_since_boot() + passable_s if passable_s else 0.0,
        launcher=this_process(),
        command=launch.command,
        profile=launch.request.profile,
        name=launch.name,
        since=now(),
        boot_id=boot_id(),
        choosy=choosy,
    )
