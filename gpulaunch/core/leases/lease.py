"""The right to use GPUs, as a record that can be written down."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpulaunch.core.fields import FieldTable, checked
from gpulaunch.errors import FieldError

VERSION = 1
"""Of the record's format. A live record with another version cannot be understood, so it stops decisions."""

MAX_COMMAND_CHARACTERS = 16384


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same number.

    Attributes:
        pid: as seen where the record was written.
        start_time: in clock ticks since boot; 0 if unknown.
    """

    pid: int
    start_time: int


class TableKey(NamedTuple):
    """Which machine's GPUs a lease is about: a described machine. This machine's own have no key (None).

    Attributes:
        name: of the described machine.
        digest: of its description.
        file: its description, so that a launch inside the lease finds it again.
    """

    name: str
    digest: str
    file: str


def same_table(a: TableKey | None, b: TableKey | None) -> bool:
    """Whether two keys mean the same machine, wherever its description lies; None is this machine's own GPUs."""
    return a is b is None or (a is not None and b is not None and (a.name, a.digest) == (b.name, b.digest))


class Lease(NamedTuple):
    """Who has which GPUs.

    Attributes:
        id: random, never used again.
        user_id: owner of the record's file; it is not in the record itself.
        table: None for this machine's own GPUs.
        uuids: the GPUs, in rank order.
        launcher: the gpulaunch process.
        job: the process that it started.
        command: the job's, as given; undecodable bytes are surrogates.
        profile: name, or None.
        assumed: what of the request was assumed.
        name: that the user gave the job, or None.
        started_at: ISO 8601, UTC.
        ancestors: ids of the lease that this one was taken from, of the one that that was taken from, and so on.
        boot_id: of the kernel that the processes ran under.
    """

    id: str
    user_id: int
    table: TableKey | None
    uuids: tuple[str, ...]
    launcher: Process
    job: Process
    command: tuple[str, ...]
    profile: str | None
    assumed: tuple[str, ...]
    name: str | None
    started_at: str
    ancestors: tuple[str, ...]
    boot_id: str

    def to_document(self) -> dict[str, Any]:
        """What is written to the record."""
        document = self._asdict()
        del document["user_id"]
        document["command"] = _shortened(self.command)
        return document | {"version": VERSION}


_LEASE: FieldTable = {
    "version": (VERSION, VERSION),
    "id": str,
    "uuids": list,
    "launcher": list,
    "job": list,
    "command": list,
    "assumed": list,
    "ancestors": list,
    "started_at": str,
    "boot_id": str,
}
_OPTIONAL = {"table": list, "profile": str, "name": str}


def parse_lease(document: object, user_id: int) -> Lease:
    """Read what Lease.to_document wrote.

    Raises:
        FieldError: this is no such document, or one of another version.
    """
    if not isinstance(document, Mapping):
        raise FieldError((), f"{document!r} is not a table")
    present = {key: value for key, value in document.items() if value is not None or key not in _OPTIONAL}
    lease = checked(present, {**_LEASE, **_OPTIONAL}, required=tuple(_LEASE))
    table = _texts(lease, "table", length=3) if "table" in lease else None
    for lease_id in (lease["id"], *_texts(lease, "ancestors")):
        if not (lease_id.isascii() and lease_id.isalnum()):
            raise FieldError(("id",), f"id: {lease_id!r} is no lease's id")
    found = lease["started_at"]
    if not found.isascii() or "".join("0" if c.isdigit() else c for c in found) != "0000-00-00T00:00:00Z":
        raise FieldError(("started_at",), f"started_at: {found!r} is no time such as 2026-01-31T23:59:59Z")
    return Lease(
        id=lease["id"],
        user_id=user_id,
        table=TableKey(*table) if table else None,
        uuids=_texts(lease, "uuids"),
        launcher=_process(lease, "launcher"),
        job=_process(lease, "job"),
        command=_texts(lease, "command"),
        profile=lease.get("profile"),
        assumed=_texts(lease, "assumed"),
        name=lease.get("name"),
        started_at=lease["started_at"],
        ancestors=_texts(lease, "ancestors"),
        boot_id=lease["boot_id"],
    )


def _texts(document: Mapping[str, Any], key: str, length: int | None = None) -> tuple[str, ...]:
    values = document[key]
    if any(not isinstance(value, str) for value in values) or length not in (None, len(values)):
        raise FieldError((key,), f"{key}: {values!r} is no list of texts")
    return tuple(values)


def _process(document: Mapping[str, Any], key: str) -> Process:
    values = document[key]
    if len(values) != 2 or any(type(value) is not int or value < 0 for value in values):
        raise FieldError((key,), f"{key}: {values!r} is not [pid, start time]")
    return Process(*values)


def _shortened(command: Sequence[str]) -> list[str]:
    """The command, cut after MAX_COMMAND_CHARACTERS: a record is read by every launcher of the machine."""
    kept: list[str] = []
    room = MAX_COMMAND_CHARACTERS
    for argument in command:
        if len(argument) > room:
            return [*kept, argument[: max(room, 0)] + "..."]
        kept.append(argument)
        room -= len(argument) + 1
    return kept
