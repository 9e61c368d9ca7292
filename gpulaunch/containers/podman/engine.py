"""Podman behind the protocol of container engines."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpulaunch.containers.podman import ID_PREFIX, TITLE, flags, gpu_flags
from gpulaunch.containers.ways import Offer
from gpulaunch.errors import UsageError, printable
from gpulaunch.machine.drivers import DRIVERS

if TYPE_CHECKING:  # few of podman's commands need the engine
    from gpulaunch.containers.command import ContainerCommand
    from gpulaunch.containers.engine import EngineClient, Info
    from gpulaunch.machine.topology import Topology

_REMOTE_VARIABLES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")
_REMOTE_FLAGS = frozenset({"--url", "-H", "--host", "-c", "--connection"})


class Podman:
    """Podman, without a daemon; ContainerEngine documents the methods."""

    title = TITLE
    grammar = flags.PODMAN
    id_prefix = ID_PREFIX
    address_variable = "CONTAINERS_STORAGE_CONF"
    containers_descend = True
    cannot_share = "podman's containers do not share GPUs yet"
    asked_gpus = staticmethod(gpu_flags.asked_gpus)
    asked_by_image = staticmethod(gpu_flags.asked_by_image)
    is_gpu_flag = staticmethod(gpu_flags.is_gpu_flag)
    flags_for = staticmethod(gpu_flags.flags_for)
    allowed_ways = staticmethod(gpu_flags.allowed_ways)

    def offer_of(self, info: "Info", topology: "Topology") -> Offer:
        """Return the way by which Podman gives GPUs to its containers, CDI, if it can."""
        from gpulaunch.containers.cdi import find_cdi_devices  # late: podman ps does without

        kind = DRIVERS[topology.driver].cdi_kind
        uuids = {gpu.uuid for gpu in topology.gpus}
        found = find_cdi_devices(info.cdi_directories, kind, uuids)
        return Offer(frozenset(found), runtime=False, gpus=False)

    def client_of(
        self, command: "ContainerCommand", environment: Mapping[str, str]
    ) -> "EngineClient":
        """Return a client of the store that a podman command would use."""
        from gpulaunch.containers.podman.client import PodmanClient

        _refuse_remote(command, environment)
        words = [command.argv[0]]
        for flag in (*command.global_flags, *command.flags):
            if flag.name in flags.STORE_FLAGS:
                words += command.argv[flag.begin : flag.end]
        return PodmanClient(words, os.geteuid())

    def known_clients(self, user_id: int) -> "list[EngineClient]":
        """Return a client of the user's store, which answers nobody else."""
        from gpulaunch.containers.podman.client import PodmanClient

        return [PodmanClient(("podman",), user_id)]


def _refuse_remote(command: "ContainerCommand", environment: Mapping[str, str]) -> None:
    """Check that podman itself runs the containers, here.

    Raises:
        UsageError: it would ask a service, which may be on another machine.
    """
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
