"""Documents of leases, tickets and past jobs, both ways, and the fields that they have in common.

A record class says what there is; rules say what a document, which another version may have
written, can say of each field. A key that is unknown here, or a value in a form that is unknown
here, counts as missing, unless the field is needed.
"""
# pure: decides on plain values

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import FieldTable, ListOf, RowOf, checked
from gpulaunch.machine.topology import TableKey
from gpulaunch.process.identity import Process
from gpulaunch.records import Record, as_dict, as_list, default_values

R = TypeVar("R", bound=Record)
Readers = Mapping[str, Callable[[Any], Any]]
_NO_READERS: Readers = {}

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


def check_version(document: object) -> None:
    """Check that a record does not need a later reader.

    Raises:
        NewerRecordError: it does.
    """
    if not isinstance(document, Mapping):
        raise FieldError((), f"{document!r} is not a table")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise NewerRecordError(version)
    given = {} if version is None else {"version": version}
    checked(given, {"version": (1, VERSION)}, required=("version",))


def process(row: Sequence[int]) -> Process:
    """Return the process in a field."""
    return Process(*row)


NO_PROCESS = Process(0, 0)
"""A process that has ended, for a record that does not tell it."""


def table_key(row: Sequence[str]) -> TableKey:
    """Return the key of a record's machine."""
    return TableKey(*row)


def check_id(text: str) -> None:
    """Check an id, which will be part of file names and be shown on terminals.

    Raises:
        FieldError: the text is no lease's id.
    """
    if not (text.isascii() and text.isalnum()):
        raise FieldError(("id",), f"id: {text!r} is no lease's id")


def known_time(found: str) -> str:
    """Return a time if it is ISO 8601, UTC, whole seconds; else UNKNOWN_TIME."""
    is_time = found.translate(_DIGITS_AS_ZERO) == "0000-00-00T00:00:00Z"
    return found if is_time else UNKNOWN_TIME


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
    command, room = document.get("command", ()), most_bytes
    document["command"] = shortened(command, room)
    while len(json.dumps(document)) > most_bytes and room > 1:
        room //= 2
        document["command"] = shortened(command, room)
    return document


def encode(
    record: Record, *, without: Collection[str] = (), as_rows: Collection[str] = ()
) -> dict[str, Any]:
    """Return the fields that differ from their defaults; records in them as tables or rows.

    Args:
        record: what is to be written.
        without: fields to leave out, of records in it, too.
        as_rows: fields whose records are written as lists.
    """
    defaults = default_values(record.__class__)
    document: dict[str, Any] = {}
    for name, value in as_dict(record).items():
        if name in without or (name in defaults and value == defaults[name]):
            continue
        if isinstance(value, Record):
            document[name] = as_list(value) if name in as_rows else encode(value, without=without)
        elif isinstance(value, tuple):
            document[name] = [as_list(one) if isinstance(one, Record) else one for one in value]
        else:
            document[name] = value
    return document


def decode(
    cls: type[R],
    document: object,
    rules: FieldTable,
    *,
    needed: Collection[str] = (),
    certain: Collection[str] = (),
    readers: Readers = _NO_READERS,
    where: tuple[str, ...] = (),
    **own: object,
) -> R:
    """Return the record that a document of this version or another describes.

    Args:
        cls: class of the record.
        document: content of the file.
        rules: rule of each field that a document may have.
        needed: fields that must be there.
        certain: fields that must be understood if they are there.
        readers: functions that make a field's value from what the document has.
        where: path of the document in its file, for messages.
        own: fields that are not in the document.

    Raises:
        FieldError: a needed field is missing or wrong.
    """
    if not isinstance(document, Mapping):
        raise FieldError(where, f"{document!r} is not a table")
    fields = dict(own)
    for name, rule in rules.items():
        value = document.get(name)
        if value is None and name not in needed:
            continue
        try:
            given = {} if value is None else {name: value}
            found = checked(given, {name: rule}, required=(name,), where=where)[name]
            read = readers.get(name, tuple if isinstance(rule, ListOf) else None)
            fields[name] = read(found) if read else found
        except FieldError:
            if name in needed or name in certain:
                raise
    return cls(**fields)
