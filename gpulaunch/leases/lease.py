"""The records of the table: leases with their shares, and tickets, each with its document."""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import Above, FieldTable, ListOf, RowOf, TableOf
from gpulaunch.leases.record import (
    MAX_UNLOCKED_BYTES,
    NO_PROCESS,
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
    rules_of,
)
from gpulaunch.machine.topology import TableKey
from gpulaunch.process import Process
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.records import Record, as_dict, as_list, replace

_MOST_RANKS = 1 << 31


class EngineJob(Record):
    """The job, or the step of a job, of a cluster engine that a launch is part of.

    Attributes:
        id: id of the job or step there, such as "4711.0".
        user_id: the user whose job it is; not in the document, as a lease's owner is not.
        rank: number of the launch's rank in the step, or None.
        local_rank: its number among the step's ranks on this node.
        group: UUIDs of the GPUs of all these ranks, in the order of local ranks; empty if the GPUs
            are not divided among ranks.
        shared: whether the engine gives the GPUs to several jobs at once.
        bound: whether the engine has said which rank uses which GPU.
        node: name of the launch's node there; empty if the engine does not tell it.
    """

    engine: str
    id: str
    user_id: int
    rank: int | None = None
    local_rank: int = 0
    ranks: int = 1
    group: tuple[str, ...] = ()
    shared: bool = False
    bound: bool = False
    node: str = ""

    @property
    def title(self) -> str:
        """Engine and id, as in messages."""
        return f"{self.engine} {self.id}"

    @property
    def is_divided(self) -> bool:
        """Whether the ranks of the step on this node divide GPUs among themselves."""
        return self.ranks > 1 and not self.bound

    def is_elsewhere(self, other: "EngineJob") -> bool:
        """Return whether another rank of this step is on another node, with the same table."""
        # Another step or engine may have another name for this very node.
        same = (self.title, self.user_id) == (other.title, other.user_id)
        return same and bool(self.node and other.node) and self.node != other.node


_NUMBER = (0, _MOST_RANKS)
_ENGINE_JOB = rules_of(
    EngineJob, without=("user_id",), rank=_NUMBER, local_rank=_NUMBER, ranks=(1, _MOST_RANKS)
)


OBJECTIVES = ("throughput", "energy", "product")
"""Objectives for which jobs may share a GPU (mps-sharing-2024 IV.B and IV.C)."""


class Objective(Record):
    """The purpose of sharing.

    Attributes:
        throughput_weight: exponent of throughput in the product.
        energy_weight: exponent of energy in the product.
        throughput_tolerance_percentage: largest part of its speed that the client is predicted to
            lose to its neighbours. Our choice: 20 is the most that the model predicts while SM
            utilization sums to 100 %, so that by default the paper's bounds decide there.
    """

    name: Literal["throughput", "energy", "product"] = "throughput"
    throughput_weight: float = 1.0
    energy_weight: float = 1.0
    throughput_tolerance_percentage: float = 20.0


class Client(Record):
    """A job as one of several on a GPU.

    Attributes:
        slowdowns: measured time beside another client / time alone - 1, by the name of the other
            client's demand.
        on_one_gpu: names whose slowdown was measured with both on one GPU, not one socket.
    """

    demand: Demand
    objective: Objective = Objective()
    slowdowns: Mapping[str, float] = {}
    on_one_gpu: tuple[str, ...] = ()


class Share(Record):
    """The part of its GPUs that a client of MPS has; it is fixed while the client runs.

    Attributes:
        group: UUIDs of the GPUs of its share group, ascending, equal for all members.
        sm_percentage: its active thread percentage, 1-100, a cap.
        bandwidth_sensitive: whether it depends on the links between them.
        client: the demand and objective that the other clients have to consider.
        pipe_directory: directory of its MPS daemon; None on a described machine, which has none.
        guest: whether its kernels come after those of the other clients (MPS client priority).
        promised_pace: speed predicted at its start beside the jobs that were there, as a part of
            its speed alone; None if unknown.
    """

    group: tuple[str, ...]
    sm_percentage: int
    bandwidth_sensitive: bool
    client: Client
    pipe_directory: str | None = None
    guest: bool = False
    promised_pace: float | None = None


_SHARE = rules_of(Share, without=("client",), sm_percentage=(1, 100), promised_pace=(0.0, 1.0))
_CLIENT: FieldTable = {
    "demand": dict,
    "objective": dict,
    "slowdowns": TableOf((0.0, 1e4)),
    "on_one_gpu": ListOf(str),
}
_DEMAND: FieldTable = {
    "name": str,
    "sm_utilization_percentage": (0.0, 100.0),
    "memory_bandwidth_utilization_percentage": (0.0, 100.0),
    "memory_bytes": (0, 1 << 62),
    "power_w": (0.0, 1e5),
    "curve": ListOf(RowOf(Above(0.0, 100.0), Above(0.0, 1e15))),
    "intensity": ("memory", "compute"),
    "utilization": ("share", "time-active"),
    "busy_percentage": (0.0, 100.0),
    "feels": (0.0, 1000.0),
    "presses": (0.0, 1000.0),
}
_OBJECTIVE: FieldTable = {
    "name": OBJECTIVES,
    "throughput_weight": (0.0, 1e6),
    "energy_weight": (0.0, 1e6),
    "throughput_tolerance_percentage": (0.0, 100.0),
}
_MOST_CHARACTERS = 100


def share_document(share: Share) -> dict[str, Any]:
    """Return the document of a share."""
    client = share.client
    return {
        **encode(share, without=("client",)),
        **encode(client, without=("demand", "objective", "slowdowns")),
        "demand": encode(client.demand) | {"curve": list(map(as_list, client.demand.curve))},
        "objective": as_dict(client.objective),
        "slowdowns": dict(client.slowdowns),
    }


def parse_share(document: object) -> Share:
    """Return the share of a document of share_document.

    Raises:
        FieldError: it is no such document.
    """
    client = decode(
        Client,
        document,
        _CLIENT,
        needed=("demand", "objective", "slowdowns"),
        certain=_CLIENT,
        readers={"demand": _demand, "objective": _objective},
        where=("share",),
    )
    needed = ("group", "sm_percentage", "bandwidth_sensitive")
    share = decode(
        Share, document, _SHARE, needed=needed, certain=_SHARE, where=("share",), client=client
    )
    for text in filter(None, (*share.group, share.pipe_directory)):
        if not (text.isascii() and text.isprintable() and len(text) <= _MOST_CHARACTERS):
            raise FieldError(("share",), f"{text!r} is neither a UUID nor a directory")
    if share.pipe_directory is not None and not share.pipe_directory.startswith("/"):
        raise FieldError(("share",), f"{share.pipe_directory!r} is no absolute path")
    return share


def _objective(document: object) -> Objective:
    return decode(Objective, document, _OBJECTIVE, needed=_OBJECTIVE, where=("share", "objective"))


def _demand(document: object) -> Demand:
    demand = decode(
        Demand,
        document,
        _DEMAND,
        needed=tuple(_DEMAND)[:4],
        certain=_DEMAND,
        readers={
            "curve": lambda rows: tuple(CurvePoint(*row) for row in rows),
        },
        where=("share", "demand"),
    )
    if any(one.sm_percentage >= other.sm_percentage for one, other in pairwise(demand.curve)):
        raise FieldError(("share", "demand", "curve"), "curve: it does not ascend")
    return demand


IDLE_AFTER_S = 1800.0
"""Seconds after which a lease whose GPUs do nothing is said to be idle, unless set."""


class Lease(Record):
    """The right of a job to use GPUs.

    Attributes:
        id: random id, never used again.
        user_id: owner of the record's file; it is not in the record itself.
        table: key of the described machine; None for this machine's own GPUs.
        uuids: UUIDs of the GPUs, in rank order.
        job: the process that it started; the launcher itself if a Python program holds the lease.
        command: what is published of the job's command; undecodable bytes are surrogates.
        assumed: names of the request's values that were assumed.
        started_at: ISO 8601, UTC.
        ancestors: ids of the lease that this one was taken from, of that lease's parent, and so on.
        boot_id: boot id of the kernel that the processes ran under.
        engine: id of the container engine that runs the job's container, which may outlive both
            processes; None for a job that is a process here.
        container: id of a container that is older than the lease; None if the container has the
            lease's id on its label.
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


_LEASE_RULES = rules_of(Lease, without=("user_id", "busy_s"), share=dict, engine_job=dict)


def parse_lease(document: object, user_id: int, busy_s: float = 0.0) -> Lease:
    """Return the lease of a document of Lease.to_document, of this version or another.

    Raises:
        FieldError: it is no such document, or needs a later version.
    """
    check_version(document)

    def engine_job(job: object) -> EngineJob:
        needed = ("engine", "id")
        return decode(
            EngineJob, job, _ENGINE_JOB, needed=needed, certain=_ENGINE_JOB, user_id=user_id
        )

    readers: Readers = {
        "started_at": known_time,
        "share": parse_share,
        "engine_job": engine_job,
    }
    lease = decode(
        Lease,
        document,
        _LEASE_RULES,
        needed=("id", "uuids", "ancestors"),
        certain=("table", "engine", "container"),
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


MAX_NUMBER = 1 << 30
"""Bound of ticket numbers that no queue reaches: larger ones are forged, and are not counted."""


class Ticket(Record):
    """A place in the queue.

    Attributes:
        number: number given under the host-wide lock, which orders tickets of one instant.
        user_id: owner of the record's file; it is not in the record itself.
        table: key of the described machine; None for this machine's own GPUs.
        within: id of the lease that the GPUs are to be taken from, or None.
        uuids: UUIDs of the GPUs that would do.
        passable_until_s: time, in seconds since boot, until which others may pass if this one is
            choosy.
        command: what is published of the job's command; undecodable bytes are surrogates.
        since: when it joined the queue, ISO 8601, UTC.
        boot_id: boot id of the kernel that the process runs under.
        choosy: whether it may wait although enough GPUs are free, because together they do not do.
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


_TICKET_RULES = rules_of(
    Ticket, without=("user_id", "linked_ns"), number=(1, MAX_NUMBER), gpus=(1, 1 << 31)
)


def parse_ticket(document: object, user_id: int, linked_ns: int = 0) -> Ticket:
    """Return the ticket of a document of Ticket.to_document, of this version or another.

    Raises:
        FieldError: it is no such document, or needs a later version.
    """
    check_version(document)
    ticket = decode(
        Ticket,
        document,
        _TICKET_RULES,
        needed=("id", "number", "uuids", "gpus"),
        certain=("table", "within"),
        readers={"since": known_time},
        user_id=user_id,
        linked_ns=linked_ns,
    )
    check_id(ticket.id)
    return ticket
