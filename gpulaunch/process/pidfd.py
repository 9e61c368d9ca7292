"""Descriptors of processes that cannot be mistaken for later ones with the same number."""

import os

from gpulaunch.process.identity import Process
from gpulaunch.process.system import identify


def open_process(process: Process) -> int | None:
    """Return a descriptor that polls as readable once a process has ended; None if it has ended.

    Raises:
        OSError: no descriptors are left.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except (ProcessLookupError, ValueError, OverflowError):
        return None
    # The number may belong to another process by now; from here on it cannot change.
    if identify(process.pid) == process and process.start_time:
        return fd
    os.close(fd)
    return None
