"""What wakes launches that wait: a watch for the end of records, and the bells of tickets."""

import _thread
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from gpulaunch.leases.record_file import BELL_PREFIX, LEASE_PREFIX, is_alive
from gpulaunch.process import libc
from gpulaunch.process.libc import ALL_SIGNALS, change_mask, out_of_the_way

_ENDED = libc.IN_ATTRIB | libc.IN_CLOSE_WRITE | libc.IN_DELETE_SELF
"""Events at the end of a record: its name is removed, or its last writer has closed it."""

_SETTLE_S = 1.0
_LONGEST_PROBE_S = 0.064
WITHOUT_EVENTS_S = 1.0
"""Time between two looks where there are no events."""

WAKE = b"w"
"""Rung after an event: whoever cannot start wakes the next."""

LOOK = b"l"
"""Rung without an event, lest an event was lost: whoever cannot start goes on sleeping."""

_PAGE = 4096
_OPEN = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSES = stat.S_IXUSR
# All may write, whatever the umask, and nobody else read; sticky, so that systemd-tmpfiles does not
# remove it.
_MODE = stat.S_ISVTX | 0o622


class Watch:
    """A watch for the end of one of the records that it follows, and of leases that begin later.

    To miss no end, follow first, then read the table, then sleep until `fd` polls as readable.

    Args:
        warn: called with a warning if there are no events.

    Attributes:
        fd: descriptor that polls as readable after an event; None if there are no events.
    """

    def __init__(self, directory: str, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._warn = warn
        # inotify's watch numbers by file name; they are never removed, which would cost 10 ms.
        self._watches: dict[str, int] = {}
        self._followed: frozenset[str] = frozenset()
        self._of_directory = 0
        self.fd: int | None = None
        try:
            self.fd = out_of_the_way(libc.inotify())
            self._of_directory = libc.watch_file(self.fd, directory, libc.IN_CREATE)
        except OSError as problem:
            self._stop_with(problem)

    def follow(self, names: Collection[str]) -> bool:
        """Follow these records and no others.

        Returns:
            Whether one of them is new, and may have ended before, so that the caller has to read
            the table again before it sleeps.
        """
        if self.fd is None:
            return False
        new = frozenset(names) - self._followed
        self._followed = frozenset(names)
        self._add(new)
        return bool(new)

    def _add(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                if name not in self._watches and self.fd is not None:
                    with suppress(FileNotFoundError):
                        self._watches[name] = libc.watch_file(self.fd, self._path(name), _ENDED)
        except OSError as problem:
            self._stop_with(problem)

    def has_seen_an_end(self) -> bool:
        """Return whether a followed record has ended, once `fd` is readable; it is dead then."""
        if self.fd is None:
            return False
        events = libc.file_events(self.fd)
        closed = {watch for watch, event, _ in events if event & libc.IN_CLOSE_WRITE}
        changed = {watch for watch, _, _ in events}
        paths = [self._path(name) for name in self._followed if self._watches.get(name) in closed]
        wait_until_dead(paths)
        paths += [self._path(name) for name in self._followed if self._watches.get(name) in changed]
        begun = {name for watch, _, name in events if watch == self._of_directory}
        begun = {name for name in begun if name.startswith(LEASE_PREFIX)}
        self._followed |= begun
        self._add(begun)
        return not all(map(is_alive, [*paths, *map(self._path, begun)]))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _stop_with(self, problem: OSError) -> None:
        self.close()
        reason = os.strerror(problem.errno or 0).lower()
        self._warn(
            f"no file events (inotify: {reason}), so looking every {WITHOUT_EVENTS_S:g} s instead"
        )

    def close(self) -> None:
        """Stop following records."""
        fd, self.fd = self.fd, None
        if fd is None:
            return
        # The kernel takes 15 ms to end an inotify instance, for which no job should wait. No signal
        # for this process, such as that for the end of the job, must reach the thread.
        blocked = change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            _thread.start_new_thread(os.close, (fd,))
        except RuntimeError:  # no more threads
            os.close(fd)
        finally:
            change_mask(signal.SIG_SETMASK, blocked)

    def close_copy(self) -> None:
        """Close a forked child's copy, which ends nothing."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def wait_until_dead(paths: Iterable[str]) -> None:
    """Wait, up to a second, until records are dead: events come up to 2 ms before that."""
    paths = list(paths)
    deadline = time.monotonic() + _SETTLE_S
    pause_s = 0.001
    while any(map(is_alive, paths)) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PROBE_S)


class Bell:
    """The bell of a published ticket, in the directory of its record, with which it is removed.

    Args:
        passes: whether the ticket might pass earlier ones that want all that it could have; the
            bell is marked by that.

    Attributes:
        fd: descriptor that polls as readable once it has been rung.

    Raises:
        OSError: the file system has no FIFOs, or no room.
    """

    def __init__(self, directory: str, ticket_id: str, *, passes: bool) -> None:
        self.fd = -1
        path = os.path.join(directory, BELL_PREFIX + ticket_id)
        os.mkfifo(path, 0o600)
        try:
            # Also to write: without a writer it would poll as ready all the time.
            self.fd = out_of_the_way(os.open(path, os.O_RDWR | _OPEN))
            # The smallest buffer: a user's pipes may have 64 MiB together before they get slower.
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _PAGE)
            os.fchmod(self.fd, _MODE | (_PASSES if passes else 0))
        except OSError:
            self.close()
            raise

    def hush(self) -> bytes:
        """Forget that it was rung; return what it was rung with."""
        try:
            return os.read(self.fd, _PAGE)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Let those who listen hear it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def listen(directory: str, ticket_id: str) -> int | None:
    """Return a descriptor that polls with an error once a ticket has ended.

    None if it has ended before, or has no bell: see whether its record is alive.
    """
    path = os.path.join(directory, BELL_PREFIX + ticket_id)
    try:
        fd = out_of_the_way(os.open(path, os.O_WRONLY | _OPEN))
    except OSError:
        return None
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    os.close(fd)  # anybody can give a file this name
    return None


def ring(directory: str, ticket_id: str, word: bytes) -> None:
    """Wake the owner of a ticket with WAKE or LOOK, if it can be."""
    fd = listen(directory, ticket_id)
    if fd is not None:
        with suppress(OSError):  # it has been rung before and has not looked yet, or has gone
            os.write(fd, word)
        os.close(fd)


def might_pass(directory: str, ticket_id: str) -> bool:
    """Return whether a ticket's bell has the mark that it might pass others."""
    try:
        status = os.stat(os.path.join(directory, BELL_PREFIX + ticket_id), follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISFIFO(status.st_mode) and bool(status.st_mode & _PASSES)
