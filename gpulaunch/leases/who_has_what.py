"""Lines for people whose launch cannot start: users that have GPUs, and earlier requests."""

import time
from collections.abc import Sequence
from datetime import datetime, timezone

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.leases.lease import IDLE_AFTER_S, Lease
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.gpu_names import gpus_named, gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import parse_time, state_of, user_name

_MOST = 5
"""The most users, jobs of a user, and earlier requests that are told one by one."""

_WORTH_A_WORD_S = 60.0


def who_has_what(topology: Topology, seen: Snapshot, within: Lease | None) -> list[str]:
    """Return what is in the way of a launch.

    Examples: "alice has GPUs 0,2-3 (vgg16 for 5 min)", "earlier in the queue: bob for 8 GPUs".

    Args:
        topology: the machine.
        seen: live records of the machine, with earlier tickets only.
        within: the lease that the launch runs inside of, or None. Only leases directly inside it
            are told of, since those inside others have GPUs of these.
    """
    parent = (within.id,) if within else ()
    leases = [lease for lease in seen.leases if lease.ancestors[:1] == parent]
    now = datetime.now(timezone.utc)
    lines = []
    for user_id in sorted({lease.user_id for lease in leases}):
        own = [lease for lease in leases if lease.user_id == user_id]
        uuids = {uuid for lease in own for uuid in lease.held_from(None)}
        gpus = gpus_named(gpu for gpu in topology.gpus if gpu.uuid in uuids)
        jobs = [
            f"{name_job(lease)}{_engine_text(lease)} for {age(lease.started_at, now)}"
            f"{_idle_text(lease, now.timestamp())}"
            for lease in _first_of_steps(own)
        ]
        lines.append(f"{user_name(user_id)} has {gpus} ({', '.join(_some(jobs))})")
    lines = _some(lines, " users")
    if seen.tickets:
        waiting = [
            f"{user_name(ticket.user_id)} for {gpus_text(ticket.gpus)}" for ticket in seen.tickets
        ]
        lines.append(f"earlier in the queue: {', '.join(_some(waiting))}")
    return lines


def _first_of_steps(leases: Sequence[Lease]) -> list[Lease]:
    """Return the leases, of those of a step's ranks only the first."""
    steps: set[str] = set()
    found = []
    for lease in leases:
        job = lease.engine_job
        if job is None or job.ranks == 1 or job.title not in steps:
            found.append(lease)
        if job is not None:
            steps.add(job.title)
    return found


def _engine_text(lease: Lease) -> str:
    """Return which job of a cluster engine a lease belongs to."""
    job = lease.engine_job
    if job is None:
        return ""
    return f" of {printable(job.title)}" + (f", {job.ranks} ranks," if job.ranks > 1 else "")


def _idle_text(lease: Lease, now_s: float) -> str:
    """Return for how long a lease's GPUs have done nothing, if that is long."""
    since_s = idle_since_s(lease)
    if since_s is None or now_s - since_s < IDLE_AFTER_S:
        return ""
    return f", idle for {format_duration(int(now_s - since_s))}"


def _some(texts: Sequence[str], of: str = "") -> list[str]:
    left_out = len(texts) - _MOST
    return [*texts[:_MOST], f"and {left_out} more{of}"] if left_out > 0 else list(texts)


def name_job(lease: Lease) -> str:
    """Return the name of a lease's job, else its profile or program; "?" if none is published."""
    program = lease.command[0].rpartition("/")[2] if lease.command else "?"
    return printable(lease.name or lease.profile or program)


def age(since: str, now: datetime) -> str:
    """Return how long ago a record's time was, or "?" if its text is no valid time.

    Another user wrote the record, so the date may be the 31st of February.
    """
    try:
        return format_duration(int((now - parse_time(since)).total_seconds()))
    except ValueError:
        return "?"


def idle_since_s(lease: Lease) -> float | None:
    """Return since when the GPUs of a lease have done nothing, in seconds since 1970.

    None means that they work, did so a minute ago, or that nobody looks: its launcher has ended, is
    in another pid namespace or an older gpulaunch, or the machine is a described one.
    """
    if not lease.watches_use or time.time() - lease.busy_s < _WORTH_A_WORD_S:
        return None
    return lease.busy_s if state_of(lease.launcher) else None
