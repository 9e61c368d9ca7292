"""Work in threads of its own, where no Python signal handler can interrupt it.

CPython runs signal handlers in the main thread alone, between any two of its instructions, whatever
signals that thread has blocked. A KeyboardInterrupt, or any handler that raises, would leave there
what is half done: a lock that is held, a lease that no object owns. In another thread none runs.

For the same reason nothing here has a finalizer in Python, which could be interrupted, too: sockets
and files close themselves without running any.
"""

import _socket
import _thread
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from gpulaunch.process.libc import ALL_SIGNALS, change_mask

T = TypeVar("T")


class GivenUpError(Exception):
    """The caller of an attempt has given it up."""


class Attempt(Generic[T]):
    """A function that runs in a thread of its own, and can be given up.

    It is given up, too, when the last reference to the attempt is gone.

    Args:
        undo: called with what the function returned if nobody wants it any more.
        over: called in the thread at the end, also once what was given up is undone.
    """

    def __init__(
        self,
        work: Callable[[int], T],
        undo: Callable[[T], object],
        over: Callable[[], object] = lambda: None,
    ) -> None:
        self._end, other_end = _socket.socketpair()
        self._shared = _Shared(work, undo, over, other_end)

    def start(self) -> None:
        """Start the thread, or do the work here while Python shuts down and refuses threads."""
        try:
            _thread.start_new_thread(_run_in_thread, (self._shared.run,))
        except RuntimeError:
            self._shared.run()

    def wait(self) -> T:
        """Wait for the end; return what the function returned, or raise what it raised.

        The exception of a signal handler ends the waiting, and not the work.
        """
        self._shared.ended.acquire()
        return self.result()

    def result(self) -> T:
        """Return what the function returned, or raise what it raised, after its end."""
        self._end.close()
        if self._shared.problem is not None:
            raise self._shared.problem
        return self._shared.found.pop()

    def give_up(self) -> None:
        """Make the function end soon, and undo what it has done or is about to do."""
        self._end.close()
        self._shared.give_up()


class _Shared(Generic[T]):
    """What the caller and the thread share.

    Attributes:
        found: what the function returned; the thread puts it there, and the caller takes it.
    """

    def __init__(
        self,
        work: Callable[[int], T],
        undo: Callable[[T], object],
        over: Callable[[], object],
        end: _socket.socket,
    ) -> None:
        self._work, self._undo, self._over, self._end = work, undo, over, end
        # Whoever takes the token first, by one instruction, decides: the thread that its work
        # counts, or the caller that it does not. A lock could be left held by a KeyboardInterrupt.
        self._token = [True]
        self.found: list[T] = []
        self.problem: BaseException | None = None
        self.ended = _thread.allocate_lock()
        self.ended.acquire()

    def run(self) -> None:
        try:
            self.found.append(self._work(self._end.fileno()))
        except BaseException as problem:  # noqa: BLE001  wait() raises it
            self.problem = problem
        wanted = self._take_token()
        self._end.close()
        if not wanted:
            self._undo_it()
        self.ended.release()
        self._over()

    def give_up(self) -> None:
        self._take_token()
        self._undo_it()

    def _undo_it(self) -> None:
        with suppress(IndexError):
            self._undo(self.found.pop())

    def _take_token(self) -> bool:
        try:
            return self._token.pop()
        except IndexError:
            return False


def run_apart(work: Callable[[], object]) -> None:
    """Run a function in a thread of its own, wait for it, and raise what it raises.

    The exception of a signal handler ends the waiting, and not the work.
    """
    attempt = Attempt(lambda _: work(), lambda _: None)
    attempt.start()
    attempt.wait()


def _run_in_thread(run: Callable[[], None]) -> None:
    # A signal that this thread received would not wake the main thread from its waiting.
    change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
    run()
