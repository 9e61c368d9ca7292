"""The Ticket record: a place in the queue, and its document."""
# pure: decides on plain values

from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.leases.record_fields import (
    VERSION,
    check_id,
    check_time,
    process_of,
    read_table_key,
    shortened,
    texts_of,
    without_none,
)
from gpulaunch.machine.table_key import TableKey
from gpulaunch.process.identity import Process
from gpulaunch.records import Record, as_dict, as_list
from gpulaunch.typing import Any

MAX_NUMBER = 1 << 30
"""Bound of ticket numbers that no queue reaches: larger ones are forged, and are not counted."""


class Ticket(Record):
    """A place in the queue.

    Attributes:
        id: id of the lease that it will become.
        number: its place in the queue; smaller numbers come first.
        user_id: owner of the record's file; it is not in the record itself.
        table: key of the described machine; None for this machine's own GPUs.
        within: id of the lease that the GPUs are to be taken from, or None.
        uuids: UUIDs of the GPUs that would do.
        gpus: number of GPUs that are needed.
        passable_until_s: time, in seconds since boot, until which a smaller request may pass while
            this one cannot start, and any request if this one is choosy.
        launcher: the gpulaunch process.
        command: command of the job, as given; undecodable bytes are surrogates.
        profile: name of its profile, or None.
        name: name that the user gave the job, or None.
        since: when it joined the queue, ISO 8601, UTC.
        boot_id: boot id of the kernel that the process runs under.
        choosy: whether it may wait although enough GPUs are free, because together they do not meet
            its wishes.
    """

    id: str
    number: int
    user_id: int
    table: TableKey | None
    within: str | None
    uuids: tuple[str, ...]
    gpus: int
    passable_until_s: float
    launcher: Process
    command: tuple[str, ...]
    profile: str | None
    name: str | None
    since: str
    boot_id: str
    choosy: bool = False

    def to_document(self) -> dict[str, Any]:
        """Return the document of the record's file."""
        document = as_dict(self)
        del document["user_id"]
        document["table"] = as_list(self.table) if self.table else None
        document["launcher"] = as_list(self.launcher)
        document["command"] = shortened(self.command)
        return document | {"version": VERSION}


_TICKET: FieldTable = {
    "version": (VERSION, VERSION),
    "id": str,
    "number": (1, MAX_NUMBER),
    "uuids": list,
    "gpus": (1, 1 << 31),
    "passable_until_s": (0.0, float(1 << 53)),
    "launcher": list,
    "command": list,
    "since": str,
    "boot_id": str,
}
_OPTIONAL = {"table": list, "within": str, "profile": str, "name": str, "choosy": bool}


def parse_ticket(document: object, user_id: int) -> Ticket:
    """Return the ticket of a document of Ticket.to_document.

    Raises:
        FieldError: it is no such document, or one of another version.
    """
    ticket = checked(
        without_none(document, _OPTIONAL), {**_TICKET, **_OPTIONAL}, required=tuple(_TICKET)
    )
    check_id(ticket["id"])
    check_time(ticket, "since")
    return Ticket(
        id=ticket["id"],
        number=ticket["number"],
        user_id=user_id,
        table=read_table_key(ticket),
        within=ticket.get("within"),
        uuids=texts_of(ticket, "uuids"),
        gpus=ticket["gpus"],
        passable_until_s=ticket["passable_until_s"],
        launcher=process_of(ticket, "launcher"),
        command=texts_of(ticket, "command"),
        profile=ticket.get("profile"),
        name=ticket.get("name"),
        since=ticket["since"],
        boot_id=ticket["boot_id"],
        choosy=ticket.get("choosy", False),
    )
