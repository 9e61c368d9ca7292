"""The Lease record: the right of a job to use GPUs, and its document."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import FieldTable, ListOf
from gpulaunch.leases.record_fields import (
    MAX_UNLOCKED_BYTES,
    PROCESS,
    TABLE_KEY,
    VERSION,
    WRITTEN_BYTES,
    check_id,
    cut_command,
    process_of,
    read_fields,
    table_key_of,
    time_of,
)
from gpulaunch.machine.table_key import TableKey
from gpulaunch.process.identity import Process
from gpulaunch.records import Record, as_dict, as_list

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.leases.engine_job import EngineJob
    from gpulaunch.leases.share import Share

IDLE_AFTER_S = 1800.0
"""Seconds after which a lease whose GPUs do nothing is said to be idle, unless set."""


class Lease(Record):
    """The right of a job to use GPUs.

    Attributes:
        id: random id, never used again.
        user_id: owner of the record's file; it is not in the record itself.
        table: key of the described machine; None for this machine's own GPUs.
        uuids: UUIDs of the GPUs, in rank order.
        launcher: the gpulaunch process.
        job: the process that it started; the launcher itself if a Python program holds the lease.
        command: what is published of the job's command; undecodable bytes are surrogates.
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
        time_limit_s: seconds after which its job is ended, or None.
        ends_within_s: seconds within which the job has ended for certain, or None.
        ends_with_launcher: whether its container is to be ended when nobody looks after it any
            more, as that of a cancelled CI job.
        engine_job: the job of a cluster engine that it belongs to, or None.
        watches_use: whether its launcher looks at what the GPUs do, and sets the modification time
            of the record's file whenever they are busy.
        busy_s: that time, in seconds since 1970. It is not in the record itself.
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
    time_limit_s: float | None = None
    ends_within_s: float | None = None
    ends_with_launcher: bool = False
    engine_job: "EngineJob | None" = None
    watches_use: bool = False
    busy_s: float = 0.0

    def __eq__(self, other: object) -> bool:
        """Compare all but busy_s, which goes on while the lease stays the same."""
        return isinstance(other, Lease) and as_dict(self) == as_dict(other) | {
            "busy_s": self.busy_s
        }

    def __hash__(self) -> int:
        """Hash the id, which is never used again."""
        return hash(self.id)

    @property
    def ends_s(self) -> float:
        """When the job has ended for certain, in seconds since boot; infinity without a limit."""
        return float("inf") if self.ends_within_s is None else self.clock_s + self.ends_within_s

    @property
    def insiders(self) -> tuple[int, int]:
        """The ids of users that can launch inside it: its owner, and root in containers."""
        return self.user_id, 0

    def is_of(self, job: "EngineJob | None") -> bool:
        """Return whether it belongs to this job or step of a cluster engine, on this node."""
        own = self.engine_job
        return (
            own is not None
            and job is not None
            and (own.title, self.user_id) == (job.title, job.user_id)
            and not own.is_elsewhere(job)
        )

    def held_from(self, job: "EngineJob | None") -> Sequence[str]:
        """Return the UUIDs of the GPUs that it keeps from a launch.

        The first rank of a step takes the GPUs of all ranks on its node out of the reach of others.
        Where a cluster engine says who uses a GPU together, nobody is kept from it. A rank on
        another node has GPUs of that node.

        Args:
            job: the engine's job that the launch is part of, or None.
        """
        own = self.engine_job
        if own is None:
            return self.uuids
        if job is not None and (own.is_elsewhere(job) or (own.shared and job.shared)):
            return ()
        if job is not None and self.is_of(job):
            return () if own.bound and job.bound else self.uuids
        return own.group or self.uuids

    def to_document(self) -> dict[str, Any]:
        """Return the document of the record's file."""
        document = as_dict(self)
        del document["user_id"], document["busy_s"]
        document["table"] = as_list(self.table) if self.table else None
        document["launcher"] = as_list(self.launcher)
        document["job"] = as_list(self.job)
        if self.share:
            from gpulaunch.leases.share import share_document  # late: few launches share

            document["share"] = share_document(self.share)
        else:
            del document["share"]
        if self.engine_job:
            from gpulaunch.leases.engine_job import engine_job_document  # late, likewise

            document["engine_job"] = engine_job_document(self.engine_job)
        else:
            del document["engine_job"]
        for key in ("time_limit_s", "ends_within_s", "ends_with_launcher", "watches_use"):
            if document[key] is None or document[key] is False:  # as read without the key
                del document[key]
        document["version"] = VERSION
        return cut_command(document, MAX_UNLOCKED_BYTES if self.engine else WRITTEN_BYTES)


_NEEDED: FieldTable = {
    "version": (1, VERSION),
    "id": str,
    "uuids": ListOf(str),
    "ancestors": ListOf(str),
}
_NEEDED_IF_GIVEN: FieldTable = {"table": TABLE_KEY, "engine": str, "container": str}
_OTHERS: FieldTable = {
    "launcher": PROCESS,
    "job": PROCESS,
    "command": ListOf(str),
    "assumed": ListOf(str),
    "started_at": str,
    "boot_id": str,
    "profile": str,
    "name": str,
    "host_gb_per_s": (0.0, 1e6),
    "apart_from": ListOf(str),
    "share": dict,
    "clock_s": (0.0, float(1 << 53)),
    "time_limit_s": (0.0, float(1 << 53)),
    "ends_within_s": (0.0, float(1 << 53)),
    "ends_with_launcher": bool,
    "engine_job": dict,
    "watches_use": bool,
}


def parse_lease(document: object, user_id: int, busy_s: float = 0.0) -> Lease:
    """Return the lease of a document of Lease.to_document, of this version or another.

    Args:
        document: content of the record.
        user_id: owner of its file.
        busy_s: modification time of its file, in seconds since 1970.

    Raises:
        FieldError: it is no such document, or needs a later version.
    """
    lease = read_fields(document, _NEEDED, _NEEDED_IF_GIVEN, _OTHERS)
    for lease_id in (lease["id"], *lease["ancestors"]):
        check_id(lease_id)
    return Lease(
        id=lease["id"],
        user_id=user_id,
        table=table_key_of(lease),
        uuids=tuple(lease["uuids"]),
        launcher=process_of(lease, "launcher"),
        job=process_of(lease, "job"),
        command=tuple(lease.get("command", ())),
        profile=lease.get("profile"),
        assumed=tuple(lease.get("assumed", ())),
        name=lease.get("name"),
        started_at=time_of(lease, "started_at"),
        ancestors=tuple(lease["ancestors"]),
        boot_id=lease.get("boot_id", ""),
        engine=lease.get("engine"),
        container=lease.get("container"),
        host_gb_per_s=lease.get("host_gb_per_s", 0.0),
        apart_from=tuple(lease.get("apart_from", ())),
        share=_parse_share(lease["share"], lease["uuids"]) if "share" in lease else None,
        clock_s=lease.get("clock_s", 0.0),
        time_limit_s=lease.get("time_limit_s"),
        ends_within_s=lease.get("ends_within_s"),
        ends_with_launcher=lease.get("ends_with_launcher", False),
        engine_job=_parse_engine_job(lease["engine_job"], user_id)
        if "engine_job" in lease
        else None,
        watches_use=lease.get("watches_use", False),
        busy_s=busy_s,
    )


def _parse_engine_job(document: Mapping[str, Any], user_id: int) -> "EngineJob | None":
    """Return the engine's job of a lease; None if it is not understood."""
    from gpulaunch.leases.engine_job import parse_engine_job  # late: few leases have one

    with suppress(FieldError):
        return parse_engine_job(document, user_id)
    return None


def _parse_share(document: object, uuids: Sequence[str]) -> "Share | None":
    """Return the share of a lease; None, as if it had its GPUs alone, if it is not understood."""
    from gpulaunch.leases.share import parse_share  # late: few leases have one

    with suppress(FieldError):
        share = parse_share(document)
        if set(uuids) <= set(share.group):
            return share
    return None
