"""Sections of a document, declared once: their keys, what these mean, and their types in code.

A section is a class, and each of its keys an attribute of the same name:

    class Sharing(Section):
        share = flag("whether to share GPUs")

From this come the checks of files, the record that code reads (`profile.sharing.share` is True,
False or None), the JSON schema, the table in docs/reference/profiles.md and the rows of `gpulaunch
profile show`. A section in code is a view of the checked document, so it costs nothing to make.
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
    """A table of a document, read-only, with an attribute for each of its keys.

    Args:
        document: the table, already checked.

    Attributes:
        document: the table; treat it as frozen.
        keys: the keys that a section of this class may have, by name, in order of declaration.
        required: names of the keys that it has to have.
        together: names of keys that make sense only all together.
        is_one_measurement: all values are from one measurement, so a profile that stands on another
            takes over the whole section or nothing of it.
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
        """Raise AttributeError: sections are read-only."""
        raise AttributeError(f"{name}: a record does not change")

    def __bool__(self) -> bool:
        """Return whether the table has any key."""
        return bool(self.document)

    def __eq__(self, other: object) -> bool:
        """Compare the tables of two sections of one class."""
        return type(other) is type(self) and other.document == self.document

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the class and the table."""
        return f"{type(self).__name__}({self.document!r})"


T = TypeVar("T")
S = TypeVar("S", bound=Section)


class Key(Generic[T]):
    """A key of a section: on the class this declaration, on a section the key's value.

    Args:
        rule: rule that checks the value.
        meaning: one line of Markdown, with the unit where the name does not tell.
        default: value of a section that lacks the key.
        label: name in `gpulaunch profile show`; derived from the key's name if empty.
        unit: unit of the numbers; the one that the key's name ends with if empty.

    Attributes:
        name: name of the key.
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
        """Take the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, record: None, _owner: type) -> Self: ...

    @overload
    def __get__(self, record: Section, _owner: type) -> T: ...

    def __get__(self, record: Section | None, _owner: type) -> Self | T:
        """Return the key itself on the class, and its value on a section."""
        if record is None:
            return self
        value: T = record.document.get(self.name, self.default)
        return value

    def __set__(self, record: Section, value: object) -> None:
        """Raise AttributeError: sections are read-only."""
        raise AttributeError(f"{self.name}: a record does not change")


class Part(Key[S]):
    """A key whose value is a section in itself; an empty one where the key is missing.

    Args:
        section: class of that section.
        meaning: one line of Markdown.
    """

    def __init__(self, section: type[S], meaning: str) -> None:
        super().__init__(dict, meaning)
        self.section = section

    # part() declares the type of the value.
    def __get__(self, record: Section | None, _owner: type) -> Any:  # noqa: ANN401
        """Return the key itself on the class, and the inner section on a section."""
        return self if record is None else self.section(record.document.get(self.name))


class Number(Key[T]):
    """A key whose value is a number within a range.

    Args:
        least: smallest allowed value; an int, like `most`, if the number has to be whole.
        most: largest allowed value.
        meaning: one line of Markdown.
        label: name in `gpulaunch profile show`; derived from the key's name if empty.
    """

    def __init__(self, least: float, most: float, meaning: str, label: str = "") -> None:
        super().__init__((least, most), meaning, label=label)
        self.least, self.most = least, most


class Curve(Key[list[Any]]):
    """A key whose value is a list of numbers, one for each number in the list of another key.

    Args:
        rule: rule that checks each number.
        meaning: one line of Markdown.
        over: name of the other key.
        unit_in: name of the key whose value is the unit of the numbers.
        most: largest number of values.
    """

    def __init__(self, rule: AnyRule, meaning: str, over: str, unit_in: str, most: int) -> None:
        super().__init__(ListOf(rule, 1, most), meaning, default=[])
        self.over, self.unit_in = over, unit_in


class FiguresOf(Key["Mapping[str, float]"]):
    """A key whose value is a table of numbers, each about the key of that name in a section.

    Args:
        section: class of that section.
        meaning: one line of Markdown.
        label: text before such a number where it is shown beside the figure that it is about.
    """

    def __init__(self, section: type[Section], meaning: str, label: str) -> None:
        names = [name for name, key in section.keys.items() if isinstance(key, Number)]
        super().__init__(TableOf((0.0, 1e18), names), meaning, default={}, label=label)
        self.section = section


def part(section: type[S], meaning: str) -> Key[S]:
    """Declare a section within a section."""
    return Part(section, meaning)


def text(meaning: str) -> Key[str | None]:
    """Declare a key with any text."""
    return Key(str, meaning)


def flag(meaning: str) -> Key[bool | None]:
    """Declare a key that is true or false."""
    return Key(bool, meaning)


def number(least: float, most: float, meaning: str, label: str = "") -> Key[float | None]:
    """Declare a number from `least` to `most`, both included."""
    return Number(float(least), float(most), meaning, label)


def percentage(meaning: str, most: float = 100.0, label: str = "") -> Key[float | None]:
    """Declare a percentage from 0 to `most`."""
    return Number(0.0, most, meaning, label)


def whole(least: int, most: int, meaning: str, label: str = "") -> Key[int | None]:
    """Declare a whole number from `least` to `most`, both included."""
    return Number(least, most, meaning, label)


def word(words: Sequence[str], meaning: str) -> Key[str | None]:
    """Declare a key whose value is one of the words."""
    return Key(tuple(words), meaning)


def items(
    rule: AnyRule,
    meaning: str,
    least: int = 0,
    most: int = 1 << 20,
    label: str = "",
    unit: str = "",
) -> Key[list[Any]]:
    """Declare a list of `least` to `most` values; [] where the key is missing."""
    return Key(ListOf(rule, least, most), meaning, default=[], label=label, unit=unit)


def table(rule: AnyRule, meaning: str) -> Key[Mapping[str, Any]]:
    """Declare a table with any keys; {} where it is missing."""
    return Key(TableOf(rule), meaning, default={})


def section_mistakes(
    document: Mapping[str, Any], section: type[Section], where: Where = ()
) -> Iterator[FieldError]:
    """Yield the first mistake in a table, and the first in each section within it.

    Args:
        document: the table.
        section: class that declares its keys.
        where: path of the table in the whole document.
    """
    try:
        _check_own(document, section, where)
    except FieldError as problem:
        yield problem
    for name, key in section.keys.items():
        if isinstance(key, Part) and isinstance(document.get(name), dict):
            yield from section_mistakes(document[name], key.section, (*where, name))


def _check_own(document: Mapping[str, Any], section: type[Section], where: Where) -> None:
    """Check a table, but not the sections within it.

    Raises:
        FieldError: a value is wrong, or a key is missing.
    """
    found = checked(
        document, {name: key.rule for name, key in section.keys.items()}, section.required, where
    )
    for name in section.required:
        if isinstance(found[name], str) and not found[name].strip():
            raise FieldError((*where, name), f"{name}: it is empty")
    half = [name for name in section.together if name not in found]
    if len(half) not in (0, len(section.together)):
        raise FieldError(where, f"key {half[0]!r} is missing in {where[-1]}")
