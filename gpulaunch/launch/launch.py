"""A launch: one command, what it asks of the machine and how it waits; what it gets; who hears.

And its assessment: the decision that it would get on the machine as it is now.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, Request, State, Wait
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import GpulaunchError, UsageError, WouldWaitError
from gpulaunch.launch.surroundings import name_strays, open_table, read_containers, with_containers
from gpulaunch.leases.directory import drains_by_gpu
from gpulaunch.leases.environment import MpsPlace
from gpulaunch.leases.holders import who_has_what
from gpulaunch.leases.lease import Lease, Share, Ticket
from gpulaunch.leases.queue import CHOOSY_S
from gpulaunch.leases.record import published
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Snapshot, Table, release
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.find import Machine, look_again
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process import Process
from gpulaunch.process.system import (
    boot_id,
    is_cancelled_by_kill,
    is_stopped,
    now,
    seconds_since_boot,
    this_process,
)
from gpulaunch.records import Record, replace

if TYPE_CHECKING:  # few launches need it
    from gpulaunch.containers.engine import ContainerLaunch


class Launch(Record):
    """One command to be run on GPUs.

    Attributes:
        within: the live lease that this launch runs inside of, or None.
        publish: what others may read of the command: one of PUBLISHED.
        wait_timeout_s: seconds of the longest wait, or None for no limit.
        private: whether a container's own table will do if the host's is not mounted, as it does
            for a described machine.
        by_uuid: whether CUDA_VISIBLE_DEVICES names the GPUs by UUID.
        bind_cpu: whether to run on the CPUs of the GPUs' NUMA node, if they share one.
        time_limit_s: seconds that the job may run, or None for no limit.
        grace_s: seconds between TERM and KILL.
        leftovers: what becomes of processes that the job leaves: "keep", and they keep its lease,
            or "end".
        leftover_timeout_s: seconds without a use of the GPUs, where that can be told, after which
            a left-over process outside the job's session no longer keeps the lease.
        mps: place of this user's MPS daemons; None on a described machine.
        recorded_in: file of the profile that learns from the job, or None.
        visible: what the job sees of the GPUs of its step, if its ranks divide them: one of
            options.VISIBLE.
        core: number of the CPU to run on, by a map of ranks; None for no such.
        idle_after_s: seconds after which its owner is told that its GPUs do nothing; None if nobody
            watches them.
        idle_limit_s: seconds of that after which the job is ended; None for never.
        docker: what the job's scripts meet that call docker: "engine", or a door in its "lease".
        notify: shell command to be run when it starts and ends, or None.
    """

    command: tuple[str, ...]
    request: Request
    machine: Machine
    within: Lease | None
    name: str | None
    publish: str
    wait: bool
    wait_timeout_s: float | None
    private: bool
    by_uuid: bool
    bind_cpu: bool
    time_limit_s: float | None
    grace_s: float
    leftovers: str = "keep"
    leftover_timeout_s: float | None = None
    container: "ContainerLaunch | None" = None
    mps: MpsPlace | None = None
    recorded_in: str | None = None
    visible: str = "all"
    core: int | None = None
    in_history: bool = True
    idle_after_s: float | None = None
    idle_limit_s: float | None = None
    docker: str = "engine"
    notify: str | None = None

    @property
    def lock_patience_s(self) -> float | None:
        """Seconds to wait for the host-wide lock; None for as long as any launch does."""
        if not self.wait:
            return None
        return float("inf") if self.wait_timeout_s is None else self.wait_timeout_s


class Keeper:
    """The keeper of a lease: made before it is taken, so that its record has the pid of the job.

    This one is for a lease without a job, kept by the very process that takes it.

    Args:
        record: the open file of the lease's record, which has no name yet.
        share: the launch's part of the GPUs if it shares them, or None.

    Attributes:
        process: the process that the record names as the job.
        lease: the lease as recorded; from acquire(), as the next two.
        state: the state of the machine in which they were granted.
    """

    lease: Lease
    grant: Grant
    state: State

    def __init__(
        self,
        launch: Launch,
        table: Table,
        record: Draft,
        share: Share | None = None,  # noqa: ARG002
    ) -> None:
        self.launch, self.table, self.record = launch, table, record
        self.process = this_process()

    @property
    def stopped_s(self) -> float:
        """Seconds for which the job was stopped, as by Ctrl-Z, where that is known."""
        return 0.0

    def dismiss(self) -> None:
        """Undo everything: the GPUs went to another launch."""

    def release(self) -> None:
        """Free the GPUs."""
        release(self.table, self.record, self.lease)


K = TypeVar("K", bound=Keeper)


class Events:
    """A listener to the course of a launch; this one tells nobody. What it does must not raise."""

    def warn(self, text: str) -> None:
        """Hear a warning."""

    def begins(self, launch: Launch) -> "Events":  # noqa: ARG002
        """Return who hears of a container's launch, which begins now.

        Raises:
            GpulaunchError: it is not to go on, as where it cannot be measured as it should be.
        """
        return self

    def waiting(self, reason: str, seen: Snapshot) -> None:
        """Hear why the launch joins the queue, and which leases and earlier tickets there are."""

    def first(self, reason: str, waited_s: float) -> None:
        """Hear that it has become the first in the queue, and why it goes on waiting."""

    def minute(self, waited_s: float, number: Callable[[], int]) -> None:
        """Hear once a minute that it waits; `number` returns its place in the queue."""

    def granted(self, keeper: Keeper) -> None:
        """Hear that it has its GPUs, and that its job is about to start."""

    def idle(self, seconds: float) -> None:
        """Hear, in another thread, that its GPUs have done nothing for so long."""

    def over(self, status: int) -> None:
        """Hear the job's wait status as soon as it has ended, while its GPUs are still leased."""

    def ended(self, exit_status: int) -> None:
        """Hear that the launch has ended, and that its GPUs are free."""

    def refusal(self, launch: Launch, decision: Wait | Refuse) -> GpulaunchError:  # noqa: ARG002
        """Return the error of a launch that does not get its GPUs."""
        kind = UsageError if isinstance(decision, Refuse) else WouldWaitError
        return kind(decision.reason)


def lease_of(launch: Launch, grant: Grant, lease_id: str, job: Process) -> Lease:
    """Return the lease of a launch that this process makes."""
    container, engine_job = launch.container, launch.request.engine_job
    if engine_job:  # with the GPUs of all of its ranks, if they divide them
        of_all = [] if grant.own is None else replace(grant, own=None).gpus
        engine_job = replace(engine_job, group=tuple(gpu.uuid for gpu in of_all))
    return Lease(
        id=lease_id,
        user_id=os.geteuid(),
        table=launch.machine.key,
        uuids=tuple(gpu.uuid for gpu in grant.gpus),
        launcher=this_process(),
        job=job,
        command=published(launch.command, launch.publish),
        profile=launch.request.profile,
        assumed=launch.request.assumed,
        name=launch.name,
        started_at=now(),
        ancestors=(launch.within.id, *launch.within.ancestors) if launch.within else (),
        boot_id=boot_id(),
        engine=container.engine_id if container else None,
        container=container.container_id if container else None,
        clock_s=seconds_since_boot(),
        time_limit_s=launch.time_limit_s,
        ends_within_s=launch.request.ends_within_s,
        # In CI a container has to end with its launcher, unless it was detached.
        ends_with_launcher=bool(container and container.attached and is_cancelled_by_kill()),
        engine_job=engine_job,
        watches_use=launch.idle_after_s is not None and launch.machine.key is None,
    )


def ticket_of(launch: Launch, ticket_id: str, number: int) -> Ticket:
    """Return the ticket of a launch that this process makes."""
    admitted = admitted_gpus(launch.request, launch.machine.topology, launch.within)
    choosy, job = launch.request.is_choosy, launch.request.engine_job
    return Ticket(
        id=ticket_id,
        number=number,
        user_id=os.geteuid(),
        table=launch.machine.key,
        within=launch.within.id if launch.within else None,
        uuids=tuple(gpu.uuid for gpu in admitted),
        gpus=launch.request.least_gpus or launch.request.gpus or len(admitted),
        passable_until_s=seconds_since_boot() + CHOOSY_S if choosy else 0.0,
        launcher=this_process(),
        command=published(launch.command, launch.publish),
        profile=launch.request.profile,
        name=launch.name,
        since=now(),
        boot_id=boot_id(),
        choosy=choosy,
        ends_within_s=launch.request.ends_within_s,
        in_order=launch.request.in_order,
        may_join=launch.request.sharing is not None,
        step=job.title if job and job.is_divided else "",
    )


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


def see_again(launch: Launch) -> Launch:
    """Return a launch with the use of its machine's GPUs read anew.

    A container that it is to start again is in nobody's way, even if it runs already.
    """
    machine = look_again(launch.machine)
    started = launch.container.container_id if launch.container else None
    others = [one for one in read_containers(machine) if one.id != started]
    return replace(launch, machine=with_containers(machine, others))


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
    uses = [use for use in outside if use.state != "drained"]
    for uuid, drain in drains_by_gpu(topology, seen.drained).items():
        uses.append(OutsideUse(uuid, drain.text, state="drained"))
    return State(
        topology,
        seen.leases,
        tuple(uses),
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
