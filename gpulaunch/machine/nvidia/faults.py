"""A watch for the faults of GPUs while a job runs: a thread that sleeps in NVML."""

import _thread
import signal
from collections.abc import Iterable

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.nvml_health import FaultEvents, read_counters
from gpulaunch.machine.nvidia.xid import describe_xid
from gpulaunch.process.system import name_this_thread

_LATE_S = 0.05


class XidWatch:
    """The Xids of some GPUs from now on.

    The thread sleeps until there is an event, without a poll, and ends with this process. It holds
    all signals back, so that each still interrupts the main thread.

    Args:
        gpus: GPUs of this machine.

    Raises:
        LostGpuError: none of them has such events.
    """

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        cards = {
            (gpu.mig.card_uuid, gpu.mig.card) if gpu.mig else (gpu.uuid, gpu.index) for gpu in gpus
        }
        self._cards = sorted(cards)
        self._events = FaultEvents(self._cards)
        self._seen: list[tuple[int, int]] = []
        self._some = _thread.allocate_lock()
        self._some.acquire()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._listen, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _listen(self) -> None:
        name_this_thread("xid watch")
        while (event := self._events.wait()) is not None:
            self._seen.append(event)
            if self._some.locked():
                self._some.release()

    def told(self, *, failed: bool) -> list[str]:
        """Return a line for each GPU that had Xids, in the order in which they came.

        Args:
            failed: whether the job failed; then an Xid that is just on its way is waited for.
        """
        if failed and not self._seen:
            self._some.acquire(timeout=_LATE_S)
        lines = self._tell_xids()
        return lines + self._tell_lost() if failed else lines

    def _tell_xids(self) -> list[str]:
        found: dict[int, dict[int, None]] = {}
        for index, xid in list(self._seen):
            found.setdefault(index, {})[xid] = None
        return [
            f"GPU {'?' if index < 0 else index} had {', then '.join(map(describe_xid, xids))}"
            for index, xids in found.items()
        ]

    def _tell_lost(self) -> list[str]:
        """Return a line for each card that does not answer any more."""
        lines = []
        for uuid, index in self._cards:
            try:
                read_counters(nvml.card_of(uuid, index))
            except nvml.LostGpuError:
                lines.append(f"GPU {index} does not answer any more")
        return lines


def watch_faults(gpus: Iterable[Gpu]) -> XidWatch | None:
    """Watch for the Xids of some GPUs; None if no card of them tells."""
    try:
        nvml.open_nvml()
        return XidWatch(gpus)
    except nvml.LostGpuError:
        return None
