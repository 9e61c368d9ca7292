"""Checking the documents that people write: TOML tables against a table of allowed keys."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpulaunch.errors import FieldError

Rule = type | tuple[float, float] | tuple[str, ...]
"""A type, the range of a number (both ends included; whole if both ends are), or the allowed words."""


class OneOrEach(NamedTuple):
    """A rule for one value that holds for all items, or for each value of a list that has one for each item."""

    rule: Rule


FieldTable = Mapping[str, Rule | OneOrEach]
"""Key -> the rule for its value."""

_NAMES = {str: "text", bool: "true or false", list: "a list", dict: "a table"}


Path = tuple[str | int, ...]
"""Keys and list positions from the top of a document down to a value."""


def checked(document: object, fields: FieldTable, required: Sequence[str] = (), where: Path = ()) -> Mapping[str, Any]:
    """The document itself, once it is known to have the right keys and values.

    Args:
        document: what the file holds at this place.
        fields: every key that may stand here.
        required: those that must.
        where: this place in the whole document.

    Raises:
        FieldError: names the first key that is wrong.
    """
    if not isinstance(document, Mapping):
        raise FieldError(where, f"{_name(where)}: {document!r} is not a table")
    for key, value in document.items():
        if key not in fields:
            raise FieldError((*where, key), f"unknown key {key!r}: known here are {', '.join(fields)}")
        problem = _problem(value, fields[key])
        if problem:
            raise FieldError((*where, key), f"{key}: {problem}")
    for key in required:
        if key not in document:
            raise FieldError(where, f"key {key!r} is missing" + (f" in {_name(where)}" if where else ""))
    return document


def _name(where: Path) -> str:
    return next((part for part in reversed(where) if isinstance(part, str)), "document")


def each(value: object, count: int, where: Path) -> list[Any]:
    """The values of `count` items, from what a OneOrEach rule has admitted.

    Raises:
        FieldError: the list is not as long.
    """
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise FieldError(where, f"{where[-1]}: {len(value)} values for {count} items")
    return value


def _problem(value: object, rule: Rule | OneOrEach) -> str | None:
    """What is wrong with a value; None if nothing is."""
    if isinstance(rule, OneOrEach):
        values = value if isinstance(value, list) else [value]
        return next((problem for one in values if (problem := _problem(one, rule.rule))), None)
    if isinstance(rule, type):
        return None if isinstance(value, rule) else f"{value!r} is not {_NAMES[rule]}"
    if isinstance(rule[0], str):
        words: tuple[Any, ...] = rule
        return None if value in words else f"{value!r} is none of {', '.join(words)}"
    low, high = rule
    whole = isinstance(low, int) and isinstance(high, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return f"{value!r} is not a {'whole ' if whole else ''}number"
    return None if low <= value <= high else f"{value} is not within {low} to {high}"
