"""Fields that leases and tickets have in common, with their checks."""
# pure: decides on plain values

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import FieldTable, RowOf, checked
from gpulaunch.machine.table_key import TableKey
from gpulaunch.process.identity import Process

VERSION = 1
"""Version of this reader. A record's `version` is the oldest reader that understands it: it grows
only with a change that an older reader must not overlook, never with a new key alone."""

UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""Time in a record that does not tell it in a form that this version understands."""

PROCESS = RowOf((0, 1 << 62), (0, 1 << 62))
"""Rule for a process: its pid and start time."""

TABLE_KEY = RowOf(str, str, str)
"""Rule for the key of a described machine."""

MAX_COMMAND_CHARACTERS = 16384

WRITTEN_BYTES = 8192
"""Size of a record up to which its command is kept whole: every launcher reads every record."""

MAX_UNLOCKED_BYTES = 4096
"""Largest record that counts without a process that holds it, as a container's can."""


class NewerRecordError(FieldError):
    """A record of a later version, which says that this version does not understand it.

    Args:
        version: version of the reader that is needed.
    """

    def __init__(self, version: int) -> None:
        super().__init__(
            ("version",), f"it needs a gpulaunch that reads version {version} of the records"
        )


_DIGITS_AS_ZERO = str.maketrans("123456789", "000000000")


def read_fields(
    document: object, needed: FieldTable, if_given: FieldTable, others: FieldTable
) -> dict[str, Any]:
    """Return the fields of a record that this version knows.

    Records are written by other versions, too: keys that are unknown here are ignored, and so are
    values of `others` in a form that is unknown here. None is no value.

    Args:
        document: content of the record.
        needed: fields without which nobody can tell which GPUs are free.
        if_given: fields that can be missing, but have to be understood where they are given.
        others: all other fields.

    Raises:
        FieldError: a field that has to be understood is missing or wrong.
        NewerRecordError: the record needs a later version.
    """
    if not isinstance(document, Mapping):
        raise FieldError((), f"{document!r} is not a table")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise NewerRecordError(version)
    understood = {**needed, **if_given}
    fields = {key: document[key] for key in understood if document.get(key) is not None}
    checked(fields, understood, required=tuple(needed))
    known = {key: document[key] for key in others if document.get(key) is not None}
    try:
        return fields | dict(checked(known, others))
    except FieldError:  # then one by one
        for key, value in known.items():
            with suppress(FieldError):
                fields |= checked({key: value}, {key: others[key]})
        return fields


def process_of(fields: Mapping[str, Any], key: str) -> Process:
    """Return the process in a field; one that has ended if the field does not tell it."""
    return Process(*fields.get(key, (0, 0)))


def table_key_of(fields: Mapping[str, Any]) -> TableKey | None:
    """Return the key of the record's machine; None for this machine's own GPUs."""
    return TableKey(*fields["table"]) if "table" in fields else None


def check_id(text: str) -> None:
    """Check an id, which will be part of file names and be shown on terminals.

    Raises:
        FieldError: the text is no lease's id.
    """
    if not (text.isascii() and text.isalnum()):
        raise FieldError(("id",), f"id: {text!r} is no lease's id")


def time_of(fields: Mapping[str, Any], key: str) -> str:
    """Return the time in a field: ISO 8601, UTC, whole seconds; UNKNOWN_TIME if it is no time."""
    found = fields.get(key, "")
    if found.translate(_DIGITS_AS_ZERO) != "0000-00-00T00:00:00Z":
        return UNKNOWN_TIME
    return str(found)


def shortened(command: Sequence[str], room: int = MAX_COMMAND_CHARACTERS) -> list[str]:
    """Return the command, cut after so many characters."""
    kept: list[str] = []
    for argument in command:
        if len(argument) > room:
            return [*kept, argument[: max(room, 0)] + "..."]
        kept.append(argument)
        room -= len(argument) + 1
    return kept


def cut_command(document: dict[str, Any], most_bytes: int = WRITTEN_BYTES) -> dict[str, Any]:
    """Return a record's document with its command cut so that it is written in so many bytes."""
    command, room = document["command"], most_bytes
    document["command"] = shortened(command, room)
    while len(json.dumps(document)) > most_bytes and room > 1:
        room //= 2
        document["command"] = shortened(command, room)
    return document
