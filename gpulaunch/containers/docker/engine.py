"""Docker behind the protocol of container engines, for the programs docker and nvidia-docker."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.docker import (
    ADDRESS_VARIABLE,
    DEFAULT_SOCKET,
    ROOTLESS_SOCKET,
    TITLE,
    flags,
    gpu_flags,
)
from gpulaunch.containers.ways import Offer
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, printable
from gpulaunch.machine.drivers import DRIVERS

if TYPE_CHECKING:  # few of docker's commands need the engine
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
        self, command: ContainerCommand, environment: Mapping[str, str]
    ) -> "EngineClient":
        """Return a client of the engine that a docker command would talk to."""
        from gpulaunch.containers.docker.client import DockerClient

        return DockerClient(_find_socket(command, environment))

    def known_clients(self, user_id: int) -> "list[EngineClient]":
        """Return clients of the engine that docker would talk to here, the host's and the user's.

        An engine that is named in a record is never asked: requests in this user's name would go
        there.
        """
        from gpulaunch.containers.docker.client import DockerClient

        sockets = [DEFAULT_SOCKET, ROOTLESS_SOCKET.format(user_id=user_id)]
        # The engine may be on another machine, or docker may not know the context.
        with suppress(GpulaunchError, OSError):
            sockets.insert(0, _find_socket(ContainerCommand("docker", ("docker",)), os.environ))
        return [DockerClient(path) for path in dict.fromkeys(sockets) if os.path.exists(path)]


def _find_socket(command: ContainerCommand, environment: Mapping[str, str]) -> str:
    """Return the path of the socket, in docker's order: flags, variables, context, default."""
    context = command.global_value("-c", "--context")
    host = command.global_value("-H", "--host")
    if context is None and host is None and not environment.get(ADDRESS_VARIABLE):
        context = environment.get("DOCKER_CONTEXT") or _current_context(command, environment)
    if context not in (None, "", "default"):
        return _local_path(
            _host_of_context(command, context or ""), f"docker context {printable(context or '')}"
        )
    if host is not None:
        return _local_path(host, f"-H {printable(host)}")
    host = environment.get(ADDRESS_VARIABLE) or f"unix://{DEFAULT_SOCKET}"
    return _local_path(host, f"{ADDRESS_VARIABLE}={printable(host)}")


def _local_path(host: str, origin: str) -> str:
    if host.startswith("unix://"):
        # A relative path counts from the working directory, as docker reads it.
        return os.path.abspath(host.removeprefix("unix://") or DEFAULT_SOCKET)
    raise UsageError(
        f"{origin} is no Unix socket, so its engine may be on another machine, "
        "whose GPUs are not this one's",
        "run gpulaunch on that machine, or name its engine's socket: unix://" + DEFAULT_SOCKET,
    )


def _current_context(command: ContainerCommand, environment: Mapping[str, str]) -> str | None:
    directory = (
        command.global_value("--config")
        or environment.get("DOCKER_CONFIG")
        or os.path.expanduser("~/.docker")
    )
    try:
        with open(os.path.join(directory, "config.json"), "rb") as file:
            return str(json.load(file).get("currentContext") or "")
    except (OSError, ValueError, AttributeError):  # docker itself will report it
        return None


def _host_of_context(command: ContainerCommand, context: str) -> str:
    """Ask docker for the engine's address in one of its contexts."""
    import subprocess  # late: few use contexts, and it costs 10 ms

    flags = (
        command.argv[: command.global_flags[-1].end] if command.global_flags else command.argv[:1]
    )
    words = [*flags, "context", "inspect", context, "--format", "{{.Endpoints.docker.Host}}"]
    done = subprocess.run(  # noqa: S603
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise FailedError(f"docker context {printable(context)}: {printable(done.stderr.strip())}")
    return done.stdout.strip()


def _version(info: "Info") -> tuple[int, ...]:
    """Return the first two numbers of an engine's version; () for one without."""
    first_two = info.version.split(".")[:2]
    return tuple(map(int, first_two)) if all(map(str.isdecimal, first_two)) else ()
