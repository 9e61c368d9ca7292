"""The launch that a docker compose command asks for: a lease for each service with GPUs."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.container_launch import HOST_VARIABLES, ContainerLaunch, PlainCommand
from gpulaunch.containers.docker.compose import (
    ComposeLaunch,
    Project,
    ServiceLaunch,
    concerned_services,
    config_line,
    containers_of_service,
    enabled_line,
    generated_line,
    parse_project,
    run_command,
    with_lease,
)
from gpulaunch.containers.engine import Asked, ContainerEngine, EngineClient, Info
from gpulaunch.containers.life import Container
from gpulaunch.decide.request import admit_only
from gpulaunch.errors import UsageError, call_failed, printable
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.open_table import open_table
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_container import (
    asked_by_flags,
    asked_by_image,
    choose_way,
    has_lease,
    option_text,
    warn_of_options,
)
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.topology import Topology
from gpulaunch.process.execute import clean_environment
from gpulaunch.records import Record, replace

_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
_NOT_OF_COMPOSE = ("share", "record", "record_to")


class _Wanted(Record):
    """A service that asks for GPUs.

    Attributes:
        name: name of the service.
        command: the docker run command that would do the same.
        asked: its request.
        kept: its container, if that has a live lease with what it asks for.
    """

    name: str
    command: ContainerCommand
    asked: Asked
    kept: Container | None


def read_compose_launch(
    options: Options,
    engine: ContainerEngine,
    command: ContainerCommand,
    *,
    name: str | None,
    warn: Callable[[str], None],
) -> Launch | PlainCommand:
    """Read and check everything that a docker compose command needs, as read_container_launch().

    Returns:
        The launch; or the command to run without a new lease, because no service needs GPUs or
        each has a lease.

    Raises:
        SystemExit: the project is wrong, which docker has told.
    """
    told = _run(config_line(command))
    project = parse_project(told.stdout)
    client = engine.client_of(command, os.environ)
    found = _find_wanted(engine, client, project, command)
    if not found:
        return PlainCommand(command.argv)
    options = _without_sharing(options, command)
    info = client.info()
    wanted = _find_kept(options, found, project, command, client, info, warn)
    if command.subcommand[-1] in ("start", "restart"):
        return _read_start(command, wanted)
    _pass_on(told.stderr)  # docker finds nothing to say of the generated project
    launch = read_launch(
        _merge_requests(options, wanted), command.without_secrets(), name=name, warn=warn
    )
    if launch.within and launch.within.share:
        raise UsageError(f"{command.title} does not share, but lease {launch.within.id} is shared")
    services, project = _services(options, engine, client, info, launch, wanted, project, warn)
    directory = _directory(command)
    if not services:
        path = written(project, os.memfd_create("compose", 0))
        return PlainCommand(generated_line(command, project, directory, path), HOST_VARIABLES)
    if command.makes_only:
        launch = replace(
            launch, time_limit_s=None, request=replace(launch.request, ends_within_s=None)
        )
    compose = ComposeLaunch(project, command, directory, tuple(services))
    # Its record is released before the idle watch would open it.
    return replace(launch, compose=compose, recorded_in=None, idle_after_s=None)


def _services(
    options: Options,
    engine: ContainerEngine,
    client: EngineClient,
    info: Info,
    launch: Launch,
    wanted: Sequence[_Wanted],
    project: Project,
    warn: Callable[[str], None],
) -> tuple[list[ServiceLaunch], Project]:
    """Return the services that need leases, and the project with the GPUs of the others."""
    topology = launch.machine.topology
    offer = engine.offer_of(info, topology)
    services: list[ServiceLaunch] = []
    for at, one in enumerate(wanted):
        warn_of_options(Options({}, {}) if at else options, one.command, one.asked, warn)
        way = choose_way(engine, offer, info, launch.machine, options, one.command)
        container = ContainerLaunch(
            engine, client, one.command, one.asked, way, info.id, None, topology.driver
        )
        text = f"service {one.name}'s {one.asked.text}"
        devices = one.asked.devices
        required = admit_only(topology, devices, text) if devices else None
        service = ServiceLaunch(one.name, container, _count(options, one.asked), required)
        if one.kept:
            gpus = _gpus_of(one.kept, service, topology)
            project = with_lease(project, service, gpus, one.kept.lease_id or "")
        else:
            services.append(service)
    _refuse_common(services)
    return services, project


def _gpus_of(container: Container, service: ServiceLaunch, topology: Topology) -> list[Gpu]:
    """Return the GPUs of a container that keeps its lease."""
    required = service.required
    if required and required.uuids != frozenset(container.uuids):
        raise UsageError(
            f"{required.text}: its container has other GPUs",
            f"'docker compose rm --stop {service.name}' frees them",
        )
    by_uuid = {gpu.uuid: gpu for gpu in topology.gpus}
    return [by_uuid[uuid] for uuid in container.uuids]


def written(project: Project, fd: int) -> str:
    """Write a project into a file in memory; return its path for a program that inherits it."""
    with os.fdopen(os.dup(fd), "w") as file:
        json.dump(project, file)
    return f"/proc/self/fd/{fd}"


def _run(line: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run docker compose config, which may read the project from our standard input.

    Raises:
        SystemExit: the project is wrong, which docker has told.
    """
    environment = clean_environment()
    for variable in HOST_VARIABLES:
        environment.pop(os.fsencode(variable), None)
    try:
        done = subprocess.run(  # noqa: S603
            line,
            env=environment,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except OSError as problem:
        raise call_failed(line[0], problem) from None
    if done.returncode:
        _pass_on(done.stderr)
        raise SystemExit(done.returncode)
    return done


def _pass_on(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode(errors="surrogateescape"))


def _enabled(project: Project, command: ContainerCommand) -> list[str]:
    """Return the services that a command without names is about; only compose knows profiles."""
    services = project["services"]
    if command.operands or not any(service.get("profiles") for service in services.values()):
        return list(services)
    return _run(enabled_line(command)).stdout.split()


def _directory(command: ContainerCommand) -> str:
    """Return the directory of the project, as compose finds it."""
    said = {flag.name: flag.value for flag in reversed(command.compose_flags) if flag.value}
    if "--project-directory" in said:
        return os.path.abspath(said["--project-directory"])
    file = said.get("-f") or said.get("--file") or os.environ.get("COMPOSE_FILE")
    if file:
        separator = os.environ.get("COMPOSE_PATH_SEPARATOR") or os.pathsep
        return os.path.dirname(os.path.abspath(file.split(separator)[0]))
    here = directory = os.getcwd()
    while not any(os.path.exists(os.path.join(directory, name)) for name in _FILES):
        if directory == os.path.dirname(directory):
            return here
        directory = os.path.dirname(directory)
    return directory


def _find_wanted(
    engine: ContainerEngine,
    client: EngineClient,
    project: Project,
    command: ContainerCommand,
) -> list[_Wanted]:
    """Return the services that ask for GPUs of this machine's driver."""
    found = []
    nothing = Options({}, {})
    for name in concerned_services(project, command, _enabled(project, command)):
        run = run_command(project, name)
        try:
            asked = asked_by_flags(nothing, engine, run)
            if asked is None and run.values("--runtime"):
                asked = asked_by_image(nothing, engine, run, client.image(run.operands[0]))
        except UsageError as problem:
            raise UsageError(f"service {name}: {problem.message}", problem.hint) from None
        count = containers_of_service(project, command, name)
        if asked is None or asked.nothing or asked.of_other_maker or not count:
            continue
        if count > 1:
            raise UsageError(
                f"service {name}: its {count} containers would have the GPUs of one lease",
                "write a service for each, or leave out gpulaunch",
            )
        found.append(_Wanted(name, run, asked, None))
    return found


def _find_kept(
    options: Options,
    wanted: Sequence[_Wanted],
    project: Project,
    command: ContainerCommand,
    client: EngineClient,
    info: Info,
    warn: Callable[[str], None],
) -> list[_Wanted]:
    """Return the services, with the containers that have what they ask for."""
    table = open_table(described=True, warn=warn)
    launched = {container.service: container for container in client.launched()}
    found = []
    for one in wanted:
        container = launched.get(f"{project['name']}/{one.name}")
        one_off = command.subcommand[-1] == "run" and command.operands[0] == one.name
        fits = container and _count(options, one.asked) in (None, len(container.uuids))
        keeps = container and fits and not one_off and has_lease(container, client, info, table)
        found.append(replace(one, kept=container) if keeps else one)
    return found


def _read_start(command: ContainerCommand, wanted: Sequence[_Wanted]) -> PlainCommand:
    without = [one.name for one in wanted if one.kept is None]
    if without:
        raise UsageError(
            f"{command.title}: {', '.join(without)}: no lease, so the GPUs may be somebody else's",
            "'gpulaunch docker compose up -d' leases some",
        )
    return PlainCommand(command.argv)


def _without_sharing(options: Options, command: ContainerCommand) -> Options:
    for name in _NOT_OF_COMPOSE:
        if name in options.given and options.given[name][1] != "false":
            flag = options.flag(name)
            raise UsageError(
                f"{flag}: not for {command.title}",
                f"'gpulaunch {flag} docker run' does it for one container",
            )
    return options.but(share=(command.title, "false"))


def _count(options: Options, asked: Asked) -> int | None:
    """Return how many GPUs a service is to get; None for all."""
    if asked.devices:
        return len(asked.devices)
    if asked.number != "all":
        return int(asked.number or 1)
    meant = options.gpus or options.all_gpus
    if isinstance(meant, range):
        raise UsageError(f"{option_text(options)}: a service gets one number of GPUs")
    return None if meant in (None, "all") else int(meant)


def _merge_requests(options: Options, wanted: Sequence[_Wanted]) -> Options:
    """Return the options of a launch with the GPUs of all services that need a lease."""
    if "gpus" in options.given and not any(one.asked.number == "all" for one in wanted):
        raise UsageError(
            f"{option_text(options)}: no service asks for all GPUs, so it says nothing"
        )
    new = [one for one in wanted if one.kept is None]
    counts = [_count(options, one.asked) for one in new]
    if None in counts and len(counts) > 1:
        greedy = next(one for one in new if _count(options, one.asked) is None)
        raise UsageError(
            f"service {greedy.name} asks for all GPUs, and others for more",
            "-n N or the setting all_gpus says how many 'all' means",
        )
    total = "all" if None in counts else str(sum(count or 0 for count in counts) or 1)
    merged = options.but(gpus=("the services' GPUs:", total))
    devices = [device for one in new for device in one.asked.devices]
    if devices:
        merged = merged.but(require=("the services' GPUs:", ",".join(devices)))
    return merged


def _refuse_common(services: Sequence[ServiceLaunch]) -> None:
    for one, other in combinations(services, 2):
        if one.required and other.required and one.required.uuids & other.required.uuids:
            raise UsageError(
                f"services {printable(one.name)} and {printable(other.name)} name the same GPU: "
                "each gets GPUs of its own"
            )
