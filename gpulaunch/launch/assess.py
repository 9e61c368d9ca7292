"""What is to be launched, and what would be decided about it now: the machine and its table, looked at."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpulaunch.decide.decide import Decision, Grant, Situation, Wait, decide
from gpulaunch.decide.request import Request
from gpulaunch.launch.open_table import open_table
from gpulaunch.launch.place_in_queue import Turn
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Snapshot, Table
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.find import Machine, look_again
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.system import is_stopped, seconds_since_boot
from gpulaunch.sharing.mps_directories import MpsPlace

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.containers.container_launch import ContainerLaunch
    from gpulaunch.machine.driver import OutsideUse

QUICK_S = 0.005
"""What may be decided under the host-wide lock, for which everybody waits."""


class Patience(NamedTuple):
    """Whether and how a launch waits.

    Attributes:
        wait: queue for GPUs that are busy.
        timeout_s: the longest wait, or None.
        passable_s: so long a smaller request that comes later may pass while this one cannot start.
    """

    wait: bool
    timeout_s: float | None = None
    passable_s: float = 0.0


class Launch(NamedTuple):
    """One command to be run on GPUs.

    Attributes:
        command: argv.
        request: which GPUs.
        machine: where.
        within: the live lease that this runs inside of, or None.
        name: that the user gave the job, or None.
        patience: whether it waits.
        private: a container's own table will do.
        by_uuid: name the GPUs by UUID in CUDA_VISIBLE_DEVICES.
        bind_cpu: run on the CPUs of the GPUs' NUMA node, if they share one.
        time_limit_s: how long the job may run, or None.
        grace_s: between TERM and KILL.
        container: how its container gets the GPUs, if the command is docker's.
        mps: where MPS daemons of this user are; None on a described machine.
        recorded_in: file of the profile that is to learn from the job; None if none is.
    """

    command: tuple[str, ...]
    request: Request
    machine: Machine
    within: Lease | None
    name: str | None
    patience: Patience
    private: bool
    by_uuid: bool
    bind_cpu: bool
    time_limit_s: float | None
    grace_s: float
    container: "ContainerLaunch | None" = None
    mps: MpsPlace | None = None
    recorded_in: str | None = None


class Look(NamedTuple):
    """A decision with what it rests on.

    Attributes:
        decision: the answer.
        situation: what it answers.
        seen: live leases of the machine, and the tickets that come first.
        outside: use that no lease explains.
        quick: it took so little time that it may be repeated while everybody waits for the lock.
    """

    decision: Decision
    situation: Situation
    seen: Snapshot
    outside: "Sequence[OutsideUse]"
    quick: bool

    @property
    def barred_by(self) -> Ticket | None:
        """The earlier request that this one may not pass."""
        return self.decision.barred_by if isinstance(self.decision, Wait) else None


def table_of(launch: Launch, warn: Callable[[str], None]) -> Table:
    """The allocation table that a launch takes part in."""
    return open_table(described=launch.machine.key is not None, warn=warn, private=launch.private)


def preview(launch: Launch, warn: Callable[[str], None]) -> tuple[Decision, Situation]:
    """What would be decided now, and in what situation; nothing is taken."""
    look = first_look(launch, table_of(launch, warn), None)
    return look.decision, look.situation


def first_look(launch: Launch, table: Table, turn: Turn | None) -> Look:
    """Decide on what is there now; a Wait that outside use explains is checked once more."""
    look = look_at(launch, see(launch, table.peek(number_of(turn))), launch.machine.outside)
    if isinstance(look.decision, Wait) and look.outside:
        outside = look_again(launch.machine).outside
        look = look_at(launch, see(launch, table.peek(number_of(turn))), outside)
    return look


def next_look(launch: Launch, table: Table, turn: Turn) -> Look:
    """The same after sleeping.

    Outside use, which costs more to see, is asked only where nothing else is in the way.
    """
    seen = see(launch, table.peek(number_of(turn)))
    look = look_at(launch, seen, ())
    if launch.machine.key is None and (isinstance(look.decision, Grant) or look.barred_by):
        look = look_at(launch, seen, look_again(launch.machine).outside)
    return look


def number_of(turn: Turn | None) -> int | None:
    """Number of its ticket; None for who is not in the queue."""
    return turn.ticket.number if turn else None


def see(launch: Launch, everything: Snapshot) -> Snapshot:
    """What concerns this machine.

    A ticket whose launcher was stopped (Ctrl-Z) bars nobody until it goes on.
    """
    seen = everything.of(launch.machine.key)
    return seen._replace(
        tickets=[ticket for ticket in seen.tickets if not is_stopped(ticket.launcher)]
    )


def look_at(launch: Launch, seen: Snapshot, outside: "Sequence[OutsideUse]") -> Look:
    """Decide on what was seen."""
    began = time.monotonic()
    within = launch.within if launch.within in seen.leases else None
    situation = Situation(
        launch.machine.topology, seen.leases, outside, within, seen.tickets, seconds_since_boot()
    )
    decision = decide(launch.request, situation)
    return Look(decision, situation, seen, outside, time.monotonic() - began < QUICK_S)


def granted_gpus(launch: Launch, grant: Grant) -> list[Gpu]:
    """The GPUs of a grant, in rank order."""
    by_index = {gpu.index: gpu for gpu in launch.machine.topology.gpus}
    return [by_index[index] for index in grant.placement.gpus]
