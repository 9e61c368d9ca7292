"""Where the Docker Engine answers: the Unix socket that a docker command would use, and those that may be asked."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, printable

DEFAULT_SOCKET = "/var/run/docker.sock"


def find_socket(command: ContainerCommand, environment: Mapping[str, str]) -> str:
    """The Unix socket of the engine that a docker command would talk to.

    Args:
        command: with docker's flags before the subcommand.
        environment: of this process.

    Raises:
        UsageError: the engine is not on this machine.
        FailedError: docker does not know the context.
    """
    context = command.global_value("-c", "--context")
    host = command.global_value("-H", "--host")
    if context is None and host is None and not environment.get("DOCKER_HOST"):
        context = environment.get("DOCKER_CONTEXT") or _current_context(command, environment)
    if context not in (None, "", "default"):
        return _local(
            _host_of_context(command, context or ""), f"docker context {printable(context or '')}"
        )
    if host is not None:
        return _local(host, f"-H {printable(host)}")
    host = environment.get("DOCKER_HOST") or f"unix://{DEFAULT_SOCKET}"
    return _local(host, f"DOCKER_HOST={printable(host)}")


def _local(host: str, origin: str) -> str:
    if host.startswith("unix://"):
        return os.path.abspath(
            host.removeprefix("unix://") or DEFAULT_SOCKET
        )  # docker, too, takes it from here
    raise UsageError(
        f"{origin} is no Unix socket, so its engine may be on another machine, whose GPUs are not this one's",
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
    except (OSError, ValueError, AttributeError):  # docker itself will complain about it
        return None


def _host_of_context(command: ContainerCommand, context: str) -> str:
    """The engine's address in one of docker's contexts; docker knows where it keeps them."""
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


def known_sockets(user_id: int) -> list[str]:
    """Where a user's containers may be: the engine that docker would talk to here, the host's, and the user's own.

    Never one named in a record: whoever asks it sends his own requests there.
    """
    sockets = [DEFAULT_SOCKET, f"/run/user/{user_id}/docker.sock"]
    with suppress(
        GpulaunchError, OSError
    ):  # on another machine, or a context that docker does not know
        sockets.insert(0, find_socket(ContainerCommand("docker", ("docker",)), os.environ))
    return list(dict.fromkeys(filter(os.path.exists, sockets)))
