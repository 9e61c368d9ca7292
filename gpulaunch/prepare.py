"""The settings of a launch meet the machine: what exactly is asked."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpulaunch.acquire import Launch, Patience
from gpulaunch.core import request as requests
from gpulaunch.core.environment import LEASE_VARIABLE
from gpulaunch.core.hardware.topology import counts_as_cuda
from gpulaunch.core.leases.lease import Lease
from gpulaunch.core.leases.record import same_table
from gpulaunch.core.size import format_size
from gpulaunch.core.workload.profile import Profile
from gpulaunch.errors import UsageError, printable
from gpulaunch.host.catalog import Label, labelled_profile, load_measurements, load_profile
from gpulaunch.host.machine import Machine, find_machine
from gpulaunch.host.system import user_name
from gpulaunch.host.table import Table
from gpulaunch.settings import Given, Setting, Settings

MAX_NAME_CHARACTERS = 1000

GRACE_S = 10.0
BACKFILL_LIMIT_S = 1800.0


class Surroundings(NamedTuple):
    """Where a launch takes place.

    Attributes:
        machine: whose GPUs it is about.
        within: the live lease on that machine that the launch runs inside of, or None.
        visible: the CUDA_VISIBLE_DEVICES that restricts it, or None.
    """

    machine: Machine
    within: Lease | None
    visible: str | None


def read_launch(
    settings: Settings,
    command: Sequence[str],
    *,
    name: str | None,
    warn: Callable[[str], None],
    label: Label | None = None,
) -> Launch:
    """Everything that a launch needs to know, read and checked; nothing is taken yet.

    Args:
        settings: of this launch.
        command: argv of the job.
        name: that the user gave the job, or None.
        warn: where to say what is odd but no failure.
        label: what the image says about its profile, if the command is docker's.

    Raises:
        UsageError: something asked for does not exist or cannot be.
        FailedError: the machine cannot be read.
    """
    if name is not None and len(name) > MAX_NAME_CHARACTERS:
        raise UsageError(f"the name has {len(name)} characters: at most {MAX_NAME_CHARACTERS} are shown to others")
    profile = _profile(settings, label)
    around = _with_measurements(settings, _surroundings(settings, warn))
    return Launch(
        command=tuple(command),
        request=_request(settings, profile, around),
        machine=around.machine,
        within=around.within,
        name=name,
        patience=_patience(settings),
        private=_is_private(settings),
        by_uuid=bool(settings.get("uuid").value) or not counts_as_cuda(around.machine.topology),
        bind_cpu=settings.get("bind_cpu").value is not False,
        time_limit_s=settings.get("time_limit").value,
        grace_s=read_grace(settings),
    )


def _profile(settings: Settings, label: Label | None) -> Profile:
    setting = settings.get("profile", label)
    if isinstance(setting.value, Label):
        return labelled_profile(setting.value)
    return load_profile(setting.value) if setting.value else Profile(name="")


def shown_machine(topology: str | None, warn: Callable[[str], None], *, use: bool = False) -> Machine:
    """The machine that a command is to show: chosen as a launch would, except that a setting may hide real GPUs.

    Args:
        topology: what --topology says, or None.
        warn: where to say what is odd but no failure.
        use: whether to look who is at work on its GPUs.
    """
    return _surroundings(shown_settings(topology), warn, may_hide=True, use=use).machine


class Shown(NamedTuple):
    """What a command is about that looks at the table and launches nothing.

    Attributes:
        machine: whose GPUs.
        table: where its leases stand.
        within: the live lease on that machine that the command runs inside of, or None.
        visible: the CUDA_VISIBLE_DEVICES that restricts a launch, or None.
    """

    machine: Machine
    table: Table
    within: Lease | None
    visible: str | None


def read_shown(topology: str | None, warn: Callable[[str], None]) -> Shown:
    """The machine that a command is to show, and its table; see shown_machine."""
    settings = shown_settings(topology)
    around = _surroundings(settings, warn, may_hide=True)
    table = shown_table(settings, described=around.machine.key is not None, warn=warn)
    return Shown(around.machine, table, around.within, around.visible)


def shown_settings(topology: str | None) -> Settings:
    """The settings of a command that has --topology and no other option of a launch."""
    return Settings({} if topology is None else {"topology": Given("--topology", topology)}, os.environ)


def shown_table(settings: Settings, *, described: bool, warn: Callable[[str], None]) -> Table:
    """The table where launches with these settings take part."""
    return Table(described=described, warn=warn, private=_is_private(settings))


def read_grace(settings: Settings) -> float:
    """Seconds between TERM and KILL."""
    return _or(settings.get("grace").value, GRACE_S)


def _patience(settings: Settings) -> Patience:
    """--wait-timeout says to wait, unless something as near says not to; in a file it only says how long, for those
    who do.
    """
    passable_s = 0.0
    if settings.get("queue").value == "backfill":
        passable_s = _or(settings.get("backfill_limit").value, BACKFILL_LIMIT_S)
    return Patience(
        wait=settings.distance("wait_timeout") < settings.distance("wait") or bool(settings.get("wait").value),
        timeout_s=settings.get("wait_timeout").value,
        passable_s=passable_s,
    )


def _is_private(settings: Settings) -> bool:
    return bool(settings.get("table").value == "private")


def _or(value: float | None, built_in: float) -> float:
    return built_in if value is None else value


def _surroundings(
    settings: Settings, warn: Callable[[str], None], *, may_hide: bool = False, use: bool = True
) -> Surroundings:
    within = _inherited(settings, warn)
    topology = settings.get("topology")
    if topology.value is None and within and within.table:
        topology = Setting(within.table.file, "")
    ignored = settings.get("ignore_programs").value or ()
    machine = find_machine(topology.value, warn, "" if may_hide else topology.origin, ignored, use=use)
    same = within is not None and same_table(machine.key, within.table)
    # inside a lease on another machine CUDA_VISIBLE_DEVICES is about that one
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if same or within is None else None
    return Surroundings(machine, within if same else None, visible)


def _with_measurements(settings: Settings, around: Surroundings) -> Surroundings:
    """The same with what was measured of this machine, if the bandwidth model is to go by that."""
    model, topology = settings.get("bandwidth_model"), around.machine.topology
    if model.value != "measured":
        return around
    if around.machine.key is None:
        topology = topology._replace(measured=load_measurements(topology))
    if not topology.measured:
        hint = None if around.machine.key else "'gpulaunch topo --measure' does it, on idle GPUs"
        raise UsageError(f"{model.origin}: nothing was measured of {topology.name}", hint)
    return around._replace(machine=around.machine._replace(topology=topology))


def _inherited(settings: Settings, warn: Callable[[str], None]) -> Lease | None:
    """The live lease of this user, on whatever machine, that this launch runs inside of."""
    lease_id = os.environ.get(LEASE_VARIABLE)
    if not lease_id:
        return None
    leases = Table(described=True, warn=warn, private=_is_private(settings)).peek().leases
    lease = next((lease for lease in leases if lease.id == lease_id), None)
    if not lease:
        warn(f"{LEASE_VARIABLE}={printable(lease_id)} is no live lease, so this is a launch of its own")
        return None
    if os.geteuid() not in (lease.user_id, 0):  # containers run as root for whoever launched them
        warn(f"lease {lease.id} belongs to {user_name(lease.user_id)}, so this is a launch of its own")
        return None
    return lease


def _request(settings: Settings, profile: Profile, around: Surroundings) -> requests.Request:
    gpus = settings.get("gpus", profile.gpus).value
    pattern = settings.get("pattern", profile.pattern).value
    sensitive = settings.get("bandwidth_sensitive", profile.bandwidth_sensitive).value
    assumed = [name for name, value in (("pattern", pattern), ("bandwidth_sensitive", sensitive)) if value is None]
    count = 1 if gpus is None else None if gpus == "all" else gpus
    return requests.Request(
        gpus=count,
        pattern=pattern or "all_to_all",
        bandwidth_sensitive=count != 1 if sensitive is None else sensitive,
        policy=settings.get("policy").value or "preserve",
        bandwidth_model=settings.get("bandwidth_model").value or "cut",
        constraints=tuple(_constraints(settings, profile, around)),
        profile=profile.name or None,
        assumed=tuple(assumed),
    )


def _constraints(settings: Settings, profile: Profile, around: Surroundings) -> list[requests.Constraint]:
    topology = around.machine.topology
    found = []
    needed = None if profile.memory_is_reservation else profile.memory_bytes
    memory = settings.get("memory", needed)
    if memory.value:
        text = memory.origin
        if text == "profile":
            text = f"profile {profile.name}'s {format_size(memory.value)} of memory"
        found.append(requests.memory(topology, memory.value, text))
    builders: dict[str, Any] = {"gpu_model": requests.model, "only": requests.only, "exclude": requests.exclude}
    for name, build in builders.items():
        setting = settings.get(name)
        if setting.value:
            found.append(build(topology, setting.value, setting.origin))
    if around.visible is not None:
        found.append(requests.visible(topology, around.visible))
    return found
