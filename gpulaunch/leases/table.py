"""The host-wide allocation table: a directory of records, on which all launchers agree.

The host-wide lock is flock on the directory itself (host_lock.py); a record lives as long as its
own lock is held (record_file.py). docs/decisions/allocation-table.md gives the reasons.
"""

import errno
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

from gpulaunch.errors import FailedError
from gpulaunch.leases.host_lock import lock_holder, lock_in_time, unlock
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import (
    LEASE_PREFIX,
    Draft,
    FoundRecord,
    parse_record,
    parse_unlocked,
    read_record,
    record_name,
    remove_dead,
    ticket_number,
)
from gpulaunch.leases.state_directory import preferred_directory, state_directory
from gpulaunch.leases.ticket import MAX_NUMBER, Ticket
from gpulaunch.machine.table_key import TableKey, same_table
from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.process.system import user_name
from gpulaunch.records import Record, replace

LOCK_TIMEOUT_S = 10.0

_ALL_SIGNALS = signal.valid_signals()


class Snapshot(Record):
    """The live records at one moment.

    Attributes:
        leases: leases, oldest first, and parents before their children.
        tickets: tickets in the order of the queue.
        unlocked: ids of the leases that no process holds any more, but a container may hold.
    """

    leases: list[Lease]
    tickets: list[Ticket]
    unlocked: frozenset[str] = frozenset()

    def of(self, key: TableKey | None) -> "Snapshot":
        """Return the records of one machine: a described one, or (None) this machine's own GPUs."""
        return Snapshot(
            [lease for lease in self.leases if same_table(lease.table, key)],
            [ticket for ticket in self.tickets if same_table(ticket.table, key)],
            self.unlocked,
        )


class Table:
    """The allocation table in its state directory.

    Args:
        described: whether only records of described machines matter, and none of this machine's own
            GPUs.
        warn: called with each warning.
        private: whether a container's own table will do.
        ended_containers: function that returns the ids of the leases whose containers have all
            ended; it is called with leases that no process holds.

    Raises:
        FailedError: no directory can hold the table.
    """

    def __init__(
        self,
        *,
        described: bool,
        warn: Callable[[str], None],
        ended_containers: Callable[[Iterable[Lease]], set[str]],
        private: bool = False,
    ) -> None:
        self._ended_containers = ended_containers
        # Read once: a Python program may change it while it has a lease.
        self._chosen = os.environ.get("GPULAUNCH_STATE_DIR")
        self._preferred = preferred_directory(self._chosen)
        self.directory = state_directory(self._chosen, described=described, private=private)
        self.warn = warn
        self._ended: set[str] = set()
        self._check_owner()

    def draft(self, lease_id: str | None = None) -> Draft:
        """Return a new draft: a locked record without a name.

        Args:
            lease_id: id of the lease; None for a new id.

        Raises:
            FailedError: such a file cannot be made in the directory.
        """
        try:
            return Draft(self.directory, lease_id)
        except OSError as problem:
            raise self.failed("cannot write a record", problem) from None

    def peek(self, before: int | None = None) -> Snapshot:
        """Return all live records of all machines without the lock, so they may change at once.

        If no process holds a lease any more, its engine is asked whether a container does.

        Args:
            before: number below which tickets are read; None for all tickets.

        Raises:
            FailedError: a live record cannot be read, so it is unknown which GPUs are free.
        """
        try:
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as problem:
            raise self.failed("cannot open the state directory", problem) from None
        try:
            seen = _read_records(fd, self.directory, before, self._ended, clear_dead=False)
        finally:
            os.close(fd)
        if not seen.unlocked:
            return seen
        over = self.over(lease for lease in seen.leases if lease.id in seen.unlocked)
        return replace(
            seen,
            leases=[lease for lease in seen.leases if lease.id not in over],
            unlocked=seen.unlocked - over,
        )

    def over(self, leases: Iterable[Lease]) -> set[str]:
        """Return the ids of the leases whose containers have ended, of those no process holds."""
        over = self._ended_containers(leases)
        self._ended |= over
        return over

    @contextmanager
    def locked(self) -> "Iterator[LockedTable]":
        """Hold the host-wide lock, to read and write records only, for milliseconds.

        Signals are blocked meanwhile, so that none ends or stops this process under the lock.

        Raises:
            FailedError: the lock is not free within LOCK_TIMEOUT_S; the message names its holder.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
        try:
            fd = self._lock()
            try:
                yield LockedTable(fd, self, self._ended)
            finally:
                unlock(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _lock(self) -> int:
        while True:
            try:
                fd = out_of_the_way(os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY))
            except OSError as problem:
                raise self.failed("cannot open the state directory", problem) from None
            if not lock_in_time(fd, LOCK_TIMEOUT_S):
                holder = lock_holder(self.directory)
                held = f"the host-wide lock is held for {LOCK_TIMEOUT_S:g} s by {holder}"
                raise FailedError(f"{self.directory}: {held}")
            try:
                if self._is_still_here(fd):
                    self._check_still_preferred()
                    return fd
            except BaseException:
                unlock(fd)
                raise
            unlock(fd)

    def _is_still_here(self, fd: int) -> bool:
        """Return whether the directory is still the one that was opened, and not a replacement."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.directory))
        except FileNotFoundError:
            return False

    def _check_still_preferred(self) -> None:
        """Check that `gpulaunch setup` has not made another state directory meanwhile.

        Raises:
            FailedError: it has.
        """
        preferred = preferred_directory(self._chosen)
        if preferred != self._preferred:
            moved = f"the state directory moved from {self._preferred} to {preferred}"
            raise FailedError(f"{moved} during this launch", "run the command again")

    def own_leases(self) -> list[Lease]:
        """Return this user's live leases of all machines; damaged records are left out."""
        leases = []
        for name in os.listdir(self.directory):
            if name.startswith(LEASE_PREFIX):
                with suppress(FailedError):
                    found = self.find(name)
                    if found and found.locked and found.user_id == os.geteuid():
                        record = parse_record(found, self.directory)
                        leases += [record] if isinstance(record, Lease) else []
        return leases

    def find(self, name: str) -> FoundRecord | None:
        """Return a record, dead or alive, by its file's name; None if it is gone.

        Raises:
            FailedError: the file cannot be read.
        """
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return read_record(fd, self.directory, name)
        finally:
            os.close(fd)

    def failed(self, what: str, problem: OSError) -> FailedError:
        """Return an error for the user about a failed system call in this directory."""
        reason = os.strerror(problem.errno or 0).lower()
        hint = None
        if problem.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            hint = "choose a local file system such as tmpfs with GPULAUNCH_STATE_DIR"
        return FailedError(f"{self.directory}: {what}: {reason}", hint)

    def path_of(self, record: Lease | Ticket) -> str:
        """Return the path of a record's file."""
        return os.path.join(self.directory, record_name(record))

    def _check_owner(self) -> None:
        try:
            owner = os.stat(self.directory + "/").st_uid
        except OSError as problem:
            raise self.failed("cannot use this state directory", problem) from None
        if owner not in (0, os.geteuid()):
            name = user_name(owner)
            self.warn(
                f"state directory {self.directory} belongs to {name}, "
                "who can remove any lease in it"
            )


class LockedTable:
    """The table while the host-wide lock is held."""

    def __init__(self, fd: int, table: Table, ended: Collection[str]) -> None:
        self._fd = fd
        self._table = table
        self._ended = ended

    def read(self, before: int | None = None) -> Snapshot:
        """Return all live records of all machines, and remove dead ones of this user.

        Root removes those of all users. No engine is asked under the lock, for which all launchers
        wait: a lease counts as alive unless peek() found that its containers have ended.

        Args:
            before: number below which tickets are read; None for all tickets.

        Raises:
            FailedError: a live record cannot be read, so it is unknown which GPUs are free.
        """
        return _read_records(self._fd, self._table.directory, before, self._ended, clear_dead=True)

    def sweep(self, name: str) -> None:
        """Remove a record if it is dead."""
        found = read_record(self._fd, self._table.directory, name)
        if found and _live_record(found, self._table.directory, self._ended) is None:
            remove_dead(found, self._fd)

    def next_number(self) -> int:
        """Return the number of a ticket that comes after all live ones: 1 + the largest."""
        plausible = (name for name in os.listdir(self._fd) if 0 < ticket_number(name) < MAX_NUMBER)
        names = sorted(plausible, key=ticket_number, reverse=True)
        for name in names:
            found = read_record(self._fd, self._table.directory, name)
            if found and found.locked:
                return ticket_number(name) + 1
            if found:
                remove_dead(found, self._fd)
        return 1

    def publish(self, draft: Draft, record: Lease | Ticket) -> None:
        """Write a record into its draft and give it its name, both or neither.

        Raises:
            FailedError: the disk is full or read-only; nothing is allocated.
        """
        try:
            draft.publish(record, self._fd)
        except OSError as problem:
            raise self._table.failed("cannot write a record", problem) from None

    def remove(self, record: Lease | Ticket) -> None:
        """Remove a record from the table, even if processes still have its descriptor.

        Raises:
            FailedError: its file cannot be removed.
        """
        try:
            os.unlink(record_name(record), dir_fd=self._fd)
        except FileNotFoundError:
            if isinstance(record, Lease):
                self._table.warn(
                    f"{self._table.directory}: lease {record.id} was removed by someone else"
                )
        except OSError as problem:
            raise self._table.failed(f"cannot remove {record_name(record)}", problem) from None


def release(table: Table, draft: Draft, record: Lease | Ticket) -> None:
    """End a published lease or leave the queue, and warn if the record cannot be removed."""
    try:
        with table.locked() as locked:
            locked.remove(record)
    except FailedError as problem:
        # Warn only: the job's exit status matters more, and an unlocked record is ignored anyway.
        table.warn(problem.message)
    finally:
        draft.close()


def _read_records(
    directory_fd: int,
    directory: str,
    before: int | None,
    ended: Collection[str],
    *,
    clear_dead: bool,
) -> Snapshot:
    leases: list[Lease] = []
    tickets: list[Ticket] = []
    unlocked: set[str] = set()
    for name in os.listdir(directory_fd):
        number = ticket_number(name)
        if not name.startswith(LEASE_PREFIX) and (
            number == 0 or (before is not None and number >= before)
        ):
            continue
        found = read_record(directory_fd, directory, name)
        if found is None:
            continue
        record = _live_record(found, directory, ended)
        if isinstance(record, Lease):
            leases.append(record)
            unlocked |= set() if found.locked else {record.id}
        elif record:
            tickets.append(record)
        elif clear_dead:
            remove_dead(found, directory_fd)
    leases.sort(key=lambda lease: (lease.clock_s, lease.started_at, len(lease.ancestors), lease.id))
    tickets.sort(key=lambda ticket: ticket.number)
    return Snapshot(leases, tickets, frozenset(unlocked))


def _live_record(
    found: FoundRecord, directory: str, ended: Collection[str]
) -> Lease | Ticket | None:
    """Return a record if it is locked, or is a lease whose containers may still live; else None."""
    if found.locked:
        return parse_record(found, directory)
    lease = parse_unlocked(found)
    return None if lease is None or lease.id in ended else lease
