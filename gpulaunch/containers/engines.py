"""The container engines that launches go through, by the names of their programs."""

import os
import re
from contextlib import suppress
from itertools import starmap
from typing import TYPE_CHECKING

from gpulaunch import containers
from gpulaunch.errors import UsageError

if TYPE_CHECKING:  # few launches need these
    from collections.abc import Callable

    from gpulaunch.containers.engine import EngineClient


_SYSTEM_FILES = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")


def podman_has_containers() -> bool:
    """Return whether this user's Podman has containers, running or not; every launch asks this."""
    root = _find_root()
    with suppress(OSError):
        for name in os.listdir(root):  # the list is in a folder of the storage driver's
            for part in ("containers", "volatile-containers"):  # those of run --rm are volatile
                path = f"{root}/{name}/{part}.json"
                if os.path.exists(path) and os.path.getsize(path) > len("[]"):
                    return True
    return False


def _find_root() -> str:
    """Return the directory of Podman's store. Source: containers/storage, types/options.go."""
    is_root, own = os.geteuid() == 0, os.environ.get("CONTAINERS_STORAGE_CONF")
    key = "graphroot" if is_root else "rootless_storage_path"
    rows = [] if own else [(file, key) for file in _SYSTEM_FILES]
    if own or not is_root:
        file = own or f"{_directory('XDG_CONFIG_HOME', '~/.config')}/containers/storage.conf"
        rows = [(file, key), (file, "graphroot"), *rows]
    usual = "/var/lib" if is_root else _directory("XDG_DATA_HOME", "~/.local/share")
    return next(filter(None, starmap(_read_setting, rows)), f"{usual}/containers/storage")


def _directory(variable: str, usual: str) -> str:
    return os.environ.get(variable) or os.path.expanduser(usual)


def _read_setting(file: str, key: str) -> str:
    """Return the value of a key in a file of Podman's settings; "" if it is not there."""
    try:
        with open(file, errors="replace") as settings:
            found = re.search(rf'^\s*{key}\s*=\s*"(.+?)"', settings.read(1 << 16), re.MULTILINE)
    except OSError:
        return ""
    return os.path.expandvars(found[1].replace("$UID", str(os.geteuid()))) if found else ""


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


def all_engines() -> "list[type[EngineClient]]":
    """Return every engine that is built, without duplicates."""
    return [load() for load in dict.fromkeys(ENGINES.values())]


def clients_at_hand() -> "list[EngineClient]":
    """Return a client of each engine here that this user may ask.

    Every launch asks this, so where no engine runs it costs one system call for each socket.
    Contexts are not followed, since only the engine's own program knows their sockets.
    """
    found: list[EngineClient] = []
    paths = [
        containers.DOCKER_SOCKET,
        containers.ROOTLESS_DOCKER_SOCKET.format(user_id=os.geteuid()),
    ]
    named = os.environ.get(containers.DOCKER_VARIABLE, "")
    if named.startswith("unix://"):
        paths.insert(0, named.removeprefix("unix://"))
    seen = set()
    for path in paths:
        if os.access(path, os.W_OK) and (place := os.path.realpath(path)) not in seen:
            from gpulaunch.containers.docker.client import DockerClient  # late: few have docker

            seen.add(place)
            found.append(DockerClient(path))
    if podman_has_containers():
        found += _load_podman().known(os.geteuid())
    return found


def engines_of(engine_id: str) -> "list[type[EngineClient]]":
    """Return the engines that an id in a lease may belong to, by its start."""
    engines = all_engines()
    named = [one for one in engines if one.id_prefix and engine_id.startswith(one.id_prefix)]
    return named or [one for one in engines if not one.id_prefix]
