"""Fields that leases and tickets have in common, with their checks."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.errors import FieldError
from gpulaunch.machine.table_key import TableKey
from gpulaunch.process.identity import Process
from gpulaunch.typing import Any

VERSION = 1
"""Version of the records' format. A live record of another version stops decisions."""

MAX_COMMAND_CHARACTERS = 16384


def without_none(document: object, optional: Mapping[str, object]) -> dict[str, Any]:
    """Return the document without optional values that are None.

    Raises:
        FieldError: the document is no table.
    """
    if not isinstance(document, Mapping):
        raise FieldError((), f"{document!r} is not a table")
    return {
        key: value for key, value in document.items() if value is not None or key not in optional
    }


def texts_of(document: Mapping[str, Any], key: str, length: int | None = None) -> tuple[str, ...]:
    """Return the list of texts in a field.

    Raises:
        FieldError: the field is no such list, or has another length than asked for.
    """
    values = document[key]
    if any(not isinstance(value, str) for value in values) or length not in (None, len(values)):
        raise FieldError((key,), f"{key}: {values!r} is no list of texts")
    return tuple(values)


def process_of(document: Mapping[str, Any], key: str) -> Process:
    """Return the process in a field.

    Raises:
        FieldError: the field is no process.
    """
    values = document[key]
    if len(values) != 2 or any(type(value) is not int or value < 0 for value in values):
        raise FieldError((key,), f"{key}: {values!r} is not [pid, start time]")
    return Process(*values)


def read_table_key(document: Mapping[str, Any]) -> TableKey | None:
    """Return the key of the record's machine; None for this machine's own GPUs.

    Raises:
        FieldError: the field is no key.
    """
    if document.get("table") is None:
        return None
    return TableKey(*texts_of(document, "table", length=3))


def check_id(text: str) -> None:
    """Check an id, which will be part of file names and be shown on terminals.

    Raises:
        FieldError: the text is no lease's id.
    """
    if not (text.isascii() and text.isalnum()):
        raise FieldError(("id",), f"id: {text!r} is no lease's id")


def check_time(document: Mapping[str, Any], key: str) -> None:
    """Check that a time is ISO 8601, UTC, in whole seconds.

    Raises:
        FieldError: it is another text.
    """
    found = document[key]
    if (
        not found.isascii()
        or "".join("0" if c.isdigit() else c for c in found) != "0000-00-00T00:00:00Z"
    ):
        raise FieldError((key,), f"{key}: {found!r} is no time such as 2026-01-31T23:59:59Z")


def shortened(command: Sequence[str]) -> list[str]:
    """Return the command, cut after MAX_COMMAND_CHARACTERS: every launcher reads every record."""
    kept: list[str] = []
    room = MAX_COMMAND_CHARACTERS
    for argument in command:
        if len(argument) > room:
            return [*kept, argument[: max(room, 0)] + "..."]
        kept.append(argument)
        room -= len(argument) + 1
    return kept
