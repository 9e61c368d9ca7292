"""Keepers, which hold a lease from before it is taken until it is released.

There are keepers for a process, a container and a project of docker compose; run() uses them
through one protocol.
"""

from typing import TYPE_CHECKING, Protocol

from gpulaunch.decide.decision import Grant
from gpulaunch.launch.launch import Launch
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.process.identity import Process

if TYPE_CHECKING:  # few launches share
    from gpulaunch.leases.share import Share
    from gpulaunch.process.job import Job


class Keeper(Protocol):
    """A job with its lease. Made before the lease is taken, so that its pid can be recorded."""

    _job: "Job"

    @property
    def process(self) -> Process:
        """The job's process."""
        return self._job.process

    @property
    def stopped_s(self) -> float:
        """Seconds for which the job and this process were stopped, as by Ctrl-Z."""
        return self._job.stopped_s

    def dismiss(self) -> None:
        """Undo everything, without starting the job: the GPUs went to another launch."""
        self._job.dismiss()

    def start(self, lease: Lease, grant: Grant) -> None:
        """Start the job on the GPUs of its lease, as they were granted."""

    def wait(self, limit_s: float | None) -> int | None:
        """Wait for the job; return its wait status, or None if it runs longer than the limit."""

    def end(self) -> int:
        """End a job that has run for too long: TERM, grace, KILL. Return its wait status."""

    def release(self, lease: Lease) -> None:
        """End what the job left on its GPUs, and release the lease unless something keeps it."""


def keeper_for(launch: Launch, table: Table, record: Draft, share: "Share | None") -> Keeper:
    """Make the keeper of a lease that is about to be taken.

    Args:
        launch: the launch to run.
        table: the allocation table.
        record: draft of the lease's record.
        share: the job's part of the GPUs, or None if it does not share them.
    """
    if launch.compose:
        from gpulaunch.launch.keepers.compose import ComposeKeeper  # late: few are compose's

        return ComposeKeeper(launch, launch.compose, table, record)
    if share is not None and share.pipe_directory is None:  # on a described machine: without MPS
        share = None
    if launch.container:
        from gpulaunch.launch.keepers.container import ContainerKeeper  # late: few are docker's

        return ContainerKeeper(launch, table, record, share)
    from gpulaunch.launch.keepers.process import ProcessKeeper

    return ProcessKeeper(launch, table, record, share)
