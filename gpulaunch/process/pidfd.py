"""Descriptors of processes that cannot be mistaken for later ones with the same number."""

import errno
import os

from gpulaunch.process.identity import Process
from gpulaunch.process.system import identify


def open_process(process: Process) -> int | None:
    """Return a descriptor that polls as readable once a process has ended; None if it has ended.

    Raises:
        OSError: no descriptors are left.
    """
    fd = open_pid(process.pid)
    if fd is None:
        return None
    # The number may belong to another process by now; from here on it cannot change.
    if identify(process.pid) == process and process.start_time:
        return fd
    os.close(fd)
    return None


def open_pid(pid: int) -> int | None:
    """Return a descriptor that polls as readable once the process with a pid has ended.

    None if there is none. The number of a process that has ended may be that of a thread by now:
    then the kernel says ENOENT or, before Linux 6.9, EINVAL.

    Raises:
        OSError: no descriptors are left.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as problem:
        if problem.errno in (errno.EMFILE, errno.ENFILE):
            raise
    except (ValueError, OverflowError):  # no pid at all, as a damaged file may have it
        pass
    return None
