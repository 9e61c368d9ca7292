"""The container engines that launches go through, by the programs that people call."""

import os

from gpulaunch.errors import UsageError
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:  # what few launches need, the others do not load
    from collections.abc import Callable

    from gpulaunch.containers.engine import ContainerEngine


def _docker() -> "ContainerEngine":
    from gpulaunch.containers.docker.engine import Docker

    return Docker()


ENGINES: "dict[str, Callable[[], ContainerEngine]]" = {"docker": _docker, "nvidia-docker": _docker}
"""Programs whose containers get leases, each with what imports its engine."""

NOT_BUILT = frozenset({"podman", "nerdctl", "docker-compose", "podman-compose"})
"""Programs whose containers would run without leases, so launches through them are refused."""


def runs_containers(program: str) -> bool:
    """Whether the jobs of a program are containers, which are no children of its process."""
    return program in ENGINES or program in NOT_BUILT


def engine_of_program(path: str) -> "ContainerEngine":
    """Return the engine of a program for which runs_containers is true.

    Args:
        path: of the program, or its name.

    Raises:
        UsageError: launching through it is not built.
    """
    program = os.path.basename(path)
    if program not in ENGINES:
        raise UsageError(
            f"launching with {program} is not built yet",
            f"{program} alone still works, without leases",
        )
    return ENGINES[program]()


def all_engines() -> "list[ContainerEngine]":
    """Return every engine that is built, each once."""
    return [load() for load in dict.fromkeys(ENGINES.values())]
