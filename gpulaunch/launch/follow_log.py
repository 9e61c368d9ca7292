"""The output of a detached launch, read to its end or followed as it grows, and its terminal."""

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.launch.past_end import open_job, open_launcher, read_again
from gpulaunch.process import libc

_PIECE_BYTES = 1 << 16
_WITHOUT_EVENTS_S = 1.0
_LONGEST_S = 5.0


def begin_of_last(fd: int, lines: int) -> int:
    """Return where the last lines of a file begin, in bytes.

    Args:
        fd: descriptor of the file.
        lines: how many; an unfinished one at the end counts.
    """
    at = end = os.fstat(fd).st_size
    if not lines:
        return end
    found = 0
    while at > 0:
        piece = os.pread(fd, min(_PIECE_BYTES, at), at - min(_PIECE_BYTES, at))
        at -= len(piece)
        for place in range(len(piece) - 1, -1, -1):
            if piece[place] == ord("\n") and at + place != end - 1:
                found += 1
                if found == lines:
                    return at + place + 1
    return 0


def follow(
    launch: PastLaunch, fd: int, at: int, warn: Callable[[str], None]
) -> Iterator[bytes | PastLaunch]:
    """Yield the output of a launch as it comes, and at last the launch as it has ended.

    Args:
        launch: the launch.
        fd: descriptor of its log.
        at: where to begin, in bytes.
        warn: called with each warning.
    """
    ended = launch.exit_status is not None
    process = None if ended else open_launcher(launch)
    with _Events(fd) as events:
        while True:
            if process is not None and events.wait(process, 0.0):
                os.close(process)
                process = None
            if process is None and not ended:
                launch, ended = read_again(launch), True
                if launch.exit_status is None:  # its launcher was killed, but its job may go on
                    process = open_job(launch, warn)
            if process is None and launch.terminal:  # what stands before the log may be behind
                wait_until_closed(launch.terminal)
            if os.fstat(fd).st_size < at:  # somebody has emptied it
                at = 0
            while piece := os.pread(fd, _PIECE_BYTES, at):
                at += len(piece)
                yield piece
            if process is None:
                yield launch
                return
            events.wait(process, None)


class _Events:
    """Events of a file that grows.

    Args:
        fd: descriptor of the file.
    """

    def __init__(self, fd: int) -> None:
        self._fd = -1
        with suppress(OSError):
            self._fd = libc.inotify()
            libc.watch_file(self._fd, f"/proc/self/fd/{fd}", libc.IN_MODIFY)

    def __enter__(self) -> "_Events":
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def wait(self, process: int, timeout_s: float | None) -> bool:
        """Sleep until the file has changed, or a process has ended; return whether it has."""
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if self._fd >= 0:
            poll.register(self._fd, select.POLLIN)
        elif timeout_s is None:
            timeout_s = _WITHOUT_EVENTS_S
        ready = [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]
        if self._fd in ready and timeout_s is None:
            libc.file_events(self._fd)
        return process in ready


def connect(path: str) -> socket.socket | None:
    """Return a connection to the socket of the dtach that holds a terminal; None if it is closed.

    A path may be longer than the kernel takes for a socket, so it is reached by its directory.
    """
    end = socket.socket(socket.AF_UNIX)
    directory = -1
    try:
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
        end.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except OSError:
        end.close()
        return None
    finally:
        if directory >= 0:
            os.close(directory)
    return end


def wait_until_closed(path: str) -> None:
    """Sleep until a terminal whose job has ended is closed, for a few seconds at most."""
    end = connect(path)
    if end is None:
        return
    with end, suppress(OSError):
        poll = select.poll()
        poll.register(end, 0)  # for the end alone
        poll.poll(_LONGEST_S * 1000)
