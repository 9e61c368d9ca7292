"""The output of a detached launch, read to its end or followed as it grows, and its terminal."""

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.launch.past_end import open_job, open_launcher, read_again

_PIECE_BYTES = 1 << 16
_INTERVAL_S = 0.2  # between two looks at the file
_LONGEST_S = 5.0


def begin_of_last(fd: int, lines: int) -> int:
    """Return where the last lines of a file begin, in bytes.

    Args:
        fd: descriptor of the file.
        lines: how many; an unfinished one at the end counts.
    """
    with open(fd, "rb", closefd=False) as file:
        last = deque(file, maxlen=lines)
        return file.tell() - sum(map(len, last))


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
    wait_s = 0.0
    while True:
        if process is not None and _has_ended(process, wait_s):
            os.close(process)
            process = None
        wait_s = _INTERVAL_S
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


def _has_ended(process: int, within_s: float) -> bool:
    """Sleep until a process has ended, or the time is over; return whether it has."""
    poll = select.poll()  # select takes no descriptor from 1024 on
    poll.register(process, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


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
