"""A watch for the end of records, by events of the kernel."""

import _thread
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from gpulaunch.leases.record_file import LEASE_PREFIX, is_alive
from gpulaunch.process import libc
from gpulaunch.process.libc import ALL_SIGNALS, change_mask, out_of_the_way

_ENDED = libc.IN_ATTRIB | libc.IN_CLOSE_WRITE | libc.IN_DELETE_SELF
"""Events at the end of a record: its name is removed, or its last writer has closed it."""

_SETTLE_S = 1.0
_LONGEST_PROBE_S = 0.064
WITHOUT_EVENTS_S = 1.0
"""Time between two looks where there are no events."""


class Watch:
    """A watch for the end of one of the records that it follows, and of leases that begin later.

    To miss no end, follow first, then read the table, then sleep until `fd` polls as readable.

    Args:
        directory: directory of the records.
        warn: called with a warning if there are no events.

    Attributes:
        fd: descriptor that polls as readable after an event; None if there are no events.
    """

    def __init__(self, directory: str, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._warn = warn
        # inotify's watch numbers by file name; they are never removed, which would cost 10 ms.
        self._watches: dict[str, int] = {}
        self._followed: frozenset[str] = frozenset()
        self._of_directory = 0
        self.fd: int | None = None
        try:
            self.fd = out_of_the_way(libc.inotify())
            self._of_directory = libc.watch_file(self.fd, directory, libc.IN_CREATE)
        except OSError as problem:
            self._stop_with(problem)

    def follow(self, names: Collection[str]) -> bool:
        """Follow these records and no others.

        Args:
            names: names of their files.

        Returns:
            Whether one of them is new, and may have ended before, so that the caller has to read
            the table again before it sleeps.
        """
        if self.fd is None:
            return False
        new = frozenset(names) - self._followed
        self._followed = frozenset(names)
        self._add(new)
        return bool(new)

    def _add(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                if name not in self._watches and self.fd is not None:
                    with suppress(FileNotFoundError):
                        self._watches[name] = libc.watch_file(self.fd, self._path(name), _ENDED)
        except OSError as problem:
            self._stop_with(problem)

    def has_seen_an_end(self) -> bool:
        """Return whether a followed record has ended, once `fd` is readable; it is dead then."""
        if self.fd is None:
            return False
        events = libc.file_events(self.fd)
        closed = {watch for watch, event, _ in events if event & libc.IN_CLOSE_WRITE}
        changed = {watch for watch, _, _ in events}
        paths = [self._path(name) for name in self._followed if self._watches.get(name) in closed]
        wait_until_dead(paths)
        paths += [self._path(name) for name in self._followed if self._watches.get(name) in changed]
        begun = {name for watch, _, name in events if watch == self._of_directory}
        begun = {name for name in begun if name.startswith(LEASE_PREFIX)}
        self._followed |= begun
        self._add(begun)
        return not all(map(is_alive, [*paths, *map(self._path, begun)]))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _stop_with(self, problem: OSError) -> None:
        self.close()
        reason = os.strerror(problem.errno or 0).lower()
        self._warn(
            f"no file events (inotify: {reason}), so looking every {WITHOUT_EVENTS_S:g} s instead"
        )

    def close(self) -> None:
        """Stop following records."""
        fd, self.fd = self.fd, None
        if fd is None:
            return
        # The kernel takes 15 ms to end an inotify instance, for which no job should wait. No signal
        # for this process, such as that for the end of the job, must reach the thread.
        blocked = change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            _thread.start_new_thread(os.close, (fd,))
        except RuntimeError:  # no more threads
            os.close(fd)
        finally:
            change_mask(signal.SIG_SETMASK, blocked)

    def close_copy(self) -> None:
        """Close a forked child's copy, which ends nothing."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def wait_until_dead(paths: Iterable[str]) -> None:
    """Wait, up to a second, until records are dead: events come up to 2 ms before that."""
    paths = list(paths)
    deadline = time.monotonic() + _SETTLE_S
    pause_s = 0.001
    while any(map(is_alive, paths)) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PROBE_S)
