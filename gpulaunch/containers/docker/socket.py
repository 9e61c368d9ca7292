"""The Docker Engine's Unix socket: that of a command, and those of a user's engines."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.docker import ADDRESS_VARIABLE, DEFAULT_SOCKET, ROOTLESS_SOCKET
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.engine import EngineClient
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, printable


def client_of(command: ContainerCommand, environment: Mapping[str, str]) -> DockerClient:
    """Return a client of the engine that a docker command would talk to, without a request.

    Args:
        command: a command line with docker's flags before the subcommand.
        environment: environment of this process.

    Raises:
        UsageError: the engine is not on this machine.
        FailedError: docker does not know the context.
    """
    return DockerClient(_find_socket(command, environment))


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


def known_clients(user_id: int) -> list[EngineClient]:
    """Return clients of the engines that may have a user's containers.

    They are the one that docker would talk to here, the host's, and the user's own. An engine that
    is named in a record is never asked: requests in this user's name would go there.
    """
    sockets = [DEFAULT_SOCKET, ROOTLESS_SOCKET.format(user_id=user_id)]
    # The engine may be on another machine, or docker may not know the context.
    with suppress(GpulaunchError, OSError):
        sockets.insert(0, _find_socket(ContainerCommand("docker", ("docker",)), os.environ))
    clients = [DockerClient(path) for path in dict.fromkeys(sockets)]
    return [client for client in clients if client.exists()]
