"""The host-wide allocation table: a directory of records, on which all launchers agree.

The host-wide lock is flock on the directory itself (directory.py); a record lives as long as its
own lock is held (record_file.py). docs/decisions/allocation-table.md gives the reasons.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gpulaunch.errors import FailedError, TimedOutError, WouldWaitError
from gpulaunch.leases.directory import (
    LOCK_TIMEOUT_S,
    Drain,
    directory_failed,
    lock_holder,
    lock_in_time,
    machine_of,
    open_directory,
    preferred_directory,
    read_drain,
    state_directory,
    unlock,
)
from gpulaunch.leases.lease import MAX_NUMBER, Lease, Ticket
from gpulaunch.leases.record import WRITTEN_BYTES
from gpulaunch.leases.record_file import (
    DRAINED_PREFIX,
    LEASE_PREFIX,
    TICKET_PREFIX,
    Draft,
    FoundRecord,
    UnreadableError,
    id_in,
    parse_record,
    parse_unlocked,
    read_record,
    record_name,
    remove_bell,
    remove_dead,
    ticket_number,
)
from gpulaunch.machine.topology import same_table
from gpulaunch.process.libc import ALL_SIGNALS, ENDING_SIGNALS, change_mask
from gpulaunch.process.system import user_name, who_may
from gpulaunch.records import Record, replace

if TYPE_CHECKING:
    from gpulaunch.machine.find import Machine

_RECORDS = (LEASE_PREFIX, TICKET_PREFIX)
MOST_LEASES = 200
MOST_TICKETS = 1000
"""How many records of one user count: each launcher reads them all, so they cost the others time.

With more leases than that nobody decides, because a lease that is not read is a GPU given twice;
tickets beyond it, in the order of the queue, only lose their place. A ticket of more than
WRITTEN_BYTES counts as several.
"""

_EVERYBODY = 65534
"""Id in a user namespace of all users who have none there, who are not counted as one."""


class Snapshot(Record):
    """The live records at one moment.

    Attributes:
        leases: leases, oldest first, and parents before their children.
        unlocked: ids of the leases that no process holds any more, but a container may hold.
    """

    leases: list[Lease]
    tickets: list[Ticket]
    unlocked: frozenset[str] = frozenset()
    drained: tuple[Drain, ...] = ()

    def of(self, machine: "Machine") -> "Snapshot":
        """Return the records of one machine; GPUs that it does not have count in no ticket."""
        key, uuids = machine.key, {gpu.uuid for gpu in machine.topology.gpus}
        return Snapshot(
            [lease for lease in self.leases if same_table(lease.table, key)],
            [ticket.among(uuids) for ticket in self.tickets if same_table(ticket.table, key)],
            self.unlocked,
            tuple(drain for drain in self.drained if drain.machine == machine_of(key)),
        )


class Table:
    """The allocation table in its state directory.

    Args:
        private: whether a container's own table will do, as it does for described machines.
        ended_containers: function that returns the ids of the leases whose containers have all
            ended; it is called with leases that no process holds.

    Raises:
        FailedError: no directory can hold the table.
    """

    def __init__(
        self,
        *,
        private: bool,
        warn: Callable[[str], None],
        ended_containers: Callable[[Iterable[Lease]], set[str]],
    ) -> None:
        self._ended_containers = ended_containers
        # Read once: a Python program may change it while it has a lease.
        self._chosen = os.environ.get("GPULAUNCH_STATE_DIR")
        self._preferred = preferred_directory(self._chosen)
        self.directory = state_directory(self._chosen, private=private)
        self.warn = warn
        self._ended: set[str] = set()
        self._dead: set[str] = set()
        self._parsed: dict[str, tuple[int, Lease | Ticket]] = {}
        self._told: set[str] = set()
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

    def peek(
        self, before: Ticket | None = None, problems: list[FailedError] | None = None
    ) -> Snapshot:
        """Return all live records of all machines without the lock, so they may change at once.

        If no process holds a lease any more, its engine is asked whether a container does.

        Args:
            before: ticket; only those that come before it are read. None for all tickets.
            problems: list that gets what would be raised, for who decides nothing but shows what
                can be read; None to raise it.

        Raises:
            FailedError: a live record cannot be read, so it is unknown which GPUs are free.
        """
        with self._opened() as fd:
            seen = self.read_records(fd, before, problems)
        if not seen.unlocked:
            return seen
        over = self._ended_containers(lease for lease in seen.leases if lease.id in seen.unlocked)
        self._ended |= over
        return replace(
            seen,
            leases=[lease for lease in seen.leases if lease.id not in over],
            unlocked=seen.unlocked - over,
        )

    def know_ended(self, lease: Lease) -> None:
        """Take a lease for dead once no process holds it, since its containers have ended."""
        self._ended.add(lease.id)

    @contextmanager
    def locked(self, patience_s: float | None = None) -> "Iterator[LockedTable]":
        """Hold the host-wide lock, to read and write records only, for milliseconds.

        Signals are blocked meanwhile, so that none ends or stops this process under the lock.

        Args:
            patience_s: seconds to wait for the lock, with a warning after LOCK_TIMEOUT_S; None for
                LOCK_TIMEOUT_S.

        Raises:
            FailedError: the lock is not free in time, and the message names its holder; or a signal
                came that this process holds back.
            TimedOutError: the patience is over.
        """
        blocked = change_mask(signal.SIG_BLOCK, ())
        try:
            # In here: a handler that runs right after it must not leave the signals blocked.
            change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
            fd = self._lock(blocked, patience_s)
            try:
                yield LockedTable(fd, self)
            finally:
                self._unlock(fd)
        finally:
            change_mask(signal.SIG_SETMASK, blocked)

    def _lock(self, blocked: Iterable[int], patience_s: float | None) -> int:
        """Take the lock, and return its descriptor.

        Args:
            blocked: signals that were blocked before; all others act while the lock is waited for.
        """
        begun = time.monotonic()
        told = False

        def look() -> None:
            nonlocal told
            change_mask(signal.SIG_SETMASK, blocked)
            change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
            waited_s = time.monotonic() - begun
            if ENDING_SIGNALS.intersection(blocked) & signal.sigpending():
                raise FailedError(f"interrupted: {self._held_by(waited_s)}")
            if patience_s is not None and not told and waited_s >= LOCK_TIMEOUT_S:
                told = True  # once: the holder is looked for in all processes
                self._warn_once(f"{self._held_by(LOCK_TIMEOUT_S)}, and is waited for")

        timeout_s = LOCK_TIMEOUT_S if patience_s is None else patience_s
        while True:
            fd = open_directory(self.directory)
            try:
                in_time = lock_in_time(fd, timeout_s, look)
            except OSError as problem:
                os.close(fd)
                raise self.failed("cannot lock the state directory", problem) from None
            except RuntimeError as problem:
                # No more threads: a limit on processes, or Python is shutting down.
                os.close(fd)
                what = f"cannot wait for the host-wide lock: {problem}"
                raise FailedError(f"{self.directory}: {what}") from None
            if not in_time:
                late = FailedError if patience_s is None else TimedOutError
                raise late(self._held_by(timeout_s))
            try:
                if self._is_still_here(fd):
                    return fd
            except BaseException:
                unlock(fd)
                raise
            self._unlock(fd)

    def _held_by(self, seconds: float) -> str:
        holder = lock_holder(self.directory)
        return f"{self.directory}: the host-wide lock is held for {seconds:g} s by {holder}"

    def _unlock(self, fd: int) -> None:
        try:
            unlock(fd)
        except OSError as problem:
            raise self.failed("cannot unlock the state directory", problem) from None

    def _is_still_here(self, fd: int) -> bool:
        """Return whether the directory is still the one that was opened, and not a replacement."""
        try:
            if not os.path.samestat(os.fstat(fd), os.stat(self.directory)):
                return False
        except FileNotFoundError:
            return False
        except OSError as problem:
            raise self.failed("cannot look at the state directory", problem) from None
        # `gpulaunch setup` may have made another one meanwhile.
        preferred = preferred_directory(self._chosen)
        if preferred != self._preferred:
            moved = f"the state directory moved from {self._preferred} to {preferred}"
            raise FailedError(f"{moved} during this launch", "run the command again")
        return True

    def own_leases(self) -> list[Lease]:
        """Return this user's live leases of all machines; damaged records are left out."""
        return [record for record in self.own_records() if isinstance(record, Lease)]

    def own_records(self) -> list[Lease | Ticket]:
        """Return this user's live records of all machines; damaged ones are left out."""
        records = []
        with self._opened() as fd:
            names = [name for name in self.names(fd) if name.startswith(_RECORDS)]
            for _, owner, name in _in_order(fd, names):
                if owner == os.geteuid():
                    with suppress(FailedError):
                        found = read_record(fd, self.directory, name)
                        if found and found.locked:
                            records.append(parse_record(found, self.directory))
        return records

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Give a descriptor of the directory for as long as the block lasts."""
        fd = open_directory(self.directory)
        try:
            yield fd
        finally:
            os.close(fd)

    def file_of(self, lease_id: str) -> str:
        """Return the name of a record's file, dead or alive; empty if there is none."""
        names = (name for name in self.names() if id_in(name) == lease_id)
        return next(
            (one for one in names if one.startswith(LEASE_PREFIX) or ticket_number(one)), ""
        )

    def names(self, fd: int | None = None) -> list[str]:
        """Return the names of all files in the directory.

        Raises:
            FailedError: it cannot be listed.
        """
        try:
            return os.listdir(self.directory if fd is None else fd)
        except OSError as problem:
            raise self.failed("cannot list the state directory", problem) from None

    def find(self, name: str) -> FoundRecord | None:
        """Return a record, dead or alive, by its file's name; None if it is gone.

        Raises:
            FailedError: the file cannot be read.
        """
        with self._opened() as fd:
            return read_record(fd, self.directory, name)

    def later(self, ticket: Ticket, wanted: Callable[[str], bool]) -> Iterator[Ticket]:
        """Yield the live tickets after another, in their order; damaged ones are left out.

        Args:
            wanted: function of an id that returns whether that ticket is to be read at all.
        """
        with self._opened() as fd:
            for place, _, name in _in_order(fd, filter(ticket_number, self.names(fd))):
                if place > ticket.place and wanted(id_in(name)):
                    with suppress(FailedError):
                        found = read_record(fd, self.directory, name)
                        record = self.live_record(found) if found else None
                        if isinstance(record, Ticket):
                            yield record

    def failed(self, what: str, problem: OSError) -> FailedError:
        """Return an error for the user about a failed system call in this directory."""
        return directory_failed(self.directory, what, problem)

    def read_records(
        self, directory_fd: int, before: Ticket | None, problems: list[FailedError] | None = None
    ) -> Snapshot:
        """Return all live records of all machines, and remove dead ones of this user.

        Root removes those of all users. LockedTable.read and peek() say more.
        """
        leases: list[Lease] = []
        tickets: list[Ticket] = []
        unlocked: set[str] = set()
        leases_of: dict[int, int] = {}
        tickets_of: dict[int, int] = {}
        names = [name for name in self.names(directory_fd) if name not in self._dead]
        self._parsed = {name: self._parsed[name] for name in names if name in self._parsed}
        queue = _in_order(directory_fd, filter(ticket_number, names))
        if before:
            queue = [one for one in queue if one[0] < before.place]
        owner_of = {name: owner for _, owner, name in queue}
        for name in (*(name for name in names if name.startswith(LEASE_PREFIX)), *owner_of):
            owner = owner_of.get(name, -1)
            if tickets_of.get(owner, 0) >= MOST_TICKETS and owner != _EVERYBODY:
                continue
            found, record = self._read_live(directory_fd, name, problems)
            if isinstance(record, Lease):
                locked = found is not None and found.locked
                # One that no process holds may be that of a container that has ended.
                if not locked or self._has_room(record.user_id, leases_of, problems):
                    leases.append(record)
                    unlocked |= set() if locked else {record.id}
            elif found and record:
                tickets.append(record)
                # A forged one of 64 KiB counts as eight, or 1,000 of them would take a gigabyte.
                places = -(-len(found.content) // WRITTEN_BYTES)
                tickets_of[owner] = tickets_of.get(owner, 0) + places
            elif found:
                self._dead.add(name)  # what is unlocked is never locked again
                remove_dead(found, directory_fd)
        leases.sort(
            key=lambda lease: (lease.clock_s, lease.started_at, len(lease.ancestors), lease.id)
        )
        tickets.sort(key=lambda ticket: ticket.place)
        if before:
            tickets = [ticket for ticket in tickets if ticket.place < before.place]
        return Snapshot(leases, tickets, frozenset(unlocked), _drains(directory_fd, names))

    def _read_live(
        self, directory_fd: int, name: str, problems: list[FailedError] | None
    ) -> tuple[FoundRecord | None, Lease | Ticket | None]:
        """Return a file, and the record in it if that is alive; None for what cannot be read."""
        try:
            found = read_record(directory_fd, self.directory, name)
            return found, self.live_record(found) if found else None
        except UnreadableError as problem:
            # It is no lease of a gpulaunch's, and must not shut everybody out.
            self._warn_once(problem.message)
        except FailedError as problem:
            if problems is None:
                raise
            problems.append(problem)
        return None, None

    def _has_room(
        self, user_id: int, counts: dict[int, int], problems: list[FailedError] | None
    ) -> bool:
        """Count one more lease of a user; return whether it is within MOST_LEASES."""
        counts[user_id] = counts.get(user_id, 0) + 1
        if counts[user_id] <= MOST_LEASES or user_id == _EVERYBODY:
            return True
        if problems is None or counts[user_id] == MOST_LEASES + 1:
            problem = FailedError(
                f"{self.directory}: {user_name(user_id)} has more than {MOST_LEASES} live leases: "
                "until some end, nobody can launch",
                f"{who_may(user_id)} can end some: 'gpulaunch free ID'",
            )
            if problems is None:
                raise problem
            problems.append(problem)
        return False

    def live_record(self, found: FoundRecord) -> Lease | Ticket | None:
        """Return a record if it is locked, or a lease whose containers may still live; else None.

        Raises:
            FailedError: a live record is not understood.
        """
        if found.locked:
            # Records are never rewritten: one that is as it was need not be parsed again.
            parsed = self._parsed.get(found.name)
            if parsed is None or parsed[0] != hash(found):
                parsed = hash(found), parse_record(found, self.directory)
                self._parsed[found.name] = parsed
            return parsed[1]
        lease = parse_unlocked(found)
        return None if lease is None or lease.id in self._ended else lease

    def _warn_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self.warn(message)

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

    def __init__(self, fd: int, table: Table) -> None:
        self._fd = fd
        self._table = table
        self._seen: Snapshot | None = None

    def read(self, before: Ticket | None = None) -> Snapshot:
        """Return all live records of all machines.

        No engine is asked under the lock, for which all launchers wait: a lease counts as alive
        unless peek() found that its containers have ended.

        Args:
            before: ticket; only those that come before it are read. None for all tickets.

        Raises:
            FailedError: a live record cannot be read, so it is unknown which GPUs are free.
        """
        self._seen = self._table.read_records(self._fd, before)
        return self._seen

    def sweep(self, name: str) -> None:
        """Remove a record if it is dead."""
        found = read_record(self._fd, self._table.directory, name)
        if found and self._table.live_record(found) is None:
            remove_dead(found, self._fd)

    def next_number(self) -> int:
        """Return the number of a ticket that comes after all live ones: 1 + the largest."""
        numbers = (ticket.number for ticket in self.read().tickets)
        return 1 + max((number for number in numbers if number < MAX_NUMBER), default=0)

    def publish(self, draft: Draft, record: Lease | Ticket) -> None:
        """Write a record into its draft and give it its name, both or neither.

        Raises:
            WouldWaitError: this user has as many as one user can have; nothing is allocated.
            FailedError: the disk is full or read-only; nothing is allocated.
        """
        self._check_room(record)
        try:
            draft.publish(record, self._fd)
        except OSError as problem:
            raise self._table.failed("cannot write a record", problem) from None

    def _check_room(self, record: Lease | Ticket) -> None:
        """Check that this user may have one more of what has been read under the lock."""
        seen = self._seen or self.read()
        own: Sequence[Lease | Ticket] = seen.tickets
        most, what = MOST_TICKETS, "launches in the queue"
        if isinstance(record, Lease):
            own = [lease for lease in seen.leases if lease.id not in seen.unlocked]
            most, what = MOST_LEASES, "leases"
        count = sum(one.user_id == os.geteuid() for one in own)
        if count >= most:
            raise WouldWaitError(
                f"{user_name(os.geteuid())} has {count} {what}: {most} is the most for one user",
                "see 'gpulaunch status --mine'",
            )

    def remove(self, record: Lease | Ticket) -> None:
        """Remove a record from the table, even if processes still have its descriptor.

        Raises:
            FailedError: its file cannot be removed.
        """
        remove_bell(record_name(record), self._fd, record.user_id)
        try:
            os.unlink(record_name(record), dir_fd=self._fd)
        except FileNotFoundError:
            if isinstance(record, Lease):
                self._table.warn(
                    f"{self._table.directory}: lease {record.id} was removed by someone else"
                )
        except OSError as problem:
            raise self._table.failed(f"cannot remove {record_name(record)}", problem) from None


def _in_order(
    directory_fd: int, names: Iterable[str]
) -> list[tuple[tuple[int, int, str], int, str]]:
    """Return place in the queue, owner and name of files in a directory, first one first."""
    found = []
    for name in names:
        with suppress(OSError):
            status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
            place = status.st_ctime_ns, ticket_number(name), id_in(name)
            found.append((place, status.st_uid, name))
    return sorted(found)


def _drains(directory_fd: int, names: Iterable[str]) -> tuple[Drain, ...]:
    """Return the marks among some files."""
    marks = [name for name in names if name.startswith(DRAINED_PREFIX)]
    if not marks:
        return ()
    return tuple(mark for name in marks if (mark := read_drain(directory_fd, name)))


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
