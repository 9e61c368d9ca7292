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
from gpulaunch.files.own_cache import is_own, load, path_of, slow_lock, store
from gpulaunch.leases.environment import PATIENCE_S
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import wait_until_unlocked
from gpulaunch.leases.table import Table
from gpulaunch.process.ending import DISMISSED, Companion
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.sharing.mps_daemon import MEMBERS_FILE, Daemon, MpsError, MpsHangsError

_LOCK_MARGIN_S = 30.0
_SOCKET_BYTES = 107  # of sockaddr_un, less the end
_LONGEST_NAME = "/12345678/control_privileged"

KEPT_S = 600.0
"""Time for which a note of a server that hung counts.

Ours: a machine that was repaired should not wait much longer.
"""


class ShareGroup:
    """The jobs of this user that share exactly these GPUs.

    Args:
        uuids: UUIDs of the GPUs, ascending.
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
        self._lock_path = f"{directory}.lock"
        # the cache that holds what was seen of a server that hung
        self._note = f"gpulaunch.mps.{os.path.basename(directory)}.hung"

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

        Raises:
            MpsError: the daemon cannot be made ready.
        """
        _make_own(self._base)
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
        if not is_own(self._base):
            return True
        if not os.path.isdir(self.directory) and self.daemon.pid() is None:
            return True
        if patience_s is None:
            patience_s = self._patience_s + _LOCK_MARGIN_S
        with slow_lock(self._lock_path, patience_s) as got:
            if got and not self.members():
                self._end()
            return got

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
                os.unlink(path_of(self._note))
        except MpsError as problem:
            if isinstance(problem, MpsHangsError):
                store(self._note, {"reason": str(problem), "patience_s": self._patience_s})
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
        if alone or not runs:  # one with members works, whatever became of a slow answer
            self._recall_hang()
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

    def _recall_hang(self) -> None:
        """Fail at once if the server has just hung for a launch that waited as long as this one."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = load(self._note, KEPT_S)
            if self._patience_s <= note["patience_s"]:
                again = f"within {KEPT_S / 60:g} min, or after 'rm {path_of(self._note)}'"
                raise MpsError(f"{note['reason']}; tried again {again}")

    def _end(self) -> None:
        self.daemon.quit()
        shutil.rmtree(self.directory, ignore_errors=True)


def _make_own(directory: str) -> None:
    """Make a directory that is this user's alone, short enough for the paths of sockets in it."""
    room = _SOCKET_BYTES - len(_LONGEST_NAME)
    count = len(os.fsencode(directory))
    if count > room:
        raise MpsError(f"{directory}: the path has {count} bytes: a socket has room for {room}")
    try:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    except OSError as problem:
        raise MpsError(f"{directory}: {os.strerror(problem.errno or 0).lower()}") from None
    if not is_own(directory):
        raise MpsError(f"{directory} is not this user's alone")


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
    """Return the pipe directory of the group of some GPUs, whose UUIDs ascend.

    Each table and each set of GPUs has its own; its name is short, for the path of a socket is.
    """
    key = json.dumps([os.path.realpath(table.directory), *uuids]).encode()
    return os.path.join(base, f"{crc32(key):08x}")


def leave_group(table: Table, lease: Lease) -> None:
    """Leave the share group of a lease of this user that has ended, if it was in one."""
    share = lease.share
    if share and share.pipe_directory and lease.user_id == os.geteuid():
        ShareGroup(table, share.group, share.pipe_directory).leave()


def daemon_of(lease: Lease) -> Daemon | None:
    """Return the MPS daemon of a lease, of any user; None if it has none."""
    if lease.share is None or lease.share.pipe_directory is None:
        return None
    return Daemon(lease.share.pipe_directory, lease.share.group, lease.user_id)
