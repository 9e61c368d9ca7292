"""The request of a launch, from its settings, its profile and the machine."""

from gpulaunch.decide import request as requests
from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.decide.placement.utility import Weights
from gpulaunch.errors import UsageError
from gpulaunch.files.size import format_size
from gpulaunch.launch.settings import Setting, Settings
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.profiles.profile import Profile
from gpulaunch.typing import Any


def request_of(
    settings: Settings,
    profile: Profile,
    topology: Topology,
    visible: str | None,
    name: str | None,
    graph: Pattern | None,
    ranks: int = 1,
) -> requests.Request:
    """Return the complete request for GPUs of the job's own.

    Args:
        settings: settings of the launch.
        profile: profile of its job.
        topology: topology of the machine.
        visible: value of CUDA_VISIBLE_DEVICES, or of the driver's variable like it, that restricts
            the choice, or None.
        name: name that the user gave the job, or None.
        graph: pattern that replaces that of settings and profile, or None.
        ranks: number of launches like this one, one for each rank, that divide the GPUs. The
            request is for all, and the settings say what each gets.

    Raises:
        UsageError: the request can never be granted.
    """
    asked = settings.get("gpus", profile.gpus if ranks == 1 else None)
    gpus = asked.value
    if isinstance(gpus, int):
        gpus *= ranks
    least = None
    if isinstance(gpus, range):
        least, gpus = gpus[0], gpus[-1]
    if _guesses_none(profile):
        profile = profile.but(communication={"pattern": None, "bandwidth_sensitive": None})
    pattern = graph or _choose_pattern(settings, profile, 0 if least else gpus)
    sensitive = settings.get("bandwidth_sensitive", profile.communication.bandwidth_sensitive).value
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
        raise UsageError(f"{asked.origin}: {why}", "say one number of GPUs")
    if pattern.ranks and count is not None:
        pattern.edges(count)  # raises if the pattern is of another number of GPUs
    policy = settings.get("policy").value or DEFAULT_POLICY
    wishes = _read_wishes(settings, profile, topology, count)
    if least and wishes.required:
        least = max(least, len(wishes.required.uuids))
    return requests.Request(
        gpus=count,
        pattern=pattern,
        bandwidth_sensitive=count != 1 if sensitive is None else sensitive,
        policy=policy,
        bandwidth_model=settings.get("bandwidth_model").value or POLICIES[policy].bandwidth_model,
        constraints=tuple(_read_constraints(settings, profile, topology, visible)),
        wishes=wishes,
        utility=_read_utility(settings, profile, policy),
        profile=profile.name or None,
        name=name,
        assumed=tuple(assumed),
        least_gpus=least,
    )


def _guesses_none(profile: Profile) -> bool:
    """Return whether a profile has a guess that its job does not communicate.

    Scans of earlier versions wrote such guesses, and were wrong often. They count as unsaid.
    """
    said = profile.communication
    return said.pattern == "none" and said.confidence == "guess"


def _choose_pattern(settings: Settings, profile: Profile, gpus: int | str | None) -> Pattern | None:
    """Return the pattern of the settings or profile, or the measured graph of as many GPUs."""
    measured = profile.graph
    if measured and gpus not in (None, measured.ranks):
        measured = None
    setting = settings.get("pattern", profile.communication.pattern or measured)
    return PATTERNS[setting.value] if isinstance(setting.value, str) else setting.value


def _read_wishes(
    settings: Settings, profile: Profile, topology: Topology, count: int | None
) -> requests.Wishes:
    several = len({gpu.node for gpu in topology.gpus}) > 1
    required, needed = settings.get("require"), profile.placement
    least = settings.get("min_bandwidth", needed.min_bandwidth_gb_per_s)
    host = settings.get("host_bandwidth", needed.host_gb_per_s)
    if host.origin == "profile" and not any(gpu.host_gb_per_s for gpu in topology.gpus):
        # A profile is for many machines, most of which do not state their memory bandwidth.
        host = Setting(None, "")
    admitted = None
    if required.value:
        admitted = requests.admit_only(topology, required.value, required.origin)
    wishes = requests.Wishes(
        required=admitted,
        nvlink=count != 1 and bool(settings.get("nvlink").value),
        least_gb_per_s=(count != 1 and least.value) or 0.0,
        one_numa_node=settings.get("numa").value == "strict",
        single_node=several and bool(settings.get("single_node", needed.single_node or None).value),
        one_per_node=bool(settings.get("one_per_node", needed.one_per_node or None).value),
        apart_from=tuple(settings.get("apart_from").value or ()),
        host_gb_per_s=host.value or 0.0,
    )
    requests.check_wishes(wishes, topology, count)
    return wishes


def _read_utility(settings: Settings, profile: Profile, policy: str) -> requests.UtilityTerms:
    least = settings.get("min_utility", profile.placement.min_utility).value
    weights = settings.get("utility_weights").value
    if not POLICIES[policy].goes_by_utility:
        return requests.UtilityTerms()
    from gpulaunch.profiles.catalog import slowdowns_both_ways  # late: few go by utility

    return requests.UtilityTerms(
        least=least or 0.0,
        weights=weights or Weights(),
        slowdowns=slowdowns_both_ways(profile) if profile.name else {},
    )


def _read_constraints(
    settings: Settings, profile: Profile, topology: Topology, visible: str | None
) -> list[requests.Constraint]:
    found = []
    needed = None if profile.resources.memory_is_reservation else profile.memory_bytes
    memory = settings.get("memory", needed)
    if memory.value:
        text = memory.origin
        if text == "profile":
            text = f"profile {profile.name}'s {format_size(memory.value)} of memory"
        least_bytes = getattr(memory.value, "of_gpu_bytes", memory.value)  # a profile's is an int
        found.append(requests.admit_memory(topology, least_bytes, text))
    builders: dict[str, Any] = {
        "gpu_model": requests.admit_model,
        "only": requests.admit_only,
        "exclude": requests.admit_all_but,
    }
    for name, build in builders.items():
        setting = settings.get(name)
        if setting.value:
            found.append(build(topology, setting.value, setting.origin))
    if visible is not None:
        found.append(requests.admit_visible(topology, visible))
    return found
