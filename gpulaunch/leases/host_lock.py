"""The host-wide lock: flock on the state directory, with a time-out and the name of its holder."""

import _thread
import fcntl
import os
from contextlib import suppress


def unlock(fd: int) -> None:
    """Unlock the directory and close its descriptor.

    Closing alone would not unlock it if another thread forked meanwhile: the child would hold it.
    """
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def lock_in_time(fd: int, timeout_s: float) -> bool:
    """Lock the directory; return False if timeout_s passes first.

    After a time-out the descriptor belongs to the thread that waits in flock. It is a thread since
    polling would take the lock too late, and an alarm would replace that of a Python program.
    """
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    waiting, answer = _thread.allocate_lock(), _thread.allocate_lock()
    waiting.acquire()
    _thread.start_new_thread(_flock_in_thread, (fd, waiting, answer))
    if waiting.acquire(timeout=timeout_s):
        return True
    # The thread cannot be stopped and may get the lock right now: the side that takes `answer`
    # first decides whether the lock is kept or released.
    if answer.acquire(blocking=False):
        return False
    waiting.acquire()
    return True


def _flock_in_thread(fd: int, waiting: _thread.LockType, answer: _thread.LockType) -> None:
    """Wait for the lock; keep it if lock_in_time() still waits, else release it."""
    while True:
        with suppress(InterruptedError):
            fcntl.flock(fd, fcntl.LOCK_EX)
            break
    if answer.acquire(blocking=False):
        waiting.release()
    else:
        unlock(fd)


def lock_holder(directory: str) -> str:
    """Return the holder of the directory's lock, as text for a message.

    It is found in /proc/locks, whose lines end in PID MAJOR:MINOR:INODE START END.
    """
    try:
        status = os.stat(directory)
        wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open("/proc/locks") as locks:
            for line in locks:
                fields = line.split()
                if "FLOCK" in fields and "->" not in fields and fields[-3] == wanted:
                    return f"pid {fields[-4]}"
    except OSError:
        pass
    return "a process that is not visible here"
