"""ContainerKeeper: a lease that lives as long as the docker command and its containers."""

from collections.abc import Callable, Collection, Mapping, Sequence

from gpulaunch.containers.companion import ContainerCompanion
from gpulaunch.containers.container_launch import HOST_VARIABLES, ContainerLaunch, started_command
from gpulaunch.errors import FailedError
from gpulaunch.launch.keepers.process import ProcessKeeper, is_cancelled_by_kill
from gpulaunch.launch.launch import Launch
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.companion import Companion
from gpulaunch.process.job import Started


class ContainerKeeper(ProcessKeeper):
    """The docker command as a child of this process, and the companion of its containers.

    A container is a child of its engine, not of the docker command, and may outlive it.

    Args:
        launch: the launch to run, with its container.
        table: the allocation table.
        record: draft of the lease's record.
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
        container = launch.container
        assert container is not None  # noqa: S101  for the type checker
        self._container: ContainerLaunch = container
        self._companion_of_containers = ContainerCompanion(
            container,
            table,
            record,
            guards=is_cancelled_by_kill(),
            time_limit_s=launch.time_limit_s,
            grace_s=launch.grace_s,
            before_kill=before_kill,
        )
        super().__init__(
            launch, table, record, before_kill, {*spared, self._companion_of_containers.pid}
        )

    def _new_companion(self) -> Companion | None:
        """Return None: the containers' companion ends them if this process is killed."""
        return None

    def start(self, lease: Lease, gpus: Sequence[Gpu]) -> None:
        """Start the docker command with the GPUs of its lease, in rank order."""
        if self._container.leaves_out_gpus:
            name = self._launch.machine.topology.name
            self._table.warn(f"{name} is only described: its GPUs get into no container")
        environment: Mapping[str, str | None] = {
            **dict.fromkeys(HOST_VARIABLES),
            LEASE_VARIABLE: lease.id,
        }
        command = started_command(self._container, gpus, lease.id, lease.share)
        self._job.start(Started(command, environment, frozenset()))

    def pids(self) -> set[int]:
        """Return the processes in the containers."""
        return self._companion_of_containers.pids()

    def end(self) -> int:
        """End the containers through their engine, and the docker command; return its status."""
        try:
            self._companion_of_containers.end(self._job.process)
        except FailedError as problem:
            self._table.warn(problem.message)
        return super().end()

    def _hand_back(self, lease: Lease) -> bool:
        if self._companion_of_containers.has_nothing_to_do():
            return super()._hand_back(lease)
        self._companion_of_containers.take_over()
        self._record.close()
        return False

    def _dismiss_companions(self) -> None:
        self._companion_of_containers.dismiss()
