"""A launch: one command, what it asks of the machine and how it waits; what it gets; who hears.

And its assessment, the decision that it would get on the machine as it is now, and the watch over
its GPUs while its job runs (docs/decisions/idle.md).
"""

import _thread
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, Request, State, Wait
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import FailedError, GpulaunchError, TimedOutError, UsageError, WouldWaitError
from gpulaunch.files.units import format_duration
from gpulaunch.launch.surroundings import (
    find_strays,
    name_strays,
    open_table,
    read_containers,
    with_containers,
)
from gpulaunch.leases.directory import drains_by_gpu
from gpulaunch.leases.environment import MpsPlace
from gpulaunch.leases.holders import name_job, who_has_what
from gpulaunch.leases.lease import MAX_NUMBER, Lease, Share, Ticket
from gpulaunch.leases.queue import CHOOSY_S
from gpulaunch.leases.record import published
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Snapshot, Table, release
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.find import Machine, are_busy, load_driver, look_again, watch_faults
from gpulaunch.machine.gpu import Gpu, gpus_named
from gpulaunch.process import Process
from gpulaunch.process.libc import ALL_SIGNALS, change_mask
from gpulaunch.process.system import (
    boot_id,
    is_cancelled_by_kill,
    is_stopped,
    name_this_thread,
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


def ticket_of(launch: Launch, ticket_id: str = "own", number: int = MAX_NUMBER) -> Ticket:
    """Return the ticket of a launch that this process makes; by default one after all others."""
    admitted = admitted_gpus(launch.request, launch.machine.topology, launch.within)
    choosy, job = launch.request.choosy, launch.request.engine_job
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
    return state_met(launch, records, outside)


def state_met(launch: Launch, records: Snapshot, outside: Sequence[OutsideUse]) -> State:
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
    seen = relevant(launch, table.peek())
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


_LOOK_EVERY_S = 20.0
_LOOKS = 4
"""The least number of looks in the time after which a lease counts as idle."""


class GpuWatch:
    """A watch over the GPUs of a lease from the start of its job on: faults, idleness, strays.

    It ends with this process.
    """

    def __init__(self, keeper: Keeper, events: Events) -> None:
        launch, self._lease, self._table = keeper.launch, keeper.lease, keeper.table
        self._machine, self._idle = launch.machine, events.idle
        self._gpus = sorted(keeper.grant.gpus, key=attrgetter("index"))
        self._strayed_to: set[str] = set()
        self._strayed = ""  # where the job was seen outside its lease
        self._limit_is_over = False
        if keeper.grant.exclusive_reason:
            events.warn(f"not shared: {keeper.grant.exclusive_reason}")
        self._faults = watch_faults(self._machine, keeper.grant.gpus)
        if self._machine.key is None and launch.idle_after_s is not None:
            self._watch_idleness(keeper.record, launch.idle_after_s, launch.idle_limit_s)

    def tell(self, status: int) -> None:
        """Warn of what was seen, now that the job has ended with a wait status."""
        for line in self._faults.told(failed=status != 0) if self._faults else ():
            self._table.warn(line)
        if self._strayed:
            self._table.warn(f"the job computed {self._strayed}")

    def raise_if_idle(self) -> None:
        """Raise the error of a job that was ended because its GPUs were idle.

        Raises:
            TimedOutError: it was.
        """
        if self._limit_is_over:
            raise TimedOutError(
                "the job was ended, as the setting idle_limit asks: its GPUs were idle"
            )

    def _watch_idleness(self, record: Draft, after_s: float, limit_s: float | None) -> None:
        """Watch in two threads whether the GPUs are at work, and what the job does on others."""
        # Not the record's own descriptor: it may be closed, and its number another file's by then.
        self._fd = os.open(f"/proc/self/fd/{record.fd}", os.O_WRONLY | os.O_CLOEXEC)
        self._after_s = after_s
        self._limit_s = float("inf") if limit_s is None else limit_s
        self._every_s = min(_LOOK_EVERY_S, after_s / _LOOKS, self._limit_s / _LOOKS)
        mask = change_mask(signal.SIG_BLOCK, ALL_SIGNALS)  # each still interrupts the main thread
        try:
            _thread.start_new_thread(self._look_again_and_again, ())
            # Another one, so that a GPU of others that hangs in the driver delays no idle limit.
            _thread.start_new_thread(self._look_for_strays_again_and_again, ())
        finally:
            change_mask(signal.SIG_SETMASK, mask)

    def _look_again_and_again(self) -> None:
        name_this_thread("idle watch")
        told = False
        busy_s = time.monotonic()
        while True:
            time.sleep(self._every_s)
            try:
                is_busy = are_busy(self._machine, self._gpus)
            except FailedError:  # what is unknown is no idleness
                is_busy = True
            if is_busy:
                busy_s, told = time.monotonic(), False
                # This sets the file's modification time. Setting it by utime() would be an event of
                # IN_ATTRIB, which wakes those who wait for the end of the lease.
                with suppress(OSError):
                    os.pwrite(self._fd, b"{", 0)
                continue
            idle_s = time.monotonic() - busy_s
            if idle_s >= self._after_s and not told:
                told = True
                self._idle(idle_s)
            if idle_s >= self._limit_s:
                self._limit_is_over = True
                os.kill(os.getpid(), signal.SIGTERM)  # it passes that on to the job
                return

    def _look_for_strays_again_and_again(self) -> None:
        name_this_thread("stray watch")
        while True:
            time.sleep(self._every_s)
            self._look_for_strays()

    def _look_for_strays(self) -> None:
        """Look for processes of the job on other GPUs, and say so of the first."""
        topology = self._machine.topology
        others = [gpu.uuid for gpu in topology.gpus if gpu not in self._gpus]
        try:
            at_work = load_driver(topology.driver).pids_at_work
            uses = [OutsideUse(uuid, "", tuple(at_work([uuid]))) for uuid in others]
            found = find_strays(topology, uses, [self._lease])
            if found:  # they may be of a lease that was taken inside the job
                found = find_strays(topology, uses, self._table.peek().of(self._machine).leases)
        except FailedError:  # the job runs, and the next look may tell
            return
        self._strayed_to |= {use.uuid for use in found if use.stray == self._lease.id}
        if self._strayed_to:
            gpus = gpus_named(gpu for gpu in topology.gpus if gpu.uuid in self._strayed_to)
            where = f"on {gpus}, outside its lease ({gpus_named(self._gpus)})"
            # The job may end as soon as this is said, and what is said at its end has to be known.
            is_first, self._strayed = not self._strayed, where
            if is_first:
                text = f"job {name_job(self._lease)} computes {where}"
                self._table.warn(f"{text}: it has to keep the CUDA_VISIBLE_DEVICES that it got")


def over_limit(limit_s: float) -> TimedOutError:
    """Return the error of a job that has run into its limit, in seconds."""
    return TimedOutError(f"the job ran longer than its limit of {format_duration(limit_s)}")
