"""The container engines that launches go through, by the names of their programs."""

import os

from gpulaunch.errors import UsageError
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:  # few launches need these
    from collections.abc import Callable

    from gpulaunch.containers.engine import ContainerEngine


def _load_docker() -> "ContainerEngine":
    from gpulaunch.containers.docker.engine import Docker

    return Docker()


ENGINES: "dict[str, Callable[[], ContainerEngine]]" = {
    "docker": _load_docker,
    "nvidia-docker": _load_docker,
}
"""Programs whose containers get leases, each with a function that imports its engine."""

NOT_BUILT = frozenset({"podman", "nerdctl", "docker-compose", "podman-compose"})
"""Programs that launches refuse, because their containers would run without leases."""


def runs_containers(program: str) -> bool:
    """Return whether a program's jobs are containers, which are no children of its process."""
    return program in ENGINES or program in NOT_BUILT


def engine_of_program(path: str) -> "ContainerEngine":
    """Return the engine of a program for which runs_containers is true.

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
    return ENGINES[program]()


def all_engines() -> "list[ContainerEngine]":
    """Return every engine that is built, without duplicates."""
    return [load() for load in dict.fromkeys(ENGINES.values())]
