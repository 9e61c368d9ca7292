"""The container engines that launches go through, by the names of their programs."""

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch import containers
from gpulaunch.errors import UsageError

if TYPE_CHECKING:  # few launches need these
    from collections.abc import Callable

    from gpulaunch.containers.engine import EngineClient


_SYSTEM_FILES = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")
_ROOT = re.compile(r'^\s*(?:graphroot|rootless_storage_path)\s*=\s*"(.+?)"', re.MULTILINE)


def podman_has_containers() -> bool:
    """Return whether this user's Podman may have containers; every launch asks this.

    All places are looked at that some file of settings names: which of them counts, podman tells.
    Source: containers/storage, types/options.go.
    """
    own = os.environ.get("CONTAINERS_STORAGE_CONF")
    home = _directory("XDG_CONFIG_HOME", "~/.config")
    roots = [
        "/var/lib/containers/storage",
        f"{_directory('XDG_DATA_HOME', '~/.local/share')}/containers/storage",
    ]
    for file in filter(None, (own, f"{home}/containers/storage.conf", *_SYSTEM_FILES)):
        with suppress(OSError), open(file, errors="replace") as settings:
            found = _ROOT.findall(settings.read(1 << 16))
            roots += (os.path.expandvars(one.replace("$UID", str(os.geteuid()))) for one in found)
    for root in roots:
        with suppress(OSError):
            for name in os.listdir(root):  # the list is in a folder of the storage driver's
                for part in ("containers", "volatile-containers"):  # of run --rm are volatile
                    path = f"{root}/{name}/{part}.json"
                    if os.path.exists(path) and os.path.getsize(path) > len("[]"):
                        return True
    return False


def _directory(variable: str, usual: str) -> str:
    return os.environ.get(variable) or os.path.expanduser(usual)


def _load_docker() -> "type[EngineClient]":
    from gpulaunch.containers.docker.client import DockerClient

    return DockerClient


def _load_podman() -> "type[EngineClient]":
    from gpulaunch.containers.podman import PodmanClient

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


def clients_at_hand() -> "list[EngineClient]":
    """Return a client of each engine here that this user may ask.

    Every launch asks this, so where no engine runs it costs one system call for each socket.
    Docker's contexts are not followed.
    """
    found: list[EngineClient] = []
    paths = [
        os.environ.get(containers.DOCKER_VARIABLE, "").strip().removeprefix("unix://"),
        containers.DOCKER_SOCKET,
        containers.ROOTLESS_DOCKER_SOCKET.format(user_id=os.geteuid()),
    ]
    usable = (os.path.realpath(path) for path in paths if os.access(path, os.W_OK))
    for path in dict.fromkeys(usable):
        from gpulaunch.containers.docker.client import DockerClient  # late: few have docker

        found.append(DockerClient(path))
    if podman_has_containers():
        found += _load_podman().known(os.geteuid())
    return found


def engine_of(engine_id: str) -> "type[EngineClient]":
    """Return the engine that an id in a lease belongs to: podman's ids begin with its name."""
    return ENGINES.get(engine_id.partition(":")[0], _load_docker)()
