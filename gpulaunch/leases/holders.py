"""Processes of a lease: those that hold it, and those that belong to its job."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress

from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import open_record
from gpulaunch.leases.table import Table
from gpulaunch.leases.ticket import Ticket
from gpulaunch.process.companion import is_companion
from gpulaunch.process.ending import marked
from gpulaunch.process.system import is_same, iso, parents, state_of, user_of
from gpulaunch.records import Record


def holders(record_fd: int) -> set[int]:
    """Return live processes of the record's owner that have it open to write.

    Processes that are not visible here are left out, and so are those that have the record open
    only to read, which holds no lock. Of a record that is not root's, only its owner's processes
    count: the owner might pass the descriptor to another user's process to have root kill it.

    Args:
        record_fd: descriptor of the record; while it is open, its inode number is not reused.
    """
    record = os.fstat(record_fd)
    pids = (name for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid())
    return {
        int(pid)
        for pid in pids
        if record.st_uid in (0, user_of(int(pid))) and _has_open(pid, record)
    }


def holders_of(path: str) -> set[int]:
    """Return the processes that hold the record at a path; none if it is gone."""
    try:
        fd = open_record(path)
    except OSError:
        return set()
    if fd is None:
        return set()
    try:
        return holders(fd)
    finally:
        os.close(fd)


def members(record_fd: int, lease_id: str, known: Collection[int] = ()) -> set[int]:
    """Return the processes of a lease that are visible here.

    They have its record open, carry its id in their environment, or descend from such a process.
    Of a record that is not root's, only its owner's processes count as the first two. Companions
    look after a lease and are none of its own.

    Args:
        record_fd: descriptor of the lease's record.
        lease_id: id of the lease.
        known: other processes that belong to it, such as orphans of the job that have neither.
    """
    owner = os.fstat(record_fd).st_uid
    carriers = marked(f"{LEASE_VARIABLE}={lease_id}")
    found = holders(record_fd) | {pid for pid in carriers if owner in (0, user_of(pid))}
    found |= set(known)
    return _without_companions(_with_descendants(_without_companions(found)))


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
            found |= alive or _members_at(table.path_of(other), other.id)
            if other.engine is not None:  # its companion alone may hold a container's lease
                found |= holders_of(table.path_of(other))
    return _with_descendants(found)


def _with_descendants(pids: set[int]) -> set[int]:
    if not pids:
        return pids
    parent_of = parents()
    found: set[int] = set()
    new = pids
    while new:
        found |= new
        new = {pid for pid, parent in parent_of.items() if parent in new} - found
    return found


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

    Leases of containers are left out.
    """
    left: dict[str, LeftOver] = {}
    for lease in leases:
        if lease.engine is None and not state_of(lease.launcher) and not state_of(lease.job):
            path = table.path_of(lease)
            found = _members_at(path, lease.id)
            if found and not any(
                is_same(pid, lease.launcher) or is_same(pid, lease.job) for pid in found
            ):
                left[lease.id] = LeftOver(sorted(found), _left_since(path))
    return left


def _left_since(path: str) -> str | None:
    """Return when a lease was left to its companion, which dates the record then."""
    if not any(map(is_companion, holders_of(path))):
        return None
    try:
        return iso(os.stat(path).st_mtime)
    except (OSError, OverflowError, ValueError):  # no year that there is: its owner can set it
        return None


def _members_at(path: str, lease_id: str) -> set[int]:
    fd = None
    with suppress(OSError):
        fd = open_record(path)
    if fd is None:
        return set()
    try:
        return members(fd, lease_id)
    finally:
        os.close(fd)


def _has_open(pid: str, file: os.stat_result) -> bool:
    with suppress(OSError):  # the process has ended meanwhile, or is another user's
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), file) and _is_open_to_write(
                    pid, fd
                ):
                    return True
    return False


def _is_open_to_write(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}") as info:
        flags = next((line.split()[1] for line in info if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
