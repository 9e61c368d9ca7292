"""Acquire -> launch -> release: where decision and effect meet."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gpulaunch.decide.decide import Decision
from gpulaunch.errors import FailedError, TimedOutError
from gpulaunch.files.duration import format_duration
from gpulaunch.launch.acquire import Held, Told, acquire
from gpulaunch.launch.assess import Launch, granted_gpus, table_of
from gpulaunch.leases.environment import LEASE_VARIABLE, job_environment
from gpulaunch.leases.holders import guard, holders_of
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table, release
from gpulaunch.machine.find import find_at_work
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.companion import DISMISSED, Companion
from gpulaunch.process.ending import descendants, end_all, family
from gpulaunch.process.identity import Process
from gpulaunch.process.job import Job, Started, cpus_near
from gpulaunch.process.system import state_of
from gpulaunch.sharing.mps_directories import inherited_variables

if TYPE_CHECKING:
    from gpulaunch.containers.container_launch import ContainerLaunch
    from gpulaunch.containers.watcher import Watcher
    from gpulaunch.leases.share import Share
    from gpulaunch.sharing.membership import Membership


class Ended(NamedTuple):
    """A job that has run; its GPUs are free again, or stay with the container that it has left running.

    Attributes:
        status: its wait status.
    """

    status: int


class _Prepared:
    """The job's process, not yet the job, and whoever is to look after it should this process go first."""

    def __init__(self, launch: Launch, table: Table, record: Draft, share: "Share | None") -> None:
        self._table = table
        guarded = os.environ.get("CI", "").lower() in ("1", "true")
        self.membership = _membership(table, record, share)
        before_kill = self.take_off_mps if self.membership else None
        container = launch.container
        self.watcher = (
            _watcher(launch, container, table, record, guarded, before_kill) if container else None
        )
        self._guard: Companion | None = None
        if guarded and not self.watcher:
            variable = f"{LEASE_VARIABLE}={record.id}"
            self._guard = guard(record.fd, variable, launch.grace_s, self.take_off_mps)
        self.job = Job(keep=record.fd)

    @property
    def process(self) -> Process:
        """The job's."""
        return self.job.process

    @property
    def guards(self) -> set[int]:
        """Pids of those who look after the job: they are no stragglers."""
        return {
            companion.pid for companion in (self._guard, self.watcher, self.membership) if companion
        }

    def dismiss(self) -> None:
        """It will not be the job."""
        self.job.dismiss()
        self.stand_down()
        if self.membership:
            self.membership.dismiss()

    def stand_down(self) -> None:
        """Nothing is left to be looked after; whom the job shared its GPUs with may go on."""
        if self._guard:
            self._guard.tell(DISMISSED)
        if self.watcher:
            self.watcher.dismiss()

    def take_off_mps(self, pids: set[int]) -> None:
        """What is to be done to processes before they are killed."""
        for problem in self.membership.take_off(pids) if self.membership else ():
            self._table.warn(problem)


def _membership(table: Table, record: Draft, share: "Share | None") -> "Membership | None":
    if share is None or share.pipe_directory is None:
        return None
    from gpulaunch.sharing.membership import Membership  # late: few launches need it

    return Membership(table, record, share)


def _watcher(
    launch: Launch,
    container: "ContainerLaunch",
    table: Table,
    record: Draft,
    guards: bool,
    before_kill: Callable[[set[int]], object] | None,
) -> "Watcher":
    from gpulaunch.containers.watcher import Watcher  # late: few launches need it

    return Watcher(
        container,
        table,
        record,
        guards=guards,
        time_limit_s=launch.time_limit_s,
        grace_s=launch.grace_s,
        before_kill=before_kill,
    )


def run(
    launch: Launch,
    told: Told,
    granted: Callable[[Held[_Prepared]], None],
    ended: Callable[[int], None] = lambda _status: None,
) -> Ended | Decision:
    """Run the command on GPUs that are its own until it ends.

    Args:
        launch: what and where.
        told: what happens on the way.
        granted: told what is held before the job starts; must not raise.
        ended: told the job's wait status as soon as it has ended; must not raise.

    Returns:
        How the job ended, or the decision if that was no Grant.

    Raises:
        FailedError: the table cannot be used; nothing is held and nothing has run.
        TimedOutError: the launch waited, or the job ran, for as long as it may; nothing is held any
            more.
    """
    table = table_of(launch, told.warn)
    held = acquire(
        launch, table, told, lambda record, share: _Prepared(launch, table, record, share)
    )
    if not isinstance(held, Held):
        return held
    job, watcher = held.holder.job, held.holder.watcher

    granted(held)
    if held.grant.own_because:
        told.warn(f"not shared: {held.grant.own_because}")
    if launch.container and launch.container.leaves_out_gpus:
        told.warn(
            f"{launch.machine.topology.name} is only described: its GPUs get into no container"
        )
    job.start(_started(launch, held))
    if held.holder.membership:
        pids = watcher.pids if watcher else family
        status = held.holder.membership.wait(
            job, launch.time_limit_s, launch.machine, held.lease.uuids, told.warn, pids
        )
    else:
        status = job.wait(launch.time_limit_s)
    in_time = status is not None
    if status is None:
        status = _end_job(held.holder, launch, told)
    ended(status)
    if _end_stragglers(launch, table, held):
        told.warn(f"lease {held.lease.id} stays: some of what the job left behind survives KILL")
        held.record.close()
        held.holder.stand_down()
    elif watcher and not watcher.has_nothing_to_do():
        watcher.take_over()
        held.record.close()
    else:
        release(table, held.record, held.lease)
        held.holder.stand_down()
        if held.holder.membership:
            held.holder.membership.leave()
    if not in_time:
        raise TimedOutError(
            f"the job ran longer than its limit of {format_duration(launch.time_limit_s or 0)}"
        )
    return Ended(status)


def _started(launch: Launch, held: Held[_Prepared]) -> Started:
    gpus = granted_gpus(launch, held.grant)
    if launch.container:
        from gpulaunch.containers.container_launch import HOST_VARIABLES, started_command

        environment: Mapping[str, str | None] = {
            **dict.fromkeys(HOST_VARIABLES),
            LEASE_VARIABLE: held.lease.id,
        }
        command = started_command(launch.container, gpus, held.lease.id, held.lease.share)
        return Started(command, environment, frozenset())
    found = job_environment(
        gpus,
        driver=launch.machine.topology.driver,
        by_uuid=launch.by_uuid,
        lease_id=held.lease.id,
        share=held.lease.share,
    )
    return Started(launch.command, {**inherited_variables(), **found}, _cpus(launch, gpus))


def _end_job(holder: _Prepared, launch: Launch, told: Told) -> int:
    """End a job that has run for too long; a container through its engine, since it is no child of ours."""
    if holder.watcher:
        try:
            holder.watcher.end(holder.job.process)
        except FailedError as problem:
            told.warn(problem.message)
    return holder.job.end(launch.grace_s, lambda: holder.take_off_mps(family()))


def _end_stragglers(launch: Launch, table: Table, held: Held[_Prepared]) -> set[int]:
    """End what the job left on its GPUs, or on a described machine all that it left; returns what cannot be ended.

    Nested launches have leases of their own, which outlive this one.
    """
    lease, guards = held.lease, held.holder.guards
    if not descendants(guards):
        return set()
    nested = [other for other in table.own_leases() if lease.id in other.ancestors]
    spared = {
        process.pid
        for other in nested
        for process in (other.launcher, other.job)
        if state_of(process)
    }
    spared |= guards
    for other in nested:  # a container's may be held by nobody but its watcher
        if other.engine is not None:
            spared |= holders_of(table.path_of(other))

    def stragglers() -> set[int]:
        pids = _without_mps(descendants(spared))
        return find_at_work(launch.machine, lease.uuids, pids)

    return end_all(stragglers, launch.grace_s, held.holder.job.ignored, held.holder.take_off_mps)


def _without_mps(pids: set[int]) -> set[int]:
    """Leave out MPS daemons and servers: they belong to all jobs of their share group."""
    if not pids:
        return pids
    from gpulaunch.sharing.share_group import serves_a_group  # late: few jobs leave anything behind

    return {pid for pid in pids if not serves_a_group(pid)}


def _cpus(launch: Launch, gpus: list[Gpu]) -> frozenset[int]:
    """CPUs to run on: those next to the GPUs, if all GPUs share a NUMA node."""
    nodes = {(gpu.node, gpu.numa_node) for gpu in gpus}
    if not launch.bind_cpu or len(nodes) != 1 or gpus[0].numa_node is None:
        return frozenset()
    return cpus_near(gpus[0].cpuset)
