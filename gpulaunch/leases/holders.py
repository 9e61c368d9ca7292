"""The processes that hold a lease or belong to its job, and words about who has what."""

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.errors import printable
from gpulaunch.files.units import format_duration
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.leases.lease import IDLE_AFTER_S, Lease, Ticket
from gpulaunch.leases.record_file import opened
from gpulaunch.leases.table import Snapshot, Table
from gpulaunch.machine.gpu import gpus_named, gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.process.ending import is_companion
from gpulaunch.process.system import (
    is_same,
    iso,
    parents,
    parse_time,
    runs,
    state_of,
    user_name,
    user_of,
    variable_of,
    with_descendants,
)
from gpulaunch.records import Record

if TYPE_CHECKING:  # few launches read a time
    from datetime import datetime


def holders(record_fd: int) -> set[int]:
    """Return live processes of the record's owner that have it open to write.

    Processes that are not visible here are left out, and so are those that have the record open
    only to read, which holds no lock. Of a record that is not root's, only its owner's processes
    count: the owner might pass the descriptor to another user's process to have root kill it.

    Args:
        record_fd: descriptor of the record; while it is open, its inode number is not reused.
    """
    return _look_at_processes({"": os.fstat(record_fd)})[0][""]


def members(record_fd: int, lease_id: str, known: Collection[int] = ()) -> set[int]:
    """Return the processes of a lease that are visible here.

    They have its record open, carry its id in their environment, or descend from such a process.
    Of a record that is not root's, only its owner's processes count as the first two. Companions
    look after a lease and are none of its own.

    Args:
        known: other processes that belong to it, such as orphans of the job that have neither.
    """
    found: set[int] = set()
    for _ in range(2):
        held, carried, parent_of = _look_at_processes({lease_id: os.fstat(record_fd)})
        found = _belonging(held[lease_id] | carried[lease_id] | set(known), parent_of)
        if found:  # else the last one may have forked and ended while we looked
            break
    return found


def _look_at_processes(
    records: Mapping[str, os.stat_result],
) -> tuple[dict[str, set[int]], dict[str, set[int]], dict[int, int]]:
    """Go through all processes that are visible here, once for all leases.

    Returns:
        By lease, the processes that have its record open to write and those that carry its id; and
        the parent of each process.
    """
    held: dict[str, set[int]] = {lease_id: set() for lease_id in records}
    carried: dict[str, set[int]] = {lease_id: set() for lease_id in records}
    lease_of = {(one.st_dev, one.st_ino): lease_id for lease_id, one in records.items()}
    parent_of = parents()
    for pid in parent_of:
        if pid != os.getpid():
            user_id = user_of(pid)
            for found, ids in (
                (held, _open_to_write(pid, lease_of)),
                (carried, {variable_of(pid, LEASE_VARIABLE) or ""}),
            ):
                for lease_id in ids:
                    if lease_id in records and records[lease_id].st_uid in (0, user_id):
                        found[lease_id].add(pid)
    return held, carried, parent_of


def _belonging(pids: set[int], parent_of: Mapping[int, int]) -> set[int]:
    """Return processes and their descendants, but for companions and zombies."""
    found = _without_companions(with_descendants(_without_companions(pids), parent_of))
    return set(filter(runs, found))


def _without_companions(pids: set[int]) -> set[int]:
    """Leave out this process, and companions, which look after a lease and are none of its own."""
    return {pid for pid in pids if pid != os.getpid() and not is_companion(pid)}


def nested_processes(table: Table, lease_id: str) -> set[int]:
    """Return the processes of launches inside a lease, which have or will have their own leases."""
    found: set[int] = set()
    for other in table.own_records():
        if isinstance(other, Ticket):
            found |= {other.launcher.pid} if other.within == lease_id else set()
        elif lease_id in other.ancestors:
            alive = {process.pid for process in (other.launcher, other.job) if state_of(process)}
            found |= alive
            with opened(table.path_of(other)) as fd:
                if fd is not None and not alive:
                    found |= members(fd, other.id)
                if fd is not None and other.engine is not None:
                    found |= holders(fd)  # its companion alone may hold a container's lease
    return with_descendants(found, parents()) if found else found


class LeftOver(Record):
    """What still holds a lease whose launcher and job have both ended.

    Attributes:
        pids: the processes that are visible here, in ascending order.
        since: when the job ended, ISO 8601; None if that is unknown.
    """

    pids: list[int]
    since: str | None


def left_over_holders(table: Table, leases: Sequence[Lease]) -> dict[str, LeftOver]:
    """Return what still holds leases whose launcher and job have both ended, by lease id.

    Leases of containers are left out. All processes are gone through once, or not at all.
    """
    records: dict[Lease, os.stat_result] = {}
    for lease in leases:
        if lease.engine is None and not state_of(lease.launcher) and not state_of(lease.job):
            with suppress(OSError):
                records[lease] = os.stat(table.path_of(lease), follow_symlinks=False)
    if not records:
        return {}
    held, carried, parent_of = _look_at_processes({one.id: file for one, file in records.items()})
    left: dict[str, LeftOver] = {}
    for lease, file in records.items():
        found = _belonging(held[lease.id] | carried[lease.id], parent_of)
        if found and not any(
            is_same(pid, lease.launcher) or is_same(pid, lease.job) for pid in found
        ):
            left[lease.id] = LeftOver(sorted(found), _left_since(file, held[lease.id]))
    return left


def _left_since(record: os.stat_result, held: Iterable[int]) -> str | None:
    """Return when a lease was left to its companion, which dates the record then."""
    if not any(map(is_companion, held)):
        return None
    try:
        return iso(record.st_mtime)
    except (OSError, OverflowError, ValueError):  # no year that there is: its owner can set it
        return None


def _open_to_write(pid: int, names: Mapping[tuple[int, int], str]) -> set[str]:
    """Return the names of those of some files that a process has open to write."""
    found = set()
    with suppress(OSError):  # the process has ended meanwhile, or is another user's
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                file = os.stat(f"/proc/{pid}/fd/{fd}")
                name = names.get((file.st_dev, file.st_ino))
                if name is not None and _is_open_to_write(pid, fd):
                    found.add(name)
    return found


def _is_open_to_write(pid: int, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}") as info:
        flags = next((line.split()[1] for line in info if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


_MOST = 5
"""The most users, jobs of a user, and earlier requests that are told one by one."""

_WORTH_A_WORD_S = 60.0


def who_has_what(topology: Topology, seen: Snapshot, within: Lease | None) -> list[str]:
    """Return what is in the way of a launch.

    Examples: "alice has GPUs 0,2-3 (vgg16 for 5 min)", "earlier in the queue: bob for 8 GPUs".

    Args:
        seen: live records of the machine, with earlier tickets only.
        within: the lease that the launch runs inside of, or None. Only leases directly inside it
            are told of, since those inside others have GPUs of these.
    """
    parent = (within.id,) if within else ()
    leases = [lease for lease in seen.leases if lease.ancestors[:1] == parent]
    now = parse_time(iso(time.time()))
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


def age(since: str, now: "datetime") -> str:
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
