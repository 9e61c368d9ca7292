"""The Ticket record: a place in the queue, and its document."""
# pure: decides on plain values

from collections.abc import Collection
from typing import Any

from gpulaunch.files.fields import FieldTable, ListOf
from gpulaunch.leases.record_fields import (
    NO_PROCESS,
    PROCESS,
    TABLE_KEY,
    UNKNOWN_TIME,
    VERSION,
    Readers,
    check_id,
    check_version,
    cut_command,
    decode,
    encode,
    known_time,
    process,
    table_key,
)
from gpulaunch.machine.topology import TableKey
from gpulaunch.process.identity import Process
from gpulaunch.records import Record, replace

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
    uuids: tuple[str, ...]
    gpus: int
    table: TableKey | None = None
    within: str | None = None
    passable_until_s: float = 0.0
    launcher: Process = NO_PROCESS
    command: tuple[str, ...] = ()
    profile: str | None = None
    name: str | None = None
    since: str = UNKNOWN_TIME
    boot_id: str = ""
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
        document = encode(self, without=("user_id", "linked_ns"), as_rows=("table", "launcher"))
        return cut_command(document | {"version": VERSION})


_NEEDED = ("id", "number", "uuids", "gpus")
_CERTAIN = ("table", "within")
_LONG = (0.0, float(1 << 53))
_RULES: FieldTable = {
    "id": str,
    "number": (1, MAX_NUMBER),
    "uuids": ListOf(str),
    "gpus": (1, 1 << 31),
    "table": TABLE_KEY,
    "within": str,
    "passable_until_s": _LONG,
    "launcher": PROCESS,
    "command": ListOf(str),
    "since": str,
    "boot_id": str,
    "profile": str,
    "name": str,
    "choosy": bool,
    "ends_within_s": _LONG,
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
    check_version(document)
    readers: Readers = {"table": table_key, "launcher": process, "since": known_time}
    ticket = decode(
        Ticket,
        document,
        _RULES,
        needed=_NEEDED,
        certain=_CERTAIN,
        readers=readers,
        user_id=user_id,
        linked_ns=linked_ns,
    )
    check_id(ticket.id)
    return ticket
