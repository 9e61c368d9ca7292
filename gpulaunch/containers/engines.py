"""The container engines that launches go through, by the names of their programs."""

import os
from typing import TYPE_CHECKING

from gpulaunch.containers import docker
from gpulaunch.containers.podman.store import has_containers
from gpulaunch.errors import UsageError

if TYPE_CHECKING:  # few launches need these
    from collections.abc import Callable

    from gpulaunch.containers.engine import EngineClient


def _load_docker() -> "type[EngineClient]":
    from gpulaunch.containers.docker.client import DockerClient

    return DockerClient


def _load_podman() -> "type[EngineClient]":
    from gpulaunch.containers.podman.client import PodmanClient

    return PodmanClient


ENGINES: "dict[str, Callable[[], type[EngineClient]]]" = {
    "docker": _load_docker,
    "nvidia-docker": _load_docker,
    "podman": _load_podman,
}
"""Programs whose containers get leases, each with a function that imports its engine's client."""


NOT_BUILT = frozenset({"podman-remote", "nerdctl", "docker-compose", "podman-compose"})
"""Programs that launches refuse, because their containers would run without leases."""


def runs_containers(program: str) -> bool:
    """Return whether a program's jobs are containers, which are no children of its process."""
    return program in ENGINES or program in NOT_BUILT


def module_of(path: str) -> str:
    """Return the module with the command line of a program for which runs_containers is true.

    Args:
        path: path or name of the program.

    Raises:
        UsageError: launching through this program is not built.
    """
    program = os.path.basename(path)
    if program not in ENGINES:
        raise UsageError(
            f"launching with {program} is not built yet",
            f"{program} alone still works, without leases",
        )
    return f"gpulaunch.cli.{program.removeprefix('nvidia-')}"


def all_engines() -> "list[type[EngineClient]]":
    """Return every engine that is built, without duplicates."""
    return [load() for load in dict.fromkeys(ENGINES.values())]


def clients_at_hand() -> "list[tuple[str, EngineClient]]":
    """Return a client of each engine here that this user may ask, with its program's name.

    Every launch asks this, so where no engine runs it costs one system call for each socket.
    Contexts are not followed, since only the engine's own program knows their sockets.
    """
    found: list[tuple[str, EngineClient]] = []
    paths = [docker.DEFAULT_SOCKET, docker.ROOTLESS_SOCKET.format(user_id=os.geteuid())]
    named = os.environ.get(docker.ADDRESS_VARIABLE, "")
    if named.startswith("unix://"):
        paths.insert(0, named.removeprefix("unix://"))
    seen = set()
    for path in paths:
        if os.access(path, os.W_OK) and (place := os.path.realpath(path)) not in seen:
            from gpulaunch.containers.docker.client import DockerClient  # late: few have docker

            seen.add(place)
            found.append(("docker", DockerClient(path)))
    if has_containers():
        found += [("podman", one) for one in _load_podman().known(os.geteuid())]
    return found


def engines_of(engine_id: str) -> "list[type[EngineClient]]":
    """Return the engines that an id in a lease may belong to, by its start."""
    engines = all_engines()
    named = [one for one in engines if one.id_prefix and engine_id.startswith(one.id_prefix)]
    return named or [one for one in engines if not one.id_prefix]
