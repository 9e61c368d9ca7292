"""The Lease record: the right of a job to use GPUs, and its document."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from typing import Any

from gpulaunch.files.fields import FieldTable, ListOf
from gpulaunch.leases.engine_job import EngineJob, parse_engine_job
from gpulaunch.leases.record_fields import (
    MAX_UNLOCKED_BYTES,
    NO_PROCESS,
    PROCESS,
    TABLE_KEY,
    UNKNOWN_TIME,
    VERSION,
    WRITTEN_BYTES,
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
from gpulaunch.leases.share import Share, parse_share, share_document
from gpulaunch.machine.topology import TableKey
from gpulaunch.process.identity import Process
from gpulaunch.records import Record, as_dict, replace

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
    uuids: tuple[str, ...]
    ancestors: tuple[str, ...]
    table: TableKey | None = None
    launcher: Process = NO_PROCESS
    job: Process = NO_PROCESS
    command: tuple[str, ...] = ()
    profile: str | None = None
    assumed: tuple[str, ...] = ()
    name: str | None = None
    started_at: str = UNKNOWN_TIME
    boot_id: str = ""
    engine: str | None = None
    container: str | None = None
    host_gb_per_s: float = 0.0
    apart_from: tuple[str, ...] = ()
    share: Share | None = None
    clock_s: float = 0.0
    time_limit_s: float | None = None
    ends_within_s: float | None = None
    ends_with_launcher: bool = False
    engine_job: EngineJob | None = None
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

    def is_of(self, job: EngineJob | None) -> bool:
        """Return whether it belongs to this job or step of a cluster engine, on this node."""
        own = self.engine_job
        return (
            own is not None
            and job is not None
            and (own.title, self.user_id) == (job.title, job.user_id)
            and not own.is_elsewhere(job)
        )

    def held_from(self, job: EngineJob | None) -> Sequence[str]:
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
        rows = ("table", "launcher", "job")
        document = encode(self, without=("user_id", "busy_s", "share"), as_rows=rows)
        if self.share:
            document["share"] = share_document(self.share)
        document["version"] = VERSION
        return cut_command(document, MAX_UNLOCKED_BYTES if self.engine else WRITTEN_BYTES)


_NEEDED = ("id", "uuids", "ancestors")
_CERTAIN = ("table", "engine", "container")
_LONG = (0.0, float(1 << 53))
_RULES: FieldTable = {
    "id": str,
    "uuids": ListOf(str),
    "ancestors": ListOf(str),
    "table": TABLE_KEY,
    "engine": str,
    "container": str,
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
    "clock_s": _LONG,
    "time_limit_s": _LONG,
    "ends_within_s": _LONG,
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
    check_version(document)
    readers: Readers = {
        "table": table_key,
        "launcher": process,
        "job": process,
        "started_at": known_time,
        "share": parse_share,
        "engine_job": lambda job: parse_engine_job(job, user_id),
    }
    lease = decode(
        Lease,
        document,
        _RULES,
        needed=_NEEDED,
        certain=_CERTAIN,
        readers=readers,
        user_id=user_id,
        busy_s=busy_s,
    )
    for lease_id in (lease.id, *lease.ancestors):
        check_id(lease_id)
    if lease.share and not set(lease.uuids) <= set(lease.share.group):
        return replace(lease, share=None)
    return lease


def share_groups(leases: Iterable[Lease]) -> dict[tuple[str, ...], list[Lease]]:
    """Return the jobs that share GPUs, by the UUIDs of their share group.

    A launch inside a member is part of what that member uses.
    """
    groups: dict[tuple[str, ...], list[Lease]] = {}
    for lease in leases:
        if lease.share:
            groups.setdefault(lease.share.group, []).append(lease)
    return {
        group: [lease for lease in members if not is_inside(lease, members)]
        for group, members in groups.items()
    }


def is_inside(lease: Lease, others: Sequence[Lease]) -> bool:
    """Return whether a lease was taken from one of the others, or from a lease inside one."""
    return any(other.id in lease.ancestors for other in others)
