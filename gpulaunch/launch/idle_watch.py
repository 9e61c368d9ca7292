"""A watch for GPUs that do nothing while a job has them: a thread of the job's launcher.

It says so in the modification time of the lease's file, which is when the GPUs were last busy; the
record itself stays as it is. docs/decisions/idle.md gives the reasons.
"""

import _thread
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from gpulaunch.errors import FailedError
from gpulaunch.leases.record_file import Draft
from gpulaunch.machine.find import Machine, are_busy
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.signal_mask import ALL_SIGNALS, change_mask
from gpulaunch.process.system import name_this_thread

_LOOK_EVERY_S = 20.0
_LOOKS = 4
"""The least number of looks in the time after which a lease counts as idle."""


class IdleWatch:
    """A watch over the GPUs of one lease. It ends with this process.

    Args:
        machine: this machine.
        gpus: the GPUs of the lease.
        record: the open record of the lease.
        limits: seconds after which idle GPUs are told of, and after which the job is ended; None
            for never.
        idle: called from the thread with the seconds of idleness, once each time that it is long
            enough to be told of; must not raise.

    Attributes:
        limit_is_over: whether the GPUs were idle for too long, so that the launcher got a TERM.
    """

    def __init__(
        self,
        machine: Machine,
        gpus: Sequence[Gpu],
        record: Draft,
        limits: tuple[float, float | None],
        idle: Callable[[float], None],
    ) -> None:
        self._machine, self._gpus = machine, gpus
        # Not the record's own descriptor: it may be closed, and its number another file's by then.
        self._fd = os.open(f"/proc/self/fd/{record.fd}", os.O_WRONLY | os.O_CLOEXEC)
        self._after_s, self._limit_s = limits
        self._idle = idle
        self.limit_is_over = False
        mask = change_mask(signal.SIG_BLOCK, ALL_SIGNALS)  # each still interrupts the main thread
        try:
            _thread.start_new_thread(self._look_again_and_again, ())
        finally:
            change_mask(signal.SIG_SETMASK, mask)

    def _look_again_and_again(self) -> None:
        name_this_thread("idle watch")
        told = False
        busy_s = time.monotonic()
        limit_s = float("inf") if self._limit_s is None else self._limit_s
        every_s = min(_LOOK_EVERY_S, self._after_s / _LOOKS, limit_s / _LOOKS)
        while True:
            time.sleep(every_s)
            if self._are_busy():
                busy_s, told = time.monotonic(), False
                self._touch()
                continue
            idle_s = time.monotonic() - busy_s
            if idle_s >= self._after_s and not told:
                told = True
                self._idle(idle_s)
            if idle_s >= limit_s:
                self.limit_is_over = True
                os.kill(os.getpid(), signal.SIGTERM)  # it passes that on to the job
                return

    def _are_busy(self) -> bool:
        try:
            return are_busy(self._machine, self._gpus)
        except FailedError:  # what is unknown is no idleness
            return True

    def _touch(self) -> None:
        """Set the file's modification time by writing its first byte again.

        Setting it by utime() would be an event of IN_ATTRIB, which wakes those who wait for the end
        of the lease.
        """
        with suppress(OSError):
            os.pwrite(self._fd, b"{", 0)
