"""The calls of a driver's library that this process waits for: one that hangs is reported.

Nothing inside a process can end a call that hangs in the driver, so a launch only says what it
waits for. Commands that show a machine go on without that GPU: driver_apart.py.
"""

import _thread
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpulaunch.process.libc import ALL_SIGNALS, change_mask

PATIENCE_S = 3  # the first call about a GPU that sleeps may well take one
NO_GPU = -1  # in place of an index

left_out: dict[int, str] = {}
"""Why a card is not to be asked, by its index: another process still waits for its answer."""

_waiting: dict[int, tuple[str, int]] = {}  # by thread: function, GPU


def call(function: Any, gpu: int, *arguments: Any) -> Any:  # noqa: ANN401
    """Call a function of the library about the card with this index; return its result."""
    thread = _thread.get_ident()
    _waiting[thread] = function.__name__, gpu
    try:
        return function(*arguments)
    finally:
        del _waiting[thread]


@contextmanager
def watched() -> Iterator[None]:
    """Report the calls of this thread that take long, until the block ends."""
    over, gone = _thread.allocate_lock(), _thread.allocate_lock()
    gone.acquire()
    try:
        with over:
            try:
                _thread.start_new_thread(_watch, (_thread.get_ident(), over, gone))
            except RuntimeError:  # too many threads (ulimit -u), or Python shuts down
                gone.release()
            yield
    finally:
        gone.acquire()  # a launch forks later, which is safe without threads only


def _watch(thread: int, over: _thread.LockType, gone: _thread.LockType) -> None:
    # A signal that this thread received would not interrupt the one that asks.
    change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
    seen, seconds = None, 0
    while not over.acquire(timeout=1):
        waiting = _waiting.get(thread)
        seconds = seconds + 1 if waiting is seen else 0
        if waiting:
            report(*waiting, seconds)
        seen = waiting
    gone.release()


def say_slow(function: str, gpu: int, seconds: int) -> None:
    """Say on stderr that a call has not returned, once it has taken PATIENCE_S."""
    if seconds == PATIENCE_S:
        who = "the driver" if gpu == NO_GPU else f"GPU {gpu}"
        text = f"{who} has not answered {function} for {seconds} s; waiting for it"
        with suppress(OSError):
            os.write(2, f"gpulaunch: {text}\n".encode())


report: Callable[[str, int, int], object] = say_slow
"""Called in the watching thread, each second, with a call that has taken so many seconds."""
