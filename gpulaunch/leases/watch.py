"""A watch for the end of records and processes, by kernel events where there are any."""

import os
import select
import time
from collections.abc import Callable, Collection, Iterable

from gpulaunch.leases.record_file import is_alive
from gpulaunch.process import libc
from gpulaunch.process.descriptor import out_of_the_way

_ENDED = libc.IN_ATTRIB | libc.IN_CLOSE_WRITE | libc.IN_DELETE_SELF
"""Events at the end of a record: its name is removed, or its last writer has closed it."""

_SETTLE_S = 1.0
_LONGEST_PROBE_S = 0.064
_WITHOUT_EVENTS_S = 1.0


class Watch:
    """A watch that sleeps until one of the records that it follows ends.

    To miss no end, follow first, then read the table, then sleep.

    Args:
        directory: directory of the records.
        warn: called with a warning if there are no events.
    """

    def __init__(self, directory: str, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._warn = warn
        # inotify's watch numbers by file name; they are never removed, which would cost 10 ms.
        self._watches: dict[str, int] = {}
        self._followed: frozenset[str] = frozenset()
        self._fd: int | None = None
        try:
            self._fd = out_of_the_way(libc.inotify())
        except OSError as problem:
            self._warn_without_events(problem)

    def follow(self, names: Collection[str]) -> bool:
        """Follow these records and no others.

        Args:
            names: names of their files.

        Returns:
            Whether one of them is new, and may have ended before, so that the caller has to read
            the table again before it sleeps.
        """
        if self._fd is None:
            return False
        new = frozenset(names) - self._followed
        self._followed = frozenset(names)
        for name in new.difference(self._watches):
            try:
                self._watches[name] = libc.watch_file(
                    self._fd, os.path.join(self._directory, name), _ENDED
                )
            except FileNotFoundError:
                pass
            except OSError as problem:
                self.close()
                self._warn_without_events(problem)
                break
        return bool(new)

    def sleep(self, timeout_s: float, pids: Iterable[int] = ()) -> bool:
        """Sleep until a followed record or one of the processes ends, or the time is up.

        Args:
            timeout_s: seconds of the longest sleep.
            pids: processes of any user; those not visible here are ignored.

        Returns:
            Whether one of them has ended, as far as events show.
        """
        poll = select.poll()
        if self._fd is None:
            timeout_s = min(timeout_s, _WITHOUT_EVENTS_S)
        else:
            poll.register(self._fd, select.POLLIN)
        process_fds = [fd for pid in pids if (fd := _open_process(pid)) is not None]
        for fd in process_fds:
            poll.register(fd, select.POLLIN)
        try:
            happened = poll.poll(max(0.0, timeout_s) * 1000)
        finally:
            for fd in process_fds:
                os.close(fd)
        if self._fd is None:
            return bool(happened)
        watches = libc.watches_with_events(self._fd)
        ended = [name for name in self._followed if self._watches.get(name) in watches]
        self._wait_until_dead(ended)
        return bool(ended) or any(fd != self._fd for fd, _ in happened)

    def _wait_until_dead(self, names: Iterable[str]) -> None:
        """Wait until records are dead: their event comes up to 2 ms before the kernel unlocks."""
        paths = [os.path.join(self._directory, name) for name in names]
        deadline = time.monotonic() + _SETTLE_S
        pause_s = 0.001
        while any(map(is_alive, paths)) and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PROBE_S)

    def _warn_without_events(self, problem: OSError) -> None:
        reason = os.strerror(problem.errno or 0).lower()
        self._warn(
            f"no file events (inotify: {reason}), so looking every {_WITHOUT_EVENTS_S:g} s instead"
        )

    def close(self) -> None:
        """Stop following records."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _open_process(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
