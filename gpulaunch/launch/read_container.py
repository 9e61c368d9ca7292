"""The launch that a container engine's command line asks for."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.container_launch import (
    HOST_VARIABLES,
    ContainerLaunch,
    PlainCommand,
    replace_gpu_flags,
)
from gpulaunch.containers.engine import Asked, ContainerEngine, EngineClient, Image, Info
from gpulaunch.containers.life import PROFILE_LABEL, Container
from gpulaunch.containers.ways import NO_WAY, VISIBLE, Offer, describe_way
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.open_table import open_table
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.machine.drivers import DEFAULT_DRIVER, DRIVERS
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.records import replace

if TYPE_CHECKING:
    from gpulaunch.profiles.catalog import Label

_ENDING_S = 3.0  # a companion takes up to 2 s to be sure that a container has ended
_ENDING_LOOK_S = 0.02


def read_container_launch(
    options: Options,
    engine: ContainerEngine,
    command: ContainerCommand,
    *,
    name: str | None,
    warn: Callable[[str], None],
) -> Launch | PlainCommand:
    """Read and check everything that a launch through a container engine needs; take nothing yet.

    Args:
        options: gpulaunch's own options.
        engine: engine of the command.
        command: the client's command line, read.
        name: name that the user gave the job, or None.
        warn: called with each warning.

    Returns:
        The launch; or the command to run without a lease, because it needs no GPU or has a lease.

    Raises:
        UsageError: something asked for does not exist or is impossible, or the engine is not on
            this machine.
        FailedError: the engine or the machine does not answer.
    """
    options = _without_share_setting(options, engine, command)
    if command.starts:
        return _read_start(options, engine, command, name=name, warn=warn)
    if not command.launches:
        return PlainCommand(command.argv)
    asked = asked_by_flags(options, engine, command)
    plain = _without_lease(options, engine, command, asked)
    if plain:
        return plain
    client = engine.client_of(command, os.environ)
    image = client.image(command.operands[0])
    asked = asked or asked_by_image(options, engine, command, image)
    plain = _without_lease(options, engine, command, asked)
    if plain:
        return plain
    wanted = _merge_asked_gpus(options, command, asked)
    if asked and asked.number == "all":
        meant = options.all_gpus
        origin = options.origin("all_gpus") if meant else asked.text
        wanted.set_default("gpus", meant or "all", origin)
    launch = read_launch(
        wanted,
        command.without_secrets(),
        name=name,
        warn=warn,
        label=_profile_label(command.operands[0], image),
    )
    info = client.info()
    if _shares(launch):
        _check_sharing(engine, command, client.title, info, image)
    warn_of_options(options, command, asked, warn)
    _warn_of_hidden(launch, command, warn)
    offer = engine.offer_of(info, launch.machine.topology)
    way = choose_way(engine, offer, info, launch.machine, options, command)
    real = launch.machine.key is None
    if real and way == "cdi" and command.restart_policy and not offer.cdi_returns:
        warn(
            f"--restart {command.restart_policy}: {engine.title} {info.version} does not start "
            "a container with CDI devices again when it has been restarted itself: see "
            "'gpulaunch doctor'"
        )
    if command.makes_only:
        if "time_limit" in options.given:
            option = options.flag("time_limit")
            raise UsageError(
                f"{option}: {command.program} create starts nothing that could run too long"
            )
        endless = replace(launch.request, ends_within_s=None)
        launch = replace(launch, time_limit_s=None, request=endless)
    driver = launch.machine.topology.driver
    return replace(
        launch,
        container=ContainerLaunch(engine, client, command, asked, way, info.id, None, driver),
    )


def _names_gpus(options: Options) -> bool:
    """Return whether our own options say how many GPUs, or which."""
    return not options.given.keys().isdisjoint(("gpus", "only"))


def asked_by_flags(
    options: Options, engine: ContainerEngine, command: ContainerCommand
) -> Asked | None:
    """Return the GPUs that the client's flags ask for, of the makers whose GPUs are leased.

    GPUs of another maker come besides, if our own options ask for some.
    """
    asked = engine.asked_gpus(command, os.environ)
    return None if asked and asked.of_other_maker and _names_gpus(options) else asked


def asked_by_image(
    options: Options,
    engine: ContainerEngine,
    command: ContainerCommand,
    image: Image | None,
) -> Asked | None:
    """Return the GPUs that an image asks for, unless our own options name others."""
    asked = engine.asked_by_image(command, image)
    return None if asked and asked.number is None and _names_gpus(options) else asked


def _without_lease(
    options: Options,
    engine: ContainerEngine,
    command: ContainerCommand,
    asked: Asked | None,
) -> PlainCommand | None:
    """Return the command to run if it needs no GPU of this machine's driver; None if it does.

    Raises:
        UsageError: our own options ask for GPUs all the same.
    """
    if asked is None or not (asked.nothing or asked.of_other_maker):
        return None
    if asked.of_other_maker:
        return PlainCommand(command.argv)
    if _names_gpus(options):
        raise UsageError(f"{option_text(options)} asks for GPUs, but {asked.text} for none")
    if asked.flag == VISIBLE:
        return PlainCommand(command.argv, HOST_VARIABLES)
    flags = engine.flags_for(command, (), NO_WAY, asked, DEFAULT_DRIVER)
    return PlainCommand(replace_gpu_flags(engine, command, flags), HOST_VARIABLES)


def _read_start(
    options: Options,
    engine: ContainerEngine,
    command: ContainerCommand,
    *,
    name: str | None,
    warn: Callable[[str], None],
) -> Launch | PlainCommand:
    """Return the launch that starts a container again on the GPUs that it was made with."""
    client = engine.client_of(command, os.environ)
    info = client.info()
    found = [container for operand in command.operands if (container := client.container(operand))]
    made = [container for container in found if container.lease_id and container.uuids]
    table = open_table(described=True, warn=warn)
    without = [container for container in made if not has_lease(container, client, info, table)]
    if not without:
        return PlainCommand(command.argv)
    if len(without) > 1:
        names = ", ".join(printable(container.name) for container in without)
        raise UsageError(
            f"{len(without)} containers need their GPUs back: {names}: start them one at a time"
        )
    container = without[0]
    if container.shares:
        shown = f"container {printable(container.name)} was made to share its GPUs"
        raise UsageError(f"{shown}, and only {command.program} run does that: run a new one")
    launch = read_launch(_merge_made_gpus(options, container), command.argv, name=name, warn=warn)
    if _shares(launch):
        _check_sharing(engine, command, client.title, info, None)
    return replace(
        launch,
        container=ContainerLaunch(engine, client, command, None, NO_WAY, info.id, container.id),
    )


def has_lease(container: Container, client: EngineClient, info: Info, table: Table) -> bool:
    """Return whether a container has a live lease; wait for a lease that is about to end."""
    deadline = time.monotonic() + _ENDING_S
    while (
        any(_is_for(lease, container, info) for lease in table.peek().leases)
        and time.monotonic() < deadline
    ):
        now = client.container(container.id)
        if now is None or now.holds:
            return True
        time.sleep(_ENDING_LOOK_S)
    return False


def _is_for(lease: Lease, container: Container, info: Info) -> bool:
    """Return whether a lease is that of a container, with all its GPUs."""
    mine = lease.user_id in (os.geteuid(), 0)  # another user may remove their record at any time
    same = lease.id == container.lease_id or lease.container == container.id
    return mine and same and lease.engine == info.id and set(container.uuids) <= set(lease.uuids)


def _merge_asked_gpus(options: Options, command: ContainerCommand, asked: Asked | None) -> Options:
    """Return the client's flags as options of ours: a count is -n, devices are all of --only.

    `all` is none: to the client it means whatever there is, and how many that are is said by our
    own options and settings, and only otherwise by it.
    """
    if asked is None or asked.number == "all":
        return options
    says = f"{command.program}'s {asked.text}"
    if asked.number:
        _check_count(options, asked.number, says)
        return options.but(gpus=(asked.flag, asked.number))
    if "only" in options.given:
        raise UsageError(f"{options.flag('only')} and {says} both name GPUs: say it once")
    count = str(len(asked.devices))
    _check_count(options, count, says)
    return options.but(only=(asked.flag, ",".join(asked.devices)), gpus=(asked.flag, count))


def _check_count(options: Options, count: str, says: str) -> None:
    if "gpus" in options.given and options.given["gpus"][1] != count:
        raise UsageError(f"{options.origin('gpus')} and {says} disagree")


def _merge_made_gpus(options: Options, container: Container) -> Options:
    """Return the options with the GPUs that a container was made with."""
    if _names_gpus(options):
        count = gpus_text(len(container.uuids))
        raise UsageError(
            f"{option_text(options)}: container {printable(container.name)} was made with {count} "
            "and gets those"
        )
    origin = f"container {printable(container.name)}: GPU"
    count = str(len(container.uuids))
    return options.but(only=(origin, ",".join(container.uuids)), gpus=(origin, count))


def _without_share_setting(
    options: Options, engine: ContainerEngine, command: ContainerCommand
) -> Options:
    """Ignore `share = true` from the settings for containers that cannot share."""
    can_share = command.subcommand[-1:] == ("run",) and not engine.cannot_share
    if "share" in options.given or can_share:
        return options
    return options.but(share=(command.title, "false"))


def _shares(launch: Launch) -> bool:
    return launch.request.sharing is not None or (
        launch.within is not None and launch.within.share is not None
    )


def _check_sharing(
    engine: ContainerEngine,
    command: ContainerCommand,
    title: str,
    info: Info,
    image: Image | None,
) -> None:
    """Check that MPS would serve the container.

    Raises:
        UsageError: MPS would not serve it.
    """
    if engine.cannot_share:
        raise UsageError(engine.cannot_share, "launch it without --share")
    from gpulaunch.containers.mps_client import check_sharing  # late: few share

    user = image.user if image else None
    check_sharing(command, title, os.geteuid(), os.getegid(), user, info.security)


def option_text(options: Options) -> str:
    """Return our own options about the number of GPUs, or which, as they were given."""
    return " and ".join(options.origin(name) for name in ("gpus", "only") if name in options.given)


def _profile_label(name: str, image: Image | None) -> "Label | None":
    text = image.labels.get(PROFILE_LABEL) if image else None
    if not text:
        return None
    from gpulaunch.profiles.catalog import Label  # late: few images have a profile

    return Label(name, PROFILE_LABEL, text)


def _warn_of_hidden(launch: Launch, command: ContainerCommand, warn: Callable[[str], None]) -> None:
    """Warn of a variable that hides some of the container's GPUs from its programs, or all."""
    topology, request = launch.machine.topology, launch.request
    variable = f"{DRIVERS[topology.driver].visible_variable}="
    said = [text for text in command.values("-e", "--env") if text.startswith(variable)]
    names = said[-1].removeprefix(variable).split(",") if said else []
    count = request.gpus or len(admitted_gpus(request, topology, launch.within))
    if any(name.isdecimal() and int(name) >= count for name in names):
        has = f"has {gpus_text(count)}, counted from 0"
        warn(f"-e {printable(said[-1])}: the container {has}: leave it out")
    elif len(names) < count and said and names[0] not in ("", "-1"):
        shown = f"-e {printable(said[-1])} uses {len(names)} of the {count} GPUs"
        fewer = f"'gpulaunch -n {len(names)} {command.title}' without it leases as many"
        warn(f"{shown} that this launch leases: {fewer}")


def warn_of_options(
    options: Options,
    command: ContainerCommand,
    asked: Asked | None,
    warn: Callable[[str], None],
) -> None:
    """Warn of options about GPUs that have no effect, or that add GPUs without a lease."""
    for name in options.given.keys() & {"bind_cpu", "uuid"}:
        warn(f"{options.flag(name)} has no effect in containers")
    if command.says("--privileged"):
        warn("--privileged shows the container every GPU of this host, whoever holds it")
    for value in command.values("--device"):
        number = value.partition(":")[0].removeprefix("/dev/nvidia")
        if number.isdecimal() and (asked is None or number not in asked.devices):
            warn(f"--device {printable(value)} adds a GPU that this launch does not lease")


def choose_way(
    engine: ContainerEngine,
    offer: Offer,
    info: Info,
    machine: Machine,
    options: Options,
    command: ContainerCommand,
) -> str:
    """Choose how the GPUs get into the container: options may force it, or the runtime exclude it.

    Returns:
        One of WAYS; or NO_WAY for GPUs that are only described.

    Raises:
        FailedError: there is no way.
        UsageError: the command excludes the forced way, or the engine does not have it.
    """
    forced = options.container_gpus
    allowed = engine.allowed_ways(command)
    if forced:
        if forced in allowed:
            return forced
        origin = options.origin("container_gpus")
        runtimes = command.values("--runtime")
        if runtimes:
            says = f"{command.program}'s --runtime {runtimes[-1]}"
            raise UsageError(f"{origin} and {says} disagree")
        wanted = describe_way(forced, machine.topology.driver)
        raise UsageError(f"{origin}: {command.program} has no {wanted}")
    topology = machine.topology
    uuids = [gpu.uuid for gpu in topology.gpus]
    ways = offer.ways(uuids, restarts=command.restart_policy is not None)
    ways = [way for way in ways if way in allowed]
    if machine.key:  # no driver knows described GPUs, but a CDI specification may
        return "cdi" if "cdi" in ways else NO_WAY
    if not ways:
        possible = [one for one in DRIVERS[topology.driver].container_ways if one in allowed]
        named = ", ".join(describe_way(way, topology.driver) for way in possible)
        raise FailedError(
            f"{engine.title} {info.version} has no way to give GPUs to containers: none of {named}",
            "install the NVIDIA Container Toolkit, and see 'gpulaunch doctor'",
        )
    return ways[0]
