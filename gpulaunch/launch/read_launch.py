"""The launch that options, profile and machine make up, read and checked."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from gpulaunch.decide.decision import (
    Constraint,
    Request,
    Unfit,
    admit_all_but,
    admit_memory,
    admit_model,
    admit_only,
    admit_visible,
    check_request,
)
from gpulaunch.errors import UsageError, quoted
from gpulaunch.files.units import format_size
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Options, Source
from gpulaunch.launch.surroundings import Surroundings, read_surroundings
from gpulaunch.leases.environment import MPS_PATIENCE_S, MpsPlace
from gpulaunch.leases.lease import IDLE_AFTER_S
from gpulaunch.machine.catalog import load_measurements
from gpulaunch.machine.find import Machine
from gpulaunch.machine.topology import Topology, counts_as_cuda
from gpulaunch.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.placement.problem import EQUAL_WEIGHTS
from gpulaunch.process.ending import KILL_S
from gpulaunch.process.system import is_cancelled_by_kill
from gpulaunch.profiles.catalog import Label, labelled_profile, load_profile, slowdowns_both_ways
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import replace


def _request_of(
    options: Options,
    profile: Profile,
    around: Surroundings,
    name: str | None,
    graph: Pattern | None,
) -> Request:
    """Return the request for GPUs of the job's own; see read_request.

    If ranks divide the GPUs, the options say what each of them gets, and it is for all.
    """
    topology, ranks = around.machine.topology, around.engine.ranks if around.engine else 1
    options = options.with_profile(
        gpus=profile.gpus if ranks == 1 else None,
        bandwidth_sensitive=profile.communication.bandwidth_sensitive,
        min_bandwidth=profile.placement.min_bandwidth_gb_per_s,
        min_utility=profile.placement.min_utility,
    )
    gpus = options.gpus
    if isinstance(gpus, int):
        gpus *= ranks
    least = None
    if isinstance(gpus, range):
        least, gpus = gpus[0], gpus[-1]
    pattern = graph or _choose_pattern(options, profile, 0 if least else gpus)
    sensitive = options.bandwidth_sensitive
    if pattern == PATTERNS["none"]:
        sensitive = False  # known, not assumed: there is no traffic
    assumed = [
        what
        for what, value in (("pattern", pattern), ("bandwidth_sensitive", sensitive))
        if value is None
    ]
    pattern = pattern or PATTERNS["all_to_all"]
    count = (pattern.ranks or ranks) if gpus is None else None if gpus == "all" else gpus
    if least and (pattern.ranks or ranks > 1):
        why = f"pattern {pattern.name} has {pattern.ranks} ranks"
        if ranks > 1:
            why = f"{ranks} ranks divide the GPUs among themselves"
        raise UsageError(f"{options.origin('gpus')}: {why}", "say one number of GPUs")
    if pattern.ranks and count is not None:
        pattern.edges(count)  # raises if the pattern is of another number of GPUs
    policy = options.policy or DEFAULT_POLICY
    limit_s = options.time_limit
    by_utility = POLICIES[policy].goes_by_utility
    weights = options.utility_weights  # read, and so checked, whatever the policy
    required = None
    if options.require:
        required = admit_only(topology, options.require, options.origin("require"))
        least = max(least, len(required.uuids)) if least else None
    request = Request(
        gpus=count,
        pattern=pattern,
        bandwidth_sensitive=count != 1 if sensitive is None else sensitive,
        policy=policy,
        bandwidth_model=options.bandwidth_model or POLICIES[policy].bandwidth_model,
        constraints=tuple(_read_constraints(options, profile, topology, around.visible)),
        required=required,
        nvlink=count != 1 and options.nvlink,
        least_gb_per_s=(count != 1 and options.min_bandwidth) or 0.0,
        one_numa_node=options.numa == "strict",
        least_utility=(by_utility and options.min_utility) or 0.0,
        weights=(by_utility and weights) or EQUAL_WEIGHTS,
        slowdowns=slowdowns_both_ways(profile) if by_utility and profile.name else {},
        profile=profile.name or None,
        name=name,
        assumed=tuple(assumed),
        least_gpus=least,
        # What the job leaves is ended after it, and each may have to be killed.
        ends_within_s=None if limit_s is None else limit_s + 2 * (options.grace + KILL_S),
        in_order=options.queue == "fifo",
    )
    check_request(request, topology)
    return request


def _choose_pattern(options: Options, profile: Profile, gpus: int | str | None) -> Pattern | None:
    """Return the pattern of the options or profile, or the measured graph of as many GPUs."""
    measured = profile.graph
    if measured and gpus not in (None, measured.ranks):
        measured = None
    name = profile.communication.pattern
    return options.with_profile(pattern=PATTERNS[name] if name else measured).pattern


def _read_constraints(
    options: Options, profile: Profile, topology: Topology, visible: str | None
) -> list[Constraint]:
    found = []
    needed = None if profile.resources.memory_is_reservation else profile.memory_bytes
    options = options.with_profile(memory=needed)
    memory = options.memory
    if memory:
        text = options.origin("memory")
        if text == "profile":
            text = f"profile {profile.name}'s {format_size(memory)} of memory"
        least_bytes = getattr(memory, "of_gpu_bytes", memory)  # a profile's is an int
        found.append(admit_memory(topology, least_bytes, text))
    builders: dict[str, Any] = {
        "gpu_model": admit_model,
        "only": admit_only,
        "exclude": admit_all_but,
    }
    for name, build in builders.items():
        value = getattr(options, name)
        if value:
            found.append(build(topology, value, options.origin(name)))
    if visible is not None:
        found.append(admit_visible(topology, visible))
    return found


MAX_NAME_CHARACTERS = 1000

_ONLY_WHEN_SHARED = ("guest", "utilization", "sm_percentage", "objective")


def read_launch(
    options: Options,
    command: Sequence[str],
    *,
    name: str | None,
    warn: Callable[[str], None],
    label: Label | None = None,
    pattern: Pattern | None = None,
) -> Launch:
    """Read and check everything that a launch needs; take nothing yet.

    Args:
        label: the image's label with its profile, if the command is docker's.
        pattern: pattern that replaces that of the options, if a program passes a graph.

    Raises:
        UsageError: something asked for does not exist or is impossible.
        FailedError: the machine cannot be read.
    """
    if name is not None and not name.strip():
        raise UsageError("the name of the job is empty")
    if name is not None and name.startswith("-"):  # 'free NAME' would take it for an option
        raise UsageError(f"the name {quoted(name)} begins with -")
    if name is not None and len(name) > MAX_NAME_CHARACTERS:
        raise UsageError(
            f"the name has {len(name)} characters: at most {MAX_NAME_CHARACTERS} are shown to "
            "others"
        )
    profile = _read_profile(options, label)
    around = _with_measurements(options, read_surroundings(options, warn))
    around = _with_engine(options, around)
    mps = _find_mps(options, around.machine)
    return Launch(
        command=tuple(command),
        request=read_request(
            options, profile, around, command, name=name, warn=warn, pattern=pattern
        ),
        machine=around.machine,
        within=around.within,
        name=name,
        publish=options.publish,
        wait=_read_wait(options),
        wait_timeout_s=options.wait_timeout,
        private=options.table == "private" or around.machine.key is not None,
        by_uuid=options.uuid or not counts_as_cuda(around.machine.topology),
        bind_cpu=options.bind_cpu,
        time_limit_s=options.time_limit,
        grace_s=options.grace,
        leftover_timeout_s=options.leftover_timeout,
        leftovers=options.leftovers or ("end" if is_cancelled_by_kill() else "keep"),
        mps=mps,
        recorded_in=_find_recorded_profile(options, around.machine, name),
        visible=options.visible or (around.engine.visible if around.engine else "all"),
        core=around.engine.core if around.engine else None,
        in_history=options.history,
        idle_after_s=IDLE_AFTER_S if options.idle_after is None else options.idle_after,
        idle_limit_s=options.idle_limit,
        docker=options.docker,
        notify=options.notify,
    )


def _find_mps(options: Options, machine: Machine) -> MpsPlace | None:
    """Return the place of this user's MPS daemons; None on a described machine, which has none.

    It is not in the state directory, which may be a small tmpfs that logs would fill; nor in
    $XDG_RUNTIME_DIR or /dev/shm, which a user's last logout empties though jobs go on.
    """
    chosen, timeout_s = options.mps_directory, options.mps_timeout  # read, and so checked
    if machine.key:
        return None
    base = os.path.realpath(chosen) if chosen else f"/tmp/gpulaunch.mps.{os.geteuid()}"  # noqa: S108  it is checked
    return MpsPlace(base, MPS_PATIENCE_S if timeout_s is None else timeout_s)


_SIGNS = (
    "SLURM_JOB_ID",
    "OMPI_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
    "TORCHELASTIC_RUN_ID",
    "RAY_JOB_ID",
    "GPULAUNCH_RANK_MAP",
)
"""Variables one of which a launch has that concerns a cluster engine; see read_engine.py."""


def _with_engine(options: Options, around: Surroundings) -> Surroundings:
    """Return the surroundings with what the cluster engine around this process says of a launch."""
    if not any(sign in os.environ for sign in _SIGNS) and "rank_map" not in options.given:
        return around
    from gpulaunch.launch.read_engine import read_engine  # late: few launches are inside one

    engine = read_engine(options, around.machine.topology, around.within)
    visible = None if engine and engine.hides else around.visible
    return replace(around, engine=engine, visible=visible)


def read_request(
    options: Options,
    profile: Profile,
    around: Surroundings,
    command: Sequence[str],
    *,
    name: str | None,
    warn: Callable[[str], None],
    pattern: Pattern | None = None,
) -> Request:
    """Return the request of a launch; see read_launch."""
    request = _request_of(options, profile, around, name, pattern)
    if around.engine:
        request = around.engine.applied_to(request, around.machine.topology)
    options = options.with_profile(share=profile.sharing.share)
    if _has_to_share(options, around, warn):
        request = _with_sharing(request, options, profile, around, command, warn)
    return request


def _has_to_share(options: Options, around: Surroundings, warn: Callable[[str], None]) -> bool:
    """Return whether to share GPUs; inside a shared lease the launch has its share already."""
    if around.within and around.within.share:
        for name in ("share", *_ONLY_WHEN_SHARED):
            if name in options.given:
                warn(
                    f"{options.origin(name)} has no effect inside lease {around.within.id}, "
                    "which is shared"
                )
        return False
    if around.engine and around.engine.job.shared:
        if "share" in options.given and options.share:
            warn(f"not shared by gpulaunch: {around.engine.job.title} shares the GPU already")
        return False
    if options.share:
        return True
    if options.guest and options.source("share") > Source.ENVIRONMENT:
        return True
    hint = None if "share" in options.given else "add --share"
    for name in _ONLY_WHEN_SHARED:
        if name in options.given:
            raise UsageError(f"{options.origin(name)}: only jobs that share have that", hint)
    return False


def _with_sharing(
    request: Request,
    options: Options,
    profile: Profile,
    around: Surroundings,
    command: Sequence[str],
    warn: Callable[[str], None],
) -> Request:
    """Return the request with its terms of sharing, or with the reason why it cannot share."""
    from gpulaunch.launch.read_sharing import read_sharing  # late: few launches need it

    program = os.path.basename(command[0]) if command else "job"
    if profile.resources.memory_is_reservation and options.memory is None:
        warn(
            f"the memory of profile {profile.name} is what it sets aside, not what it needs: "
            "--memory may say less"
        )
    if profile.resources.incomplete:
        warn(
            f"profile {profile.name} is incomplete, measured on a part of the job, which may use "
            "more of a GPU"
        )
    found = read_sharing(options, profile, around.machine, request.name or program)
    if isinstance(found, Unfit):
        # No warning if a file of settings asks all jobs to share, also those without figures.
        if options.source("share") <= Source.PROFILE:
            warn(f"not shared: {found.reason}")
        return replace(request, exclusive_reason=found.reason)
    return replace(request, sharing=found)


def _find_recorded_profile(options: Options, machine: Machine, name: str | None) -> str | None:
    """Return the file of the profile that learns from the job; None if none does.

    A setting for all jobs concerns only those with a profile of the user's own by name.
    """
    typed = "record" in options.given
    if not options.record or (machine.key and not typed):
        return None
    # late: few launches are recorded
    from gpulaunch.profiles.profile_file import is_own_name, own_profile_file

    profile = options.profile
    if not typed:
        return own_profile_file(profile) if profile and is_own_name(profile) else None
    if profile and "@" not in profile and (os.sep in profile or profile.endswith(".toml")):
        return os.path.abspath(profile)
    if profile or name:
        return own_profile_file(profile or name or "")
    raise UsageError(
        "--record: nobody says which profile is to learn from the job", "-p NAME or --name NAME"
    )


def _read_profile(options: Options, label: Label | None) -> Profile:
    """Return the profile that is named, or an empty one; a container's label is as a profile."""
    if label is not None and options.source("profile") > Source.ENVIRONMENT:
        return labelled_profile(label)
    return load_profile(options.profile) if options.profile else Profile()


def _read_wait(options: Options) -> bool:
    """Return whether to wait.

    --wait-timeout implies --wait, unless --no-wait has at least its precedence; in a file of
    settings it is only the limit of launches that wait.
    """
    limit_is_from, wait_is_from = options.source("wait_timeout"), options.source("wait")
    return options.wait or limit_is_from < min(wait_is_from, Source.PROFILE)


def _with_measurements(options: Options, around: Surroundings) -> Surroundings:
    """Return the surroundings with measured bandwidths if the bandwidth model needs them."""
    topology = around.machine.topology
    if options.bandwidth_model != "measured":
        return around
    if around.machine.key is None:
        topology = replace(topology, measured=load_measurements(topology))
    if not topology.measured:
        hint = None if around.machine.key else "'gpulaunch topo --measure' does it, on idle GPUs"
        raise UsageError(
            f"{options.origin('bandwidth_model')}: nothing was measured of {topology.name}", hint
        )
    return replace(around, machine=replace(around.machine, topology=topology))
