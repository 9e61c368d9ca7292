"""The settings of a launch meet the machine: what exactly is asked."""

import os
from collections.abc import Callable, Sequence

from gpulaunch.decide import request as requests
from gpulaunch.errors import UsageError
from gpulaunch.launch.launch import Launch, Patience
from gpulaunch.launch.request_from_settings import request_of
from gpulaunch.launch.settings import Settings
from gpulaunch.launch.surroundings import Surroundings, is_private, read_surroundings
from gpulaunch.machine.catalog import load_measurements
from gpulaunch.machine.find import Machine
from gpulaunch.machine.topology import counts_as_cuda
from gpulaunch.profiles.catalog import Label, labelled_profile, load_profile
from gpulaunch.profiles.pattern import Pattern
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import replace
from gpulaunch.sharing.mps_directories import PATIENCE_S, MpsPlace, base_directory

MAX_NAME_CHARACTERS = 1000

_ONLY_WHEN_SHARED = ("sm", "memory_bandwidth", "sm_percentage", "share_with", "objective")

GRACE_S = 10.0
BACKFILL_LIMIT_S = 1800.0


def read_launch(
    settings: Settings,
    command: Sequence[str],
    *,
    name: str | None,
    warn: Callable[[str], None],
    label: Label | None = None,
    pattern: Pattern | None = None,
) -> Launch:
    """Everything that a launch needs to know, read and checked; nothing is taken yet.

    Args:
        settings: of this launch.
        command: argv of the job.
        name: that the user gave the job, or None.
        warn: where to say what is odd but no failure.
        label: what the image says about its profile, if the command is docker's.
        pattern: instead of what the settings say, if a program gives a graph.

    Raises:
        UsageError: something asked for does not exist or cannot be.
        FailedError: the machine cannot be read.
    """
    if name is not None and len(name) > MAX_NAME_CHARACTERS:
        raise UsageError(
            f"the name has {len(name)} characters: at most {MAX_NAME_CHARACTERS} are shown to "
            "others"
        )
    profile = _profile(settings, label)
    around = _with_measurements(settings, read_surroundings(settings, warn))
    return Launch(
        command=tuple(command),
        request=read_request(
            settings, profile, around, command, name=name, warn=warn, pattern=pattern
        ),
        machine=around.machine,
        within=around.within,
        name=name,
        patience=_patience(settings),
        private=is_private(settings),
        by_uuid=bool(settings.get("uuid").value) or not counts_as_cuda(around.machine.topology),
        bind_cpu=settings.get("bind_cpu").value is not False,
        time_limit_s=settings.get("time_limit").value,
        grace_s=read_grace(settings),
        mps=_mps_place(settings, around.machine),
        recorded_in=_recorded_in(settings, around.machine, name),
    )


def read_request(
    settings: Settings,
    profile: Profile,
    around: Surroundings,
    command: Sequence[str],
    *,
    name: str | None,
    warn: Callable[[str], None],
    pattern: Pattern | None = None,
) -> requests.Request:
    """What a launch with these settings asks of the machine; see read_launch.

    Args:
        settings: of this launch.
        profile: of its job, as the settings name it.
        around: where it takes place.
        command: argv of the job.
        name: that the user gave the job, or None.
        warn: where to say what is odd but no failure.
        pattern: instead of what the settings say, if a program gives a graph.
    """
    request = request_of(settings, profile, around.machine.topology, around.visible, name, pattern)
    if _shares(settings, profile, around, warn):
        request = _shared(request, settings, profile, around, command, warn)
    return request


def _shares(
    settings: Settings, profile: Profile, around: Surroundings, warn: Callable[[str], None]
) -> bool:
    """Whether the GPUs are to be shared; inside a lease that is shared they are anyway."""
    if around.within and around.within.share:
        for name in ("share", *_ONLY_WHEN_SHARED):
            if settings.distance(name) == 0:
                warn(
                    f"{settings.get(name).origin} has no effect inside lease {around.within.id}, "
                    "which is shared"
                )
        return False
    if settings.get("share", profile.sharing.share).value:
        return True
    hint = None if settings.distance("share") == 0 else "add --share"
    for name in _ONLY_WHEN_SHARED:
        if settings.distance(name) == 0:
            raise UsageError(f"{settings.get(name).origin}: only jobs that share have that", hint)
    return False


def _shared(
    request: requests.Request,
    settings: Settings,
    profile: Profile,
    around: Surroundings,
    command: Sequence[str],
    warn: Callable[[str], None],
) -> requests.Request:
    """The request with what it brings along if it shares; what cannot be shared is taken for the job alone."""
    from gpulaunch.launch.read_sharing import read_sharing  # late: few launches need it

    program = os.path.basename(command[0]) if command else "job"
    if profile.resources.memory_is_reservation and settings.get("memory").value is None:
        warn(
            f"the memory of profile {profile.name} is what it sets aside, not what it needs: "
            "--memory may say less"
        )
    found = read_sharing(settings, profile, around.machine, request.name or program)
    if isinstance(found, requests.Unfit):
        if (
            settings.distance("share") < 2 or profile.sharing.share
        ):  # a file says it of all jobs, known or not
            warn(f"not shared: {found.reason}")
        return replace(request, exclusive_reason=found.reason)
    return replace(request, sharing=found)


def _recorded_in(settings: Settings, machine: Machine, name: str | None) -> str | None:
    """File of the profile that is to learn from the job; a setting for all jobs is for those with one by name."""
    record = settings.get("record")
    if not record.value or (machine.key and settings.distance("record")):
        return None
    from gpulaunch.profiles.profile_file import (
        is_own_name,
        own_profile_file,
    )  # late: few launches are recorded

    profile: str | None = settings.get("profile").value
    if settings.distance("record"):
        return own_profile_file(profile) if profile and is_own_name(profile) else None
    if profile and "@" not in profile and (os.sep in profile or profile.endswith(".toml")):
        return os.path.abspath(profile)
    if profile or name:
        return own_profile_file(profile or name or "")
    raise UsageError(
        "--record: nobody says which profile is to learn from the job", "-p NAME or --name NAME"
    )


def _mps_place(settings: Settings, machine: Machine) -> MpsPlace | None:
    """Where MPS daemons are; a described machine has none, but mistakes in the settings show."""
    place = MpsPlace(
        base_directory(settings.get("mps_directory").value),
        _or(settings.get("mps_timeout").value, PATIENCE_S),
    )
    return None if machine.key else place


def _profile(settings: Settings, label: Label | None) -> Profile:
    """What is known about the job: the profile that is named, and what --set says instead."""
    setting = settings.get("profile", label)
    if isinstance(setting.value, Label):
        profile = labelled_profile(setting.value)
    else:
        profile = load_profile(setting.value) if setting.value else Profile()
    instead = settings.given("set")
    if not instead:
        return profile
    from gpulaunch.profiles.document.override import overridden  # late: few launches need it

    return overridden(profile, instead)


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
        wait=settings.distance("wait_timeout") < settings.distance("wait")
        or bool(settings.get("wait").value),
        timeout_s=settings.get("wait_timeout").value,
        passable_s=passable_s,
    )


def _or(value: float | None, built_in: float) -> float:
    return built_in if value is None else value


def _with_measurements(settings: Settings, around: Surroundings) -> Surroundings:
    """The same with what was measured of this machine, if the bandwidth model is to go by that."""
    model, topology = settings.get("bandwidth_model"), around.machine.topology
    if model.value != "measured":
        return around
    if around.machine.key is None:
        topology = replace(topology, measured=load_measurements(topology))
    if not topology.measured:
        hint = None if around.machine.key else "'gpulaunch topo --measure' does it, on idle GPUs"
        raise UsageError(f"{model.origin}: nothing was measured of {topology.name}", hint)
    return replace(around, machine=replace(around.machine, topology=topology))
