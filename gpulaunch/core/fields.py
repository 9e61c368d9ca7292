"""Checking the documents that people write: TOML tables against a table of allowed keys."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpulaunch.errors import FieldError

FieldTable = Mapping[str, type | tuple[float, float] | tuple[str, ...]]
"""Key -> its type, the range of a number (both ends included; whole if both ends are), or the allowed words."""

_NAMES = {str: "text", bool: "true or false", list: "a list", dict: "a table"}


def checked(document: object, fields: FieldTable, required: Sequence[str] = (), where: str = "") -> Mapping[str, Any]:
    """The document itself, once it is known to have the right keys and values.

    Args:
        document: what the file holds at this place.
        fields: every key that may stand here.
        required: those that must.
        where: name of this place in messages; empty for the top of a file.

    Raises:
        FieldError: names the first key that is wrong.
    """
    if not isinstance(document, Mapping):
        raise FieldError(where, f"{where}: {document!r} is not a table")
    for key, value in document.items():
        if key not in fields:
            raise FieldError(key, f"unknown key {key!r}: known here are {', '.join(fields)}")
        _check_value(key, value, fields[key])
    for key in required:
        if key not in document:
            raise FieldError(where, f"key {key!r} is missing" + (f" in {where}" if where else ""))
    return document


def _check_value(key: str, value: object, rule: type | tuple[Any, ...]) -> None:
    if isinstance(rule, type):
        if not isinstance(value, rule):
            raise FieldError(key, f"{key}: {value!r} is not {_NAMES[rule]}")
    elif isinstance(rule[0], str):
        if value not in rule:
            raise FieldError(key, f"{key}: {value!r} is none of {', '.join(rule)}")
    else:
        low, high = rule
        whole = isinstance(low, int) and isinstance(high, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise FieldError(key, f"{key}: {value!r} is not a {'whole ' if whole else ''}number")
        if not low <= value <= high:
            raise FieldError(key, f"{key}: {value} is not within {low} to {high}")
