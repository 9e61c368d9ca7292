"""The host-wide allocation table: a directory of records, one a lease, on which all launchers of a machine agree.

The host-wide lock is flock on the directory itself. A record is a file that carries an open-file-description write
lock, held by the launcher and inherited by its job: locked means alive, and the kernel unlocks when the last of them
is gone, however it went. docs/decisions/allocation-table.md tells why each part is as it is.
"""

import errno
import fcntl
import json
import os
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpulaunch.core.leases.lease import Lease, TableKey, parse_lease, same_table
from gpulaunch.errors import FailedError, FieldError, UsageError
from gpulaunch.host.descriptor import out_of_the_way
from gpulaunch.host.system import user_name

LEASE_PREFIX = "gpulaunch.lease."
LOCK_TIMEOUT_S = 10.0
MAX_RECORD_BYTES = 1 << 20

_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "9p", "cifs", "smb3", "ceph", "lustre", "glusterfs")


class Table:
    """The state directory.

    Args:
        described: only leases on described machines are of interest, never those on this machine's own GPUs.
        warn: where to say what is odd but no failure.

    Raises:
        FailedError: no directory will do.
    """

    def __init__(self, *, described: bool, warn: Callable[[str], None]) -> None:
        self.directory = _state_directory(described=described)
        self.warn = warn
        self._check_owner()

    def draft(self) -> "Draft":
        """A record without a name yet, locked: nobody sees it, and nothing of it stays if we die."""
        try:
            fd = os.open(self.directory, os.O_TMPFILE | os.O_RDWR, 0o644)
        except OSError as problem:
            raise self.failed("cannot write a record", problem) from None
        fd = out_of_the_way(fd)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return Draft(fd, os.urandom(6).hex())

    def peek(self) -> list[Lease]:
        """All live leases, of whatever machine, without the lock: what is true now may not be a moment later.

        Raises:
            FailedError: a live record cannot be understood, so nobody can tell which GPUs are free.
        """
        try:
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as problem:
            raise self.failed("cannot open the state directory", problem) from None
        try:
            return _read_records(fd, self.directory, clear_dead=False)
        finally:
            os.close(fd)

    @contextmanager
    def locked(self) -> "Iterator[LockedTable]":
        """Hold the host-wide lock. Only records are read and written meanwhile, for milliseconds.

        Raises:
            FailedError: it cannot be had within LOCK_TIMEOUT_S; the message names its holder.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            fd = self._lock()
            try:
                yield LockedTable(fd, self)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _lock(self) -> int:
        while True:
            try:
                fd = out_of_the_way(os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY))
            except OSError as problem:
                raise self.failed("cannot open the state directory", problem) from None
            if not _flock(fd):
                holder = _lock_holder(fd)
                os.close(fd)
                raise FailedError(f"{self.directory}: the host-wide lock is held for {LOCK_TIMEOUT_S:g} s by {holder}")
            try:  # the directory may have been replaced between opening and locking
                if os.path.samestat(os.fstat(fd), os.stat(self.directory)):
                    return fd
            except FileNotFoundError:
                pass
            os.close(fd)

    def failed(self, what: str, problem: OSError) -> FailedError:
        """An error of the operating system in this directory, for the user."""
        reason = os.strerror(problem.errno or 0).lower()
        hint = None
        if problem.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            hint = "choose a local file system such as tmpfs with GPULAUNCH_STATE_DIR"
        return FailedError(f"{self.directory}: {what}: {reason}", hint)

    def _check_owner(self) -> None:
        try:
            owner = os.stat(self.directory + "/").st_uid
        except OSError as problem:
            raise self.failed("cannot use this state directory", problem) from None
        if owner not in (0, os.geteuid()):
            self.warn(f"state directory {self.directory} belongs to {user_name(owner)}, who can remove any lease in it")


class Draft:
    """A record that is locked but has no name yet.

    Attributes:
        fd: its descriptor, out of the job's way; whoever inherits it keeps the lease alive.
        id: of the lease that it becomes.
    """

    def __init__(self, fd: int, lease_id: str) -> None:
        self.fd = fd
        self.id = lease_id

    def close(self) -> None:
        """Let go of the record. Only the last descriptor's end unlocks it."""
        os.close(self.fd)


class LockedTable:
    """The table while the host-wide lock is held."""

    def __init__(self, fd: int, table: Table) -> None:
        self._fd = fd
        self._table = table

    def leases(self, key: TableKey | None) -> list[Lease]:
        """The live leases of one machine, oldest first. Dead records of this user (of all, for root) are removed.

        Args:
            key: a described machine, or None for this machine's own GPUs.

        Raises:
            FailedError: a live record cannot be understood, so nobody can tell which GPUs are free.
        """
        leases = _read_records(self._fd, self._table.directory, clear_dead=True)
        return [lease for lease in leases if same_table(lease.table, key)]

    def publish(self, draft: Draft, lease: Lease) -> None:
        """Write the lease into its record and give it its name, both or neither.

        Raises:
            FailedError: the disk is full or read-only; nothing is allocated.
        """
        try:
            content = json.dumps(lease.to_document()).encode()
            while content:
                content = content[os.write(draft.fd, content) :]
            os.fchmod(draft.fd, 0o1644)  # for all to read whatever the umask; sticky: systemd-tmpfiles spares it
            name = LEASE_PREFIX + lease.id
            os.link(f"/proc/self/fd/{draft.fd}", name, dst_dir_fd=self._fd, follow_symlinks=True)
        except OSError as problem:
            raise self._table.failed("cannot write a record", problem) from None

    def remove(self, draft: Draft) -> None:
        """Take the record out of the table."""
        try:
            os.unlink(LEASE_PREFIX + draft.id, dir_fd=self._fd)
        except FileNotFoundError:
            self._table.warn(f"{self._table.directory}: lease {draft.id} was removed by someone else")
        except OSError as problem:
            raise self._table.failed(f"cannot remove lease {draft.id}", problem) from None


def release(table: Table, draft: Draft) -> None:
    """End a published lease, whoever still has its descriptor."""
    try:
        with table.locked() as locked:
            locked.remove(draft)
    except FailedError as problem:  # the job has ended: its status matters more, and an unlocked record is ignored
        table.warn(problem.message)
    draft.close()


def _read_records(directory_fd: int, directory: str, *, clear_dead: bool) -> list[Lease]:
    """All live leases, of whatever machine, oldest first and parents before their children."""
    names = [name for name in os.listdir(directory_fd) if name.startswith(LEASE_PREFIX)]
    leases = [lease for name in names if (lease := _read_record(directory_fd, directory, name, clear_dead=clear_dead))]
    return sorted(leases, key=lambda lease: (lease.started_at, len(lease.ancestors), lease.id))


def _read_record(directory_fd: int, directory: str, name: str, *, clear_dead: bool) -> Lease | None:
    """The lease of a live record; None for a dead one."""
    path = os.path.join(directory, name)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ELOOP):  # ended just now; a symbolic link, which no launcher makes
            return None
        owner = user_name(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_uid)
        message = f"{path}: cannot read this record of {owner}: {os.strerror(problem.errno or 0).lower()}"
        raise FailedError(message, f"only {owner} or root can tell whether it is alive, and remove it") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        if not _is_locked(fd):
            if clear_dead and os.geteuid() in (0, status.st_uid):
                os.unlink(name, dir_fd=directory_fd)
            return None
        content = os.read(fd, MAX_RECORD_BYTES + 1)
    finally:
        os.close(fd)
    try:
        return _parse_record(name, content, status.st_uid)
    except (ValueError, RecursionError, FieldError) as problem:
        owner = user_name(status.st_uid)
        raise FailedError(f"{path}: this live lease of {owner} cannot be understood: {problem}") from None


def _parse_record(name: str, content: bytes, user_id: int) -> Lease:
    if len(content) > MAX_RECORD_BYTES:
        raise FieldError((), f"larger than {MAX_RECORD_BYTES} bytes")
    lease = parse_lease(json.loads(content), user_id)
    if LEASE_PREFIX + lease.id != name:
        raise FieldError(("id",), f"its id is {lease.id!r}")
    return lease


def _is_locked(fd: int) -> bool:
    """Whether somebody holds a write lock on the file: takes nothing, and a mere reader cannot pretend it."""
    question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, question)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _flock(fd: int) -> bool:
    """Lock the directory; False if LOCK_TIMEOUT_S passes first."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return True
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    pause_s = 0.0005
    while time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.01)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _lock_holder(fd: int) -> str:
    """Who has the directory's lock, from /proc/locks, whose lines end in PID MAJOR:MINOR:INODE START END."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks") as locks:
            for line in locks:
                fields = line.split()
                if "FLOCK" in fields and "->" not in fields and fields[-3] == wanted:
                    return f"pid {fields[-4]}"
    except OSError:
        pass
    return "a process that is not visible here"


def _state_directory(*, described: bool) -> str:
    chosen = os.environ.get("GPULAUNCH_STATE_DIR")
    if chosen:
        directory = chosen
        if not os.path.isabs(chosen):
            raise UsageError(f"GPULAUNCH_STATE_DIR={chosen} is no absolute path, so it would mean many tables")
    elif os.path.isdir("/run/gpulaunch"):
        directory = "/run/gpulaunch"
    else:
        directory = next(filter(_is_safe_for_all, ("/run/lock", "/tmp")), "")  # noqa: S108  checked just here
        if not directory:
            raise FailedError("no state directory: neither /run/lock nor /tmp is root's, world-writable and sticky")
    mount = _mount(directory)
    kind = mount.kind
    if kind == "overlay" and described and not chosen and _is_safe_for_all("/dev/shm"):  # noqa: S108
        return "/dev/shm"  # noqa: S108  in a container; described GPUs are nobody else's business
    if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse"):
        hint = "set GPULAUNCH_STATE_DIR to a directory on a local file system"
        raise FailedError(f"{directory}: locks on {kind} do not reach every launcher of this machine", hint)
    if not described and (kind == "overlay" or (mount.point == "/" and mount.root != "/" and _marked_as_container())):
        hint = f"mount the host's: docker run -v {directory}:{directory}"
        raise FailedError(f"{directory} is this container's own: no other launcher of this machine sees it", hint)
    return directory


def _is_safe_for_all(directory: str) -> bool:
    """Whether every user may add files and none may touch another's: root's, world-writable, sticky."""
    try:
        status = os.stat(directory)
    except OSError:
        return False
    return status.st_uid == 0 and status.st_mode & 0o1777 == 0o1777


def _marked_as_container() -> bool:
    """Whether Docker or podman left its mark here; a virtual machine made of a container's image has it too."""
    return any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv")))


class _Mount(NamedTuple):
    """Where a file system is mounted, which of its directories is mounted there, and its type."""

    point: str
    root: str
    kind: str


def _mount(directory: str) -> _Mount:
    """The mount that a directory is on; all empty if that cannot be told."""
    real = os.path.realpath(directory)
    best = _Mount("", "", "")
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                point = fields[4].replace("\\040", " ")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best.point):
                    best = _Mount(point, fields[3], fields[fields.index("-") + 1])
    except (OSError, ValueError, IndexError):
        return _Mount("", "", "")
    return best
