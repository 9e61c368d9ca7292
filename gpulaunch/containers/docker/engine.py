"""Docker behind the protocol of container engines, for the programs docker and nvidia-docker."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.containers.cdi import find_cdi_devices
from gpulaunch.containers.docker import ADDRESS_VARIABLE, DEFAULT_SOCKET, ROOTLESS_SOCKET, TITLE
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.line import read_line, socket_of
from gpulaunch.containers.ways import WAYS, Offer
from gpulaunch.errors import GpulaunchError
from gpulaunch.machine.drivers import DRIVERS

if TYPE_CHECKING:
    from gpulaunch.containers.engine import EngineClient, Info
    from gpulaunch.machine.topology import Topology

_HOOK = "nvidia-container-runtime-hook"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_CDI_RETURNS = (28, 2)
"""The first version that starts containers with CDI devices again (moby 49989)."""


class Docker:
    """The Docker Engine and its client; ContainerEngine documents the methods."""

    title, program = TITLE, "docker"
    id_prefix = ""
    cannot_share: str | None = None
    address_variable = ADDRESS_VARIABLE
    ways = frozenset(WAYS)

    def offer_of(self, info: "Info", topology: "Topology") -> Offer:
        """Return the ways by which an engine can give GPUs to its containers."""
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

    def usual_client(self) -> "EngineClient":
        """Return a client of the engine that docker would talk to from here."""
        return DockerClient(socket_of(read_line([self.program])))

    def known_clients(self, user_id: int) -> "list[EngineClient]":
        """Return clients of the engine that docker would talk to here, the host's and the user's.

        An engine that is named in a record is never asked: requests in this user's name would go
        there.
        """
        sockets = [DEFAULT_SOCKET, ROOTLESS_SOCKET.format(user_id=user_id)]
        # The engine may be on another machine, or docker may not know the context.
        with suppress(GpulaunchError, OSError):
            sockets.insert(0, socket_of(read_line(["docker"])))
        return [DockerClient(path) for path in dict.fromkeys(sockets) if os.path.exists(path)]


def _version(info: "Info") -> tuple[int, ...]:
    """Return the first two numbers of an engine's version; () for one without."""
    first_two = info.version.split(".")[:2]
    return tuple(map(int, first_two)) if all(map(str.isdecimal, first_two)) else ()
