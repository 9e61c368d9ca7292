"""The state directory, on which all launchers of this machine agree, and its host-wide lock.

It also has the marks that take GPUs out of service: files of the table without a lock, one for each
GPU. A mark counts if its file is owned by root or by the owner of the state directory, and was
written since the machine was booted. Anybody else may give a file such a name, to no effect.
"""

import _thread
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from gpulaunch.errors import FailedError, UsageError
from gpulaunch.leases.record_file import DRAINED_PREFIX, read_record
from gpulaunch.machine.topology import TableKey, Topology
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import (
    boot_id,
    command_text,
    identify,
    is_stopped,
    now,
    owner_of,
    state_of,
    user_name,
)
from gpulaunch.records import Record

SET_UP = "/run/gpulaunch"
"""Directory that `gpulaunch setup` makes."""

_SHARED_BY_ALL = ("/run/lock", "/tmp")  # noqa: S108  each is checked before it is used
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "9p", "cifs", "smb3", "ceph", "lustre", "glusterfs")


def preferred_directory(chosen: str | None) -> str:
    """Return the preferred state directory, without a check of its file system.

    Args:
        chosen: GPULAUNCH_STATE_DIR, if it is set.

    Raises:
        UsageError: GPULAUNCH_STATE_DIR is no absolute path.
        FailedError: there is no safe directory.
    """
    if chosen:
        if not os.path.isabs(chosen):
            raise UsageError(
                f"GPULAUNCH_STATE_DIR={chosen} is not an absolute path, which all launches agree on"
            )
        return chosen
    if os.path.isdir(SET_UP):
        return SET_UP
    for directory in _SHARED_BY_ALL:
        if _is_safe_for_all(directory):
            return directory
    raise FailedError(
        "no state directory: neither /run/lock nor /tmp is root's, world-writable and sticky"
    )


def own_table() -> str:
    """Return the real path of the preferred state directory, which tells tables apart."""
    return os.path.realpath(preferred_directory(os.environ.get("GPULAUNCH_STATE_DIR")))


def state_directory(chosen: str | None, *, private: bool) -> str:
    """Return the directory after checking that its locks reach every launcher of this machine.

    Args:
        chosen: GPULAUNCH_STATE_DIR, if it is set.
        private: whether a container's own table will do, as it does for described machines.

    Raises:
        UsageError: GPULAUNCH_STATE_DIR is no absolute path.
        FailedError: no directory can hold the table.
    """
    directory = preferred_directory(chosen)
    point, root, kind = _find_mount(directory)
    own = kind == "overlay" or (point == "/" and root != "/" and _has_container_mark())
    if own and not private:
        hint = f'mount the host\'s: docker run -v {directory}:{directory}, or set table = "private"'
        raise FailedError(
            f"{directory} is this container's own: no other launcher of this machine sees it", hint
        )
    if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse"):
        hint = "set GPULAUNCH_STATE_DIR to a directory on a local file system"
        raise FailedError(
            f"{directory}: locks on {kind} do not reach every launcher of this machine", hint
        )
    if kind == "overlay" and not chosen and _is_safe_for_all("/dev/shm"):  # noqa: S108
        # In a container, for described GPUs or a private table, which are not shared outside it.
        return "/dev/shm"  # noqa: S108
    return directory


def _is_safe_for_all(directory: str) -> bool:
    """Return whether all users may add files and none may touch another's: root's and sticky."""
    try:
        status = os.stat(directory)
    except OSError:
        return False
    return status.st_uid == 0 and status.st_mode & 0o1777 == 0o1777


def _has_container_mark() -> bool:
    """Return whether the file that Docker or podman puts into containers exists.

    A virtual machine that was made from an image has it, too.
    """
    return any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv")))


def _find_mount(directory: str) -> tuple[str, str, str]:
    """Return where the file system of a directory is mounted, what of it, and its type.

    All are empty if they are unknown.
    """
    real = os.path.realpath(directory)
    best = ("", "", "")
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                point = fields[4].replace("\\040", " ")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best[0]):
                    best = (point, fields[3], fields[fields.index("-") + 1])
    except (OSError, ValueError, IndexError):
        return "", "", ""
    return best


def directory_failed(directory: str, what: str, problem: OSError) -> FailedError:
    """Return an error for the user about a failed system call in a state directory."""
    reason = os.strerror(problem.errno or 0).lower()
    hint = None
    if problem.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
        hint = "choose a local file system such as tmpfs with GPULAUNCH_STATE_DIR"
    return FailedError(f"{directory}: {what}: {reason}", hint)


LOCK_TIMEOUT_S = 10.0
"""Time for which a launch that does not wait for GPUs waits for the lock."""

LOOK_EVERY_S = 0.25
"""Time between two calls of `look` while a process waits for the lock."""

_WEEK_S = 604800.0  # Python's locks do not take centuries


def open_directory(directory: str) -> int:
    """Return a descriptor of the state directory.

    Raises:
        FailedError: it cannot be opened.
    """
    try:
        return out_of_the_way(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
    except OSError as problem:
        raise directory_failed(directory, "cannot open the state directory", problem) from None


def unlock(fd: int) -> None:
    """Unlock the directory and close its descriptor.

    Closing alone would not unlock it if another thread forked meanwhile: the child would hold it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def lock_in_time(fd: int, timeout_s: float, look: Callable[[], None] = lambda: None) -> bool:
    """Lock the directory; return False if timeout_s passes first.

    After a time-out the descriptor belongs to the thread that waits in flock. It is a thread since
    polling would take the lock too late, and an alarm would replace that of a Python program.

    Args:
        timeout_s: seconds of the longest wait, a week at most.
        look: called now and then meanwhile; what it raises ends the waiting, and the descriptor
            belongs to the thread then, too.
    """
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    waiting, answer = _thread.allocate_lock(), _thread.allocate_lock()
    waiting.acquire()
    _thread.start_new_thread(_flock_in_thread, (fd, waiting, answer))
    deadline = time.monotonic() + min(timeout_s, _WEEK_S)
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            if waiting.acquire(timeout=min(left_s, LOOK_EVERY_S)):
                return True
            look()
    except BaseException:
        if _is_locked_after_all(waiting, answer):
            unlock(fd)
        raise
    return _is_locked_after_all(waiting, answer)


def _is_locked_after_all(waiting: _thread.LockType, answer: _thread.LockType) -> bool:
    """Stop waiting; return whether the thread has got the lock in the last moment.

    It cannot be stopped: the side that takes `answer` first decides whether the lock is kept or
    released.
    """
    if answer.acquire(blocking=False):
        return False
    waiting.acquire()
    return True


def _flock_in_thread(fd: int, waiting: _thread.LockType, answer: _thread.LockType) -> None:
    """Wait for the lock; keep it if lock_in_time() still waits, else release it."""
    while True:
        with suppress(InterruptedError):
            fcntl.flock(fd, fcntl.LOCK_EX)
            break
    if answer.acquire(blocking=False):
        waiting.release()
    else:
        unlock(fd)


def lock_holder(directory: str) -> str:
    """Return the holder of the directory's lock, as text for a message.

    Anybody who can read the directory can lock it, by a shared lock as well. /proc/locks, whose
    lines end in PID MAJOR:MINOR:INODE START END, has who took the lock. If that process forked, its
    child may hold it alone, and its number may be another's by now: so open files come first.
    """
    try:
        status = os.stat(directory)
        for name in os.listdir("/proc"):
            if name.isdecimal() and _has_lock(name, status):
                return _named(int(name))
        wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open("/proc/locks") as locks:
            for line in locks:
                fields = line.split()
                if "FLOCK" in fields and "->" not in fields and fields[-3] == wanted:
                    taker = int(fields[-4])
                    left = f", or a process that it left: 'sudo fuser {directory}' finds it"
                    return _named(taker) if state_of(identify(taker)) else f"pid {taker}{left}"
    except OSError:
        pass
    return "a process that is not visible here"


def _has_lock(pid: str, directory: os.stat_result) -> bool:
    """Return whether a process has the directory open, and that open file has the lock."""
    with suppress(OSError):  # the process has ended, or is another user's
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), directory):
                    with open(f"/proc/{pid}/fdinfo/{fd}") as info:
                        if "FLOCK" in info.read():
                            return True
    return False


def _named(pid: int) -> str:
    """Return a process as text for a message: its pid, user and command, and whether it sleeps."""
    owner = owner_of(pid)
    if owner is None:
        return f"pid {pid}"
    stopped = ", which is stopped" if is_stopped(identify(pid)) else ""
    return f"pid {pid} of {owner} ({command_text(pid)}){stopped}"


MOST_REASON_CHARACTERS = 200
_VERSION = 1


class Drain(Record):
    """A GPU that is out of service.

    Attributes:
        machine: name and digest of a described machine; () for this machine's own GPUs.
        reason: why, in the words of whoever drained it; may be empty.
    """

    uuid: str
    machine: tuple[str, ...]
    reason: str
    user_id: int
    since: str

    @property
    def text(self) -> str:
        """User and reason, such as "drained by root: fan is loud"."""
        who = f"drained by {user_name(self.user_id)}"
        return f"{who}: {self.reason}" if self.reason else who


def drains_by_gpu(topology: Topology, drains: Iterable[Drain]) -> dict[str, Drain]:
    """Return the marks of a machine's GPUs by UUID; a card's is that of all its MIG instances."""
    by_uuid = {drain.uuid: drain for drain in drains}
    found = {}
    for gpu in topology.gpus:
        drain = by_uuid.get(gpu.uuid) or (by_uuid.get(gpu.mig.card_uuid) if gpu.mig else None)
        if drain:
            found[gpu.uuid] = drain
    return found


def machine_of(key: TableKey | None) -> tuple[str, ...]:
    """Return what names a machine in a mark."""
    return (key.name, key.digest) if key else ()


def write_drain(directory: str, uuid: str, key: TableKey | None, reason: str) -> None:
    """Take a GPU out of service, or change the reason.

    Raises:
        FailedError: this user may not, or the file cannot be written.
    """
    _refuse_others(directory)
    machine = machine_of(key)
    document = {
        "version": _VERSION,
        "uuid": uuid,
        "machine": machine,
        "reason": reason,
        "since": now(),
        "boot_id": boot_id(),
    }
    path = os.path.join(directory, _name_of(uuid, machine))
    draft = f"{path}.{os.urandom(6).hex()}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(document).encode())
            # All may read it, whatever the umask; sticky, so that systemd-tmpfiles spares it.
            os.fchmod(fd, 0o1644)
        finally:
            os.close(fd)
        os.replace(draft, path)
    except OSError as problem:
        with suppress(OSError):
            os.unlink(draft)
        raise directory_failed(directory, "cannot drain a GPU", problem) from None


def remove_drain(directory: str, uuid: str, key: TableKey | None) -> bool:
    """Put a GPU into service again; return whether it was out of it.

    Raises:
        FailedError: this user may not, or the file cannot be removed.
    """
    _refuse_others(directory)
    try:
        os.unlink(os.path.join(directory, _name_of(uuid, machine_of(key))))
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise directory_failed(directory, "cannot undrain a GPU", problem) from None
    return True


def read_drain(directory_fd: int, name: str) -> Drain | None:
    """Return the mark in a file of the table; None if it does not count."""
    try:
        found = read_record(directory_fd, "", name)
    except FailedError:
        return None
    if found is None or found.user_id not in (0, os.fstat(directory_fd).st_uid):
        return None
    try:
        document = json.loads(found.content)
        drain = Drain(
            str(document["uuid"]),
            tuple(map(str, document["machine"])),
            str(document["reason"]),
            found.user_id,
            str(document["since"]),
        )
        is_of_this_boot = document["boot_id"] in ("", boot_id())
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return drain if is_of_this_boot and _name_of(drain.uuid, drain.machine) == name else None


def _name_of(uuid: str, machine: tuple[str, ...]) -> str:
    import hashlib  # late: it loads OpenSSL, which every launch would pay for

    text = "\0".join((uuid, *machine))
    return DRAINED_PREFIX + hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def _refuse_others(directory: str) -> None:
    """Raise an error unless this user is root or owns the state directory."""
    try:
        owner = os.stat(directory + "/").st_uid
    except OSError as problem:
        raise directory_failed(directory, "cannot use this state directory", problem) from None
    if os.geteuid() not in (0, owner):
        may = user_name(owner) if owner == 0 else f"root and {user_name(owner)}"
        raise FailedError(
            f"{directory}: only {may} may take GPUs out of service or back",
            "try it with sudo",
        )
