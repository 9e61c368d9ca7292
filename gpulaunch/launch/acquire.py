"""Look, wait for one's turn, take: how a request becomes a lease."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from gpulaunch.decide.decide import Decision, Grant, Refuse, Situation, Wait, admitted_gpus
from gpulaunch.launch.assess import (
    Launch,
    Look,
    first_look,
    granted_gpus,
    look_at,
    next_look,
    number_of,
    see,
)
from gpulaunch.launch.place_in_queue import Turn
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.queue import CHOOSY_S
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Snapshot, Table
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.find import look_again
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.process.identity import Process
from gpulaunch.process.system import boot_id, now, seconds_since_boot, this_process

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.leases.share import Share

MOST_LOST_RACES = 5
"""Who does not wait gives up then."""

MOST_LOST_RACES_TO_SHARERS = 50
"""The same for who shares: others take nothing from him by coming first, so each race that is lost tells little."""


class Told(NamedTuple):
    """Who is told what on the way; none may raise.

    Attributes:
        warn: what is odd but no failure.
        waiting: why the launch joins the queue, with the live leases and the earlier tickets.
    """

    warn: Callable[[str], None]
    waiting: Callable[[str, Snapshot], None]


class Holder(Protocol):
    """Who is to hold the lease, prepared before it is taken, so that its process can stand in the record."""

    @property
    def process(self) -> Process:
        """What stands in the record as the job."""

    def dismiss(self) -> None:
        """It comes to nothing: the GPUs went to somebody else."""


H = TypeVar("H", bound=Holder)


class Held(NamedTuple, Generic[H]):
    """GPUs that are ours.

    Attributes:
        grant: which, and why.
        situation: in which it was granted.
        lease: as recorded.
        record: its file, open.
        holder: as prepared.
    """

    grant: Grant
    situation: Situation
    lease: Lease
    record: Draft
    holder: H


def acquire(
    launch: Launch, table: Table, told: Told, prepare: "Callable[[Draft, Share | None], H]"
) -> Held[H] | Decision:
    """Take the GPUs that the request gets, now or when its turn has come.

    Args:
        launch: what and where.
        table: where leases stand.
        told: what happens on the way.
        prepare: makes who is to hold the lease, given its record and its share; called anew after a race that was lost.

    Returns:
        What is ours, or the decision if that was no Grant and the launch does not wait.

    Raises:
        FailedError: the table cannot be used; nothing is held.
        TimedOutError: the launch has waited for as long as it may.
    """
    turn: Turn | None = None
    lost = 0
    launch = _swept(launch, table)
    try:
        look = first_look(launch, table, turn)
        while True:
            if launch.within and launch.within not in look.seen.leases:
                told.warn(f"lease {launch.within.id} has ended, so this is a launch of its own")
                launch = launch._replace(within=None)
                _out_of_queue(turn)
                turn = None
                look = first_look(launch, table, turn)
            elif isinstance(look.decision, Grant):
                held = _take(launch, table, look, turn, prepare)
                if isinstance(held, Held):
                    return held
                if held is not None:
                    told.warn(f"not shared: {held}")
                    launch = launch._replace(request=launch.request._replace(sharing=None))
                lost += 1
                if (
                    turn is None and launch.patience.wait
                ):  # from now on, who comes later cannot take them away
                    turn = _join(launch, table, told.warn)
                elif turn is None and lost == (
                    MOST_LOST_RACES_TO_SHARERS if launch.request.sharing else MOST_LOST_RACES
                ):
                    gpus = gpus_text(len(look.decision.placement.gpus))
                    return Wait(f"{gpus} chosen, but others were faster {lost} times")
                look = first_look(launch._replace(machine=look_again(launch.machine)), table, turn)
            elif isinstance(look.decision, Refuse) or not launch.patience.wait:
                return look.decision
            else:
                turn = turn or _join(launch, table, told.warn)
                _sleep(launch, table, look, turn, told)
                look = next_look(launch, table, turn)
    finally:
        _out_of_queue(turn)


def _swept(launch: Launch, table: Table) -> Launch:
    """The launch, after MPS daemons that nobody ended, and that may keep others off their GPUs."""
    if launch.mps is None or not os.path.isdir(launch.mps.base):
        return launch
    from gpulaunch.sharing.share_group import sweep  # late: few users share

    return (
        launch._replace(machine=look_again(launch.machine))
        if sweep(launch.mps.base, table)
        else launch
    )


def _out_of_queue(turn: Turn | None) -> None:
    if turn:
        turn.close()


def _sleep(launch: Launch, table: Table, look: Look, turn: Turn, told: Told) -> None:
    """Sleep until it is worth looking again; the first time it is told why."""
    if not turn.has_slept:
        told.waiting(look.decision.reason, see(launch, table.peek(turn.ticket.number)))
    pids = [pid for use in look.outside for pid in use.pids]
    may_join = launch.request.sharing is not None  # also where it is barred from free GPUs
    turn.sleep(look.decision.reason, look.barred_by, look.seen.leases, pids, may_join=may_join)


def _take(
    launch: Launch,
    table: Table,
    look: Look,
    turn: Turn | None,
    prepare: "Callable[[Draft, Share | None], H]",
) -> Held[H] | str | None:
    """Take what was granted, if the table is still what that rests on; else decide again.

    Deciding may take long on a large machine, so it is done under the lock only if it was quick before; else what was
    granted is taken if nobody came into its way. None: the GPUs went to somebody else. Text: why they cannot be shared.
    """
    with _ready_to_share(launch, table, look.decision) as share:
        return (
            share
            if isinstance(share, str)
            else _take_with(launch, table, look, turn, prepare, share)
        )


def _ready_to_share(
    launch: Launch, table: Table, decision: Decision
) -> "AbstractContextManager[Share | str | None]":
    """The share that the lease is to have, if any, or why there is none; it can be had for as long as this lasts."""
    joining = decision.joining if isinstance(decision, Grant) else None
    if joining is None:
        return nullcontext(launch.within.share if launch.within else None)
    from gpulaunch.decide.share_options import share_of  # late: few launches share
    from gpulaunch.sharing.membership import ready_to_share

    return ready_to_share(share_of(launch.request, joining), joining.residents, launch.mps, table)


def _take_with(
    launch: Launch,
    table: Table,
    look: Look,
    turn: Turn | None,
    prepare: "Callable[[Draft, Share | None], H]",
    ready: "Share | None",
) -> Held[H] | None:
    record = table.draft(turn.ticket.id if turn else None)
    holder: H | None = None
    held: Held[H] | None = None
    share: Share | str | None = ready
    may_change = look.quick and not launch.request.is_choosy
    try:
        holder = prepare(record, ready)
        with table.locked() as locked:
            seen = see(launch, locked.read(number_of(turn)))
            more = any(
                lease not in seen.leases for lease in look.seen.leases
            )  # GPUs are free: that may take longer
            if seen != look.seen and may_change and not more:
                look = look_at(launch, seen, look.outside)
                share = _shared_anew(launch, look, ready)
            stands = isinstance(look.decision, Grant) and _still_stands(
                launch, look.decision, look.seen, seen
            )
            if isinstance(look.decision, Grant) and stands and not isinstance(share, str):
                lease = _lease(launch, look.decision, record, holder)._replace(share=share)
                locked.publish(record, lease)
                if turn:
                    turn.take(locked)
                held = Held(look.decision, look.situation, lease, record, holder)
    except BaseException:  # also a KeyboardInterrupt of a Python program
        _let_go(record, holder)
        raise
    if held is None:
        _let_go(record, holder)
    return held


def _shared_anew(launch: Launch, look: Look, ready: "Share | None") -> "Share | str | None":
    """The share by a decision that was made again; why there is none, if the MPS daemon that is ready is not for it."""
    if launch.request.sharing is None:  # then it can only be that of the lease around it
        return ready if look.situation.within or ready is None else "the lease around it has ended"
    joining = look.decision.joining if isinstance(look.decision, Grant) else None
    if joining is None and ready is None:
        return None
    if joining is None or ready is None:
        return "it is shared no longer, or only now"
    from gpulaunch.decide.share_options import share_of  # late: few launches share

    share = share_of(launch.request, joining)
    there = {lease.share.pipe_directory for lease in joining.residents if lease.share}
    if launch.mps and (share.group != ready.group or there - {ready.pipe_directory}):
        return "it is shared with others now"
    return share._replace(pipe_directory=ready.pipe_directory)


def _still_stands(launch: Launch, grant: Grant, before: Snapshot, seen: Snapshot) -> bool:
    """Whether a grant is as good as it was: nobody came into its way, though others may have left."""
    granted = {gpu.uuid for gpu in granted_gpus(launch, grant)}
    came = [lease for lease in seen.leases if lease not in before.leases]
    return (
        all(granted.isdisjoint(lease.uuids) for lease in came)
        and not (came and launch.request.is_choosy)  # who its neighbours are may matter to it
        and all(ticket in before.tickets for ticket in seen.tickets)
        and (launch.within in seen.leases) == (launch.within in before.leases)
    )


def _let_go(record: Draft, holder: Holder | None) -> None:
    """Give up a record; one that is in the table is dead then."""
    if holder:
        holder.dismiss()
    record.close()


def _lease(launch: Launch, grant: Grant, record: Draft, holder: Holder) -> Lease:
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


def _join(launch: Launch, table: Table, warn: Callable[[str], None]) -> Turn:
    return Turn(
        table,
        lambda ticket_id, number: _ticket(launch, ticket_id, number),
        launch.patience.timeout_s,
        warn,
    )


def _ticket(launch: Launch, ticket_id: str, number: int) -> Ticket:
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
