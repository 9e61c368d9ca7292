"""A driver that is asked in another process, which is left behind if a GPU hangs.

That process is forked before the driver's library is loaded, and has no descriptor and no terminal
of this one: nobody waits for its end, even where it sleeps in the kernel and cannot be killed.
"""

import os
import pickle
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO, NoReturn

from gpulaunch.errors import FailedError
from gpulaunch.machine import slow_calls
from gpulaunch.process.companion import stand_apart
from gpulaunch.process.libc import end_with_parent, out_of_the_way

_LEAVE_S = 5


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
            is_slow, answer = pickle.load(self._answers)  # noqa: S301 - a fork has sent it
            if isinstance(answer, Exception):
                raise answer
            if not is_slow:
                return answer
            function, gpu, seconds = answer
            slow_calls.say_slow(function, gpu, seconds)
            if gpu != slow_calls.NO_GPU and seconds >= _LEAVE_S:
                slow_calls.left_out[gpu] = f"it has not answered {function} for {seconds} s"
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
            slow_calls.report = lambda *slow: _send(answers, (True, slow))
            driver = import_module(self._module)
            while True:
                function, arguments = pickle.load(questions)  # noqa: S301
                try:
                    with slow_calls.watched():
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
    pickle.dump(value, end)
    end.flush()
