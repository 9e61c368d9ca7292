"""A lease that a program takes for a container."""

from collections.abc import Mapping
from typing import Any

from gpulaunch.api.docker_sdk import device_requests_by
from gpulaunch.api.held_lease import HeldLease
from gpulaunch.containers.command import ContainerCommand, read_command
from gpulaunch.containers.container_launch import ContainerLaunch, started_command
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.engine import EngineClient, Info
from gpulaunch.errors import FailedError
from gpulaunch.launch.acquire import Acquired, ThisProcess
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_container import choose_way
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import Machine
from gpulaunch.profiles.catalog import Label
from gpulaunch.records import Record

_DOCKER = Docker()


class ContainerFor(Record):
    """What a lease is taken for: a container of an engine on this machine.

    Attributes:
        client: our client of the engine.
        info: the engine's description of itself.
        command: the docker command line that would do the same.
        label: the image's label with its profile, or None.
    """

    client: EngineClient
    info: Info
    command: ContainerCommand
    label: Label | None

    def launch(self, machine: Machine, settings: Options) -> ContainerLaunch:
        """Return how the container gets GPUs of a machine.

        Raises:
            FailedError: the engine has no way.
        """
        offer = _DOCKER.offer_of(self.info, machine.topology)
        way = choose_way(_DOCKER, offer, self.info, machine, settings, self.command)
        driver = machine.topology.driver
        return ContainerLaunch(
            _DOCKER, self.client, self.command, None, way, self.info.id, None, driver
        )

    def hold(self, launch: Launch, table: Table, held: Acquired[ThisProcess]) -> "LeaseOfContainer":
        """Return the lease that this process holds until the container does."""
        return LeaseOfContainer(launch, table, held)


class LeaseOfContainer(HeldLease):
    """GPUs that this process holds, and after the release its container, if that is there."""

    def __init__(self, launch: Launch, table: Table, held: Acquired[ThisProcess]) -> None:
        super().__init__(launch, table, held)
        assert launch.container is not None  # noqa: S101  for the type checker
        self._container: ContainerLaunch = launch.container
        self._flags = read_command(
            started_command(self._container, granted_gpus(launch, held.grant), self.id),
            _DOCKER.grammar,
        )

    def _is_kept(self) -> bool:
        try:
            found = self._container.client.containers_of(self.id)
        except FailedError:
            return True  # whoever looks next asks the engine
        return any(container.holds for container in found)

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of client.containers.run() with these GPUs added."""
        variables = options.get("environment") or []
        if isinstance(variables, Mapping):
            variables = [f"{name}={value}" for name, value in variables.items()]
        labels = options.get("labels") or {}
        if not isinstance(labels, Mapping):
            labels = dict.fromkeys(labels, "")
        added: dict[str, Any] = {
            "environment": [*variables, *self._flags.values("-e")],
            "labels": {**labels, **self.labels()},
        }
        way, driver = self._container.way, self._container.driver
        if way == "runtime":
            added["runtime"] = self._flags.values("--runtime")[-1]
        else:
            added["device_requests"] = device_requests_by(way, driver, self.uuids)
        return {**options, **added}
