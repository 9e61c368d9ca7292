"""The allocation table as a document, and what a waiting launch is told."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from gpulaunch.containers.life import Standing
from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.gpu_names import gpus_named, gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.show import Document
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.machine.driver import OutsideUse


def status_document(
    topology: Topology,
    leases: Sequence[Lease],
    outside: "Sequence[OutsideUse]",
    user_name: Callable[[int], str],
    tickets: Sequence[Ticket] = (),
    left_over: Mapping[str, Sequence[int]] | None = None,
    stopped: Collection[str] = (),
    standings: Mapping[str, Standing] | None = None,
) -> Document:
    """Return the document that `gpulaunch status --json` prints: one machine's whole table.

    Args:
        topology: the machine.
        leases: live leases.
        outside: GPUs in use; a lease explains the use of those under it.
        user_name: returns the login name of a user id.
        tickets: live tickets, in the order of the queue.
        left_over: pids that still hold a lease whose launcher and job have ended, by lease id.
        stopped: ids of tickets whose launcher is stopped, so that others pass it.
        standings: known states of the leases' containers, by lease id.
    """
    used = {use.uuid: use.who for use in outside}
    gpus = []
    for gpu in topology.gpus:
        # A card may have been split into MIG instances while it was leased.
        own = {gpu.uuid, gpu.mig.card_uuid} if gpu.mig else {gpu.uuid}
        holders = [lease for lease in leases if own.intersection(lease.uuids)]
        if holders:
            state = "shared" if any(lease.share for lease in holders) else "leased"
        else:
            state = "outside" if gpu.uuid in used else "free"
        gpus.append(
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "free": state == "free",
                "state": state,
                "leases": [lease.id for lease in holders],
                "outside": used.get(gpu.uuid) if state == "outside" else None,
            }
        )
    return {
        "topology": topology.name,
        "gpus": gpus,
        "leases": [
            _lease_document(
                topology,
                lease,
                user_name(lease.user_id),
                (left_over or {}).get(lease.id),
                (standings or {}).get(lease.id),
            )
            for lease in leases
        ],
        "queue": [
            _ticket_document(
                position, ticket, user_name(ticket.user_id), stopped=ticket.id in stopped
            )
            for position, ticket in enumerate(tickets, 1)
        ],
    }


def _ticket_document(position: int, ticket: Ticket, user: str, *, stopped: bool) -> Document:
    return {
        "id": ticket.id,
        "user": user,
        "gpus": ticket.gpus,
        "since": ticket.since,
        "position": position,
        "pid": ticket.launcher.pid,
        "profile": ticket.profile,
        "command": [printable(argument) for argument in ticket.command],
        "name": ticket.name,
        "within": ticket.within,
        "stopped": stopped,
        "choosy": ticket.choosy,
    }


def _lease_document(
    topology: Topology,
    lease: Lease,
    user: str,
    left_over: Sequence[int] | None,
    standing: Standing | None,
) -> Document:
    container = standing.keeper if standing else None
    index_of = {gpu.uuid: gpu.index for gpu in topology.gpus}
    name_of = {gpu.uuid: gpu.name for gpu in topology.gpus}
    return {
        "id": lease.id,
        "user": user,
        "pid": lease.launcher.pid,
        "job_pid": lease.job.pid,
        "gpus": [index_of.get(uuid) for uuid in lease.uuids],
        "gpu_names": [name_of.get(uuid) for uuid in lease.uuids],
        "uuids": list(lease.uuids),
        "shared": lease.share is not None,
        "sm_percentage": lease.share.sm_percentage if lease.share else None,
        "share_memory_bytes": lease.share.client.demand.memory_bytes if lease.share else None,
        "profile": lease.profile,
        "command": [printable(argument) for argument in lease.command],
        "started_at": lease.started_at,
        "container": container.id if container else None,
        "container_name": container.name if container else None,
        "container_state": container.state if container else None,
        "container_problem": standing.problem if standing else None,
        "name": lease.name,
        "parent": lease.ancestors[0] if lease.ancestors else None,
        "assumed": list(lease.assumed),
        "left_over_pids": None if left_over is None else list(left_over),
    }


def waiting_lines(
    topology: Topology,
    leases: Sequence[Lease],
    tickets: Sequence[Ticket],
    user_name: Callable[[int], str],
    now: datetime,
) -> list[str]:
    """Return what a waiting launch waits for.

    Examples: "alice has GPUs 0,2-3 (vgg16 for 5 min)", "earlier in the queue: bob for 8 GPUs".

    Args:
        topology: the machine.
        leases: live leases on it; those inside others are not counted twice.
        tickets: earlier tickets.
        user_name: returns the login name of a user id.
        now: an aware time, up to which durations are counted.
    """
    lines = []
    for user_id in sorted({lease.user_id for lease in leases}):
        own = [lease for lease in leases if lease.user_id == user_id and not lease.ancestors]
        uuids = {uuid for lease in own for uuid in lease.uuids}
        jobs = ", ".join(f"{_name_job(lease)} for {age(lease.started_at, now)}" for lease in own)
        if own:
            gpus = gpus_named(gpu for gpu in topology.gpus if gpu.uuid in uuids)
            lines.append(f"{user_name(user_id)} has {gpus} ({jobs})")
    if tickets:
        earlier = ", ".join(
            f"{user_name(ticket.user_id)} for {gpus_text(ticket.gpus)}" for ticket in tickets
        )
        lines.append(f"earlier in the queue: {earlier}")
    return lines


def _name_job(lease: Lease) -> str:
    # Another user wrote the record, so the command may be empty.
    program = lease.command[0].rpartition("/")[2] if lease.command else "?"
    return printable(lease.name or lease.profile or program)


def age(since: str, now: datetime) -> str:
    """Return how long ago a record's time was, or "?" if its text is no valid time.

    Another user wrote the record, so the date may be the 31st of February.
    """
    try:
        return format_duration(int((now - datetime.fromisoformat(since)).total_seconds()))
    except ValueError:
        return "?"
