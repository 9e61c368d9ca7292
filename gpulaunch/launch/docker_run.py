"""The run of docker's client, and what a project of docker compose needs in all."""

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from gpulaunch.containers.asked import HOST_VARIABLES
from gpulaunch.containers.docker import ADDRESS_VARIABLE
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.line import TLS_VARIABLES, DockerLine, socket_of
from gpulaunch.containers.door import Door
from gpulaunch.containers.flags import without_secrets
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, call_failed, printable
from gpulaunch.launch.docker_porter import DockerPorter
from gpulaunch.launch.launch import Events, Launch
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.process.job import Job
from gpulaunch.process.system import this_process
from gpulaunch.records import replace


def run_docker(
    options: Options, line: DockerLine, events: Events
) -> tuple[int, GpulaunchError | None]:
    """Run docker's client at a door of this process, where its containers get their leases.

    Args:
        line: docker's command line.
        events: who hears of each launch that begins.

    Returns:
        Its wait status, and why the last container got no GPUs, if it did not.

    Raises:
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    porter = _porter_of(options, line, events)
    if line.is_compose and options.wait:
        name, launch = read_project_launch(options, line, porter.warn)
        if launch and launch.wait and not porter.client.of_project(name):
            porter.reserve(launch)
    door = Door(porter.client.address)
    status, was_late = 0, False
    try:
        job = Job(keep=None, before_signal=porter.before_signal)
        porter.process = job.process
        door.serve(porter)
        hidden = dict.fromkeys((*HOST_VARIABLES, *TLS_VARIABLES))
        job.start(line.argv_at_door, {**hidden, ADDRESS_VARIABLE: door.address})
        status, was_late = porter.run_to_end(job, options)
    finally:
        door.close()
        porter.release(in_order=os.WIFEXITED(status))
    porter.raise_if_ended(options, was_late=was_late)
    return status, porter.problem


def _porter_of(
    options: Options, line: DockerLine, events: Events, *, only_looks: bool = False
) -> DockerPorter:
    client = DockerClient(socket_of(line))
    return DockerPorter(
        options,
        client,
        line.title,
        without_secrets(line.argv),
        this_process(),
        events,
        fills=not line.is_compose,
        follows=line.is_compose,
        watches=not line.is_compose,
        alias=line.alias,
        info=client.info(),  # without an engine nothing is started
        only_looks=only_looks,
    )


def first_launch(options: Options, line: DockerLine, events: Events) -> Launch:
    """Return the launch of the first container that docker's client asks for; none is made.

    Raises:
        SystemExit: docker has refused the command line, and has said so.
        UsageError: it asks for none that gets GPUs.
    """
    import subprocess  # late: few launches are only looked at

    porter = _porter_of(options, line, events, only_looks=True)
    door = Door(porter.client.address)
    door.serve(porter)
    hidden = (*HOST_VARIABLES, *TLS_VARIABLES)
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    try:
        done = subprocess.run(  # noqa: S603  the user's own command line
            line.argv_at_door,
            env={**environment, ADDRESS_VARIABLE: door.address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as problem:
        raise call_failed(line.argv[0], problem) from None
    finally:
        door.close()
    if porter.launch:
        return porter.launch
    if porter.problem:
        raise porter.problem
    if done.returncode:
        os.write(2, done.stderr)
        raise SystemExit(done.returncode)
    shown = printable(" ".join(line.argv[:3]))
    raise UsageError(f"'{shown}' takes no GPUs here, so there is nothing to decide")


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
        line: a compose command.

    Raises:
        SystemExit: the project is wrong, which docker has told.
        FailedError: docker compose prints something else.
    """
    import subprocess  # late: few projects wait

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
