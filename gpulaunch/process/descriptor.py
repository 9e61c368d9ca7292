"""Where our own file descriptors stand."""

import fcntl
import os

FIRST = 100
"""A job that uses low numbers of its own must not meet ours, and a closed stderr must not become a record."""


def out_of_the_way(fd: int) -> int:
    """The same open file at a number of at least FIRST, closed on exec."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST)
    except OSError:  # a limit on open files (ulimit -n) below FIRST: then above the standard three
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
