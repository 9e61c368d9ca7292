"""ComposeKeeper: a lease for all services of a project, and in it one for each."""

import os
import time

from gpulaunch.containers.companion import ContainerCompanion
from gpulaunch.containers.container_launch import HOST_VARIABLES
from gpulaunch.containers.docker.compose import (
    ComposeLaunch,
    ServiceLaunch,
    generated_line,
    with_lease,
)
from gpulaunch.decide.decision import Grant
from gpulaunch.errors import FailedError
from gpulaunch.launch.acquire import Acquired, acquire
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Callbacks, Launch
from gpulaunch.launch.read_compose import written
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import Draft, is_alive
from gpulaunch.leases.table import Table, release
from gpulaunch.leases.watch import wait_until_dead
from gpulaunch.process.identity import Process
from gpulaunch.process.job import Job
from gpulaunch.process.system import is_cancelled_by_kill
from gpulaunch.records import replace

_ENDING_S = 3.0  # a companion takes up to 2 s to be sure that a container has ended


class _ServiceHolder:
    """The holder of a service's lease: the docker command, and the companion of the container."""

    def __init__(self, process: Process, companion: ContainerCompanion) -> None:
        self.process, self.companion = process, companion

    def dismiss(self) -> None:
        """End the companion: the GPUs went to another launch."""
        self.companion.dismiss()


class ComposeKeeper(Keeper):
    """The docker command as a child of this process, and a companion for each service's lease.

    The lease that it is made for holds the GPUs of all services until each service has a lease of
    its own, so that two projects never hold a part of their GPUs each and wait for the rest.

    Args:
        launch: the launch to run.
        compose: its services.
        table: the allocation table.
        record: draft of the record of the lease for all services.
    """

    def __init__(self, launch: Launch, compose: ComposeLaunch, table: Table, record: Draft) -> None:
        self._launch, self._compose = launch, compose
        self._table, self._record = table, record
        self._held: list[Acquired[_ServiceHolder]] = []
        self._is_started = False
        self._follows = False
        # A file in memory is gone with the last process that has it open, however that ends.
        self._file = os.memfd_create("compose")
        self._job = Job(keep=self._file)

    def dismiss(self) -> None:
        """End the child without starting docker."""
        super().dismiss()
        os.close(self._file)

    def start(self, lease: Lease, _grant: Grant) -> None:
        """Take a lease for each service, and start docker with a project that says so.

        Each service's GPUs are chosen again, out of those of the lease.

        Raises:
            FailedError: the GPUs cannot be divided so that each service has what it asks for.
        """
        project = self._compose.project
        # Who names GPUs comes first, then who needs most.
        for service in sorted(
            self._compose.services, key=lambda one: (one.required is None, -(one.count or 0))
        ):
            launch = self._launch_of(service, lease)
            held = self._take(launch, service)
            self._held.append(held)
            given = granted_gpus(launch, held.grant)
            project = with_lease(project, service, given, held.lease.id)
            if service.container.leaves_out_gpus:
                name = launch.machine.topology.name
                self._table.warn(f"{name} is only described: its GPUs get into no container")
        release(self._table, self._record, lease)
        self._is_started = True
        compose, path = self._compose, written(project, self._file)
        line = generated_line(compose.command, project, compose.directory, path)
        self._job.start(line, dict.fromkeys(HOST_VARIABLES))
        if not is_cancelled_by_kill():
            self._follows = True
            for held in self._held:
                held.holder.companion.take_over(ends=False)
                held.record.close()

    def _launch_of(self, service: ServiceLaunch, within: Lease) -> Launch:
        """Return the launch that takes a service's lease out of the lease for all."""
        outer = self._launch.request
        alone = service.count == 1
        wishes = replace(
            outer.wishes,
            required=service.required,
            nvlink=outer.wishes.nvlink and not alone,
            least_gb_per_s=0.0 if alone else outer.wishes.least_gb_per_s,
        )
        request = replace(
            outer,
            gpus=service.count,
            wishes=wishes,
            bandwidth_sensitive=outer.bandwidth_sensitive and not alone,
        )
        return replace(
            self._launch,
            request=request,
            within=within,
            name=self._launch.name or f"{self._compose.project['name']}/{service.name}",
            wait=False,
            container=service.container,
            compose=None,
        )

    def _take(self, launch: Launch, service: ServiceLaunch) -> Acquired[_ServiceHolder]:
        def prepare(record: Draft, _: object) -> _ServiceHolder:
            companion = ContainerCompanion(
                service.container,
                self._table,
                record,
                time_limit_s=launch.time_limit_s,
                grace_s=launch.grace_s,
                beside_others=True,
            )
            return _ServiceHolder(self.process, companion)

        callbacks = Callbacks(self._table.warn, lambda *_: None, lambda *_: None, lambda *_: None)
        held = acquire(launch, self._table, callbacks, prepare)
        if isinstance(held, Acquired):
            return held
        raise FailedError(f"service {service.name}: {held.reason}")

    def wait(self, limit_s: float | None) -> int | None:
        """Wait for docker; return its wait status, or None if it runs longer than the limit."""
        return self._job.wait(limit_s)

    def end(self) -> int:
        """End the containers through their engine, and docker; return its wait status."""
        for held in self._held:
            try:
                held.holder.companion.end(self.process, self._launch.grace_s)
            except FailedError as problem:
                self._table.warn(problem.message)
        return self._job.end(self._launch.grace_s)

    def release(self, lease: Lease) -> None:
        """Release the leases of the services that have ended; companions keep the others."""
        for held in self._held:
            self._release(held)
        if not self._is_started:
            self._job.dismiss()
            release(self._table, self._record, lease)

    def _release(self, held: Acquired[_ServiceHolder]) -> None:
        """Release a service's lease if its containers have ended, or leave it to its companion."""
        companion = held.holder.companion
        over = not self._is_started or companion.followed.has_ended()
        if self._follows:
            if over:
                _await_release(self._table.path_of(held.lease))
        elif over:
            release(self._table, held.record, held.lease)
            companion.dismiss()
        else:
            companion.take_over(ends=False)
            held.record.close()


def _await_release(path: str) -> None:
    """Wait until a companion has released a lease; it is about to."""
    deadline = time.monotonic() + _ENDING_S
    while is_alive(path) and time.monotonic() < deadline:
        wait_until_dead([path])
