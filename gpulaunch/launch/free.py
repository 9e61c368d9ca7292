"""The end of leases from outside: which are meant, and the end of all that holds them."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.containers.engines import engine_of
from gpulaunch.errors import FailedError, UsageError, printable, quoted
from gpulaunch.files.units import format_duration
from gpulaunch.history.past_launch import LEAST_CHARACTERS
from gpulaunch.leases.holders import holders, members
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.record_file import is_locked, opened, parse_record, parse_unlocked
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import Machine
from gpulaunch.machine.topology import same_table
from gpulaunch.process import Process
from gpulaunch.process.ending import KILL_S, end_all, reached_by, wait_for_all, wait_for_one
from gpulaunch.process.system import (
    is_same,
    seconds_since_boot,
    state_of,
    user_name,
    user_of,
    who_may,
)

if TYPE_CHECKING:  # what few leases need, the others do not load
    from gpulaunch.containers.engine import EngineClient
    from gpulaunch.sharing.mps_daemon import Daemon

_ATTEMPTS = 5


def free(
    table: Table, lease_id: str, grace_s: float, machine: Machine | None = None
) -> Lease | Ticket | None:
    """End a lease or a place in the queue: TERM to the job, then KILL to all that hold the lease.

    The record is opened only once, so that all steps concern this file even if its owner renames or
    replaces it meanwhile.

    Args:
        grace_s: seconds for the job to end by itself, and then for its launcher to end what the job
            left.
        machine: the machine of the lease; None for any.

    Returns:
        What was ended; None for a record that cannot be read.

    Raises:
        UsageError: there is no such lease, or it is another user's.
        FailedError: its processes are not visible here, are another user's, or survive KILL.
    """
    name = table.file_of(lease_id)
    with opened(os.path.join(table.directory, name)) as fd:
        found = table.find(name) if fd is not None else None
        if fd is None or found is None or not (found.locked or parse_unlocked(found)):
            place = machine.topology.name if machine else "this host"
            raise UsageError(f"no job {quoted(lease_id)} runs or waits on {place}")
        owner_id = os.fstat(fd).st_uid
        if os.geteuid() not in (0, owner_id):
            raise UsageError(
                f"job {lease_id} belongs to {user_name(owner_id)}: only {who_may(owner_id)} can "
                "end it"
            )
        record: Lease | Ticket | None = None
        with suppress(FailedError):
            record = parse_record(found, table.directory)
        if machine and record and not same_table(record.table, machine.key):
            raise UsageError(f"no job {quoted(lease_id)} runs or waits on {machine.topology.name}")
        client = None
        if isinstance(record, Lease) and record.engine is not None:
            client = _end_containers(table, record, fd, grace_s)
        if is_locked(fd):
            _end_holders(fd, record, lease_id, grace_s, table.warn)
        if isinstance(record, Lease) and client is not None:
            one = client.container_of(record.id, record.container)
            if one and one.holds:
                raise FailedError(
                    f"lease {lease_id} stays: container {printable(one.name)} is still there",
                    f"stop it by hand if it is that lease's, else rm {table.path_of(record)}",
                )
            table.know_ended(record)
    with table.locked() as locked:
        locked.sweep(name)
    if isinstance(record, Lease) and record.share:
        from gpulaunch.sharing.membership import leave_group  # late: few leases are shared

        leave_group(table, record)  # its launcher and companions may be long gone
    return record


def _daemon_of(record: Lease | Ticket | None) -> "Daemon | None":
    if not isinstance(record, Lease) or record.share is None:
        return None
    from gpulaunch.sharing.membership import daemon_of

    return daemon_of(record)


def _end_containers(table: Table, lease: Lease, fd: int, grace_s: float) -> "EngineClient":
    """End a lease's containers, and give its launcher time to notice and release the lease.

    Returns:
        A client of their engine.
    """
    from gpulaunch.containers.held_leases import client_of_lease

    try:
        client = client_of_lease(lease)
    except FailedError as problem:
        variable = engine_of(lease.engine or "").address_variable
        gone = f"if that is gone for good, rm {table.path_of(lease)}"
        hint = f"set {variable} to its engine's socket; {gone}"
        raise FailedError(problem.message, hint) from None
    daemon = _daemon_of(lease)
    container = client.container_of(lease.id, lease.container)
    # Another user's record may name any container.
    may_end = container and (container.lease_id == lease.id or lease.user_id == os.geteuid())
    if container and container.holds and may_end:
        client.end(container, grace_s, daemon.terminate if daemon else None)
    deadline = time.monotonic() + KILL_S
    while _is_live(fd) and state_of(lease.launcher) and time.monotonic() < deadline:
        wait_for_one([lease.launcher.pid], deadline - time.monotonic())
    return client


def _end_holders(
    fd: int,
    record: Lease | Ticket | None,
    lease_id: str,
    grace_s: float,
    warn: Callable[[str], None],
) -> None:
    """End the processes that hold a record."""
    if not holders(fd) and _is_live(fd):
        hint = "run this where they run"
        raise FailedError(
            f"the processes of job {lease_id} are not visible here, or not its owner's", hint
        )
    daemon = _daemon_of(record)

    def before_signal(pids: set[int], number: int) -> None:
        if daemon is None:
            return
        reached = reached_by(number, pids, _processes_of(fd, record))
        for problem in daemon.terminate(reached, number):
            warn(problem)

    end_all(
        lambda: _job_of(record, fd) if _is_live(fd) else set(),
        grace_s,
        before_signal=before_signal,
    )
    launcher = _find_pid(record.launcher, fd) if isinstance(record, Lease) else None
    if launcher:  # it ends what the job left behind, and releases the lease
        with suppress(OSError):
            os.kill(launcher, signal.SIGCONT)
        wait_for_one([launcher], grace_s + KILL_S)
    survivors: set[int] = set()
    # Several attempts: the child of a process that forks while we look may be missed.
    for attempt in range(_ATTEMPTS):
        # All that belongs to it, among them nested launches. Its companion goes by itself then.
        survivors = end_all(
            lambda: _processes_of(fd, record) if _is_live(fd) else set(),
            0 if attempt else grace_s,
            before_signal=before_signal,
        )
        if not survivors and _is_live(fd):
            wait_for_all(holders(fd), KILL_S)
        if not _is_live(fd):
            return
    # Something that calls itself a companion, or one that is stopped.
    survivors |= end_all(lambda: holders(fd) if _is_live(fd) else set(), 0)
    if not _is_live(fd):
        return
    pids = ", ".join(map(str, sorted(survivors))) or "not visible here, or another user's"
    raise FailedError(f"{lease_id} stays: processes hold it that cannot be ended: {pids}")


def _job_of(record: Lease | Ticket | None, fd: int) -> set[int]:
    """Return the pid of a lease's job, which ends first and may tidy up; none if it has ended."""
    pid = _find_pid(record.job, fd) if isinstance(record, Lease) else None
    return {pid} if pid else set()


def _processes_of(fd: int, record: Lease | Ticket | None) -> set[int]:
    """Return what has to end with a record.

    Of a container's lease it is what holds the record: the environment of an image that was
    committed from its container names the lease, too.
    """
    if isinstance(record, Lease) and record.engine is None:
        return members(fd, record.id)
    return holders(fd)


def _is_live(fd: int) -> bool:
    """Return whether the record is still in the table, and alive."""
    return os.fstat(fd).st_nlink > 0 and is_locked(fd)


def _find_pid(process: Process, fd: int) -> int | None:
    """Return the pid in this pid namespace of a recorded process; None if it is not found.

    A record may name any process, so one that does not hold the record must belong to its owner.
    """
    found = holders(fd)
    if state_of(process) and (process.pid in found or user_of(process.pid) == os.fstat(fd).st_uid):
        return process.pid
    return next((pid for pid in found if is_same(pid, process)), None)


def end_abandoned(table: Table, unlocked: Iterable[Lease], grace_s: float, tried: set[str]) -> bool:
    """End this user's containers that nobody looks after, and that are over their time or CI's.

    Those of other users are left alone, also by root: a record says what its owner likes, and might
    name somebody else's container.

    Args:
        unlocked: leases that no process holds any more.
        tried: ids of leases to leave alone; those that are tried are added.

    Returns:
        Whether any has been tried.
    """
    abandoned = [
        (lease, reason)
        for lease in unlocked
        if lease.id not in tried and lease.user_id == os.geteuid()
        if (reason := reason_to_end(lease))
    ]
    for lease, reason in abandoned:
        tried.add(lease.id)
        try:
            free(table, lease.id, grace_s)
        except UsageError:  # it has ended meanwhile
            continue
        except FailedError as problem:
            table.warn(f"{problem.message}, and {reason}")
        else:
            table.warn(f"ended lease {lease.id}: {reason}")
    return bool(abandoned)


def reason_to_end(lease: Lease) -> str:
    """Return why a lease that no process holds has to end; empty if its container may go on."""
    if lease.ends_with_launcher:
        return "its CI job is gone, and its container was left"
    limit_s = lease.time_limit_s
    if limit_s is not None and seconds_since_boot() >= lease.clock_s + limit_s:
        return f"its container outlived the time limit of {format_duration(limit_s)}"
    return ""


def find_id(table: Table, text: str, machine: Machine | None) -> str:
    """Return the id of the live lease or ticket that is meant; the text itself if there is none.

    To all but root a name or the beginning of an id means another user's record only if it fits
    none of their own.

    Args:
        text: an id, its first characters, 4 or more, or the name of a job.
        machine: the machine of the record; None for any.

    Raises:
        UsageError: several records fit.
    """
    if table.file_of(text):
        return text
    fitting = _fitting(table, text, machine)
    mine = [record for record in fitting if os.geteuid() in (0, record.user_id)]
    found = mine or fitting
    if len(found) > 1:
        ids = ", ".join(f"{record.id} ({user_name(record.user_id)})" for record in found)
        raise UsageError(f"{quoted(text)} may be any of {ids}", "give its id")
    return found[0].id if found else text


def has_own(table: Table, text: str, machine: Machine | None) -> bool:
    """Return whether a text is a whole id, or means a live lease or ticket of this user."""
    if table.file_of(text):
        return True
    return any(one.user_id == os.geteuid() for one in _fitting(table, text, machine))


def own_ids(table: Table, machine: Machine | None) -> list[str]:
    """Return the ids of this user's live tickets and leases.

    Tickets come first, since their launches would take GPUs that become free, and leases before
    those inside them.

    Args:
        machine: the machine of the records; None for any.
    """
    return [record.id for record in _records(table, machine) if record.user_id == os.geteuid()]


def _fitting(table: Table, text: str, machine: Machine | None) -> list[Lease | Ticket]:
    """Return this user's records of a name; if none, all of it, and those whose id begins so."""
    records = _records(table, machine)
    called = [record for record in records if record.name == text]
    if own := [record for record in called if record.user_id == os.geteuid()]:
        return own
    begun = [record for record in records if record.id.startswith(text)]
    return called + (begun if len(text) >= LEAST_CHARACTERS else [])


def _records(table: Table, machine: Machine | None) -> list[Lease | Ticket]:
    """Return the live tickets and leases of a machine, or of all."""
    # What cannot be read is no reason to end nothing else.
    snapshot = table.peek(problems=[])
    snapshot = snapshot.of(machine) if machine else snapshot
    return [*snapshot.tickets, *snapshot.leases]
