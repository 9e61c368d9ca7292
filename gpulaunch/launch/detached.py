"""A detached launch: what it is told at its start, and its answer to the process that started it.

It is an ordinary command line of gpulaunch in a session of its own. docs/decisions/detached.md
gives the reasons.
"""

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpulaunch.errors import call_failed
from gpulaunch.history.line import history_directory
from gpulaunch.launch.listeners import LaunchInHistory
from gpulaunch.process.libc import ENDING_SIGNALS
from gpulaunch.records import Record

VARIABLE = "GPULAUNCH_DETACHED"
"""Variable by which a launch learns that it is detached; the job never sees it."""

READY = b"ready\n"
"""First answer of a launch that others can find by its name now; any other is an error."""


class Detached(Record):
    """What a detached launch is told.

    Attributes:
        terminal: socket of the program that holds its terminal, or None.
        ready_fd: descriptor of the pipe for its answers.
        shell: the SHELL of the user, if it was changed on the way here.
    """

    key: str
    log: str
    terminal: str | None
    ready_fd: int
    shell: str | None

    @property
    def variables(self) -> dict[bytes, bytes]:
        """Variables of its environment that tell it so."""
        fields = [self.key, self.log, self.terminal, self.ready_fd, self.shell]
        return {VARIABLE.encode(): json.dumps(fields).encode()}


def what_was_told() -> Detached | None:
    """Take what this launch was told out of its environment; None if it is not detached yet."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    fields: list[Any] = json.loads(text)
    told = Detached(*fields)
    if told.terminal:
        os.environ.pop("SHELL", None)
        if told.shell is not None:
            os.environ["SHELL"] = told.shell
    return told


def announce(told: Detached, pipe: int, history: LaunchInHistory) -> None:
    """Write the launch into the history, and answer the process that waits for that.

    Raises:
        FailedError: it cannot be written, or nobody waits any more; the launch must not go on.
    """
    why = history.written_at_once(told.key, told.log, told.terminal)
    text = f"{history_directory()}: the history cannot be written, so nobody could find the job"
    failed = call_failed(text, why) if why else None
    try:  # not by its output, for which the disk may be too full as well
        os.write(pipe, f"{failed.message}\n".encode() if failed else READY)
    except OSError as problem:  # it was interrupted, so its user knows nothing of this launch
        raise call_failed("the launch that was to be detached was given up", problem) from None
    if failed:
        raise failed


def answer(pipe: int, said: dict[str, Any]) -> None:
    """Tell the process that detached this launch what it does now, and close the pipe.

    Args:
        said: {"standing": "is running on GPUs 0,3"}, for example.
    """
    with suppress(OSError):  # nobody may wait for it any more
        os.write(pipe, f"{json.dumps(said)}\n".encode())
    os.close(pipe)


class EndBySignal:
    """What a launch without its GPUs does at a signal that ends it: it says so before it ends.

    Args:
        ended: called with the exit status; must not raise.
    """

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._numbers = [
            number for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN
        ]
        for number in self._numbers:
            signal.signal(number, self._end)

    def stop(self) -> None:
        """Leave signals to the job, which is about to start."""
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        self._numbers = []

    def _end(self, number: int, _frame: object) -> None:
        with suppress(Exception):
            self._ended(128 + number)
        os._exit(128 + number)
