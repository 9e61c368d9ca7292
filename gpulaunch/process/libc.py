"""Calls of the kernel that Python's standard library does not have, or makes slow or unsafe.

The library inotify_simple looks for libc by running ldconfig and gcc, which must not happen while
a job is being started; so the two calls of it that are needed stand here.
"""

import _signal  # type: ignore[import-not-found]  # what the signal module is made of
import ctypes
import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterable

# inotify.h
IN_ATTRIB = 0x4
IN_CLOSE_WRITE = 0x8
IN_CREATE = 0x100
IN_DELETE_SELF = 0x400

# prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_EVENT = "iIII"  # struct inotify_event: wd, mask, cookie, len; then len bytes of name
_LONGEST_READ = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)

_FIRST = 100
"""Jobs use low numbers themselves, and a closed stderr must not become a record."""

ALL_SIGNALS: frozenset[int] = frozenset(_signal.valid_signals())

ENDING_SIGNALS: frozenset[int] = frozenset(
    {_signal.SIGINT, _signal.SIGTERM, _signal.SIGQUIT, _signal.SIGHUP}
)
"""Signals by which people end a program, unless it was started with them ignored."""


def out_of_the_way(fd: int) -> int:
    """Move an open file to a number of at least _FIRST, closed on exec, and return that."""
    try:
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST)
        except OSError:  # a limit on open files (ulimit -n) below that: then above the standard
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def change_mask(how: int, signals: Iterable[int]) -> frozenset[int]:
    """Change which signals this thread blocks; return those that it blocked before.

    signal.pthread_sigmask makes a member of an enumeration of each number that it returns: 60 us
    for all of them, where the system call takes one. Taking and releasing a lease are eight such
    calls.
    """
    return frozenset(_signal.pthread_sigmask(how, signals))


def adopt_orphans(*, on: bool = True) -> bool:
    """Make descendants whose parent ends children of this process instead of init's, or stop that.

    Returns:
        Whether this process did so before.

    Raises:
        OSError: the kernel is older than 3.4.
    """
    before = ctypes.c_int()
    _checked(_libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0))
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0))
    return bool(before.value)


def overwrite_memory(address: int, size: int, change: Callable[[bytes], bytes]) -> None:
    """Replace a part of this process's memory by what a function makes of it, of the same size."""
    ctypes.memmove(address, change(ctypes.string_at(address, size)), size)


def set_process_name(name: str) -> None:
    """Give this process a name in ps and /proc/PID/comm, of 15 characters at most."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Return a function that a child calls before exec to get a signal when its parent dies."""

    def ask() -> None:
        _checked(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0))
        if os.getppid() != parent:  # it has died before it was asked for
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def outlive_parent() -> None:
    """Undo what end_with_parent has asked for."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0))


def inotify() -> int:
    """Return a non-blocking descriptor for file events, closed on exec.

    Raises:
        OSError: EMFILE if this user has too many (fs.inotify.max_user_instances, 128 by default).
    """
    return _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))


def watch_file(fd: int, path: str, events: int) -> int:
    """Tell of these events of one file; returns the number that its events carry.

    Raises:
        OSError: ENOENT if it is not there, ENOSPC if this user watches too many files.
    """
    return _checked(_libc.inotify_add_watch(fd, os.fsencode(path), events))


def file_events(fd: int) -> list[tuple[int, int, str]]:
    """Return the events since the last call: the number of the watch, the event, and a name.

    Events of a directory carry the name of the file in it; others have an empty one.
    """
    events: list[tuple[int, int, str]] = []
    while True:
        try:
            data = os.read(fd, _LONGEST_READ)
        except BlockingIOError:
            return events
        at = 0
        while at < len(data):
            watch, event, _, name_bytes = struct.unpack_from(_EVENT, data, at)
            at += struct.calcsize(_EVENT) + name_bytes
            name = os.fsdecode(data[at - name_bytes : at].rstrip(b"\0"))
            events.append((watch, event, name))


def _checked(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def loading_problem(library: str) -> str | None:
    """Return why a shared library cannot be loaded: "" if there is none; None if it can be."""
    try:
        ctypes.CDLL(library)
    except OSError as problem:
        why = str(problem)  # of a library that is missing for this one it names that one alone
        return "" if why.endswith("No such file or directory") and library in why else why
    return None
