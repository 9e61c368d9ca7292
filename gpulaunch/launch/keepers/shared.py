"""SharedKeeper: a lease of GPUs that several jobs share through CUDA MPS."""

from collections.abc import Sequence

from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.keepers.process import ProcessKeeper
from gpulaunch.launch.launch import Launch
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.share import Share
from gpulaunch.leases.table import Table
from gpulaunch.machine.gpu import Gpu
from gpulaunch.sharing.membership import Membership


class SharedKeeper(Keeper):
    """A process or container whose job is a member of a share group.

    Args:
        launch: the launch to run.
        table: the allocation table.
        record: draft of the lease's record.
        share: the job's part of the GPUs, with a pipe directory.
    """

    def __init__(self, launch: Launch, table: Table, record: Draft, share: Share) -> None:
        self._table = table
        self._machine = launch.machine
        self._uuids = share.group
        self._membership = Membership(table, record, share)
        keeper = ProcessKeeper
        if launch.container:
            from gpulaunch.launch.keepers.container import ContainerKeeper  # late: few are docker's

            keeper = ContainerKeeper
        self._job = keeper(launch, table, record, self._take_off_mps)

    def _take_off_mps(self, pids: set[int], number: int) -> None:
        """Detach processes from their MPS server before a signal that would end them attached."""
        for problem in self._membership.take_off(pids, number):
            self._table.warn(problem)

    def dismiss(self) -> None:
        """Undo everything, and leave the share group."""
        super().dismiss()
        self._membership.dismiss()

    def start(self, lease: Lease, gpus: Sequence[Gpu]) -> None:
        """Start the job on the GPUs of its lease, in rank order."""
        self._uuids = lease.uuids
        self._job.start(lease, gpus)

    def wait(self, limit_s: float | None) -> int | None:
        """Wait for the job, and warn if it does not become a client of MPS."""
        return self._membership.wait(
            self._job.wait, limit_s, self._machine, self._uuids, self._table.warn, self._job.pids
        )

    def end(self) -> int:
        """End the job: TERM, and KILL after the grace. Return its wait status."""
        return self._job.end()

    def release(self, lease: Lease) -> bool:
        """Release the lease, and leave the share group, whose daemon ends with its last member."""
        released = self._job.release(lease)
        if released:
            self._membership.leave()
        return released
