"""End leases from outside: those of jobs that should go, and those that only a left-over process still holds."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.core.leases.lease import Lease
from gpulaunch.core.leases.record import Process
from gpulaunch.core.leases.ticket import Ticket
from gpulaunch.errors import FailedError, UsageError, quoted
from gpulaunch.host.ending import KILL_S, end_all, holders, wait_for_one
from gpulaunch.host.machine import Machine
from gpulaunch.host.record import is_alive
from gpulaunch.host.system import is_same, state_of, user_name, user_of
from gpulaunch.host.table import Table

_ATTEMPTS = 5


def left_over_holders(table: Table, leases: Sequence[Lease]) -> dict[str, list[int]]:
    """Leases whose launcher and job have both ended, by id, with the processes that still hold them.

    As far as those are visible here: of a lease without any visible process nothing can be told.
    """
    left: dict[str, list[int]] = {}
    for lease in leases:
        if not state_of(lease.launcher) and not state_of(lease.job):
            found = _holders(table, lease)
            if found and not any(is_same(pid, lease.launcher) or is_same(pid, lease.job) for pid in found):
                left[lease.id] = sorted(found)
    return left


def free(machine: Machine, table: Table, lease_id: str, grace_s: float) -> Lease | Ticket:
    """End a lease, or a place in the queue: TERM to the job, and after the grace KILL to all who hold the lease.

    Args:
        machine: whose table it is in.
        table: where it stands.
        lease_id: of a lease or ticket.
        grace_s: time for the job to end by itself, and then for its launcher to end what the job left.

    Returns:
        What was ended.

    Raises:
        UsageError: there is no such lease, or it is somebody else's.
        FailedError: its processes are not visible here, or survive KILL.
    """
    seen = table.peek().of(machine.key)
    records: list[Lease | Ticket] = [*seen.leases, *seen.tickets]
    record = next((record for record in records if record.id == lease_id), None)
    if record is None:
        raise UsageError(f"no live lease {quoted(lease_id)} on {machine.topology.name}")
    if os.geteuid() not in (0, record.user_id):
        owner = user_name(record.user_id)
        raise UsageError(f"lease {record.id} belongs to {owner}: only {owner} or root can end it")
    path = table.path_of(record)
    found = _holders(table, record)
    if not found and is_alive(path):
        raise FailedError(f"the processes of lease {record.id} are not visible here", "run this where they run")
    end_all(lambda: _to_be_told(table, record), grace_s)
    launcher = _find(record.launcher, found, record.user_id)
    if launcher:  # it ends what the job left behind, and releases
        with suppress(ProcessLookupError):
            os.kill(launcher, signal.SIGCONT)
        wait_for_one([launcher], grace_s + KILL_S)
    survivors: set[int] = set()
    for _ in range(_ATTEMPTS):  # a process that forks while we look may be missed
        survivors = end_all(lambda: _holders(table, record), 0)
        if not is_alive(path):
            break
    else:
        pids = ", ".join(map(str, sorted(survivors))) or "not visible here"
        raise FailedError(f"lease {record.id} stays: processes that survive KILL hold it: {pids}")
    with table.locked() as locked:
        locked.read()  # which removes what is dead now
    return record


def _to_be_told(table: Table, record: Lease | Ticket) -> set[int]:
    """Who has to end first: the job, while it is there; without a launcher, everybody who holds the lease."""
    found = _holders(table, record)
    if isinstance(record, Ticket):
        return found
    job = _find(record.job, found, record.user_id)
    if job:
        return {job}
    return set() if _find(record.launcher, found, record.user_id) else found


def _holders(table: Table, record: Lease | Ticket) -> set[int]:
    try:
        fd = os.open(table.path_of(record), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return set()
    try:
        return holders(fd)
    finally:
        os.close(fd)


def _find(process: Process, found: set[int], user_id: int) -> int | None:
    """The process's pid here: as recorded, or that of one in another pid namespace among those found.

    A record may name whomever its owner likes, so a process that does not hold it has to be the owner's.
    """
    if state_of(process) and (process.pid in found or user_of(process.pid) == user_id):
        return process.pid
    return next((pid for pid in found if is_same(pid, process)), None)
