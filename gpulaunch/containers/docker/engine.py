"""Docker behind the protocol of container engines, for the programs docker and nvidia-docker."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpulaunch.containers.docker import ADDRESS_VARIABLE, TITLE, flags, gpu_flags
from gpulaunch.containers.ways import Offer
from gpulaunch.machine.drivers import DRIVERS

if TYPE_CHECKING:  # few of docker's commands need the engine
    from gpulaunch.containers.command import ContainerCommand
    from gpulaunch.containers.engine import EngineClient, Info
    from gpulaunch.machine.topology import Topology

_HOOK = "nvidia-container-runtime-hook"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_CDI_RETURNS = (28, 2)
"""The first version that starts containers with CDI devices again (moby 49989)."""


class Docker:
    """The Docker Engine and its client; ContainerEngine documents the methods."""

    title = TITLE
    grammar = flags.DOCKER
    id_prefix = ""
    containers_descend = False
    cannot_share = None
    address_variable = ADDRESS_VARIABLE
    asked_gpus = staticmethod(gpu_flags.asked_gpus)
    asked_by_image = staticmethod(gpu_flags.asked_by_image)
    is_gpu_flag = staticmethod(gpu_flags.is_gpu_flag)
    flags_for = staticmethod(gpu_flags.flags_for)
    allowed_ways = staticmethod(gpu_flags.allowed_ways)

    def offer_of(self, info: "Info", topology: "Topology") -> Offer:
        """Return the ways by which an engine can give GPUs to its containers."""
        from gpulaunch.containers.cdi import find_cdi_devices  # late: docker ps does without

        entry = DRIVERS[topology.driver]
        names = {gpu.uuid for gpu in topology.gpus}
        if info.cdi_devices is None:
            known = find_cdi_devices(info.cdi_directories, entry.cdi_kind, names)
        else:
            known = {uuid for uuid in names if f"{entry.cdi_kind}={uuid}" in info.cdi_devices}
        path = f"{os.environ.get('PATH', '')}:{_USUAL_PATH}"
        hook = any(
            os.access(os.path.join(directory, _HOOK), os.X_OK) for directory in path.split(":")
        )
        return Offer(
            frozenset(known),
            runtime="runtime" in entry.container_ways and "nvidia" in info.runtimes,
            gpus="gpus" in entry.container_ways and hook,
            cdi_returns=_version(info) >= _CDI_RETURNS,
        )

    def client_of(
        self, command: "ContainerCommand", environment: Mapping[str, str]
    ) -> "EngineClient":
        """Return a client of the engine that a docker command would talk to."""
        from gpulaunch.containers.docker.socket import client_of

        return client_of(command, environment)

    def known_clients(self, user_id: int) -> "list[EngineClient]":
        """Return clients of the engines that may have a user's containers."""
        from gpulaunch.containers.docker.socket import known_clients

        return known_clients(user_id)


def _version(info: "Info") -> tuple[int, ...]:
    """Return the first two numbers of an engine's version; () for one without."""
    first_two = info.version.split(".")[:2]
    return tuple(map(int, first_two)) if all(map(str.isdecimal, first_two)) else ()
