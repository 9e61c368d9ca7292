"""The life of a share group: one MPS control daemon for one user on one exact set of GPUs.

It is started with the first of the group's jobs and ended with the last, under a lock of the
group's own; the allocation table says which jobs live. docs/decisions/sharing.md tells why each
part is made this way.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from zlib import crc32

from gpulaunch.errors import FailedError
from gpulaunch.files.own_cache import is_own, slow_lock
from gpulaunch.files.units import format_duration
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import wait_until_unlocked
from gpulaunch.leases.table import Table
from gpulaunch.process.companion import DISMISSED, Companion
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import boot_id, seconds_since_boot
from gpulaunch.sharing.mps_daemon import Daemon, MpsError, MpsHangsError, pipe_directory_of, program
from gpulaunch.sharing.mps_directories import MEMBERS_FILE, PATIENCE_S, is_of_a_group, make_own

_LOCK_MARGIN_S = 30.0

KEPT_S = 600.0
"""Time for which a note of a server that hung counts.

Ours: a machine that was repaired should not wait much longer.
"""

DRIVER = "/sys/module/nvidia/version"
"""Version of the kernel driver that is loaded; another one may be so without a boot."""


class ShareGroup:
    """The jobs of this user that share exactly these GPUs.

    Args:
        uuids: UUIDs of the GPUs, ascending.
        directory: the pipe directory of its daemon.
        patience_s: the longest wait for the MPS server.

    Attributes:
        directory: the pipe directory of its daemon.
        daemon: the daemon, whether it runs or not.
    """

    def __init__(
        self, table: Table, uuids: Sequence[str], directory: str, patience_s: float = PATIENCE_S
    ) -> None:
        self.directory = directory
        self.daemon = Daemon(directory, uuids, os.geteuid())
        self._table = table
        self._uuids = tuple(uuids)
        self._base = os.path.dirname(directory)
        self._patience_s = patience_s

    def companion(self, record_fd: int | None = None) -> Companion:
        """Fork a process that leaves the group if this one dies without doing so.

        It acts, too, if this process hands on the lease.

        Args:
            record_fd: the lease's record, open; None before there is a lease.
        """
        path = os.devnull if record_fd is None else f"/proc/self/fd/{record_fd}"
        # A descriptor that only reads the record does not hold its lock.
        read_fd = out_of_the_way(os.open(path, os.O_RDONLY))

        def act(word: bytes) -> None:
            if not word:
                if record_fd is not None:
                    wait_until_unlocked(read_fd)
                self.leave()

        try:
            return Companion(act, read_fd)
        finally:
            os.close(read_fd)

    @contextmanager
    def entered(self, *, may_fork: bool = True) -> Iterator[None]:
        """Make the group's daemon ready, and keep others from starting or ending it meanwhile.

        A lease that is published meanwhile is a member. If there is no member in the end, the
        daemon is ended, also if this process is killed before.

        Args:
            may_fork: whether this process may fork without exec.

        Raises:
            MpsError: the daemon cannot be made ready.
        """
        problem = make_own(self._base)
        if problem:
            raise MpsError(problem)
        patience_s = self._patience_s + _LOCK_MARGIN_S
        with slow_lock(self._lock_path, patience_s) as got:
            if not got:
                raise MpsError(
                    f"{self._lock_path} cannot be had for {patience_s:g} s: another launch is at "
                    "its MPS daemon"
                )
            companion = self.companion() if may_fork else None
            try:
                self._ensure_daemon()
                yield
            finally:
                if not self.members():
                    self._end()
                if companion:
                    companion.tell(DISMISSED)

    def leave(self, patience_s: float | None = None) -> bool:
        """End the daemon if no member is left; to be called when a lease has ended.

        Args:
            patience_s: the longest wait for another launch that starts or ends the daemon; None for
                as long as that may take.

        Returns:
            Whether the daemon has been seen to.
        """
        if not self._is_there():
            return True
        if patience_s is None:
            patience_s = self._patience_s + _LOCK_MARGIN_S
        with slow_lock(self._lock_path, patience_s) as got:
            if got and not self.members():
                self._end()
            return got

    def _is_there(self) -> bool:
        """Return whether anything of the group may be left in a directory of this user."""
        return is_own(self._base) and (
            os.path.isdir(self.directory) or self.daemon.pid() is not None
        )

    @property
    def _lock_path(self) -> str:
        return f"{self.directory}.lock"

    @property
    def _note_path(self) -> str:
        return f"{self.directory}.hung"

    def members(self) -> list[Lease]:
        """Return the live leases of the group."""
        try:
            leases = self._table.peek().leases  # also those that no process holds, but a container
        except FailedError:  # somebody's record is damaged
            leases = self._table.own_leases()
        own = [lease for lease in leases if lease.user_id == os.geteuid()]
        return [
            lease for lease in own if lease.share and lease.share.pipe_directory == self.directory
        ]

    def _ensure_daemon(self) -> None:
        """Make the daemon ready, and say of a failure which jobs it concerns."""
        members = self.members()
        try:
            self._make_ready(alone=not members)
            with suppress(OSError):
                os.unlink(self._note_path)
        except MpsError as problem:
            if isinstance(problem, MpsHangsError):
                note_hang(self._note_path, str(problem), self._patience_s)
            if not members:
                raise MpsError(f"MPS: {problem}") from None
            one = "a job of the group still runs"
            jobs = one if len(members) == 1 else f"{len(members)} jobs still run"
            raise MpsError(f"MPS: {problem}, and {jobs}") from None
        except OSError as problem:
            reason = os.strerror(problem.errno or 0).lower()
            raise MpsError(f"{problem.filename or self.directory}: {reason}") from None

    def _make_ready(self, *, alone: bool) -> None:
        """Use the daemon that runs; without members a dead or faulty one is replaced."""
        runs = self.daemon.pid() is not None
        if (alone or not runs) and (hung := recall_hang(self._note_path, self._patience_s)):
            raise MpsError(hung)  # one with members works, whatever became of a slow answer
        if not runs and not alone:
            raise MpsError("its control daemon is gone")
        if runs:
            try:
                self.daemon.make_ready(self._patience_s)
            except MpsError:
                if not alone:
                    raise
                self._end()
            else:
                return
        shutil.rmtree(self.directory, ignore_errors=True)  # sockets of a daemon that was killed
        os.mkdir(self.directory, 0o700)
        os.mkdir(self.daemon.log_directory, 0o700)
        with open(os.path.join(self.directory, MEMBERS_FILE), "w") as file:
            json.dump([self._table.directory, self._uuids], file)
            os.fchmod(file.fileno(), 0o1600)  # sticky: systemd-tmpfiles spares it
        self.daemon.start()
        self.daemon.make_ready(self._patience_s)

    def _end(self) -> None:
        self.daemon.quit()
        shutil.rmtree(self.directory, ignore_errors=True)


def note_hang(path: str, reason: str, patience_s: float) -> None:
    """Write down that a server hung in the time that it had, and what was seen, as a clause.

    Without a note the next launch finds out by itself.
    """
    note = {"reason": reason, "patience_s": patience_s, "at_s": seconds_since_boot()}
    with suppress(OSError), open(path, "w") as file:
        json.dump({**note, "place": _place()}, file)


def recall_hang(path: str, patience_s: float) -> str | None:
    """Return what a note says about a server, and what makes it be tried again.

    A note counts for KEPT_S, until the machine boots or driver or MPS is another one, as after an
    update, and for launches that wait no longer than its own.

    Returns:
        A clause for messages; None without a note that counts.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(path) as file:
            note = json.load(file)
        age_s = seconds_since_boot() - note["at_s"]
        if 0 <= age_s < KEPT_S and note["place"] == _place() and patience_s <= note["patience_s"]:
            ago, left = format_duration(int(age_s)), format_duration(int(KEPT_S - age_s))
            return f"{note['reason']}, {ago} ago; tried again in {left}, or after 'rm {path}'"
    return None


def _place() -> list[str | int]:
    """Return what identifies this boot, this kernel driver, and this MPS, which comes with it."""
    path = program() or ""
    place: list[str | int] = [boot_id(), path]
    with suppress(OSError), open(DRIVER) as file:
        place.append(file.read().strip())
    with suppress(OSError):
        status = os.stat(path)
        place += [status.st_mtime_ns, status.st_size]
    return place


def sweep(base: str, table: Table) -> bool:
    """End daemons of this table that nobody uses, because all that looked after them were killed.

    Returns:
        Whether there were any.
    """
    swept = False
    for name in os.listdir(base) if is_own(base) else ():
        directory = os.path.join(base, name)
        with suppress(OSError, ValueError, TypeError):
            with open(os.path.join(directory, MEMBERS_FILE)) as file:
                table_directory, uuids = json.load(file)
            group = ShareGroup(table, uuids, directory)
            if table_directory == table.directory and not group.members():
                swept = group.leave(0.0) or swept
    return swept


def group_directory(base: str, table: Table, uuids: Sequence[str]) -> str:
    """Return the pipe directory of a group.

    Each table and each set of GPUs has its own; its name is short, for the path of a socket is.

    Args:
        base: directory of this user's groups.
        uuids: UUIDs of the GPUs, ascending.
    """
    key = json.dumps([os.path.realpath(table.directory), *uuids]).encode()
    return os.path.join(base, f"{crc32(key):08x}")


def serves_a_group(pid: int) -> bool:
    """Return whether a process is the MPS daemon or server of a share group.

    It belongs to all of its jobs, and to none.
    """
    directory = pipe_directory_of(pid)
    return directory is not None and is_of_a_group(directory)


def group_of(table: Table, lease: Lease) -> ShareGroup | None:
    """Return the share group that a lease of this user is in.

    Returns:
        None if its GPUs are its own, only described, or another user's.
    """
    if lease.share is None or lease.share.pipe_directory is None or lease.user_id != os.geteuid():
        return None
    return ShareGroup(table, lease.share.group, lease.share.pipe_directory)


def daemon_of(lease: Lease) -> Daemon | None:
    """Return the MPS daemon of a lease, of any user.

    Returns:
        None if its GPUs are its own, or only described.
    """
    if lease.share is None or lease.share.pipe_directory is None:
        return None
    return Daemon(lease.share.pipe_directory, lease.share.group, lease.user_id)
