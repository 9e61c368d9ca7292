"""Launches as children of this process, what they say and how they end, and signals meanwhile.

Each is an ordinary command line of gpulaunch in a session of its own, so that Ctrl-C at the
terminal reaches this process alone. docs/decisions/batch.md gives the reasons.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpulaunch.process.execute import clean_environment
from gpulaunch.process.libc import ENDING_SIGNALS, end_with_parent, out_of_the_way

_PIPE_BYTES = 1 << 16
_LONGEST_S = 86400.0  # the kernel does not take centuries


class _Child:
    """A launch that this process started."""

    def __init__(self, process: "subprocess.Popen[bytes]", said: int) -> None:
        self.process, self.said = process, said
        self.pidfd = os.pidfd_open(process.pid)
        self.is_silent = False  # whether it has closed its end of the pipe
        self._rest = b""

    def heard(self) -> list[Mapping[str, Any]]:
        """Return the status lines since the last call."""
        with suppress(BlockingIOError):
            while part := os.read(self.said, _PIPE_BYTES):
                self._rest += part
            self.is_silent = True
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def over(self) -> int:
        """Return the exit status of a launch that has ended."""
        status = self.process.wait()
        return 128 - status if status < 0 else status

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.said)


class Launches:
    """The running launches, by keys, and those who hear of them.

    Between __enter__ and __exit__ signals to this process have no other effect than that somebody
    hears of them. If this process is killed, its launches get TERM, and end their jobs.

    Args:
        signalled: called with the number of a signal to this process.
        said: called with a launch's key and a line of its json_status_fd.
        ended: called with a launch's key and its exit status as a shell shows it, 0-255.
    """

    def __init__(
        self,
        signalled: Callable[[int], None],
        said: Callable[[int, Mapping[str, Any]], None],
        ended: Callable[[int, int], None],
    ) -> None:
        self._signalled, self._said, self._ended = signalled, said, ended
        self._command = own_command()
        self._environment = clean_environment()
        self._running: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Launches":
        """Begin to keep signals from having their usual effect."""
        read_end, self._write_end = (out_of_the_way(fd) for fd in os.pipe())
        for fd in (read_end, self._write_end):
            os.set_blocking(fd, False)
        self._signals = read_end
        self._selector.register(read_end, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in ENDING_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets SIGHUP
                self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the effect of signals."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._selector.close()
        for fd in (self._signals, self._write_end):
            os.close(fd)

    def start(
        self,
        key: int,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        lock: int,
        output: tuple[int | None, int | None],
    ) -> None:
        """Start a launch.

        Args:
            key: identifies it among the launches.
            arguments: arguments of gpulaunch.
            variables: variables to add to the environment.
            lock: descriptor of a locked file, which it keeps open until its job has ended.
            output: its stdout and stderr; None for this process's own.

        Raises:
            OSError: there are too few resources to start a process.
        """
        # If stderr is closed, an end of the pipe could become descriptor 2: move both away.
        read_end, write_end = (out_of_the_way(fd) for fd in os.pipe())
        os.set_blocking(read_end, False)
        try:
            # The command comes from the user's own job file.
            process = subprocess.Popen(  # noqa: S603
                [*self._command, "-o", f"json_status_fd={write_end},{lock}", *arguments],
                env=self._environment
                | {os.fsencode(k): os.fsencode(v) for k, v in variables.items()},
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[1],
                pass_fds=(write_end, lock),
                start_new_session=True,
                # A preexec_fn is safe, since this process has no threads.
                preexec_fn=end_with_parent(os.getpid(), signal.SIGTERM),  # noqa: PLW1509
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        child = _Child(process, read_end)
        self._running[key] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, key)
        self._selector.register(child.said, selectors.EVENT_READ, key)

    def signal(self, key: int, number: int) -> None:
        """Send a signal to a launch, which passes it on to its job; do nothing if it has ended."""
        running = self._running.get(key)
        if running:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(running.pidfd, number)

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something has happened, or the time is up, and tell of it.

        What a launch says comes before its end.

        Args:
            timeout_s: seconds of the longest sleep, a day at most; None for no limit.
        """
        ready = self._selector.select(
            None if timeout_s is None else min(max(0.0, timeout_s), _LONGEST_S)
        )
        over: dict[int, bool] = {}  # of each launch that has something to say, or has ended
        for selected, _ in ready:
            key = selected.data
            if key is None:
                with suppress(BlockingIOError):
                    for number in os.read(self._signals, _PIPE_BYTES):
                        self._signalled(number)
            else:
                over[key] = over.get(key, False) or selected.fd == self._running[key].pidfd
        for key, has_ended in over.items():
            self._hear(key, has_ended=has_ended)

    def _hear(self, key: int, *, has_ended: bool) -> None:
        child = self._running[key]
        for document in child.heard():
            self._said(key, document)
        if has_ended:
            self._selector.unregister(child.pidfd)
            if child.said in self._selector.get_map():
                self._selector.unregister(child.said)
            status = child.over()
            child.close()
            del self._running[key]
            self._ended(key, status)
        elif child.is_silent:
            self._selector.unregister(child.said)


def own_command() -> list[str]:
    """Return the command that started this gpulaunch, without arguments, to start it again."""
    return [
        sys.executable or sys.orig_argv[0],
        *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1],
    ]
