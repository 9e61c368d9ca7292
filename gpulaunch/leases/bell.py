"""The bells of a queue: FIFOs that wake its waiters without an inotify instance each.

A waiter has its ticket's bell open to read, as nobody else can. Those who sleep on the ticket have
it open to write: poll() reports an error there once the reader has gone, however it went. Whoever
finds that the waiter might start rings: writes a byte.
"""

import fcntl
import os
import stat
from contextlib import suppress

from gpulaunch.leases.record_file import BELL_PREFIX
from gpulaunch.process.libc import out_of_the_way

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


class Bell:
    """The bell of a ticket, in the directory of its record, with which it is removed.

    Args:
        directory: the state directory.
        ticket_id: id of the ticket, which has been published.
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
