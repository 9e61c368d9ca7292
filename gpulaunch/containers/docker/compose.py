"""Projects of docker compose: what their services ask for, and the same with GPUs of leases.

A service is read as the docker run command that would start its container, so that it means the
same there and here.
"""
# pure: decides on plain values

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpulaunch.containers.command import ContainerCommand, read_command
from gpulaunch.containers.container_launch import ContainerLaunch, started_command
from gpulaunch.containers.docker.flags import DOCKER
from gpulaunch.containers.ways import cdi_prefixes
from gpulaunch.decide.request import Constraint
from gpulaunch.errors import FailedError, quoted
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record

Project = Mapping[str, Any]
"""The document of docker compose config, where paths, variables and profiles are resolved."""

_OF_GPUS = frozenset({"gpu", "nvidia"})
_LOCATION_FLAGS = frozenset({"-f", "--file", "--project-directory", "-p", "--project-name"})


class ServiceLaunch(Record):
    """A service that gets a lease.

    Attributes:
        name: name of the service.
        container: how its container gets the GPUs; its command is the docker run command that
            would do the same.
        count: number of GPUs; None for all.
        required: GPUs that it names; None if it names none.
    """

    name: str
    container: ContainerLaunch
    count: int | None
    required: Constraint | None


class ComposeLaunch(Record):
    """The additional facts of a launch through docker compose.

    Attributes:
        project: the project, with the GPUs of services that keep their leases.
        command: docker's command line.
        directory: directory of the project.
        services: services that get leases.
    """

    project: Project
    command: ContainerCommand
    directory: str
    services: tuple[ServiceLaunch, ...]


def config_line(command: ContainerCommand) -> list[str]:
    """Return the command that prints the whole project, with the services of all profiles."""
    return [*_before_subcommand(command), "--profile", "*", "config", "--format", "json"]


def enabled_line(command: ContainerCommand) -> list[str]:
    """Return the command that prints the names of the services that the profiles enable."""
    return [*_before_subcommand(command), "config", "--services"]


def generated_line(
    command: ContainerCommand, project: Project, directory: str, path: str
) -> tuple[str, ...]:
    """Return the command line with another file in place of the user's.

    Args:
        command: a compose command.
        project: the project; its name is kept.
        directory: directory of the project.
        path: path of the file.
    """
    replaced = set()
    for flag in command.compose_flags:
        if flag.name in _LOCATION_FLAGS:
            replaced |= set(range(flag.begin, flag.end))
    before = _before_subcommand(command)
    kept = [word for at, word in enumerate(before) if at not in replaced]
    where = ["-p", project["name"], "--project-directory", directory, "-f", path]
    return (*kept, *where, *command.argv[len(before) :])


def _before_subcommand(command: ContainerCommand) -> tuple[str, ...]:
    begin = command.compose_flags[-1].end if command.compose_flags else None
    if begin is None:
        begin = (command.global_flags[-1].end if command.global_flags else 1) + 1
    return command.argv[:begin]


def concerned_services(
    project: Project, command: ContainerCommand, enabled: Iterable[str]
) -> list[str]:
    """Return the services that a compose command makes or starts, those that others need included.

    Args:
        project: the project.
        command: a compose command.
        enabled: services that a command without names is about.
    """
    of_run = command.subcommand[-1] == "run"
    names = command.operands[:1] if of_run else command.operands
    todo, found = list(names or enabled), dict[str, None]()
    while todo:
        name = todo.pop(0)
        service = project["services"].get(name)
        if service is None or name in found:  # what does not exist is for compose to tell
            continue
        found[name] = None
        if not command.says("--no-deps"):
            todo += service.get("depends_on") or ()
    return list(found)


def containers_of_service(project: Project, command: ContainerCommand, name: str) -> int:
    """Return how many containers a service is to have."""
    if command.subcommand[-1] == "run" and command.operands[0] == name:
        return 1
    for value in reversed(command.values("--scale")):
        service, _, number = value.partition("=")
        if service == name and number.isdecimal():
            return int(number)
    service = project["services"][name]
    counts = service.get("scale"), (service.get("deploy") or {}).get("replicas")
    return next((int(count) for count in counts if count is not None), 1)


def run_command(project: Project, name: str) -> ContainerCommand:
    """Return the docker run command that would start a container of a service.

    Only what matters to GPUs is in it.
    """
    service = project["services"][name]
    words = [DOCKER.program, "run", "-d"]  # compose's command is not attached to it alone
    for request in _gpu_requests(service):
        words += ["--gpus", _gpus_flag(request)]
    for device in service.get("devices") or ():
        words += ["--device", _source(device)]
    for key, value in (service.get("environment") or {}).items():
        words += ["-e", f"{key}={value}"] if value is not None else []
    words += ["--runtime", service["runtime"]] if service.get("runtime") else []
    words += ["--restart", _restart_policy(service)]
    words += ["--privileged"] if service.get("privileged") else []
    return read_command([*words, service.get("image") or f"{project['name']}-{name}"], DOCKER)


def _restart_policy(service: Mapping[str, Any]) -> str:
    """Return the policy by which the engine starts a service's container again."""
    deployed = ((service.get("deploy") or {}).get("restart_policy") or {}).get("condition")
    policies = {None: "no", "none": "no", "any": "always"}
    return str(service.get("restart") or policies.get(deployed, deployed))


def _gpu_requests(service: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the requests for GPUs in `deploy` and `gpus` of a service."""
    gpus = service.get("gpus") or []
    if gpus == "all":
        gpus = [{"count": -1}]
    reserved = [request for request in _reserved(service) if _is_of_gpus(request)]
    return [*gpus, *reserved]


def _reserved(service: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    deploy = service.get("deploy") or {}
    resources = deploy.get("resources") or {}
    return list((resources.get("reservations") or {}).get("devices") or ())


def _is_of_gpus(request: Mapping[str, Any]) -> bool:
    return not _OF_GPUS.isdisjoint(request.get("capabilities") or ())


def _gpus_flag(request: Mapping[str, Any]) -> str:
    """Return the value of --gpus that means the same as a request."""
    fields = []
    if request.get("device_ids"):
        fields.append(f"device={','.join(request['device_ids'])}")
    else:
        fields.append(str(request.get("count", -1)))
    if request.get("driver"):
        fields.append(f"driver={request['driver']}")
    if request.get("capabilities"):
        fields.append(f"capabilities={','.join(request['capabilities'])}")
    return ",".join(f'"{field}"' if "," in field else field for field in fields)


def _source(device: str | Mapping[str, Any]) -> str:
    return str(device["source"] if isinstance(device, Mapping) else device)


def with_lease(
    project: Project, service: ServiceLaunch, gpus: Sequence[Gpu], lease_id: str
) -> Project:
    """Return a project in which one service has exactly these GPUs, and the labels of its lease.

    Args:
        project: the project.
        service: the service.
        gpus: its GPUs in rank order.
        lease_id: id of its lease.
    """
    container = service.container
    said = container.command
    command = read_command(started_command(container, gpus, lease_id), container.engine.grammar)
    before = project["services"][service.name]
    requests = [request for request in _reserved(before) if not _is_of_gpus(request)]
    uuids = [gpu.uuid for gpu in gpus]
    if container.way == "cdi":
        kind = DRIVERS[container.driver].cdi_kind
        names = [f"{kind}={uuid}" for uuid in uuids]
        requests.append({"driver": "cdi", "device_ids": names, "capabilities": ["gpu"]})
    if container.way == "gpus":
        first = next(iter(_gpu_requests(before)), {"capabilities": ["gpu"]})
        kept = {key: first[key] for key in ("capabilities", "options") if first.get(key)}
        requests.append({"capabilities": ["gpu"], **kept, "driver": "nvidia", "device_ids": uuids})
    added = command.values("-e")[len(said.values("-e")) :]
    devices = [
        device
        for device in before.get("devices") or ()
        if not _source(device).removeprefix("runtime.").startswith(cdi_prefixes())
    ]
    deploy = before.get("deploy") or {}
    resources = deploy.get("resources") or {}
    reservations = {**(resources.get("reservations") or {}), "devices": requests}
    resources = {**resources, "reservations": reservations}
    after = {
        **{key: value for key, value in before.items() if key != "gpus"},
        "deploy": {**deploy, "resources": resources},
        "devices": devices,
        "environment": {**(before.get("environment") or {}), **_pairs(added)},
        "labels": {**(before.get("labels") or {}), **_pairs(command.values("--label"))},
    }
    if command.values("--runtime"):
        after["runtime"] = command.values("--runtime")[-1]
    return {**project, "services": {**project["services"], service.name: after}}


def _pairs(assignments: Iterable[str]) -> dict[str, str]:
    return {key: value for key, _, value in (text.partition("=") for text in assignments)}


def parse_project(text: str) -> Project:
    """Read what config_line() prints.

    Raises:
        FailedError: it is no project.
    """
    try:
        project = json.loads(text)
        services = project["services"].values()
        if isinstance(project["name"], str) and all(isinstance(one, dict) for one in services):
            return dict(project)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise FailedError(f"docker compose config prints {quoted(text[:40])}, which is no project")
