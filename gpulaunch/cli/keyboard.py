"""The keys and signals of a terminal while a screen is drawn on it."""

import os
import select
import signal
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\r": "enter",
    b"\n": "enter",
    b"\x1b": "escape",
}
_LONGEST = 64  # bytes of one read: a paste is no command


class Keyboard:
    """The keys that come one by one, without an echo, until the block ends however it ends.

    Ctrl-Z gives the terminal back and stops; `fg` takes it again. Ctrl-C, TERM and HUP end the
    program with the status of the signal, through the block's end.

    Args:
        fd: descriptor of the terminal.
        screen: the screen that is drawn meanwhile; it is left and entered again at a stop.
    """

    def __init__(self, fd: int, screen: Any) -> None:  # noqa: ANN401
        self._fd, self._screen = fd, screen
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._wakeup = (-1, -1)
        self._stop = False

    def __enter__(self) -> "Keyboard":
        """Take the terminal."""
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        handlers: dict[int, Callable[[int, FrameType | None], object]] = {
            signal.SIGINT: _end,
            signal.SIGTERM: _end,
            signal.SIGHUP: _end,
            signal.SIGTSTP: self._note_stop,
        }
        try:
            for number, handler in handlers.items():
                self._handlers[number] = signal.signal(number, handler)
            self._take()
        except BaseException:  # a signal came meanwhile
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Give the terminal back."""
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        for end in self._wakeup:
            os.close(end)

    def wait(self, seconds: float) -> list[str]:
        """Sleep until a key, a signal, or the time is over.

        Returns:
            The keys, each as its character or its name; "end" when the terminal is gone.
        """
        ready = select.select([self._fd, self._wakeup[0]], [], [], seconds)[0]
        with suppress(BlockingIOError):
            os.read(self._wakeup[0], _LONGEST)
        if self._stop:
            self._stop_here()
        if self._fd not in ready:
            return []
        try:
            data = os.read(self._fd, _LONGEST)
        except OSError:
            data = b""
        return _keys_in(data) if data else ["end"]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Give the terminal back for the length of the block."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        self._screen.__enter__()

    def _give_back(self) -> None:
        self._screen.__exit__(None, None, None)
        with suppress(termios.error, IndexError):  # the terminal is gone, or was never taken
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def _note_stop(self, _: int, __: FrameType | None) -> None:
        self._stop = True

    def _stop_here(self) -> None:
        self._stop = False
        with self.away():
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            while signal.SIGTSTP in signal.sigpending():  # stopped and continued at once
                time.sleep(0)
            signal.signal(signal.SIGTSTP, handler)


def _keys_in(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent; sequences that mean nothing here are left out."""
    if data in _SEQUENCES:
        return [_SEQUENCES[data]]
    if data.startswith(b"\x1b"):
        return []
    return [_SEQUENCES.get(char.encode(), char) for char in data.decode(errors="ignore")]


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
