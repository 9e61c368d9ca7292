"""The allocation table as a document."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta, timezone
from typing import TYPE_CHECKING

from gpulaunch.containers.life import Standing
from gpulaunch.errors import FailedError, printable
from gpulaunch.leases.holders import LeftOver, idle_since_s
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import iso, parse_time
from gpulaunch.show import Document

if TYPE_CHECKING:
    from gpulaunch.containers.in_use import RunningContainer
    from gpulaunch.history.forecast import StartRange
    from gpulaunch.history.past_launch import PastLaunch
    from gpulaunch.leases.drain import Drain
    from gpulaunch.machine.driver import Health, Load, OutsideUse

LOAD_KEYS = (
    "utilization_percentage",
    "memory_utilization_percentage",
    "memory_used_bytes",
    "power_w",
    "power_limit_w",
    "temperature_c",
)
"""What a driver tells of the load of a GPU, in the record Load and in the document."""


def status_document(
    topology: Topology,
    leases: Sequence[Lease],
    outside: "Sequence[OutsideUse]",
    user_name: Callable[[int], str],
    tickets: Sequence[Ticket] = (),
    left_over: Mapping[str, LeftOver] | None = None,
    stopped: Collection[str] = (),
    standings: Mapping[str, Standing] | None = None,
    containers: "Sequence[RunningContainer]" = (),
    health: "Sequence[Health]" = (),
    drained: "Sequence[Drain]" = (),
    load: "Sequence[Load]" = (),
    starts: "Mapping[str, StartRange] | None" = None,
    dependent: "Sequence[PastLaunch]" = (),
    problems: Sequence[FailedError] = (),
    strays: "Sequence[OutsideUse]" = (),
) -> Document:
    """Return the document that `gpulaunch status --json` prints: one machine's whole table.

    Args:
        topology: the machine.
        leases: live leases.
        outside: GPUs in use; a lease explains the use of those under it.
        user_name: returns the login name of a user id.
        tickets: live tickets, in the order of the queue.
        left_over: what still holds a lease whose launcher and job have ended, by lease id.
        stopped: ids of tickets whose launcher is stopped, so that others pass it, and of leases
            whose job is stopped.
        standings: known states of the leases' containers, by lease id.
        containers: running containers that were given GPUs, with a lease or without.
        health: what is known of the GPUs' health.
        drained: marks of GPUs that are out of service.
        load: what the GPUs do at this moment; empty if not asked for, as of a described machine.
        starts: when launches that wait will probably start, by ticket id.
        dependent: launches that wait for the end of others before they queue.
        problems: reasons for which no launch is decided, so that no GPU is free for one.
        strays: use of GPUs by jobs whose leases do not have them.
    """
    used = {use.uuid: use.who for use in outside if use.state == "used"}
    health_of = {one.uuid: one for one in health}
    load_of = {one.uuid: one for one in load}
    barred = {use.uuid for use in outside if use.state == "barred"}
    barred |= {one.uuid for one in health if one.problems}
    marks = _marks_of(topology, drained)
    gpus = []
    for gpu in topology.gpus:
        # A card may have been split into MIG instances while it was leased.
        own = {gpu.uuid, gpu.mig.card_uuid} if gpu.mig else {gpu.uuid}
        holders = [lease for lease in leases if own.intersection(lease.uuids)]
        # The other ranks of a step may not have begun, or have ended.
        holders = holders or [lease for lease in leases if own.intersection(lease.held_from(None))]
        if holders:
            state = "shared" if any(map(_shares, holders)) else "leased"
        elif gpu.uuid in barred:
            state = "barred"
        elif gpu.uuid in marks:
            state = "drained"
        else:
            state = "outside" if gpu.uuid in used else "free"
        known = health_of.get(gpu.uuid)
        gpus.append(
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "free": state == "free" and not problems,
                "state": state,
                "leases": [lease.id for lease in holders],
                "outside": used.get(gpu.uuid) if state == "outside" else None,
                "strays": [
                    {"pid": use.pids[0], "lease": use.stray, "who": use.who}
                    for use in strays
                    if use.uuid == gpu.uuid
                ],
                "drained": _drain_document(marks.get(gpu.uuid), user_name),
                "problems": list(known.problems) if known else [],
                "warnings": list(known.warnings) if known else [],
                **_load_document(load_of.get(gpu.uuid)),
                "memory_total_bytes": gpu.memory_bytes or None,
                "numa_node": gpu.numa_node,
            }
        )
    pace_of: dict[str, float] = {}
    if any(lease.share for lease in leases):
        from gpulaunch.sharing.membership import paces  # late: few machines have jobs that share

        pace_of = paces(topology, leases)
    return {
        "topology": topology.name,
        "problems": [
            printable(": ".join(filter(None, (one.message, one.hint)))) for one in problems
        ],
        "gpus": gpus,
        "leases": [
            _lease_document(
                topology,
                lease,
                pace_of.get(lease.id),
                user_name(lease.user_id),
                _left_over_document(lease, (left_over or {}).get(lease.id), outside),
                (standings or {}).get(lease.id),
                [one.id for one in containers if lease in one.leases_beside(leases)],
                stopped=lease.id in stopped,
            )
            for lease in leases
        ],
        "dependent": [_dependent_document(one, user_name(one.user_id)) for one in dependent],
        "queue": [
            _ticket_document(
                position, ticket, user_name(ticket.user_id), stopped=ticket.id in stopped
            )
            | {"predicted_start": start_document((starts or {}).get(ticket.id))}
            for position, ticket in enumerate(tickets, 1)
        ],
        "containers": [
            _container_document(topology, container, leases)
            for container in containers
            if not any(container.is_of(lease) for lease in leases)
        ],
    }


def of_user(document: Document, user: str) -> Document:
    """Return the document with the leases, tickets and dependent launches of one user."""
    return document | {
        key: [record for record in document[key] if record["user"] == user]
        for key in ("leases", "queue", "dependent")
    }


def _marks_of(topology: Topology, drained: "Sequence[Drain]") -> "dict[str, Drain]":
    if not drained:
        return {}
    from gpulaunch.leases.drain import drains_by_gpu  # late: few machines have a mark

    return drains_by_gpu(topology, drained)


def _load_document(load: "Load | None") -> Document:
    """Return the keys about the load of a GPU, null where it is unknown."""
    return {key: getattr(load, key, None) for key in LOAD_KEYS}


def _drain_document(drain: "Drain | None", user_name: Callable[[int], str]) -> Document | None:
    if drain is None:
        return None
    return {
        "by": user_name(drain.user_id),
        "reason": printable(drain.reason) or None,
        "since": drain.since,
    }


def start_document(start: "StartRange | None") -> Document | None:
    """Return the times between which a launch probably starts; None if that is unknown."""
    if start is None:
        return None
    now_s = time.time()
    return {"from": iso(now_s + start.from_s), "to": iso(now_s + start.to_s)}


def _shares(lease: Lease) -> bool:
    """Return whether others may have the same GPUs, by MPS or by a cluster engine."""
    return lease.share is not None or (lease.engine_job is not None and lease.engine_job.shared)


def _container_document(
    topology: Topology, container: "RunningContainer", leases: Sequence[Lease]
) -> Document:
    """Return the document of a running container that has no live lease."""
    gpus = [gpu for gpu in topology.gpus if gpu.uuid in container.uuids]
    return {
        "id": container.id,
        "name": container.name,
        "engine": container.program,
        "gpus": [gpu.index for gpu in gpus],
        "gpu_names": [gpu.name for gpu in gpus],
        "sees_all": container.traits.sees_all,
        "made_under": container.traits.lease_id,
        "is_here": container.is_here,
        "leases": [lease.id for lease in container.leases_beside(leases)],
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


def _dependent_document(launch: "PastLaunch", user: str) -> Document:
    return {
        "name": launch.name,
        "user": user,
        "gpus": launch.count,
        "since": iso(launch.submitted_s),
        "pid": launch.launcher.pid,
        "after": [printable(name) for name in launch.after],
        "profile": launch.profile,
        "command": [printable(argument) for argument in launch.command],
    }


def _lease_document(
    topology: Topology,
    lease: Lease,
    pace: float | None,
    user: str,
    left_over: Document,
    standing: Standing | None,
    containers_beside: Sequence[str],
    *,
    stopped: bool,
) -> Document:
    container = standing.keeper if standing else None
    index_of = {gpu.uuid: gpu.index for gpu in topology.gpus}
    name_of = {gpu.uuid: gpu.name for gpu in topology.gpus}
    idle_s = idle_since_s(lease)
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
        "guest": lease.share is not None and lease.share.guest,
        "promised_pace": lease.share.promised_pace if lease.share else None,
        "pace": pace,
        "profile": lease.profile,
        "command": [printable(argument) for argument in lease.command],
        "started_at": lease.started_at,
        "time_limit_s": lease.time_limit_s,
        "ends_at": _end_of(lease),
        "idle_since": None if idle_s is None else iso(idle_s),
        "stopped": stopped,
        "container": container.id if container else None,
        "container_name": container.name if container else None,
        "container_state": container.state if container else None,
        "container_problem": standing.problem if standing else None,
        "containers_beside": containers_beside,
        "name": lease.name,
        "parent": lease.ancestors[0] if lease.ancestors else None,
        "assumed": list(lease.assumed),
        "engine_job": _engine_job_document(lease),
        **left_over,
    }


def _end_of(lease: Lease) -> str | None:
    """Return when a lease ends at most by its time limit, or None if it has none."""
    if lease.time_limit_s is None:
        return None
    try:
        began = parse_time(lease.started_at).astimezone(timezone.utc)
        end = began + timedelta(seconds=lease.time_limit_s)
    except (OverflowError, ValueError):  # another user wrote the record
        return None
    return end.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _engine_job_document(lease: Lease) -> Document | None:
    """Return the document of the job of a cluster engine that a lease belongs to."""
    job = lease.engine_job
    if job is None:
        return None
    return {
        "engine": printable(job.engine),
        "id": printable(job.id),
        "rank": job.rank,
        "ranks": job.ranks,
        "shared": job.shared,
    }


def _left_over_document(
    lease: Lease, left_over: LeftOver | None, outside: "Sequence[OutsideUse]"
) -> Document:
    """Return the keys about left-over processes; whether they use GPUs is known on real ones."""
    used: bool | None = None
    if left_over and lease.table is None:
        uses = [use for use in outside if use.uuid in lease.uuids]
        used = None if any(use.lost for use in uses) else bool(uses)
    return {
        "left_over_pids": left_over.pids if left_over else None,
        "left_over_since": left_over.since if left_over else None,
        "left_over_uses_gpus": used,
    }
