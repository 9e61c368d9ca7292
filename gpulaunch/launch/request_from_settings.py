"""The request of a launch, from its options, its profile and the machine."""

from typing import Any

from gpulaunch.decide import request as requests
from gpulaunch.errors import UsageError
from gpulaunch.files.units import format_size
from gpulaunch.launch.options import Options
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.placement.problem import Weights
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.profiles.profile import Profile


def request_of(
    options: Options,
    profile: Profile,
    topology: Topology,
    visible: str | None,
    name: str | None,
    graph: Pattern | None,
    ranks: int = 1,
) -> requests.Request:
    """Return the complete request for GPUs of the job's own.

    Args:
        options: options of the launch.
        profile: profile of its job.
        topology: topology of the machine.
        visible: value of CUDA_VISIBLE_DEVICES, or of the driver's variable like it, that restricts
            the choice, or None.
        name: name that the user gave the job, or None.
        graph: pattern that replaces that of options and profile, or None.
        ranks: number of launches like this one, one for each rank, that divide the GPUs. The
            request is for all, and the options say what each gets.

    Raises:
        UsageError: the request can never be granted.
    """
    options = _with_profile(options, profile, topology, ranks)
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
    wishes = _read_wishes(options, topology, count)
    if least and wishes.required:
        least = max(least, len(wishes.required.uuids))
    return requests.Request(
        gpus=count,
        pattern=pattern,
        bandwidth_sensitive=count != 1 if sensitive is None else sensitive,
        policy=policy,
        bandwidth_model=options.bandwidth_model or POLICIES[policy].bandwidth_model,
        constraints=tuple(_read_constraints(options, profile, topology, visible)),
        wishes=wishes,
        utility=_read_utility(options, profile, policy),
        profile=profile.name or None,
        name=name,
        assumed=tuple(assumed),
        least_gpus=least,
    )


def _with_profile(options: Options, profile: Profile, topology: Topology, ranks: int) -> Options:
    """Return the options with what the profile says of a request."""
    needed, host = profile.placement, profile.placement.host_gb_per_s
    if not any(gpu.host_gb_per_s for gpu in topology.gpus):
        # A profile is for many machines, most of which do not state their memory bandwidth.
        host = None
    return options.with_profile(
        gpus=profile.gpus if ranks == 1 else None,
        bandwidth_sensitive=profile.communication.bandwidth_sensitive,
        min_bandwidth=needed.min_bandwidth_gb_per_s,
        host_bandwidth=host,
        single_node=needed.single_node or None,
        one_per_node=needed.one_per_node or None,
        min_utility=needed.min_utility,
    )


def _choose_pattern(options: Options, profile: Profile, gpus: int | str | None) -> Pattern | None:
    """Return the pattern of the options or profile, or the measured graph of as many GPUs."""
    measured = profile.graph
    if measured and gpus not in (None, measured.ranks):
        measured = None
    name = profile.communication.pattern
    return options.with_profile(pattern=PATTERNS[name] if name else measured).pattern


def _read_wishes(options: Options, topology: Topology, count: int | None) -> requests.Wishes:
    several = len({gpu.node for gpu in topology.gpus}) > 1
    admitted = None
    if options.require:
        admitted = requests.admit_only(topology, options.require, options.origin("require"))
    wishes = requests.Wishes(
        required=admitted,
        nvlink=count != 1 and options.nvlink,
        least_gb_per_s=(count != 1 and options.min_bandwidth) or 0.0,
        one_numa_node=options.numa == "strict",
        single_node=several and options.single_node,
        one_per_node=options.one_per_node,
        apart_from=tuple(options.apart_from or ()),
        host_gb_per_s=options.host_bandwidth or 0.0,
    )
    requests.check_wishes(wishes, topology, count)
    return wishes


def _read_utility(options: Options, profile: Profile, policy: str) -> requests.UtilityTerms:
    weights = options.utility_weights  # read, and so checked, whatever the policy
    if not POLICIES[policy].goes_by_utility:
        return requests.UtilityTerms()
    from gpulaunch.profiles.catalog import slowdowns_both_ways  # late: few go by utility

    return requests.UtilityTerms(
        least=options.min_utility or 0.0,
        weights=weights or Weights(),
        slowdowns=slowdowns_both_ways(profile) if profile.name else {},
    )


def _read_constraints(
    options: Options, profile: Profile, topology: Topology, visible: str | None
) -> list[requests.Constraint]:
    found = []
    needed = None if profile.resources.memory_is_reservation else profile.memory_bytes
    options = options.with_profile(memory=needed)
    memory = options.memory
    if memory:
        text = options.origin("memory")
        if text == "profile":
            text = f"profile {profile.name}'s {format_size(memory)} of memory"
        least_bytes = getattr(memory, "of_gpu_bytes", memory)  # a profile's is an int
        found.append(requests.admit_memory(topology, least_bytes, text))
    builders: dict[str, Any] = {
        "gpu_model": requests.admit_model,
        "only": requests.admit_only,
        "exclude": requests.admit_all_but,
    }
    for name, build in builders.items():
        value = getattr(options, name)
        if value:
            found.append(build(topology, value, options.origin(name)))
    if visible is not None:
        found.append(requests.admit_visible(topology, visible))
    return found
