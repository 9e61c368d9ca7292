"""Sections of a document, declared once: what may stand in each, what it means, and what type it has in code.

A section is a class, and each of its keys an attribute of the same name:

    class Sharing(Section):
        share = flag("whether to share GPUs")

From this come the checks of files, the record that code reads (`profile.sharing.share` is True,
False or None), the JSON schema, the table in docs/profiles.md and the rows of `gpulaunch profiles
show`. A record is a view of the checked document and costs nothing to make; eighty fields in as
many NamedTuple defaults would cost every launch a millisecond.
"""
# pure: decides on plain values

from __future__ import annotations  # which costs every launch 0.5 ms less than evaluating them

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import AnyRule, ListOf, TableOf, checked
from gpulaunch.files.fields import Path as Where
from gpulaunch.typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Section:
    """A table of a document: a record of what it says, which does not change.

    Args:
        document: the table, already checked.

    Attributes:
        document: the same; treat it as frozen.
        keys: name -> key of all that may stand in a section of this class, in order.
        required: keys that must.
        together: keys that are of use together only.
        is_one_measurement: its values are of use together only, so nobody takes over some of them.
    """

    __slots__ = ("document",)
    keys: ClassVar[Mapping[str, Key[Any]]] = {}
    required: ClassVar[tuple[str, ...]] = ()
    together: ClassVar[tuple[str, ...]] = ()
    is_one_measurement: ClassVar[bool] = False
    document: Mapping[str, Any]

    def __init_subclass__(cls) -> None:
        """Collect the keys in the order in which they are declared."""
        cls.keys = {name: key for name, key in vars(cls).items() if isinstance(key, Key)}

    def __init__(self, document: Mapping[str, Any] | None = None) -> None:
        object.__setattr__(self, "document", {} if document is None else document)

    def __setattr__(self, name: str, value: object) -> None:
        """Refused."""
        raise AttributeError(f"{name}: a record does not change")

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.document)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same."""
        return type(other) is type(self) and other.document == self.document

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """As it is made."""
        return f"{type(self).__name__}({self.document!r})"


T = TypeVar("T")
S = TypeVar("S", bound=Section)


class Key(Generic[T]):
    """One key of a section; in a record its value, None where nobody gives it.

    Args:
        rule: for its value.
        meaning: one line of Markdown, with the unit where the name does not tell.
        default: what the record has where nobody gives it.
        label: what `profiles show` calls it; made of the name if empty.
        unit: of its numbers; the one that the name ends with if empty.

    Attributes:
        name: its own.
    """

    def __init__(
        self,
        rule: AnyRule,
        meaning: str,
        default: Any = None,  # noqa: ANN401
        label: str = "",
        unit: str = "",
    ) -> None:
        self.rule, self.meaning, self.default = rule, meaning, default
        self.label, self.unit = label, unit
        self.name = ""

    def __set_name__(self, _owner: type, name: str) -> None:
        """It is called as the attribute is."""
        self.name = name

    @overload
    def __get__(self, record: None, _owner: type) -> Self: ...

    @overload
    def __get__(self, record: Section, _owner: type) -> T: ...

    def __get__(self, record: Section | None, _owner: type) -> Self | T:
        """The key of the class, the value of a record."""
        if record is None:
            return self
        value: T = record.document.get(self.name, self.default)
        return value

    def __set__(self, record: Section, value: object) -> None:
        """Refused."""
        raise AttributeError(f"{self.name}: a record does not change")


class Part(Key[S]):
    """A key whose value is a section of its own; where nobody gives it, an empty one.

    Args:
        section: its class.
        meaning: one line of Markdown.
    """

    def __init__(self, section: type[S], meaning: str) -> None:
        super().__init__(dict, meaning)
        self.section = section

    # part() gives it its type
    def __get__(self, record: Section | None, _owner: type) -> Any:  # noqa: ANN401
        """The key of the class, the section of a record."""
        return self if record is None else self.section(record.document.get(self.name))


class Number(Key[T]):
    """A key whose value is a number within a range.

    Args:
        least: still allowed; whole, as `most` is, if the number has to be.
        most: likewise.
        meaning: one line of Markdown.
        label: what `profiles show` calls it; made of the name if empty.
    """

    def __init__(self, least: float, most: float, meaning: str, label: str = "") -> None:
        super().__init__((least, most), meaning, label=label)
        self.least, self.most = least, most


class Curve(Key[list[Any]]):
    """A key whose value is a list of numbers, one for each number of another key's list.

    Args:
        rule: for each number.
        meaning: one line of Markdown.
        over: the other key of the section.
        unit_in: the key of the section that says in which unit the numbers are.
        most: how many there are at most.
    """

    def __init__(self, rule: AnyRule, meaning: str, over: str, unit_in: str, most: int) -> None:
        super().__init__(ListOf(rule, 1, most), meaning, default=[])
        self.over, self.unit_in = over, unit_in


class FiguresOf(Key["Mapping[str, float]"]):
    """A key whose value is a table of numbers, each about the figure of that name in a section.

    Args:
        section: the class of that section.
        meaning: one line of Markdown.
        label: what stands before such a number where it is shown beside the figure it is about.
    """

    def __init__(self, section: type[Section], meaning: str, label: str) -> None:
        names = [name for name, key in section.keys.items() if isinstance(key, Number)]
        super().__init__(TableOf((0.0, 1e18), names), meaning, default={}, label=label)
        self.section = section


def part(section: type[S], meaning: str) -> Key[S]:
    """A section within a section."""
    return Part(section, meaning)


def text(meaning: str) -> Key[str | None]:
    """Any text."""
    return Key(str, meaning)


def flag(meaning: str) -> Key[bool | None]:
    """True or false."""
    return Key(bool, meaning)


def number(least: float, most: float, meaning: str, label: str = "") -> Key[float | None]:
    """A number from `least` to `most`, both included."""
    return Number(float(least), float(most), meaning, label)


def percentage(meaning: str, most: float = 100.0, label: str = "") -> Key[float | None]:
    """A number from 0 to 100, or to more."""
    return Number(0.0, most, meaning, label)


def whole(least: int, most: int, meaning: str, label: str = "") -> Key[int | None]:
    """A whole number from `least` to `most`, both included."""
    return Number(least, most, meaning, label)


def word(words: Sequence[str], meaning: str) -> Key[str | None]:
    """One of some words."""
    return Key(tuple(words), meaning)


def items(
    rule: AnyRule,
    meaning: str,
    least: int = 0,
    most: int = 1 << 20,
    label: str = "",
    unit: str = "",
) -> Key[list[Any]]:
    """A list of `least` to `most` values; [] where nobody gives it."""
    return Key(ListOf(rule, least, most), meaning, default=[], label=label, unit=unit)


def table(rule: AnyRule, meaning: str) -> Key[Mapping[str, Any]]:
    """A table whose keys are free; {} where nobody gives it."""
    return Key(TableOf(rule), meaning, default={})


def section_mistakes(
    document: Mapping[str, Any], section: type[Section], where: Where = ()
) -> Iterator[FieldError]:
    """What is wrong with a table by what its class declares: the first mistake of its own, and of each section in it.

    Args:
        document: the table.
        section: what it has to be.
        where: its place in the whole document.
    """
    try:
        _check_own(document, section, where)
    except FieldError as problem:
        yield problem
    for name, key in section.keys.items():
        if isinstance(key, Part) and isinstance(document.get(name), dict):
            yield from section_mistakes(document[name], key.section, (*where, name))


def _check_own(document: Mapping[str, Any], section: type[Section], where: Where) -> None:
    """Check a table, but for what is in its sections."""
    found = checked(
        document, {name: key.rule for name, key in section.keys.items()}, section.required, where
    )
    for name in section.required:
        if isinstance(found[name], str) and not found[name].strip():
            raise FieldError((*where, name), f"{name}: it is empty")
    half = [name for name in section.together if name not in found]
    if len(half) not in (0, len(section.together)):
        raise FieldError(where, f"key {half[0]!r} is missing in {where[-1]}")
