"""What a profile may say: the one table of keys, each with its type, range, unit and meaning.

A section is a class, and each of its keys an attribute of the same name:

    class SharingWish(Section):
        share = flag("whether to share GPUs")

From this come the checks of files and their messages, the record that code reads
(`profile.sharing.share` is True, False or None) and the table in docs/reference/profiles.md. A
section in code is a view of the checked document, so it costs nothing to make. The top level of a
file is the Profile (profile.py).
"""
# pure: decides on plain values

from __future__ import annotations  # which costs every launch 0.5 ms less than evaluating them

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import Above, AnyRule, ListOf, RowOf, TableOf, checked
from gpulaunch.files.fields import Path as Where
from gpulaunch.profiles.pattern import CONFIDENCES, MAX_RANKS, PATTERNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        self.section = section

    # part() declares the type of the value.
    def __get__(self, record: Section | None, _owner: type) -> Any:  # noqa: ANN401
        """Return the key itself on the class, and the inner section on a section."""
        return self if record is None else self.section(record.document.get(self.name))


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


def check_section(document: object, section: type[Section], where: Where = ()) -> None:
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
            check_section(found[name], key.section, (*where, name))


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
