"""The line of a launch in the history: appended when it begins, rewritten in place as it goes on.

There is a file for each user and month, in the user's own directory. A line has room to spare, so a
full disk loses no exit status, and a launcher that is killed leaves a line without an end.
docs/decisions/history.md gives the reasons.
"""

import errno
import json
import os
import stat
import time
from contextlib import suppress
from typing import Any

from gpulaunch.files.document import make_own, own_directory
from gpulaunch.process.system import user_name

COMMON = "/var/lib/gpulaunch/history"
"""Directory of all users' files, which `gpulaunch setup --history` makes."""

SUFFIX = ".jsonl"
_VERSION = 1
_SPARE_BYTES = 512
_BLOCK_BYTES = 256  # lines are padded to multiples


def history_directory() -> str:
    """Return the directory of this user's lines: in the common place if there is one, else own."""
    return f"{COMMON}/{os.geteuid()}" if has_common() and not taken() else private_directory()


def private_directory() -> str:
    """Return the directory of the user's own history, which no other user reads."""
    return f"{state_home()}/history"


def has_common() -> bool:
    """Return whether there is a common place of all users' histories."""
    return is_directory_of(COMMON, 0)


def taken() -> str | None:
    """Return who else has this user's name in the common place, in words; None if nobody."""
    path = f"{COMMON}/{os.geteuid()}"
    with suppress(OSError):
        owner = user_name(os.lstat(path).st_uid)
        if has_common() and not is_directory_of(path, os.geteuid()):
            history = private_directory()
            return f"{path} is {owner}'s, so your history is in {history}, for you alone"
    return None


def is_directory_of(path: str, user_id: int) -> bool:
    """Return whether this is a directory, and no link to one, that belongs to a user."""
    with suppress(OSError):
        status = os.lstat(path)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == user_id
    return False


def state_home() -> str:
    """Return the directory of what gpulaunch keeps for this user."""
    return own_directory("XDG_STATE_HOME", ".local/state")


class HistoryLine:
    """The line of one launch. Whatever fails here, the launch goes on without it.

    Args:
        **fields: what is known of the launch, as fields of PastLaunch; None is left out.

    Attributes:
        problem: why the line could not be written at first, or None.
    """

    def __init__(self, **fields: Any) -> None:  # noqa: ANN401
        self._fields = {"version": _VERSION, **fields}
        self._fd = -1
        self._at = self._room = 0
        self.problem: OSError | None = None
        try:
            self._fd = _open_own(fields["submitted_s"])
            self._append()
        except OSError as problem:
            self.problem = problem

    def update(self, **fields: Any) -> None:  # noqa: ANN401
        """Rewrite the line with further fields; append another if it has outgrown its place."""
        self._fields |= fields
        if self._fd < 0:
            return
        content = self._content()
        with suppress(OSError):
            if len(content) < self._room:
                os.pwrite(self._fd, _padded(content, self._room), self._at)
            else:
                self._append()

    def _content(self) -> bytes:
        known = {key: value for key, value in self._fields.items() if value is not None}
        return json.dumps(known).encode()

    def _append(self) -> None:
        """Append the line in one call, so that those of other launches stay whole."""
        content = self._content()
        room = (len(content) + _SPARE_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES + _BLOCK_BYTES
        # Where a descriptor appends, the kernel ignores the place that pwrite is given.
        end = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            written = os.write(end, _padded(content, room))
            at = os.lseek(end, 0, os.SEEK_CUR)
            if written < room:  # a full disk: a torn line would spoil the next one
                if os.fstat(end).st_size == at:
                    os.ftruncate(end, at - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._at, self._room = at - room, room
        finally:
            os.close(end)


def _open_own(submitted_s: float) -> int:
    """Open the file of this user and month; raise OSError if it is not this user's own file."""
    path, user_id = history_directory(), os.geteuid()
    is_common = path != private_directory()
    make_own(path)
    # Another user may have put a link there since we looked: from here on by descriptors.
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if is_common and os.fstat(directory).st_uid != user_id:
            raise PermissionError(path)
        name = f"{user_id}-{month_of(submitted_s)}{SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        if is_common:  # all may read it, whatever the umask
            os.fchmod(directory, 0o755)
    finally:
        os.close(directory)
    if not is_own_file(fd, user_id):
        os.close(fd)
        raise PermissionError(path)
    if is_common:
        os.fchmod(fd, 0o644)
    return fd


def month_of(time_s: float) -> str:
    """Return the month of a time in seconds since 1970, in UTC, as files are named: "2026-11"."""
    return time.strftime("%Y-%m", time.gmtime(time_s))


def is_own_file(fd: int, user_id: int) -> bool:
    """Return whether this is a regular file with one link that belongs to a user."""
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == user_id


def _padded(content: bytes, room: int) -> bytes:
    return content.ljust(room - 1) + b"\n"
