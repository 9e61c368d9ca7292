"""A lock around slow work, such as reading a machine or starting a daemon.

The host-wide lock of the allocation table is another one: nothing slow is done under that. Only
this file imports filelock.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress


@contextmanager
def held(path: str, timeout_s: float) -> Iterator[bool]:
    """Hold a lock file; yield whether it could be locked in time.

    Args:
        path: path of the file, which is created if missing.
        timeout_s: longest wait in seconds.
    """
    from filelock import FileLock, Timeout  # late: it costs more than most launches

    with ExitStack() as stack:
        got = False
        # filelock 3.20 raises NotImplementedError if the file system has no flock.
        with suppress(OSError, Timeout, NotImplementedError):
            stack.enter_context(FileLock(path, timeout=timeout_s))
            got = True
        yield got
