"""The facts about a job before it runs: the Profile of profiles/workloads/NAME.toml."""
# pure: decides on plain values

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

from gpulaunch.errors import FieldError
from gpulaunch.profiles import keys as sections
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.profiles.keys import Key, Section, check_section, items, part, table, text, whole
from gpulaunch.profiles.pattern import Pattern, given_pattern

VERSION = 1
"""Version of the format; the version of a file that names none."""

_NOT_ASKABLE = (
    "{!r} cannot be asked for: it is empty, or has a character of @,/ or one that no terminal shows"
)


class Profile(Section):
    """A job's communication, its needs of a placement, and its use of one GPU.

    Its attributes are the keys of the document, section by section:
    `profile.communication.pattern`. A missing value is None, and a missing section is empty.
    Attributes that are no keys give the same facts in the units and records used for decisions.

    Args:
        document: already checked; see check_profile.

    Example:
        >>> profile = Profile({"name": "job", "resources": {"memory_mib": 2, "source": "counted"}})
        >>> profile.resources.memory_mib, profile.memory_bytes, profile.communication.pattern
        (2, 2097152, None)
    """

    required = ("name",)

    version = whole(1, VERSION, "of this format: 1")
    name: Key[str] = Key(str, "how the command line calls it", default="")
    description: Key[str] = Key(str, "one line", default="")
    base = text(
        "`NAME`, `NAME@VARIANT` or a path: the profile that this one differs from, which has none "
        "itself ([more](#base-and-variants))"
    )
    gpus = whole(1, 1 << 20, "how many, if the command line does not say")
    command = items(str, "argv of what was measured", least=1)
    communication = part(sections.Communication, "how its GPUs talk to each other")
    sensitivity = part(
        sections.Sensitivity,
        "how it does on the best and on the worst placement of a machine (mapa-sc21 2.3)",
    )
    placement = part(
        sections.PlacementNeeds,
        "what it needs of its GPUs; that is decided, not measured, so it has no source",
    )
    collocation = part(
        sections.Collocation, "how it does beside others on one socket (topo-aware-sc17 4.2)"
    )
    shared_gpu = part(
        sections.SharedGpu,
        "how it does beside others on one GPU, through MPS; goes before `[collocation]` where GPUs "
        "are shared",
    )
    search = part(
        sections.SharedSearch,
        "what `--record` has tried beside the same jobs ([more](../guides/sharing.md))",
    )
    resources = part(sections.Resources, "what it uses of one GPU when it runs there alone")
    runs = part(
        sections.Runs, "how these figures differ between runs; each is called as in `[resources]`"
    )
    sharing = part(sections.SharingWish, "whether it is to share GPUs")
    sm_curve = part(
        sections.SmCurve,
        "its throughput over the share of SMs (cd-search-ics18 Figure 7, mps-sharing-2024 Figure "
        "1)",
    )
    classification = part(
        sections.Classification,
        "what is said of a job whose curve nobody has (cd-search-ics18 4.1)",
    )
    variants = table(
        dict, 'tables of what else to know, such as `[variants."batch=1".communication]`'
    )

    def but(self, **changes: object) -> "Profile":
        """Return a copy with other values; a section's values are merged over the present ones.

        Example:
            >>> job = Profile({"name": "job", "resources": {"power_w": 9.0}})
            >>> job.but(resources={"power_w": 8.0}).document
            {'name': 'job', 'resources': {'power_w': 8.0}}
        """
        document = dict(self.document)
        for name, value in changes.items():
            before = document.get(name)
            document[name] = {**before, **value} if before and isinstance(value, Mapping) else value
        return type(self)(document)

    @property
    def memory_bytes(self) -> int | None:
        """Maximum device memory held on one GPU, in bytes; None if unknown."""
        mib = self.resources.memory_mib
        return None if mib is None else mib << 20

    @property
    def communication_share(self) -> float | None:
        """Share of its time, 0 to 1, spent waiting for links on the best GPUs."""
        return _fraction(self.communication.time_percentage)

    @property
    def split_slowdown(self) -> float | None:
        """Slowdown with the GPUs on several sockets, as a fraction; 0.25 is 25 %."""
        return _fraction(self.communication.split_slowdown_percentage)

    @property
    def slowdowns(self) -> dict[str, float]:
        """Name of another profile -> slowdown beside it on one socket, as a fraction.

        Source: topo-aware-sc17 4.2 and 5.1.
        """
        return {other: value / 100 for other, value in self.collocation.slowdown_percentage.items()}

    @property
    def gpu_slowdowns(self) -> dict[str, float]:
        """Name of another profile -> slowdown beside it on one GPU; if unknown, on one socket."""
        shared = self.shared_gpu.slowdown_percentage
        return {**self.slowdowns, **{other: value / 100 for other, value in shared.items()}}

    @property
    def measured_on_one_gpu(self) -> tuple[str, ...]:
        """Names in gpu_slowdowns whose figure was measured with both jobs on one GPU."""
        return tuple(self.shared_gpu.slowdown_percentage)

    @property
    def searched(self) -> dict[tuple[int, ...], float]:
        """Speed beside the jobs of the search, by the caps of all: its own, then the others'."""
        return dict(zip(map(tuple, self.search.caps), self.search.speed, strict=False))

    @property
    def graph(self) -> Pattern | None:
        """Pattern that was measured, with the number of ranks measured; None if not measured."""
        edges = self.communication.edges
        return given_pattern(self.name, edges) if edges else None

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """Throughput over the share of SMs, by ascending share; empty if not measured."""
        return tuple(map(CurvePoint, self.sm_curve.sm_percentage, self.sm_curve.throughput))

    @property
    def missing_demand(self) -> list[str]:
        """Missing figures that the decision about sharing a GPU needs."""
        resources = self.resources
        figures = {
            "average SM utilization": resources.sm_utilization_percentage,
            "average memory-bandwidth utilization": (
                resources.memory_bandwidth_utilization_percentage
            ),
            "maximum memory": resources.memory_mib,
        }
        return [name for name, value in figures.items() if value is None]

    @property
    def demand(self) -> Demand | None:
        """The job's use of one GPU; None while any figure is missing."""
        resources = self.resources
        sm, bandwidth = (
            resources.sm_utilization_percentage,
            resources.memory_bandwidth_utilization_percentage,
        )
        memory = self.memory_bytes
        if sm is None or bandwidth is None or memory is None:
            return None
        return Demand(
            self.name,
            sm,
            bandwidth,
            memory,
            resources.power_w,
            self.curve,
            self.classification.intensity,
            resources.utilization,
            resources.time_active_percentage if resources.utilization == "share" else None,
            self.shared_gpu.feels,
            self.shared_gpu.presses,
        )


class Variant(Section):
    """A variant of a profile: everything but the file's own name, base and variants."""

    keys: ClassVar[Mapping[str, Key[Any]]]


Variant.keys = {
    name: key
    for name, key in Profile.keys.items()
    if name not in ("version", "name", "base", "variants")
}


def is_askable(name: str) -> bool:
    """Return whether a profile or variant of this name can be asked for."""
    return bool(name.strip()) and not set(name) & set("@/") and name.isprintable()


def check_profile(document: Mapping[str, Any]) -> None:
    """Check everything in a file that does not depend on the profile it is based on.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    check_section(document, Profile)
    name = document["name"]
    if not is_askable(name):
        raise FieldError(("name",), f"name: {_NOT_ASKABLE.format(name)}")
    for variant, own in document.get("variants", {}).items():
        if not is_askable(variant) or "," in variant:
            raise FieldError(("variants", variant), f"variants: {_NOT_ASKABLE.format(variant)}")
        check_section(own, Variant, ("variants", variant))


def check_whole(profile: Profile) -> None:
    """Check conditions that involve more than one key.

    Raises:
        FieldError: two keys contradict each other, or one is missing that another needs.
    """
    shares, throughputs = profile.sm_curve.sm_percentage, profile.sm_curve.throughput
    if len(shares) != len(throughputs):
        problem = f"{len(throughputs)} values for {len(shares)} shares"
        raise FieldError(("sm_curve", "throughput"), f"throughput: {problem}")
    if any(one >= other for one, other in pairwise(shares)):
        raise FieldError(("sm_curve", "sm_percentage"), "sm_percentage: the shares do not ascend")
    pairs: set[tuple[int, ...]] = set()
    for at, edge in enumerate(profile.communication.edges):
        pair = tuple(sorted(edge[:2]))
        if pair in pairs:
            raise FieldError(
                ("communication", "edges", at),
                f"edges: {pair[0]}-{pair[1]} is there twice, in either order",
            )
        pairs.add(pair)
    try:
        profile.graph  # noqa: B018  the property checks the edges
    except FieldError as problem:
        raise FieldError(
            ("communication", "edges", *problem.path), f"edges: {problem.message}"
        ) from None


def _fraction(percentage: float | None) -> float | None:
    return None if percentage is None else percentage / 100
