"""The calls of a driver's library: one that hangs is reported, or left behind.

Nothing inside a process can end a call that hangs in the driver. So a launch only says what it
waits for, and a command that shows a machine asks the driver in another process, and goes on
without the GPU that hangs. That process is forked before the driver's library is loaded, and has no
descriptor and no terminal of this one: nobody waits for its end, even where it sleeps in the kernel
and cannot be killed.
"""

import _thread
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, BinaryIO, NoReturn

from gpulaunch.errors import FailedError
from gpulaunch.process.ending import stand_apart
from gpulaunch.process.libc import ALL_SIGNALS, change_mask, end_with_parent, out_of_the_way

PATIENCE_S = 3  # the first call about a GPU that sleeps may well take one
NO_GPU = -1  # in place of an index
_LEAVE_S = 5

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


def _say_slow(function: str, gpu: int, seconds: int) -> None:
    """Say on stderr that a call has not returned, once it has taken PATIENCE_S."""
    if seconds == PATIENCE_S:
        who = "the driver" if gpu == NO_GPU else f"GPU {gpu}"
        text = f"{who} has not answered {function} for {seconds} s; waiting for it"
        with suppress(OSError):
            os.write(2, f"gpulaunch: {text}\n".encode())


@contextmanager
def watched(report: Callable[[str, int, int], object] = _say_slow) -> Iterator[None]:
    """Report the calls of this thread that take long, until the block ends.

    Args:
        report: called in another thread, each second, with a call that has taken so many seconds.
    """
    asking, over, gone = _thread.get_ident(), _thread.allocate_lock(), _thread.allocate_lock()
    gone.acquire()

    def watch() -> None:
        # A signal that this thread received would not interrupt the one that asks.
        change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
        seen, seconds = None, 0
        while not over.acquire(timeout=1):
            waiting = _waiting.get(asking)
            seconds = seconds + 1 if waiting is seen else 0
            if waiting:
                report(*waiting, seconds)
            seen = waiting
        gone.release()

    try:
        with over:
            try:
                _thread.start_new_thread(watch, ())
            except RuntimeError:  # too many threads (ulimit -u), or Python shuts down
                gone.release()
            yield
    finally:
        gone.acquire()  # a launch forks later, which is safe without threads only


class DriverApart:
    """All functions of a Driver but watch_faults, which would end with the other process.

    A card with a call that takes _LEAVE_S is left out from then on, like a lost one.
    """

    def __init__(self, module: str) -> None:
        self._module, self._pid = module, 0

    def __getattr__(self, function: str) -> Any:  # noqa: ANN401
        """Return one of the driver's functions."""
        return lambda *arguments: self._ask(function, arguments)

    def _ask(self, *question: Any) -> Any:  # noqa: ANN401
        with suppress(ChildProcessError):  # where this process ignores SIGCHLD
            if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:  # somebody has killed it
                self._pid = 0
        is_new = not self._pid
        if is_new:
            self._start()
        try:
            return self._answer(question)
        except (EOFError, BrokenPipeError):
            # Somebody has killed it, or the thread has ended that forked it.
            self._pid = 0
            if is_new:
                raise FailedError("the process that asks the driver was killed") from None
            return self._ask(*question)

    def _answer(self, question: Any) -> Any:  # noqa: ANN401
        _send(self._questions, question)
        while True:
            is_slow, answer = _receive(self._answers)
            if isinstance(answer, Exception):
                raise answer
            if not is_slow:
                return answer
            function, gpu, seconds = answer
            _say_slow(function, gpu, seconds)
            if gpu != NO_GPU and seconds >= _LEAVE_S:
                left_out[gpu] = f"it has not answered {function} for {seconds} s"
                self._pid = 0
                return self._ask(*question)

    def _start(self) -> None:
        questions, self._questions = _pipe()
        self._answers, answers = _pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._serve(parent, questions, answers)
        questions.close()
        answers.close()

    def _serve(self, parent: int, questions: BinaryIO, answers: BinaryIO) -> NoReturn:
        """Answer questions until the other process has ended."""
        try:
            end_with_parent(parent)()
            stand_apart(questions.fileno(), answers.fileno())
            driver = import_module(self._module)
            while True:
                function, arguments = _receive(questions)
                try:
                    with watched(lambda *slow: _send(answers, (True, slow))):
                        answer = getattr(driver, function)(*arguments)
                except Exception as problem:  # noqa: BLE001 - it is raised in the other process
                    answer = problem
                _send(answers, (False, answer))
        finally:
            os._exit(0)


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    read_end, write_end = map(out_of_the_way, os.pipe())
    return open(read_end, "rb"), open(write_end, "wb")


def _send(end: BinaryIO, value: object) -> None:
    import pickle  # late: a launch does without

    pickle.dump(value, end)
    end.flush()


def _receive(end: BinaryIO) -> Any:  # noqa: ANN401
    import pickle

    return pickle.load(end)  # noqa: S301 - a fork has sent it
