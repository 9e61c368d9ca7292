"""The Ticket record: a place in the queue, and its document."""
# pure: decides on plain values

from collections.abc import Collection
from typing import Any

from gpulaunch.files.fields import FieldTable, ListOf
from gpulaunch.leases.record_fields import (
    PROCESS,
    TABLE_KEY,
    VERSION,
    check_id,
    cut_command,
    process_of,
    read_fields,
    table_key_of,
    time_of,
)
from gpulaunch.machine.table_key import TableKey
from gpulaunch.process.identity import Process
from gpulaunch.records import Record, as_dict, as_list, replace

MAX_NUMBER = 1 << 30
"""Bound of ticket numbers that no queue reaches: larger ones are forged, and are not counted."""


class Ticket(Record):
    """A place in the queue.

    Attributes:
        id: id of the lease that it will become.
        number: number given under the host-wide lock, which orders tickets of one instant.
        user_id: owner of the record's file; it is not in the record itself.
        table: key of the described machine; None for this machine's own GPUs.
        within: id of the lease that the GPUs are to be taken from, or None.
        uuids: UUIDs of the GPUs that would do.
        gpus: number of GPUs that are needed.
        passable_until_s: time, in seconds since boot, until which others may pass if this one is
            choosy.
        launcher: the gpulaunch process.
        command: what is published of the job's command; undecodable bytes are surrogates.
        profile: name of its profile, or None.
        name: name that the user gave the job, or None.
        since: when it joined the queue, ISO 8601, UTC.
        boot_id: boot id of the kernel that the process runs under.
        choosy: whether it may wait although enough GPUs are free, because together they do not meet
            its wishes.
        ends_within_s: seconds within which its job will have ended for certain once it has started,
            or None.
        in_order: whether it passes nobody, and nobody may pass it.
        may_join: whether it may share GPUs that are in use.
        step: title of its step of a cluster engine, if the step's ranks divide GPUs; the first rank
            that starts takes those of all. Empty for others.
        linked_ns: change time of the record's file, in nanoseconds since 1970: when it got its
            name. It is not in the record itself, whose owner could choose it.
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
    ends_within_s: float | None = None
    in_order: bool = False
    may_join: bool = False
    step: str = ""
    linked_ns: int = 0

    @property
    def place(self) -> tuple[int, int, str]:
        """What orders the queue: the kernel's time of joining it; the number if that is equal."""
        return self.linked_ns, self.number, self.id

    def among(self, uuids: Collection[str]) -> "Ticket":
        """Return the ticket for only those of its GPUs that are among these.

        Another user wrote it, and may have named GPUs that the machine does not have.
        """
        own = tuple(uuid for uuid in self.uuids if uuid in uuids)
        return self if own == self.uuids else replace(self, uuids=own)

    def to_document(self) -> dict[str, Any]:
        """Return the document of the record's file."""
        document = as_dict(self)
        del document["user_id"], document["linked_ns"]
        document["table"] = as_list(self.table) if self.table else None
        document["launcher"] = as_list(self.launcher)
        for key in ("ends_within_s", "in_order", "may_join", "step"):
            if not document[key]:  # the first reader knows no such keys
                del document[key]
        return cut_command(document | {"version": VERSION})


_NEEDED: FieldTable = {
    "version": (1, VERSION),
    "id": str,
    "number": (1, MAX_NUMBER),
    "uuids": ListOf(str),
    "gpus": (1, 1 << 31),
}
_NEEDED_IF_GIVEN: FieldTable = {"table": TABLE_KEY, "within": str}
_OTHERS: FieldTable = {
    "passable_until_s": (0.0, float(1 << 53)),
    "launcher": PROCESS,
    "command": ListOf(str),
    "since": str,
    "boot_id": str,
    "profile": str,
    "name": str,
    "choosy": bool,
    "ends_within_s": (0.0, float(1 << 53)),
    "in_order": bool,
    "may_join": bool,
    "step": str,
}


def parse_ticket(document: object, user_id: int, linked_ns: int = 0) -> Ticket:
    """Return the ticket of a document of Ticket.to_document, of this version or another.

    Args:
        document: content of the record.
        user_id: owner of its file.
        linked_ns: change time of its file, in nanoseconds since 1970.

    Raises:
        FieldError: it is no such document, or needs a later version.
    """
    ticket = read_fields(document, _NEEDED, _NEEDED_IF_GIVEN, _OTHERS)
    check_id(ticket["id"])
    return Ticket(
        id=ticket["id"],
        number=ticket["number"],
        user_id=user_id,
        table=table_key_of(ticket),
        within=ticket.get("within"),
        uuids=tuple(ticket["uuids"]),
        gpus=ticket["gpus"],
        passable_until_s=ticket.get("passable_until_s", 0.0),
        launcher=process_of(ticket, "launcher"),
        command=tuple(ticket.get("command", ())),
        profile=ticket.get("profile"),
        name=ticket.get("name"),
        since=time_of(ticket, "since"),
        boot_id=ticket.get("boot_id", ""),
        choosy=ticket.get("choosy", False),
        ends_within_s=ticket.get("ends_within_s"),
        in_order=ticket.get("in_order", False),
        may_join=ticket.get("may_join", False),
        step=ticket.get("step", ""),
        linked_ns=linked_ns,
    )
