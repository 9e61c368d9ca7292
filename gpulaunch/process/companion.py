"""A process that stays when this one goes."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from gpulaunch.process.descriptor import out_of_the_way

DISMISSED = b"."

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


class Companion:
    """A child process in a session of its own that acts on a word from this process, or on its end.

    No terminal, no pipe and no signal for this process's group reaches it. It keeps one descriptor
    open and closes all others.

    Args:
        act: called in the child with the word: one byte, or none if this process died without one.
        keep: the descriptor to keep open.

    Attributes:
        pid: of the child.
    """

    def __init__(self, act: Callable[[bytes], None], keep: int) -> None:
        read_end, self._word = (out_of_the_way(fd) for fd in os.pipe())
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _stand_apart(read_end, keep)
                act(os.read(read_end, 1))
            finally:
                os._exit(0)
        os.close(read_end)

    def tell(self, word: bytes) -> bool:
        """Send the one word it waits for; return False if it has ended already."""
        heard = False
        with suppress(BrokenPipeError):
            heard = os.write(self._word, word) == 1
        os.close(self._word)
        return heard


def _stand_apart(*keep: int) -> None:
    os.setsid()
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in keep:
            with suppress(OSError):  # what listed them is closed by now
                os.close(fd)
    for _ in range(3):  # stdin, stdout and stderr
        os.open(os.devnull, os.O_RDWR)
    os.chdir("/")
    for number in _INTERRUPTING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
