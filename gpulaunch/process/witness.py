"""A process in the job's process group that shows which signals the whole group got.

A signal to the group, as timeout, dumb-init and killpg send it, has reached the job when the
launcher reads it; one to the launcher alone has not. siginfo_t says who sent it, not to whom. The
witness blocks every signal, as the launcher does when it forks it: what the group got is pending.
"""

import os
import select
import signal
import time
from contextlib import suppress

from gpulaunch.process.companion import WITNESS, close_all_but, hide_arguments
from gpulaunch.process.libc import end_with_parent, out_of_the_way, set_process_name
from gpulaunch.process.system import pending_signals

_ANSWER_MS = 1000  # one on a busy machine answers, one that is stopped does not
_LOOK_AGAIN_S = 0.005  # systemd and Slurm send a signal to one process after the other


class Witness:
    """The witness, seen from the launcher, which must have blocked the signals.

    `pkill` by the name of gpulaunch or of the job does not find it. It ends with the launcher.

    Attributes:
        pid: its process.

    Raises:
        OSError: no process or no descriptor is left.
    """

    def __init__(self) -> None:
        end_with_launcher = end_with_parent(os.getpid())
        pipes: list[int] = []
        try:
            for _ in range(2):
                pipes.extend(map(out_of_the_way, os.pipe()))
            question, self._ask, self._hear, answer = pipes
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    end_with_launcher()
                    set_process_name(WITNESS)
                    hide_arguments(WITNESS)
                    close_all_but(question, answer)
                    while asked := os.read(question, 1):
                        signal.sigtimedwait(asked, 0)
                        os.write(answer, asked)
                finally:
                    os._exit(0)
        except OSError:
            for fd in pipes:
                os.close(fd)
            raise
        os.close(question)
        os.close(answer)

    def saw(self, number: int) -> bool | None:
        """Return whether the group got a signal that the launcher has read; forget it here.

        None is yes from a witness that does not answer, because somebody has stopped or killed it:
        it cannot forget, and must be replaced.
        """
        if number not in pending_signals(self.pid):
            time.sleep(_LOOK_AGAIN_S)
            if number not in pending_signals(self.pid):
                return False
        if not self._has_forgotten(number):
            return None
        # Another one that came meanwhile was for the group, too, or as good as the same one.
        if signal.sigtimedwait({number}, 0) and number in pending_signals(self.pid):
            return True if self._has_forgotten(number) else None
        return True

    def _has_forgotten(self, number: int) -> bool:
        """Let it take a signal that is pending there; return whether it has answered in time."""
        with suppress(BrokenPipeError):
            os.write(self._ask, bytes([number]))
        answer = select.poll()
        answer.register(self._hear, select.POLLIN)
        return bool(answer.poll(_ANSWER_MS) and os.read(self._hear, 1))

    def end(self) -> None:
        """End the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        """Give the descriptors back; the process has ended."""
        os.close(self._ask)
        os.close(self._hear)
