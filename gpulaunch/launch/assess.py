"""The assessment of a launch: the decision that it would get on the machine as it is now."""

from collections.abc import Callable, Sequence

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, ShareOption, State, Wait
from gpulaunch.errors import WouldWaitError
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.outside_use import name_strays, see_again
from gpulaunch.launch.surroundings import open_table_of
from gpulaunch.leases.drain import drains_by_gpu
from gpulaunch.leases.environment import in_sight
from gpulaunch.leases.holders import who_has_what
from gpulaunch.leases.lease import Ticket
from gpulaunch.leases.table import Snapshot, Table
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import is_stopped, seconds_since_boot
from gpulaunch.records import Record, replace


class Assessment(Record):
    """A decision with the state that it rests on.

    Attributes:
        decision: Grant, Wait or Refuse.
        state: the state of the machine in which it was made.
        snapshot: live leases of the machine, and the tickets that come before this launch.
        outside: use of GPUs that no lease explains.
    """

    decision: Decision
    state: State
    snapshot: Snapshot
    outside: Sequence[OutsideUse]

    @property
    def behind(self) -> Ticket | None:
        """The earlier request that this one comes after, or None."""
        return self.decision.behind if isinstance(self.decision, Wait) else None

    @property
    def share_option(self) -> ShareOption | None:
        """The share group that was granted, or None."""
        return self.decision.share_option if isinstance(self.decision, Grant) else None


def preview(launch: Launch, warn: Callable[[str], None]) -> tuple[Decision, State]:
    """Return the decision that a launch would get now, and its state; nothing is taken."""
    assessment = assess_now(launch, open_table_of(launch, warn), None)
    return assessment.decision, assessment.state


def assess_now(launch: Launch, table: Table, ticket: Ticket | None) -> Assessment:
    """Decide on the present state; a Wait is checked again if GPUs are in use outside gpulaunch.

    Args:
        launch: the launch to decide about.
        table: the allocation table of leases and tickets.
        ticket: the launch's own ticket; None if it is not in the queue.
    """
    assessment = assess(launch, read_snapshot(launch, table, ticket), launch.machine.outside)
    if isinstance(assessment.decision, Wait) and assessment.outside:
        # What was seen before the table was read may have ended since, or have a lease.
        outside = see_again(launch).machine.outside
        assessment = assess(launch, read_snapshot(launch, table, ticket), outside)
    return assessment


def assess_after_sleep(launch: Launch, table: Table, ticket: Ticket) -> Assessment:
    """Decide again after sleeping in the queue.

    Use outside gpulaunch costs a call of the driver and of engines, so it is looked up only if no
    lease is in the way.
    """
    snapshot = read_snapshot(launch, table, ticket)
    assessment = assess(launch, snapshot, ())
    decision = assessment.decision
    free = isinstance(decision, Grant) or (isinstance(decision, Wait) and decision.is_barred)
    outside = see_again(launch).machine.outside if free else ()
    if outside:
        assessment = assess(launch, snapshot, outside)
    return assessment


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


def assess(
    launch: Launch,
    snapshot: Snapshot,
    outside: Sequence[OutsideUse],
) -> Assessment:
    """Decide on a snapshot of the table and the use of GPUs outside gpulaunch.

    Args:
        launch: the launch to decide about.
        snapshot: records of the launch's machine.
        outside: use of GPUs that no lease explains.
    """
    within = launch.within if launch.within in snapshot.leases else None
    uses = name_strays(launch.machine.topology, outside, snapshot.leases) if outside else ()
    state = State(
        launch.machine.topology,
        snapshot.leases,
        (*uses, *drained_uses(launch.machine.topology, snapshot)),
        within,
        snapshot.tickets,
        seconds_since_boot(),
    )
    decision = decide(launch.request, state)
    return Assessment(decision, state, snapshot, outside)


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
    return in_sight(grant.gpus, replace(grant, own=None).gpus, launch.visible)
