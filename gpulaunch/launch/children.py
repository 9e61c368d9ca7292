"""Launches as children of this process: started, listened to, ended; and signals to this process meanwhile.

Each is a command line of gpulaunch like any other, in a session of its own, so that Ctrl-C at the
terminal reaches this process alone. docs/decisions/batch.md tells why.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.process.job import clean_environment
from gpulaunch.process.libc import end_with_parent
from gpulaunch.process.system import stat_fields
from gpulaunch.records import Record
from gpulaunch.typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends a program, if nobody has said that it is to be ignored."""

_PIPE_BYTES = 1 << 16
_LONGEST_S = 86400.0  # the kernel does not take centuries


class Told(Record):
    """A launch has said something.

    Attributes:
        key: of the launch.
        document: one line of --json-status-fd.
    """

    key: int
    document: Mapping[str, Any]


class Over(Record):
    """A launch has ended.

    Attributes:
        key: of the launch.
        exit_status: as a shell would have it; None if it was no child of this process.
    """

    key: int
    exit_status: int | None


class Signalled(Record):
    """This process was sent a signal.

    Attributes:
        number: which.
    """

    number: int


Event = Told | Over | Signalled


class _Child:
    """A launch that this process has started."""

    def __init__(self, process: "subprocess.Popen[bytes]", said: int) -> None:
        self.process, self.said = process, said
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self.is_silent = False  # it has closed its end
        self._rest = b""

    def heard(self) -> list[Mapping[str, Any]]:
        """What it has said since this was last asked."""
        with suppress(BlockingIOError):
            while part := os.read(self.said, _PIPE_BYTES):
                self._rest += part
            self.is_silent = True
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def over(self) -> int | None:
        """Its exit status, now that it has ended."""
        status = self.process.wait()
        return 128 - status if status < 0 else status

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.said)


class _Adopted:
    """A launch that an earlier process has started, seen by those of its processes that live.

    Args:
        find: their pids; none once it is over.
    """

    def __init__(self, find: Callable[[], set[int]]) -> None:
        self._find = find
        self.pid = 0
        self.pidfd = -1

    def watch(self) -> bool:
        """Watch the process that the others descend from; False if there is none any more."""
        while pids := self._find():
            self.pid = next((pid for pid in sorted(pids) if _parent(pid) not in pids), min(pids))
            with suppress(ProcessLookupError):
                self.pidfd = os.pidfd_open(self.pid)
                return True
        return False

    def heard(self) -> list[Mapping[str, Any]]:
        """Nothing: it talks to a process that is no more."""
        return []

    def over(self) -> int | None:
        """Nobody's child here has an exit status to tell."""
        return None

    def close(self) -> None:
        os.close(self.pidfd)


def _parent(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[1]) if len(fields) > 1 else 0


class Launches:
    """All launches that run, and what they and the user say. From __enter__ to __exit__ signals do nothing else.

    Args:
        guarded: if this process is killed, its launches are, too.
    """

    def __init__(self, *, guarded: bool) -> None:
        self._guarded = guarded
        self._command = own_command()
        self._environment = clean_environment()
        self._running: dict[int, _Child | _Adopted] = {}
        self._selector = selectors.DefaultSelector()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """From now on signals are events."""
        read_end, self._write_end = (out_of_the_way(fd) for fd in os.pipe())
        for fd in (read_end, self._write_end):
            os.set_blocking(fd, False)
        self._signals = read_end
        self._selector.register(read_end, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Signals act again."""
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
        otherwise: int,
        output: tuple[int | None, int | None],
    ) -> None:
        """Start a launch.

        Args:
            key: tells it from the others.
            arguments: of gpulaunch.
            variables: to add to the environment.
            otherwise: a descriptor that it writes its status lines to if this process is no more.
            output: its stdout and stderr; None for this process's own.

        Raises:
            OSError: there is no room for it.
        """
        read_end, write_end = (out_of_the_way(fd) for fd in os.pipe())  # stderr may be closed
        os.set_blocking(read_end, False)
        try:
            # what the user's own file says is what is to be run
            process = subprocess.Popen(  # noqa: S603
                [*self._command, f"--json-status-fd={write_end},{otherwise}", *arguments],
                env=self._environment
                | {os.fsencode(k): os.fsencode(v) for k, v in variables.items()},
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[1],
                pass_fds=(write_end, otherwise),
                start_new_session=True,
                # no threads here
                preexec_fn=end_with_parent(os.getpid()) if self._guarded else None,  # noqa: PLW1509
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

    def adopt(self, key: int, find: Callable[[], set[int]]) -> bool:
        """Take over a launch that an earlier process has started; False if it is over by now.

        Args:
            key: tells it from the others.
            find: pids of its processes; none once it is over.
        """
        adopted = _Adopted(find)
        if not adopted.watch():
            return False
        self._running[key] = adopted
        self._selector.register(adopted.pidfd, selectors.EVENT_READ, key)
        return True

    def signal(self, key: int, number: int) -> None:
        """Send a launch a signal, which it passes on to its job; one that has ended is past hearing it."""
        running = self._running.get(key)
        if running:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(running.pidfd, number)

    def wait(self, timeout_s: float | None) -> list[Event]:
        """Sleep until something happens, or the time is up; what a launch has said comes before its end.

        Args:
            timeout_s: the longest sleep, a day at most; None for no limit.
        """
        ready = self._selector.select(
            None if timeout_s is None else min(max(0.0, timeout_s), _LONGEST_S)
        )
        events: list[Event] = []
        for selected, _ in ready:
            if selected.data is None:
                with suppress(BlockingIOError):
                    events += [Signalled(number) for number in os.read(self._signals, _PIPE_BYTES)]
        for key in dict.fromkeys(
            selected.data for selected, _ in ready if selected.data is not None
        ):
            over = any(selected.fd == self._running[key].pidfd for selected, _ in ready)
            events += self._news(key, over=over)
        return events

    def _news(self, key: int, *, over: bool) -> list[Event]:
        running = self._running[key]
        events: list[Event] = [Told(key, document) for document in running.heard()]
        if over:
            self._selector.unregister(running.pidfd)
            if isinstance(running, _Child) and running.said in self._selector.get_map():
                self._selector.unregister(running.said)
            status = running.over()
            running.close()
            if (
                isinstance(running, _Adopted) and running.watch()
            ):  # another of its processes goes on
                self._selector.register(running.pidfd, selectors.EVENT_READ, key)
            else:
                del self._running[key]
                events.append(Over(key, status))
        elif isinstance(running, _Child) and running.is_silent:
            self._selector.unregister(running.said)
        return events


def own_command() -> list[str]:
    """How this gpulaunch was started, up to its arguments: so others are found again, installed or not."""
    return [
        sys.executable or sys.orig_argv[0],
        *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1],
    ]
