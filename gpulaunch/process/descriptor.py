"""Numbers of our own file descriptors."""

import fcntl
import os

FIRST = 100
"""Jobs use low numbers themselves, and a closed stderr must not become a record."""


def out_of_the_way(fd: int) -> int:
    """Move an open file to a number of at least FIRST, closed on exec, and return that."""
    try:
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST)
        except OSError:  # a limit on open files (ulimit -n) below FIRST: then above the standard
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)
