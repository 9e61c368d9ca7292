"""The assessment of a launch: the decision that it would get on the machine as it is now."""

from collections.abc import Callable, Sequence

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, State, Wait
from gpulaunch.errors import WouldWaitError
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.surroundings import name_strays, open_table, see_again
from gpulaunch.leases.directory import drains_by_gpu
from gpulaunch.leases.holders import who_has_what
from gpulaunch.leases.lease import Ticket
from gpulaunch.leases.table import Snapshot, Table
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import is_stopped, seconds_since_boot
from gpulaunch.records import replace


def preview(launch: Launch, warn: Callable[[str], None]) -> tuple[Decision, State]:
    """Return the decision that a launch would get now, and its state; nothing is taken."""
    return assess(launch, open_table(private=launch.private, warn=warn), None)


def assess(launch: Launch, table: Table, ticket: Ticket | None) -> tuple[Decision, State]:
    """Decide on the present state; a Wait is checked again if GPUs are in use outside gpulaunch.

    Args:
        ticket: the launch's own ticket; None if it is not in the queue.
    """
    state = look(launch, table, ticket, launch.machine.outside)
    decision = decide(launch.request, state)
    if isinstance(decision, Wait) and launch.machine.outside:
        # What was seen before the table was read may have ended since, or have a lease.
        state = look(launch, table, ticket, see_again(launch).machine.outside)
        decision = decide(launch.request, state)
    return decision, state


def assess_after_sleep(launch: Launch, table: Table, ticket: Ticket) -> tuple[Decision, State]:
    """Decide again after sleeping in the queue.

    Use outside gpulaunch costs a call of the driver and of engines, so it is looked up only if no
    lease is in the way.
    """
    state = look(launch, table, ticket, ())
    decision = decide(launch.request, state)
    free = isinstance(decision, Grant) or (isinstance(decision, Wait) and decision.is_barred)
    outside = see_again(launch).machine.outside if free else ()
    if outside:
        state = look(launch, table, ticket, outside)
        decision = decide(launch.request, state)
    return decision, state


def look(
    launch: Launch, table: Table, ticket: Ticket | None, outside: Sequence[OutsideUse]
) -> State:
    """Return the state that a launch meets, read without the lock.

    Args:
        ticket: the launch's own ticket; None if it is not in the queue.
    """
    records = table.peek(ticket)
    if outside:  # this reads /proc, which may block on a process that hangs: never under the lock
        leases = records.of(launch.machine).leases
        outside = name_strays(launch.machine.topology, outside, leases)
    return state_of(launch, records, outside)


def state_of(launch: Launch, records: Snapshot, outside: Sequence[OutsideUse]) -> State:
    """Return the state that a launch meets.

    Args:
        outside: use of GPUs that no lease explains; drained ones are found in the records.
    """
    topology, seen = launch.machine.topology, relevant(launch, records)
    used = [use for use in outside if use.state != "drained"]
    return State(
        topology,
        seen.leases,
        (*used, *drained_uses(topology, seen)),
        launch.within if launch.within in seen.leases else None,
        seen.tickets,
        seconds_since_boot(),
        seen.unlocked,
    )


def read_snapshot(launch: Launch, table: Table, ticket: Ticket | None) -> Snapshot:
    """Read the records that concern a launch, without the lock."""
    return relevant(launch, table.peek(ticket))


def relevant(launch: Launch, everything: Snapshot) -> Snapshot:
    """Return the records of the launch's machine.

    The ticket of a stopped launcher (Ctrl-Z) is left out: it bars no other until it continues.
    """
    snapshot = everything.of(launch.machine)
    awake = [ticket for ticket in snapshot.tickets if not is_stopped(ticket.launcher)]
    return replace(snapshot, tickets=awake)


def drained_uses(topology: Topology, snapshot: Snapshot) -> tuple[OutsideUse, ...]:
    """Return the GPUs of a machine that are drained, as use of them."""
    if not snapshot.drained:
        return ()
    found = drains_by_gpu(topology, snapshot.drained)
    return tuple(OutsideUse(uuid, drain.text, state="drained") for uuid, drain in found.items())


def would_wait(launch: Launch, table: Table, reason: str, hint: str) -> WouldWaitError:
    """Return the error of a launch that does not wait; its notes say who has the GPUs now."""
    problem = WouldWaitError(reason, hint)
    seen = read_snapshot(launch, table, None)
    problem.__notes__ = who_has_what(launch.machine.topology, seen, launch.within)
    return problem


def visible_gpus(launch: Launch, grant: Grant) -> Sequence[Gpu]:
    """Return the GPUs that the job of a grant sees, in the order in which it counts them."""
    own, of_all_ranks = grant.gpus, replace(grant, own=None).gpus
    if launch.visible == "own":
        return own
    if launch.visible == "ranks":  # as programs want that take the GPU of their LOCAL_RANK
        return of_all_ranks
    return [*own, *(gpu for gpu in of_all_ranks if gpu not in own)]
