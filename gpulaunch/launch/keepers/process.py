"""ProcessKeeper: a lease that lives as long as a process and what it leaves behind."""

import os
from collections.abc import Callable, Collection, Sequence

from gpulaunch.launch.launch import Launch
from gpulaunch.leases.environment import LEASE_VARIABLE, job_environment
from gpulaunch.leases.holders import holders_of, start_companion
from gpulaunch.leases.lease import Lease
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


def is_cancelled_by_kill() -> bool:
    """Return whether this is a CI job, whose runner cancels with SIGKILL."""
    return os.environ.get("CI", "").lower() in ("1", "true")


class ProcessKeeper:
    """The job as a child of this process, forked but not started.

    Args:
        launch: the launch to run.
        table: the allocation table.
        record: draft of the lease's record, whose lock the job inherits.
        before_kill: called once with processes that outlive the grace, before they are killed.
        spared: pids of companions that are no left-overs of the job.
    """

    def __init__(
        self,
        launch: Launch,
        table: Table,
        record: Draft,
        before_kill: Callable[[set[int]], object] | None = None,
        spared: Collection[int] = (),
    ) -> None:
        self._launch = launch
        self._table = table
        self._record = record
        self._before_kill = before_kill
        self._spared = set(spared)
        self._companion = self._new_companion()
        if self._companion:
            self._spared.add(self._companion.pid)
        self._job = Job(keep=record.fd)

    def _new_companion(self) -> Companion | None:
        """Start the companion that ends the job if this process is killed; only under CI."""
        if not is_cancelled_by_kill():
            return None
        variable = f"{LEASE_VARIABLE}={self._record.id}"
        return start_companion(self._record.fd, variable, self._launch.grace_s, self._before_kill)

    @property
    def process(self) -> Process:
        """The job's process."""
        return self._job.process

    @property
    def stopped_s(self) -> float:
        """Seconds for which the job and this process were stopped, as by Ctrl-Z."""
        return self._job.stopped_s

    def dismiss(self) -> None:
        """End the child without starting the job."""
        self._job.dismiss()
        self._dismiss_companions()

    def start(self, lease: Lease, gpus: Sequence[Gpu]) -> None:
        """Start the job on the GPUs of its lease, in rank order."""
        environment = job_environment(
            gpus,
            driver=self._launch.machine.topology.driver,
            by_uuid=self._launch.by_uuid,
            lease_id=lease.id,
            share=lease.share,
        )
        variables = {**inherited_variables(), **environment}
        self._job.start(Started(self._launch.command, variables, self._cpus(gpus)))

    def _cpus(self, gpus: Sequence[Gpu]) -> frozenset[int]:
        """Return the CPUs next to the GPUs if all share a NUMA node; empty for any."""
        nodes = {(gpu.node, gpu.numa_node) for gpu in gpus}
        if not self._launch.bind_cpu or len(nodes) != 1 or gpus[0].numa_node is None:
            return frozenset()
        return cpus_near(gpus[0].cpuset)

    def wait(self, limit_s: float | None) -> int | None:
        """Wait for the job; return its wait status, or None if it runs longer than the limit."""
        return self._job.wait(limit_s)

    def pids(self) -> set[int]:
        """Return the processes of the job."""
        return family()

    def end(self) -> int:
        """End the job: TERM, and KILL after the grace. Return its wait status."""

        def before_kill() -> None:
            if self._before_kill:
                self._before_kill(family())

        return self._job.end(self._launch.grace_s, before_kill)

    def release(self, lease: Lease) -> bool:
        """End what the job left on its GPUs and release the lease.

        Returns:
            False if left-overs survive KILL and keep the lease.
        """
        if self._end_left_overs(lease):
            self._table.warn(
                f"lease {lease.id} stays: some of what the job left behind survives KILL"
            )
            self._record.close()
            self._dismiss_companions()
            return False
        return self._hand_back(lease)

    def _hand_back(self, lease: Lease) -> bool:
        release(self._table, self._record, lease)
        self._dismiss_companions()
        return True

    def _dismiss_companions(self) -> None:
        if self._companion:
            self._companion.tell(DISMISSED)

    def _end_left_overs(self, lease: Lease) -> set[int]:
        """End the left-overs of the job that use its GPUs; return those that cannot be ended.

        On a described machine, where nothing tells what uses a GPU, all of them are ended. Nested
        launches have leases of their own, which outlive this one: they are spared.
        """
        if not descendants(self._spared):
            return set()
        spared = set(self._spared)
        for other in self._table.own_leases():
            if lease.id not in other.ancestors:
                continue
            spared |= {process.pid for process in (other.launcher, other.job) if state_of(process)}
            if other.engine is not None:  # a container's lease may be held by its companion alone
                spared |= holders_of(self._table.path_of(other))

        def left_overs() -> set[int]:
            found = _without_mps(descendants(spared))
            return find_at_work(self._launch.machine, lease.uuids, found)

        return end_all(left_overs, self._launch.grace_s, self._job.ignored, self._before_kill)


def _without_mps(pids: set[int]) -> set[int]:
    """Leave out MPS daemons and servers: they belong to all jobs of their share group."""
    if not pids:
        return pids
    from gpulaunch.sharing.share_group import serves_a_group  # late: few jobs leave anything

    return {pid for pid in pids if not serves_a_group(pid)}
