"""Small caches in memory (tmpfs), and locks around slow work.

A cache lies in a directory that is this user's own: no other user can forge it, and it does not
outlive a boot. The locks are for such work as reading a machine or starting a daemon; nothing slow
is done under the host-wide lock of the allocation table, which is another one. Only this file
imports filelock.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

_MAX_BYTES = 4 << 20


def load(name: str, max_age_s: float | None = None) -> dict[str, Any]:
    """Return the document of a cache.

    Raises:
        OSError: there is none.
        ValueError: it is too old, or another user may write to it.
        TypeError: it is no document.
    """
    fd = os.open(path_of(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        mine = (
            stat.S_ISREG(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o022
        )
        young = max_age_s is None or 0 <= time.time() - status.st_mtime < max_age_s
        if not (mine and young):
            raise ValueError(name)
        document = json.loads(os.read(fd, _MAX_BYTES))
    finally:
        os.close(fd)
    if not isinstance(document, dict):
        raise TypeError(name)
    return document


def store(name: str, document: dict[str, Any]) -> None:
    """Write a cache; if that fails, what it should hold is found out again the next time."""
    content = json.dumps(document, separators=(",", ":")).encode()
    with suppress(OSError):
        path = path_of(name)
        draft = f"{path}.{os.getpid()}"
        try:
            fd = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(fd, "wb") as file:
                file.write(content)
            os.replace(draft, path)
        except OSError:
            os.unlink(draft)


def path_of(name: str) -> str:
    """Return the path of a cache: in the user's own tmpfs directory, or in one that is made.

    Raises:
        OSError: there is none, or another user owns what should be the user's.
    """
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(own) or not is_own(own):
        own = f"/dev/shm/gpulaunch.{os.geteuid()}"  # noqa: S108  its owner is checked
        with suppress(FileExistsError):
            os.mkdir(own, 0o700)
        if not is_own(own):
            raise PermissionError(errno.EPERM, "not this user's own", own)
    return os.path.join(own, name)


def is_own(directory: str) -> bool:
    """Return whether this is a directory in which only this user can make files."""
    with suppress(OSError):
        status = os.lstat(directory)
        return (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o022
        )
    return False


@contextmanager
def slow_lock(path: str, timeout_s: float) -> Iterator[bool]:
    """Hold a lock file, which is made if missing; yield whether it could be locked in time."""
    from filelock import FileLock, Timeout  # late: it costs more than most launches

    with ExitStack() as stack:
        got = False
        # filelock 3.20 raises NotImplementedError if the file system has no flock.
        with suppress(OSError, Timeout, NotImplementedError):
            stack.enter_context(FileLock(path, timeout=timeout_s))
            got = True
        yield got
