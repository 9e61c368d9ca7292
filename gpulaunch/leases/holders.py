"""Processes that hold a lease, and the companion that ends them if their launcher is killed."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import open_record
from gpulaunch.leases.table import Table
from gpulaunch.process.companion import Companion
from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.process.ending import end_all, marked
from gpulaunch.process.system import is_same, state_of, user_of


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


def left_over_holders(table: Table, leases: Sequence[Lease]) -> dict[str, list[int]]:
    """Return what still holds leases whose launcher and job have both ended: pids by lease id.

    Only processes that are visible here are found. Leases of containers are left out.
    """
    left: dict[str, list[int]] = {}
    for lease in leases:
        if lease.engine is None and not state_of(lease.launcher) and not state_of(lease.job):
            found = holders_of(table.path_of(lease))
            if found and not any(
                is_same(pid, lease.launcher) or is_same(pid, lease.job) for pid in found
            ):
                left[lease.id] = sorted(found)
    return left


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


def start_companion(
    record_fd: int,
    variable: str,
    grace_s: float,
    before_kill: Callable[[set[int]], object] | None = None,
) -> Companion:
    """Start a companion that ends a lease's processes if this process is killed.

    It serves under CI runners, which cancel with SIGKILL. It has a session of its own and does not
    hold the lease.

    Args:
        record_fd: descriptor of the lease's record.
        variable: NAME=VALUE in the job's environment, which finds processes that have closed the
            record.
        grace_s: seconds between TERM and KILL.
        before_kill: called once with processes that outlive the grace, before they are killed.
    """
    # A new open file description, which does not hold the lock of the record.
    record_reader = out_of_the_way(os.open(f"/proc/self/fd/{record_fd}", os.O_RDONLY))

    def act(word: bytes) -> None:
        if not word:
            end_all(
                lambda: holders(record_reader) | marked(variable), grace_s, before_kill=before_kill
            )

    try:
        return Companion(act, record_reader)
    finally:
        os.close(record_reader)
