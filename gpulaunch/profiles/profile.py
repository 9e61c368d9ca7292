"""The facts about a job before it runs: the Profile of profiles/workloads/NAME.toml.

Its keys stand in one table, each with its type, range, unit and meaning. A section is a class, and
each of its keys an attribute of the same name:

    class SharingWish(Section):
        share = flag("whether to share GPUs")

From this come the checks of files and their messages, the record that code reads
(`profile.sharing.share` is True, False or None) and the table in docs/reference/profiles.md. A
section in code is a view of the checked document, so it costs nothing to make.
"""
# pure: decides on plain values

from __future__ import annotations  # which costs every launch 0.5 ms less than evaluating them

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar, overload

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import Above, AnyRule, ListOf, RowOf, TableOf, checked
from gpulaunch.files.fields import Path as Where
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.profiles.pattern import CONFIDENCES, MAX_RANKS, PATTERNS, Pattern, given_pattern


class Section:
    """A table of a document, read-only, with an attribute for each of its keys.

    Attributes:
        document: the table, already checked; treat it as frozen.
        keys: the keys that a section of this class may have, by name, in order of declaration.
        is_one_measurement: all values are from one measurement, so a profile that is based on
            another takes over the whole section or nothing of it.
    """

    __slots__ = ("document",)
    keys: ClassVar[Mapping[str, Key[Any]]] = {}
    required: ClassVar[tuple[str, ...]] = ()
    is_one_measurement: ClassVar[bool] = False
    document: Mapping[str, Any]

    def __init_subclass__(cls) -> None:
        """Collect the keys in the order in which they are declared."""
        cls.keys = {name: key for name, key in vars(cls).items() if isinstance(key, Key)}

    def __init__(self, document: Mapping[str, Any] | None = None) -> None:
        self.document = {} if document is None else document

    def __bool__(self) -> bool:
        """Return whether the table has any key."""
        return bool(self.document)


T = TypeVar("T")
S = TypeVar("S", bound=Section)


class Key(Generic[T]):
    """A key of a section: on the class this declaration, on a section the key's value.

    Args:
        meaning: one line of Markdown, with the unit where the name does not tell.
    """

    def __init__(
        self,
        rule: AnyRule,
        meaning: str,
        default: Any = None,  # noqa: ANN401
    ) -> None:
        self.rule, self.meaning, self.default = rule, meaning, default
        self.name = ""

    def __set_name__(self, _owner: type, name: str) -> None:
        """Take the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, record: None, _owner: type) -> Key[T]: ...

    @overload
    def __get__(self, record: Section, _owner: type) -> T: ...

    def __get__(self, record: Section | None, _owner: type) -> Key[T] | T:
        """Return the key itself on the class, and its value on a section."""
        if record is None:
            return self
        value: T = record.document.get(self.name, self.default)
        return value


class Part(Key[S]):
    """A key whose value is a section in itself; an empty one where the key is missing."""

    def __init__(self, section: type[S], meaning: str) -> None:
        super().__init__(dict, meaning)
        self.section, self.empty = section, section()

    # part() declares the type of the value.
    def __get__(self, record: Section | None, _owner: type) -> Any:  # noqa: ANN401
        """Return the key itself on the class, and the inner section on a section."""
        if record is None:
            return self
        own = record.document.get(self.name)
        return self.section(own) if own else self.empty


class Number(Key[T]):
    """A key whose value is a number within a range; a whole one if both ends are."""


class FiguresOf(Key["Mapping[str, float]"]):
    """A key whose value is a table of numbers, each about the key of that name in a section."""

    def __init__(self, section: type[Section], meaning: str) -> None:
        names = [name for name, key in section.keys.items() if isinstance(key, Number)]
        super().__init__(TableOf((0.0, 1e18), names), meaning, default={})


def part(section: type[S], meaning: str) -> Key[S]:
    """Declare a section within a section."""
    return Part(section, meaning)


def text(meaning: str) -> Key[str | None]:
    """Declare a key with any text."""
    return Key(str, meaning)


def flag(meaning: str) -> Key[bool | None]:
    """Declare a key that is true or false."""
    return Key(bool, meaning)


def number(least: float, most: float, meaning: str) -> Key[float | None]:
    """Declare a number from `least` to `most`, both included."""
    return Number((float(least), float(most)), meaning)


def percentage(meaning: str, most: float = 100.0) -> Key[float | None]:
    """Declare a percentage from 0 to `most`."""
    return Number((0.0, most), meaning)


def whole(least: int, most: int, meaning: str) -> Key[int | None]:
    """Declare a whole number from `least` to `most`, both included."""
    return Number((least, most), meaning)


def word(words: Sequence[str], meaning: str) -> Key[str | None]:
    """Declare a key whose value is one of the words."""
    return Key(tuple(words), meaning)


def items(
    rule: AnyRule,
    meaning: str,
    least: int = 0,
    most: int = 1 << 20,
) -> Key[list[Any]]:
    """Declare a list of `least` to `most` values; [] where the key is missing."""
    return Key(ListOf(rule, least, most), meaning, default=[])


def table(rule: AnyRule, meaning: str) -> Key[Mapping[str, Any]]:
    """Declare a table with any keys; {} where it is missing."""
    return Key(TableOf(rule), meaning, default={})


def _check_section(document: object, section: type[Section], where: Where = ()) -> None:
    """Check a table, and the sections within it.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    fields = {name: key.rule for name, key in section.keys.items()}
    found = checked(document, fields, section.required, where)
    for name in section.required:
        if isinstance(found[name], str) and not found[name].strip():
            raise FieldError((*where, name), f"{name}: it is empty")
    for name, key in section.keys.items():
        if isinstance(key, Part) and name in found:
            _check_section(found[name], key.section, (*where, name))


_SLOWDOWN = (0.0, 1e4)
_SOURCE = "where these figures come from"
_GPU = "the GPU"


class Communication(Section):
    """The communication between the GPUs of a job."""

    required = ("source",)

    pattern = word(
        tuple(PATTERNS), "who talks to whom: " + ", ".join(f"`{name}`" for name in PATTERNS)
    )
    edges = items(
        RowOf((0, MAX_RANKS - 1), (0, MAX_RANKS - 1), Above(0.0, 1e18)),
        "`[[rank, rank, GB], ...]`: what went over each pair of GPUs; the pattern if `pattern` is "
        "missing",
    )
    bandwidth_sensitive = flag("whether faster links make the job faster")
    weight = number(
        0.001,
        1000,
        "weight of the job graph's edges: 4 for the smallest batches to 1 for the largest",
    )
    collective_calls_per_iteration = whole(0, 1 << 62, "of one GPU")
    time_percentage = percentage(
        "share of its time in which it waits for its links on the best GPUs; for the "
        "[simulator](../guides/simulate.md)",
    )
    split_slowdown_percentage = percentage(
        "how much longer it takes with its GPUs on several sockets; likewise", most=1e4
    )
    confidence = word(CONFIDENCES, "how sure the pattern is")
    source = text(_SOURCE)


class Sensitivity(Section):
    """A job on the best and on the worst placement of a machine (mapa-sc21 2.3)."""

    required = ("source",)
    is_one_measurement = True

    slowdown_percentage = number(
        -100, 1e6, "how much longer the worst took: its time over that of the best, less 1"
    )
    measured_on = text(_GPU)
    source = text(_SOURCE)


class Resources(Section):
    """A job's use of one GPU when it runs there alone."""

    required = ("source",)

    memory_mib = whole(
        1, 1 << 30, "most device memory in use on one GPU; smaller GPUs are not considered"
    )
    memory_is_reservation = flag(
        "these figures are what an allocator set aside, so they rule no GPU out"
    )
    sm_utilization_percentage = percentage(
        "average SM utilization; what the rule for sharing adds up"
    )
    sm_occupancy_percentage = percentage("average share of the warps that the SMs can hold")
    memory_bandwidth_utilization_percentage = percentage("average memory-bandwidth utilization")
    utilization = word(
        ("share", "time-active"),
        "what both utilizations are: `share` of the SMs and of the DRAM bandwidth in use (GPM), or "
        "`time-active`: of "
        "the time in which any kernel ran, and memory was accessed (NVML), which is no share of "
        "either",
    )
    time_active_percentage = percentage("average share of time in which any kernel ran")
    power_w = number(0, 1e5, "average power")
    energy_j = number(0, 1e15, "energy of one run")
    duration_s = number(0, 1e9, "time of one run")
    estimated = items(
        tuple(name for name, key in vars().items() if isinstance(key, Number)),
        "names of the figures above that nobody measured on this job; `source` says how they were "
        "derived",
    )
    incomplete = flag("the job failed, or sampling broke off")
    measured_on = text(_GPU)
    source = text(_SOURCE)


class Runs(Section):
    """Differences of figures between runs; each key has the name of its key in `[resources]`."""

    count = whole(1, 1 << 62, "how many runs the averages are of")
    gpus = whole(1, 1 << 20, "how many GPUs the job had in them")
    misfits = whole(0, 1 << 62, "how many of the latest runs, in a row, did not fit")
    spread = FiguresOf(
        Resources,
        "standard deviation of each figure between runs, in the figure's unit",
    )


class SmCurve(Section):
    """Throughput over the share of SMs (cd-search-ics18 Figure 7, mps-sharing-2024 Figure 1)."""

    required = ("sm_percentage", "throughput", "source")
    is_one_measurement = True

    sm_percentage = items(Above(0, 100), "shares of the SMs, ascending", least=1, most=100)
    throughput = items(
        Above(0, 1e15),
        "throughput at each of them, in any one unit",
        least=1,
        most=100,
    )
    unit = text("the unit of `throughput`")
    measured_on = text(_GPU)
    source = text(_SOURCE)


class Classification(Section):
    """A stated class for a job without a curve (cd-search-ics18 4.1)."""

    required = ("source",)

    intensity = word(("memory", "compute"), "memory- or compute-intensive, where no curve tells")
    source = text(_SOURCE)


class Collocation(Section):
    """A job beside others on one socket (topo-aware-sc17 4.2 and 5.1)."""

    required = ("source",)

    slowdown_percentage = table(
        _SLOWDOWN,
        "table of profile name and number: how much longer it takes beside that job on one "
        "*socket*",
    )
    source = text(_SOURCE)


class SharedGpu(Section):
    """A job beside others on one GPU, through MPS."""

    required = ("source",)

    slowdown_percentage = table(
        _SLOWDOWN,
        "table of profile name and number: how much longer it takes beside that job on one *GPU*",
    )
    feels = number(
        0, 1000, "how much longer it takes beside `synthetic-memory`, as part of its time alone"
    )
    presses = number(0, 1000, "how much longer `synthetic-memory` takes beside it, likewise")
    measured_on = text(_GPU)
    source = text(_SOURCE)


class SharedSearch(Section):
    """The launches beside the same jobs on one GPU, from which the next caps are chosen."""

    required = ("beside", "caps", "speed", "measured_on", "source")
    is_one_measurement = True

    beside = items(str, "names of the others, ascending", least=1, most=48)
    caps = items(
        ListOf((1, 100), 2, 49), "caps in % of the SMs: the job's own, then those of the others"
    )
    speed = items(
        Above(0, 10),
        "the job's speed at each of these, 1 being that alone",
        least=1,
        most=1000,
    )
    measured_on = text(_GPU)
    source = text(_SOURCE)


class PlacementNeeds(Section):
    """A job's needs of its GPUs; its author decides them, so they have no source."""

    min_bandwidth_gb_per_s = number(
        0.001, 1e6, "least effective bandwidth: the job waits rather than start on less"
    )
    min_utility = number(0, 1, "under this utility the policy `topo-aware-p` lets it wait")


class SharingWish(Section):
    """A job's wish to share GPUs."""

    share = flag("whether to [share](../guides/sharing.md) GPUs when the command line does not say")
    sm_percentage = whole(1, 100, "share of the SMs that it is to have then")


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
    communication = part(Communication, "how its GPUs talk to each other")
    sensitivity = part(
        Sensitivity,
        "how it does on the best and on the worst placement of a machine (mapa-sc21 2.3)",
    )
    placement = part(
        PlacementNeeds,
        "what it needs of its GPUs; that is decided, not measured, so it has no source",
    )
    collocation = part(Collocation, "how it does beside others on one socket (topo-aware-sc17 4.2)")
    shared_gpu = part(
        SharedGpu,
        "how it does beside others on one GPU, through MPS; goes before `[collocation]` where GPUs "
        "are shared",
    )
    search = part(
        SharedSearch,
        "what `--record` has tried beside the same jobs ([more](../guides/sharing.md))",
    )
    resources = part(Resources, "what it uses of one GPU when it runs there alone")
    runs = part(Runs, "how these figures differ between runs; each is called as in `[resources]`")
    sharing = part(SharingWish, "whether it is to share GPUs")
    sm_curve = part(
        SmCurve,
        "its throughput over the share of SMs (cd-search-ics18 Figure 7, mps-sharing-2024 Figure "
        "1)",
    )
    classification = part(
        Classification,
        "what is said of a job whose curve nobody has (cd-search-ics18 4.1)",
    )
    variants = table(
        dict, 'tables of what else to know, such as `[variants."batch=1".communication]`'
    )

    def but(self, **changes: object) -> Profile:
        """Return a copy with other values; a section's values are merged over the present ones."""
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
    _check_section(document, Profile)
    name = document["name"]
    if not is_askable(name):
        raise FieldError(("name",), f"name: {_NOT_ASKABLE.format(name)}")
    for variant, own in document.get("variants", {}).items():
        if not is_askable(variant) or "," in variant:
            raise FieldError(("variants", variant), f"variants: {_NOT_ASKABLE.format(variant)}")
        _check_section(own, Variant, ("variants", variant))


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
