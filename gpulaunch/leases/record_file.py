"""A record of the allocation table: a file that is alive as long as a process holds its lock.

The kernel unlocks it when the last process that inherited the descriptor has ended, however it
ended. docs/decisions/allocation-table.md gives the reasons for each part.
"""

import errno
import fcntl
import json
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO

from gpulaunch.errors import FailedError, FieldError, call_failed
from gpulaunch.leases.lease import Lease, Ticket, parse_lease, parse_ticket
from gpulaunch.leases.record import MAX_UNLOCKED_BYTES, NewerRecordError
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import boot_id, user_name, who_may
from gpulaunch.records import Record

LEASE_PREFIX = "gpulaunch.lease."
TICKET_PREFIX = "gpulaunch.ticket."
BELL_PREFIX = "gpulaunch.bell."
DRAINED_PREFIX = "gpulaunch.drained."
MAX_RECORD_BYTES = 1 << 16
"""Largest record that is understood. Earlier versions write up to 20 KiB, this one 8 KiB."""

_MOST_SHOWN = 200  # characters of what is wrong with a record, which quotes it
_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_WHOLE_FILE_READ = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)


def record_name(record: Lease | Ticket) -> str:
    """Return the name of a record's file; a ticket's begins with its number in the queue."""
    if isinstance(record, Ticket):
        return f"{TICKET_PREFIX}{record.number:08}.{record.id}"
    return LEASE_PREFIX + record.id


def ticket_number(name: str) -> int:
    """Return the number in a ticket's file name; 0 if the name is no ticket's."""
    if not name.startswith(TICKET_PREFIX):
        return 0
    number = name.removeprefix(TICKET_PREFIX).partition(".")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= 10 else 0


def id_in(name: str) -> str:
    """Return the id in a record's file name."""
    return name.rpartition(".")[2]


class Draft:
    """A record that is locked but has no name yet: invisible, and gone if this process dies.

    Args:
        lease_id: id of the lease; None for a new id.

    Attributes:
        fd: its descriptor, above those of the job; a process that inherits it keeps the record
            alive.

    Raises:
        OSError: such a file cannot be made in the directory.
    """

    def __init__(self, directory: str, lease_id: str | None = None) -> None:
        self.id = lease_id or os.urandom(6).hex()
        self.fd = out_of_the_way(os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o644))
        # It closes the descriptor, and warns, if the record is thrown away: what no object owns is
        # nobody's lease. A finalizer in Python could be interrupted by a signal handler.
        self._file = FileIO(f"lease {self.id}", "r+", opener=lambda *_: self.fd)
        fcntl.fcntl(
            self.fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        )

    def publish(self, record: Lease | Ticket, directory_fd: int) -> None:
        """Write the record and give it its name, both or neither.

        Raises:
            OSError: the disk is full or read-only; nothing has a name then.
        """
        content = json.dumps(record.to_document()).encode()
        if len(content) > MAX_RECORD_BYTES:  # no launcher would read it: all would fail
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        while content:
            content = content[os.write(self.fd, content) :]
        # All may read it, whatever the umask; sticky, so that systemd-tmpfiles does not remove it.
        os.fchmod(self.fd, 0o1644)
        os.link(
            f"/proc/self/fd/{self.fd}",
            record_name(record),
            dst_dir_fd=directory_fd,
            follow_symlinks=True,
        )

    @property
    def changed_ns(self) -> int:
        """Change time of its file, in nanoseconds since 1970: once published, when it was."""
        return os.fstat(self.fd).st_ctime_ns

    @property
    def is_removed(self) -> bool:
        """Whether its file, once published, has no name any more, so that nobody finds it."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        """Close the record; it is unlocked when its last descriptor is closed."""
        self._file.close()


class UnreadableError(FailedError):
    """A record that its owner lets nobody read, which no gpulaunch does."""


class FoundRecord(Record):
    """A record's file, read.

    Attributes:
        changed_ns: change time of the file, in nanoseconds since 1970.
        modified_s: modification time of the file, in seconds since 1970.
        content: its contents; empty if it is unlocked and larger than MAX_UNLOCKED_BYTES.
        locked: whether a process holds its lock.
    """

    name: str
    user_id: int
    changed_ns: int
    modified_s: float
    content: bytes
    locked: bool


def read_record(directory_fd: int, directory: str, name: str) -> FoundRecord | None:
    """Read a record; return None if the file is gone or no record.

    Raises:
        UnreadableError: this user may not read the file.
        FailedError: the file cannot be read, so it is unknown whether the record is alive.
    """
    try:
        fd = open_record(name, directory_fd)
    except OSError as problem:
        if problem.errno in (errno.EMFILE, errno.ENFILE):
            raise
        try:
            status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        owner = user_name(status.st_uid)
        reason = os.strerror(problem.errno or 0).lower()
        message = f"{directory}/{name}: cannot read this record of {owner}: {reason}"
        if problem.errno in (errno.EACCES, errno.EPERM):
            raise UnreadableError(f"{message}, so it does not count") from None
        raise FailedError(message) from None
    if fd is None:
        return None
    try:
        locked = is_locked(fd)
        status = os.fstat(fd)
        # Anybody can fill the directory with unlocked files, which all launchers read.
        content = b""
        if locked:
            content = os.read(fd, MAX_RECORD_BYTES + 1)
        elif status.st_size <= MAX_UNLOCKED_BYTES:
            content = os.read(fd, MAX_UNLOCKED_BYTES)
        return FoundRecord(
            name, status.st_uid, status.st_ctime_ns, status.st_mtime, content, locked
        )
    except OSError as problem:
        raise call_failed(f"{directory}/{name}: cannot read this record", problem) from None
    finally:
        os.close(fd)


def remove_dead(found: FoundRecord, directory_fd: int) -> None:
    """Remove a dead record that is this user's; root removes any.

    Failures are ignored, since dead records have no effect; root of a container may lack the right.
    """
    if os.geteuid() in (0, found.user_id):
        with suppress(OSError):
            os.unlink(found.name, dir_fd=directory_fd)
        remove_bell(found.name, directory_fd, found.user_id)


def remove_bell(name: str, directory_fd: int, user_id: int) -> None:
    """Remove a ticket's bell, given the name of the ticket's file; of a lease there is none.

    A failure is ignored: without its ticket it has no effect. A ticket may have the id of another
    user's, whose bell stays.
    """
    if ticket_number(name):
        bell = BELL_PREFIX + id_in(name)
        with suppress(OSError):
            if os.stat(bell, dir_fd=directory_fd, follow_symlinks=False).st_uid == user_id:
                os.unlink(bell, dir_fd=directory_fd)


def open_record(name: str, directory_fd: int | None = None) -> int | None:
    """Open a record to read; return None if the file is gone or no record.

    A record is a regular file with one link. Another user could give a record's name to a file of
    somebody else by a hard link, and blame its owner for the lease.

    Raises:
        OSError: the file may be a record, but cannot be opened.
    """
    try:
        fd = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd
        )
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return fd
    os.close(fd)
    return None


@contextmanager
def opened(path: str) -> Iterator[int | None]:
    """Open a record to read as long as the block lasts; give None if it is gone or unreadable."""
    fd = None
    with suppress(OSError):
        fd = open_record(path)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def is_alive(path: str) -> bool:
    """Return whether a record exists and is locked; True if that is unknown."""
    try:
        fd = open_record(path)
    except OSError:
        return True  # a record that cannot be opened may be alive
    if fd is None:
        return False
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def parse_unlocked(found: FoundRecord) -> Lease | None:
    """Return the lease of an unlocked record that a container may hold; None for a dead record.

    Nothing of an earlier boot runs any more.
    """
    if b'"engine": "' not in found.content:
        return None
    with suppress(ValueError, RecursionError, FieldError):
        record = _parse(found)
        if (
            isinstance(record, Lease)
            and record.engine is not None
            and record.boot_id in ("", boot_id())
        ):
            return record
    return None


def parse_record(found: FoundRecord, directory: str) -> Lease | Ticket:
    """Return the lease or ticket that a live record holds.

    Raises:
        FailedError: it cannot be read, so it is unknown which GPUs are free.
    """
    try:
        return _parse(found)
    except (ValueError, RecursionError, FieldError) as problem:
        owner = user_name(found.user_id)
        kind = "lease" if found.name.startswith(LEASE_PREFIX) else "ticket"
        path = f"{directory}/{found.name}"
        hint = f"{who_may(found.user_id)} can end it: gpulaunch free {id_in(found.name)}"
        if isinstance(problem, NewerRecordError):
            hint = f"{owner} uses a later gpulaunch: use that one, too"
        why = str(problem)[:_MOST_SHOWN]
        raise FailedError(
            f"{path}: this live {kind} of {owner} cannot be understood: {why}", hint
        ) from None


def _refuse_constant(constant: str) -> None:
    """Raise an error for NaN and Infinity, which json accepts by default."""
    raise ValueError(f"{constant} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _parse(found: FoundRecord) -> Lease | Ticket:
    """Return the lease or ticket in a file.

    Raises:
        FieldError: a field is wrong.
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    if len(found.content) > MAX_RECORD_BYTES:
        raise FieldError((), f"larger than {MAX_RECORD_BYTES} bytes")
    document = _DECODER.decode(found.content.decode("utf-8", "surrogatepass"))
    is_lease = found.name.startswith(LEASE_PREFIX)
    record = (
        parse_lease(document, found.user_id, found.modified_s)
        if is_lease
        else parse_ticket(document, found.user_id, found.changed_ns)
    )
    if record_name(record) != found.name:
        raise FieldError(("id",), f"its name should be {record_name(record)}")
    return record


def is_locked(fd: int) -> bool:
    """Return whether a process holds a write lock on the file.

    The call does not take the lock, and a process that can only read the file cannot hold one.
    """
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE_READ)
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def wait_until_unlocked(fd: int) -> None:
    """Block until no process holds a write lock on the file, which is open to read."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _WHOLE_FILE_READ)
