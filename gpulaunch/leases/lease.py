"""The Lease record: the right of a job to use GPUs, and its document."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.errors import FieldError
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
from gpulaunch.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.leases.share import Share


class Lease(Record):
    """The right of a job to use GPUs.

    Attributes:
        id: random id, never used again.
        user_id: owner of the record's file; it is not in the record itself.
        table: key of the described machine; None for this machine's own GPUs.
        uuids: UUIDs of the GPUs, in rank order.
        launcher: the gpulaunch process.
        job: the process that it started; the launcher itself if a Python program holds the lease.
        command: command of the job, as given; undecodable bytes are surrogates.
        profile: name of its profile, or None.
        assumed: names of the request's values that were assumed.
        name: name that the user gave the job, or None.
        started_at: ISO 8601, UTC.
        ancestors: ids of the lease that this one was taken from, of that lease's parent, and so on.
        boot_id: boot id of the kernel that the processes ran under.
        engine: id of the container engine that runs the job's container, which may outlive both
            processes; None for a job that is a process here.
        container: id of a container that is older than the lease; None if the container has the
            lease's id on its label.
        host_gb_per_s: traffic of each GPU's process in the memory of its socket; 0 if unknown.
        apart_from: names of jobs, or of their profiles, to keep off its sockets.
        share: its part of the GPUs; None if it has them alone.
        clock_s: when it began, in seconds since boot, by which leases are ordered; 0 if unknown.
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
    engine: str | None = None
    container: str | None = None
    host_gb_per_s: float = 0.0
    apart_from: tuple[str, ...] = ()
    share: "Share | None" = None
    clock_s: float = 0.0

    @property
    def insiders(self) -> tuple[int, int]:
        """The ids of users that can launch inside it: its owner, and root in containers."""
        return self.user_id, 0

    def to_document(self) -> dict[str, Any]:
        """Return the document of the record's file."""
        document = as_dict(self)
        del document["user_id"]
        document["table"] = as_list(self.table) if self.table else None
        document["launcher"] = as_list(self.launcher)
        document["job"] = as_list(self.job)
        document["command"] = shortened(self.command)
        if self.share:
            from gpulaunch.leases.share import share_document  # late: few launches share

            document["share"] = share_document(self.share)
        else:
            del document["share"]
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
_OPTIONAL: FieldTable = {
    "table": list,
    "profile": str,
    "name": str,
    "engine": str,
    "container": str,
    "host_gb_per_s": (0.0, 1e6),
    "apart_from": list,
    "share": dict,
    "clock_s": (0.0, float(1 << 53)),
}


def parse_lease(document: object, user_id: int) -> Lease:
    """Return the lease of a document of Lease.to_document.

    Raises:
        FieldError: it is no such document, or one of another version.
    """
    lease = checked(
        without_none(document, _OPTIONAL), {**_LEASE, **_OPTIONAL}, required=tuple(_LEASE)
    )
    for lease_id in (lease["id"], *texts_of(lease, "ancestors")):
        check_id(lease_id)
    check_time(lease, "started_at")
    return Lease(
        id=lease["id"],
        user_id=user_id,
        table=read_table_key(lease),
        uuids=texts_of(lease, "uuids"),
        launcher=process_of(lease, "launcher"),
        job=process_of(lease, "job"),
        command=texts_of(lease, "command"),
        profile=lease.get("profile"),
        assumed=texts_of(lease, "assumed"),
        name=lease.get("name"),
        started_at=lease["started_at"],
        ancestors=texts_of(lease, "ancestors"),
        boot_id=lease["boot_id"],
        engine=lease.get("engine"),
        container=lease.get("container"),
        host_gb_per_s=lease.get("host_gb_per_s", 0.0),
        apart_from=texts_of(lease, "apart_from") if "apart_from" in lease else (),
        share=_parse_share(lease["share"], texts_of(lease, "uuids")) if "share" in lease else None,
        clock_s=lease.get("clock_s", 0.0),
    )


def _parse_share(document: object, uuids: Sequence[str]) -> "Share":
    """Return the share of a lease.

    Raises:
        FieldError: it is no share, or its group lacks one of the lease's GPUs.
    """
    from gpulaunch.leases.share import parse_share  # late: few leases have one

    share = parse_share(document)
    if not set(uuids) <= set(share.group):
        raise FieldError(
            ("share", "group"), f"group: {list(share.group)!r} has not all of {list(uuids)!r}"
        )
    return share
