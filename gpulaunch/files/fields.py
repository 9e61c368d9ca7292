"""Checks of documents that people write: TOML tables against a table of allowed keys."""
# pure: decides on plain values

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpulaunch.errors import FieldError, nearest
from gpulaunch.records import Record

Rule = type | tuple[float, float] | tuple[str, ...]
"""A rule: a type, a range (ends included; whole numbers if both ends are), or allowed words."""


class OneOrEach(Record):
    """A rule that admits one value for all items, or a list with a value for each item."""

    rule: Rule


class Above(Record):
    """A rule for a number above `least`, which is not allowed itself, and `most` at most."""

    least: float
    most: float


class ListOf(Record):
    """A rule for a list of `least` to `most` values, with a rule for each."""

    rule: "AnyRule"
    least: int = 0
    most: int = 1 << 20


class RowOf:
    """A rule for a list of fixed length, with a rule for each position, in order."""

    def __init__(self, *rules: "AnyRule") -> None:
        self.rules = rules


class TableOf(Record):
    """A rule for a table with a rule for each value, and free keys unless there are `names`."""

    rule: "AnyRule"
    names: Sequence[str] = ()


AnyRule = Rule | OneOrEach | Above | ListOf | RowOf | TableOf

FieldTable = Mapping[str, AnyRule]
"""Allowed keys, each with the rule for its value."""

_NUMBERS = (int, float)  # and not bool, which is a subclass of int
_NAMES = {str: "text", bool: "true or false", list: "a list", dict: "a table"}


Path = tuple[str | int, ...]
"""Keys and list positions from the top of a document down to a value."""


def checked(
    document: object, fields: FieldTable, required: Sequence[str] = (), where: Path = ()
) -> Mapping[str, Any]:
    """Return the document after checking its keys and values.

    Args:
        where: path of this place in the whole document.

    Raises:
        FieldError: names the first key that is wrong.
    """
    if not isinstance(document, Mapping):
        raise FieldError(where, f"{_name_of(where)}: {_describe_no_table(document)}")
    for key, value in document.items():
        if key not in fields:
            raise FieldError((*where, key), unknown(key, fields))
        if type(value) is not fields[key]:
            _check(value, fields[key], (*where, key))
    for key in required:
        if key not in document:
            raise FieldError(
                where, f"key {key!r} is missing" + (f" in {_name_of(where)}" if where else "")
            )
    return document


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the message for an unknown key: the nearest known key, or all of them."""
    names = list(known)
    found = nearest(key, names, 0.75)
    return f"unknown key {key!r}: " + (
        f"nearest is {' or '.join(map(repr, found))}"
        if found
        else f"known here are {', '.join(names)}"
    )


def _name_of(where: Path) -> str:
    return next((part for part in reversed(where) if isinstance(part, str)), "document")


def _check(value: object, rule: AnyRule, where: Path) -> None:
    if isinstance(rule, type):
        problem = None
        if not isinstance(value, rule):
            is_table = rule is dict
            problem = _describe_no_table(value) if is_table else _describe_mismatch(value, rule)
    elif isinstance(rule, OneOrEach):
        for one in value if isinstance(value, list) else [value]:
            _check(one, rule.rule, where)
        return
    elif isinstance(rule, tuple):
        if not isinstance(rule[0], str):
            problem = _check_range(value, *rule)
        else:
            problem = None if value in rule else f"{value!r} is none of {', '.join(rule)}"
    elif isinstance(rule, Above):
        good = type(value) in _NUMBERS and rule.least < value <= rule.most  # type: ignore[operator]
        problem = (
            None if good else f"{value!r} is no number above {rule.least:g}, {rule.most:g} at most"
        )
    else:
        problem = _check_within(value, rule, where)
    if problem:
        raise FieldError(where, f"{_name_of(where)}: {problem}")


def _check_within(value: object, rule: ListOf | RowOf | TableOf, where: Path) -> str | None:
    """Check a list or table and each of its values; return what is wrong with it as a whole."""
    if isinstance(rule, TableOf):
        if not isinstance(value, Mapping):
            return _describe_no_table(value)
        for key, one in value.items():
            if rule.names and key not in rule.names:
                raise FieldError((*where, key), unknown(key, rule.names))
            _check(one, rule.rule, (*where, key))
        return None
    if not isinstance(value, list):
        return f"{value!r} is not a list"
    if isinstance(rule, RowOf):
        if len(value) != len(rule.rules):
            return f"{value!r} has {len(value)} values: {len(rule.rules)} are needed"
        rules: Sequence[AnyRule] = rule.rules
    else:
        if not rule.least <= len(value) <= rule.most:
            return f"{len(value)} values, {rule.least} to {rule.most} are needed"
        rules = [rule.rule] * len(value)
    # Most lists are texts, of which the allocation table has many.
    pairs = () if [*map(type, value)] == rules else zip(value, rules, strict=True)
    for at, (one, own) in enumerate(pairs):
        _check(one, own, (*where, at))
    return None


def _describe_no_table(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        return "it is a list of tables, and one table is wanted"
    return _describe_mismatch(value, dict)


def _describe_mismatch(value: object, kind: type) -> str:
    return f"{value!r} is not {_NAMES[kind]}"


def _check_range(value: object, low: Any, high: Any) -> str | None:  # noqa: ANN401
    whole = isinstance(low, int) and isinstance(high, int)
    if type(value) not in ((int,) if whole else _NUMBERS):
        return f"{value!r} is not a {'whole ' if whole else ''}number"
    if low <= value <= high:
        return None
    bounds = [str(one) if isinstance(one, int) else f"{one:.16g}" for one in (low, high)]
    return f"{value} is not within {' to '.join(bounds)}"
