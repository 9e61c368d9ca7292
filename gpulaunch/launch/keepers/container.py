"""ContainerKeeper: a lease that lives as long as the docker command and its containers."""

from typing import TYPE_CHECKING

from gpulaunch.containers.companion import ContainerCompanion
from gpulaunch.containers.container_launch import HOST_VARIABLES, ContainerLaunch, started_command
from gpulaunch.decide.decision import Grant
from gpulaunch.errors import FailedError
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.keepers.process import ProcessKeeper
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.make_records import ends_with_launcher
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.process.system import leads_namespace

if TYPE_CHECKING:  # few launches share
    from gpulaunch.leases.share import Share


class ContainerKeeper(ProcessKeeper):
    """The docker command as a child of this process, and the companion of its containers.

    A container may outlive the command: it is its engine's child, or, where there is no daemon, an
    orphan that this process adopts.

    Args:
        launch: the launch to run, with its container.
        table: the allocation table.
        record: draft of the lease's record.
        share: the job's part of the GPUs, with a pipe directory; None for GPUs of its own.
    """

    def __init__(
        self, launch: Launch, table: Table, record: Draft, share: "Share | None" = None
    ) -> None:
        container = launch.container
        assert container is not None  # noqa: S101  for the type checker
        self._container: ContainerLaunch = container
        self._ends_with_client = ends_with_launcher(container)
        super().__init__(launch, table, record, share)

    def _start_companions(self) -> None:
        self._companion_of_containers = ContainerCompanion(
            self._container,
            self._table,
            self._record,
            time_limit_s=self._launch.time_limit_s,
            grace_s=self._launch.grace_s,
            before_signal=self._before_signal,
        )

    def start(self, lease: Lease, grant: Grant) -> None:
        """Start the docker command with the GPUs of its lease, in rank order."""
        if self._container.leaves_out_gpus:
            name = self._launch.machine.topology.name
            self._table.warn(f"{name} is only described: its GPUs get into no container")
        environment: dict[str, str | None] = {
            **dict.fromkeys(HOST_VARIABLES),
            LEASE_VARIABLE: lease.id,
        }
        self._uuids = lease.uuids
        gpus = granted_gpus(self._launch, grant)
        command = started_command(self._container, gpus, lease.id, lease.share)
        self._job.start(command, environment)

    def pids(self) -> set[int]:
        """Return the processes in the containers."""
        return self._companion_of_containers.followed.pids()

    def _first_pids(self, others: set[int]) -> set[int]:
        if not self._container.command.passes_signals:
            return set()
        return set(filter(leads_namespace, others))

    def _end(self, grace_s: float) -> int:
        """End the containers through their engine, and the docker command; return its status."""
        self._end_containers(grace_s)
        return super()._end(grace_s)

    def _end_containers(self, grace_s: float) -> bool:
        """End the containers; return whether there was one, or perhaps still is."""
        try:
            return self._companion_of_containers.end(self._job.process, grace_s)
        except FailedError as problem:
            self._table.warn(problem.message)
            return True

    def _left_overs(self, lease: Lease) -> set[int]:
        """Return what the command left, which is never a container."""
        if self._container.engine.containers_descend:
            return set()
        return super()._left_overs(lease)

    def _hand_back(self, lease: Lease) -> bool:
        ended = self._companion_of_containers.followed.has_ended()
        # A runner may have killed the client before this process.
        is_left = (
            not ended and self._ends_with_client and self._end_containers(self._launch.grace_s)
        )
        if is_left:
            program = self._container.command.program
            self._table.warn(
                f"{program} has ended before its container: that ends, too, as CI=true"
            )
            ended = self._companion_of_containers.followed.has_ended()
        if ended:
            return super()._hand_back(lease)
        self._companion_of_containers.take_over(ends=is_left)
        self._record.close()
        return False

    def _dismiss_companions(self) -> None:
        self._companion_of_containers.dismiss()
