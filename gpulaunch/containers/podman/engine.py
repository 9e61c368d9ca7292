"""Podman behind the protocol of container engines."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpulaunch.containers.cdi import find_cdi_devices
from gpulaunch.containers.podman import ID_PREFIX, TITLE
from gpulaunch.containers.podman.client import PodmanClient
from gpulaunch.containers.podman.command import PodmanCommand, read_command
from gpulaunch.containers.podman.flags import STORE_FLAGS
from gpulaunch.containers.ways import Offer
from gpulaunch.errors import UsageError, printable
from gpulaunch.machine.drivers import DRIVERS

if TYPE_CHECKING:
    from gpulaunch.containers.engine import EngineClient, Info
    from gpulaunch.machine.topology import Topology

_REMOTE_VARIABLES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")
_REMOTE_FLAGS = frozenset({"--url", "-H", "--host", "-c", "--connection"})


class Podman:
    """Podman, without a daemon; ContainerEngine documents the methods."""

    title, program = TITLE, "podman"
    id_prefix = ID_PREFIX
    address_variable = "CONTAINERS_STORAGE_CONF"
    cannot_share: str | None = "podman's containers do not share GPUs yet"
    ways = frozenset({"cdi"})

    def offer_of(self, info: "Info", topology: "Topology") -> Offer:
        """Return the way by which Podman gives GPUs to its containers, CDI, if it can."""
        kind = DRIVERS[topology.driver].cdi_kind
        uuids = {gpu.uuid for gpu in topology.gpus}
        found = find_cdi_devices(info.cdi_directories, kind, uuids)
        return Offer(frozenset(found), runtime=False, gpus=False)

    def usual_client(self) -> "EngineClient":
        """Return a client of the store that podman would use from here."""
        return client_of(read_command([self.program]), os.environ)

    def known_clients(self, user_id: int) -> "list[EngineClient]":
        """Return a client of the user's store, which answers nobody else."""
        return [PodmanClient(("podman",), user_id)]


def client_of(command: PodmanCommand, environment: Mapping[str, str]) -> PodmanClient:
    """Return a client of the store that a podman command would use.

    Raises:
        UsageError: it would ask a service, which may be on another machine.
    """
    _refuse_remote(command, environment)
    words = [command.argv[0]]
    for flag in (*command.global_flags, *command.flags):
        if flag.name in STORE_FLAGS:
            words += command.argv[flag.begin : flag.end]
    return PodmanClient(words, os.geteuid())


def _refuse_remote(command: PodmanCommand, environment: Mapping[str, str]) -> None:
    """Check that podman itself runs the containers, here."""
    origin = None
    for flag in command.global_flags:
        if flag.name in ("-r", "--remote"):
            if not flag.is_on:
                return
            origin = flag.name
        if flag.name in _REMOTE_FLAGS:
            origin = f"{flag.name} {printable(flag.value or '')}"
    for name in _REMOTE_VARIABLES:
        if origin is None and environment.get(name):
            origin = f"{name}={printable(environment[name])}"
    if origin:
        raise UsageError(
            f"{origin}: podman would ask a service, whose GPUs may not be this machine's",
            "run 'gpulaunch podman' on the machine of the containers, without it",
        )
