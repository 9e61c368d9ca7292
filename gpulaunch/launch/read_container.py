"""The launch that a container asks for, which somebody wants to make or to start again."""

import os
import time
from collections.abc import Callable, Sequence

from gpulaunch.containers.container import PROFILE_LABEL, Container, Image
from gpulaunch.containers.create import Asked, AskedContainer
from gpulaunch.containers.engine import NO_WAY, ContainerLaunch, EngineClient, Info, describe_way
from gpulaunch.containers.held_leases import RELEASE_FOLLOWS_S
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu import gpus_text
from gpulaunch.profiles.catalog import Label
from gpulaunch.records import replace

_ENDING_LOOK_S = 0.02


def read_container_launch(
    options: Options,
    client: EngineClient,
    info: Info,
    container: AskedContainer,
    asked: Asked | None,
    image: Image | None,
    command: Sequence[str],
    *,
    name: str | None,
    warn: Callable[[str], None],
) -> Launch | None:
    """Read and check everything that a container with GPUs needs; take nothing yet.

    Args:
        asked: the GPUs that it asks for; None if it says nothing.
        image: its image; None if it is not here.
        name: name that the user gave the job, or None.

    Returns:
        The launch; None if the container needs no GPU that is leased here.

    Raises:
        UsageError: something asked for does not exist or is impossible.
        FailedError: the engine or the machine does not answer.
    """
    named = _gpus_named(options)
    if asked and asked.of_other_maker and named:
        asked = None  # those of the other maker come besides
    if asked and (asked.nothing or asked.of_other_maker):
        if asked.nothing and named:
            raise UsageError(f"{named} asks for GPUs, but {asked.text} for none")
        return None
    cannot_share = client.cannot_share
    if not container.runs and not cannot_share:
        cannot_share = f"{container.title}: only {client.program} run shares GPUs"
    if "share" not in options.given and cannot_share:
        options = options.but(share=(container.title, "false"))  # `share = true` of the settings
    wanted = _merge_asked_gpus(options, client.program, asked)
    if asked and asked.number == "all":
        meant = options.all_gpus
        origin = options.origin("all_gpus") if meant else asked.text
        wanted.set_default("gpus", meant or "all", origin)
    text = image.labels.get(PROFILE_LABEL) if image else None
    label = Label(container.image, PROFILE_LABEL, text) if text else None
    launch = read_launch(wanted, command, name=name, warn=warn, label=label)
    _warn_of_options(options, container, asked, warn)
    _warn_of_hidden(launch, container, warn)
    way = choose_way(client, info, launch.machine, options, container, warn)
    if not container.runs:
        if "time_limit" in options.given:
            raise UsageError(
                f"{options.flag('time_limit')}: {container.title} starts nothing that could run "
                "too long"
            )
        endless = replace(launch.request, ends_within_s=None)
        launch = replace(launch, time_limit_s=None, request=endless)
    if cannot_share and shares(launch):
        inside = launch.within and launch.within.share
        raise UsageError(cannot_share, None if inside else "launch it without --share")
    return replace(
        launch,
        container=ContainerLaunch(
            client=client,
            engine_id=info.id,
            way=way,
            asks_for_all=asked is not None and asked.number == "all",
            attached=container.attached and container.runs,
            passes_signals=container.passes_signals,
        ),
    )


def read_container_start(
    options: Options,
    client: EngineClient,
    container: Container,
    command: Sequence[str],
    *,
    name: str | None,
    warn: Callable[[str], None],
) -> Launch:
    """Return the launch that starts a container again on the GPUs that it was made with.

    Args:
        container: the container, which was made under a lease that has ended.
        name: name that the user gave the job, or None.
    """
    shown = f"container {printable(container.name)}"
    if container.shares:
        raise UsageError(f"{shown} was made to share its GPUs, which is only for new ones")
    count = gpus_text(len(container.uuids))
    if named := _gpus_named(options):
        raise UsageError(f"{named}: {shown} was made with {count} and gets those")
    made = options.but(
        only=(f"{shown}: GPU", ",".join(container.uuids)),
        gpus=(f"{shown}: GPU", str(len(container.uuids))),
        share=(shown, "false"),
    )
    launch = read_launch(made, command, name=name, warn=warn)
    if launch.within and launch.within.share:
        raise UsageError(f"{shown} has GPUs of its own, but lease {launch.within.id} is shared")
    return replace(
        launch,
        container=ContainerLaunch(
            client=client,
            engine_id=client.info().id,
            way=NO_WAY,
            container_id=container.id,
        ),
    )


def has_lease(container: Container, client: EngineClient, table: Table) -> bool:
    """Return whether a container has a live lease; wait for a lease that is about to end."""
    engine_id = client.info().id

    def is_for_it(lease: Lease) -> bool:
        mine = lease.user_id in (os.geteuid(), 0)  # others may remove their records at any time
        same = lease.id == container.lease_id or lease.container == container.id
        has_all = set(container.uuids) <= set(lease.uuids)
        return mine and same and lease.engine == engine_id and has_all

    deadline = time.monotonic() + RELEASE_FOLLOWS_S
    while any(map(is_for_it, table.peek().leases)) and time.monotonic() < deadline:
        now = client.container(container.id)
        if now is None or now.holds:
            return True
        time.sleep(_ENDING_LOOK_S)
    return False


def _gpus_named(options: Options) -> str:
    """Return our own options about the number of GPUs, or which, as given; "" if there are none."""
    return " and ".join(options.origin(name) for name in ("gpus", "only") if name in options.given)


def _merge_asked_gpus(options: Options, program: str, asked: Asked | None) -> Options:
    """Return what is asked for as options of ours: a count is -n, devices are all of --only.

    `all` is none: it means whatever there is, and how many that are is said by our own options and
    settings, and only otherwise by it.
    """
    if asked is None or asked.number == "all":
        return options
    says = f"{program}'s {asked.text}"
    count = asked.number or str(len(asked.devices))
    if "gpus" in options.given and options.given["gpus"][1] != count:
        raise UsageError(f"{options.origin('gpus')} and {says} disagree")
    # Such as "device request" or "NV_GPU".
    name = asked.text.rpartition(" ")[0] or asked.text.partition("=")[0]
    if asked.number:
        return options.but(gpus=(name, count))
    if "only" in options.given:
        raise UsageError(f"{options.flag('only')} and {says} both name GPUs: say it once")
    return options.but(only=(name, ",".join(asked.devices)), gpus=(name, count))


def shares(launch: Launch) -> bool:
    """Return whether a launch shares GPUs, by itself or in the lease around it."""
    return launch.request.sharing is not None or (
        launch.within is not None and launch.within.share is not None
    )


def _warn_of_hidden(launch: Launch, container: AskedContainer, warn: Callable[[str], None]) -> None:
    """Warn of a variable that hides some of the container's GPUs from its programs, or all."""
    topology, request = launch.machine.topology, launch.request
    variable = DRIVERS[topology.driver].visible_variable
    said = container.variable(variable)
    if said is None:
        return
    names = said.split(",")
    shown = f"-e {variable}={printable(said)}"
    count = request.gpus or len(admitted_gpus(request, topology, launch.within))
    if any(name.isdecimal() and int(name) >= count for name in names):
        has = f"has {gpus_text(count)}, counted from 0"
        warn(f"{shown}: the container {has}: leave it out")
    elif len(names) < count and names[0] not in ("", "-1"):
        uses = f"uses {len(names)} of the {count} GPUs"
        fewer = f"'gpulaunch -n {len(names)} {container.title}' without it leases as many"
        warn(f"{shown} {uses} that this launch leases: {fewer}")


def _warn_of_options(
    options: Options,
    container: AskedContainer,
    asked: Asked | None,
    warn: Callable[[str], None],
) -> None:
    """Warn of options about GPUs that have no effect, or that add GPUs without a lease."""
    for name in options.given.keys() & {"bind_cpu", "uuid"}:
        warn(f"{options.flag(name)} has no effect in containers")
    if container.privileged:
        warn("--privileged shows the container every GPU of this host, whoever holds it")
    for path in container.files:
        number = path.removeprefix("/dev/nvidia")
        if number.isdecimal() and (asked is None or number not in asked.devices):
            warn(f"device {printable(path)} adds a GPU that this launch does not lease")


def choose_way(
    client: EngineClient,
    info: Info,
    machine: Machine,
    options: Options,
    container: AskedContainer,
    warn: Callable[[str], None],
) -> str:
    """Choose how the GPUs get into the container: options may force it, or the runtime exclude it.

    Returns:
        One of WAYS; or NO_WAY for GPUs that are only described.

    Raises:
        FailedError: there is no way.
        UsageError: the container excludes the forced way, or the engine does not have it.
    """
    topology, forced = machine.topology, options.container_gpus
    allowed = set(client.ways)
    if container.runtime not in (None, "nvidia"):
        allowed -= {"runtime"}
    if forced and forced not in allowed:
        origin = options.origin("container_gpus")
        if container.runtime:
            raise UsageError(
                f"{origin} and {client.program}'s runtime {container.runtime} disagree"
            )
        wanted = describe_way(forced, topology.driver)
        raise UsageError(f"{origin}: {client.program} has no {wanted}")
    restarts = container.restart_policy is not None
    ways = [way for way in client.ways_into(info, topology) if way in allowed]
    if restarts and not info.cdi_returns:
        ways.sort(key="cdi".__eq__)
    ways = [forced] if forced else ways
    if machine.key and not forced:  # no driver knows described GPUs, but a CDI specification may
        return "cdi" if "cdi" in ways else NO_WAY
    if not ways:
        possible = [one for one in DRIVERS[topology.driver].container_ways if one in allowed]
        named = ", ".join(describe_way(way, topology.driver) for way in possible)
        raise FailedError(
            f"{client.title} {info.version} has no way to give GPUs to containers: none of {named}",
            "install the NVIDIA Container Toolkit, and see 'gpulaunch doctor'",
        )
    if ways[0] == "cdi" and restarts and not info.cdi_returns and not machine.key:
        warn(
            f"--restart {container.restart_policy}: {client.title} {info.version} does not start "
            "a container with CDI devices again when it has been restarted itself: see "
            "'gpulaunch doctor'"
        )
    return ways[0]
