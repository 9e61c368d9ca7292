"""What a project of docker compose needs in all, for those who wait for all of it or preview it."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from gpulaunch.containers.docker.line import DockerLine
from gpulaunch.containers.flags import without_secrets
from gpulaunch.errors import FailedError
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.records import replace

_OF_GPUS = frozenset({"gpu", "nvidia"})
_WHO = "the services' GPUs:"

Service = Mapping[str, Any]


def read_project_launch(
    options: Options, line: DockerLine, warn: Callable[[str], None]
) -> tuple[str, Launch | None]:
    """Return the name of a project, and the launch of all its containers that ask for GPUs.

    Of compose's own reading of the project only device requests and `gpus` count here; a container
    that gets GPUs in another way asks for them when it is made.

    Args:
        options: gpulaunch's own options.
        line: a compose command.
        warn: called with each warning.

    Raises:
        SystemExit: the project is wrong, which docker has told.
        FailedError: docker compose prints something else.
    """
    words = line.argv[: len(line.argv) - len(line.rest) + line.words_end]
    done = subprocess.run(  # noqa: S603
        [*words, "config", "--format", "json"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    try:
        project = json.loads(done.stdout)
        name, services = str(project["name"]), dict(project["services"])
        number, named = _needed(services, line)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FailedError("docker compose config prints no project") from None
    if not number and not named:
        return name, None
    # What `all` means is said by our own options and settings; each named GPU is needed once.
    wanted = options
    if number != "all":
        wanted = options.but(gpus=(_WHO, str(int(number) + len(named))))
    else:
        wanted.set_default("gpus", options.all_gpus or "all", _WHO)
    if named:
        wanted = wanted.but(require=(_WHO, ",".join(named)))
    launch = read_launch(wanted, without_secrets(line.argv), name=options.name or name, warn=warn)
    return name, replace(launch, recorded_in=None)


def _needed(services: Mapping[str, Service], line: DockerLine) -> tuple[int | str, list[str]]:
    """Return how many GPUs services count, or "all", and which ones they name."""
    words = line.rest[line.words_end + 1 :]
    scaled = {}
    for word in words:
        if found := re.fullmatch(r"(.+)=(\d+)", word):
            scaled[found[1]] = int(found[2])
    todo = [word for word in words if word in services] or list(services)
    if line.word == "compose run":
        todo = todo[:1]
    concerned: dict[str, None] = {}
    number: int | str = 0
    named: dict[str, None] = {}
    while todo:
        name = todo.pop()
        if name in concerned or name not in services:
            continue
        concerned[name] = None
        service = services[name]
        todo += service.get("depends_on") or ()
        replicas = service.get("scale", (service.get("deploy") or {}).get("replicas", 1))
        for request in _requests(service):
            count = request.get("count", -1)
            if request.get("device_ids"):
                named |= dict.fromkeys(request["device_ids"])
            elif count in (-1, "all") or number == "all":
                number = "all"
            else:
                number = int(number) + int(count) * scaled.get(name, int(replicas or 0))
    return number, list(named)


def _requests(service: Service) -> list[Mapping[str, Any]]:
    """Return the requests for GPUs in `deploy` and `gpus` of a service."""
    gpus = service.get("gpus") or []
    reserved: Any = service
    for key in ("deploy", "resources", "reservations"):
        reserved = reserved.get(key) or {}
    devices = reserved.get("devices") or ()
    found = [one for one in devices if not _OF_GPUS.isdisjoint(one.get("capabilities") or ())]
    return [*([{"count": -1}] if gpus == "all" else gpus), *found]
