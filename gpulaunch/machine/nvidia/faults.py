"""A watch for the faults of GPUs while a job runs: a thread that sleeps in NVML."""

import _thread
import signal
from collections.abc import Iterable
from typing import Any

import pynvml

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.health import card_key, read_counters
from gpulaunch.process.system import name_this_thread

_LATE_S = 0.05

_FOR_EVER_MS = 0xFFFFFFFF
_FAULTS = pynvml.nvmlEventTypeXidCriticalError

XIDS = {
    8: "GPU stopped processing",
    13: "graphics engine exception, most often a fault of the program",
    31: "GPU memory page fault, most often a fault of the program",
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing, a fault of the program",
    45: "the program was cleaned up after an earlier fault, or was ended",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping recorded",
    64: "ECC page retirement or row remapping failed to be recorded",
    68: "NVDEC0 exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single bit ECC error rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    140: "unrecovered ECC error",
    154: "GPU recovery action changed",
}
"""What each number means, in a few words.

Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), its catalogue, in our words.
"""


def describe_xid(number: int) -> str:
    """Return an Xid with its meaning, such as "Xid 79 (GPU has fallen off the bus)"."""
    meaning = XIDS.get(number)
    return f"Xid {number} ({meaning})" if meaning else f"Xid {number}, see NVIDIA's Xid catalogue"


class XidWatch:
    """The Xids of some GPUs from now on.

    The thread sleeps until there is an event, without a poll, and ends with this process. It holds
    all signals back, so that each still interrupts the main thread.

    Raises:
        LostGpuError: none of them has such events.
    """

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self._cards = sorted({card_key(gpu) for gpu in gpus})
        self._indices: dict[int, int] = {}  # by the address that is a card's handle
        self._seen: list[tuple[int, int]] = []
        self._some = _thread.allocate_lock()
        self._some.acquire()
        self._register()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._listen, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _register(self) -> None:
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as problem:
            raise nvml.LostGpuError(str(problem)) from None
        for uuid, index in self._cards:
            try:
                handle = nvml.card_of(uuid, index).handle
                pynvml.nvmlDeviceRegisterEvents(handle, _FAULTS, self._set)
            except (nvml.LostGpuError, pynvml.NVMLError):  # a card without events, such as a vGPU
                continue
            self._indices[_key(handle)] = index
        if not self._indices:
            pynvml.nvmlEventSetFree(self._set)
            raise nvml.LostGpuError("no GPU tells of its Xids")

    def _listen(self) -> None:
        name_this_thread("xid watch")
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, _FOR_EVER_MS)
            except pynvml.NVMLError as problem:
                if problem.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                return  # a GPU was lost, or NVML failed: nothing more will come
            if event.eventType == _FAULTS:
                index = self._indices.get(_key(event.device), -1)
                self._seen.append((index, int(event.eventData)))
                if self._some.locked():
                    self._some.release()

    def told(self, *, failed: bool) -> list[str]:
        """Return a line for each GPU that had Xids, in the order in which they came.

        Args:
            failed: whether the job failed; then an Xid that is just on its way is waited for.
        """
        if failed and not self._seen:
            self._some.acquire(timeout=_LATE_S)
        found: dict[int, dict[int, None]] = {}
        for index, xid in list(self._seen):
            found.setdefault(index, {})[xid] = None
        lines = [
            f"GPU {'?' if index < 0 else index} had {', then '.join(map(describe_xid, xids))}"
            for index, xids in found.items()
        ]
        for uuid, index in self._cards if failed else ():
            try:
                read_counters(nvml.card_of(uuid, index))
            except nvml.LostGpuError:
                lines.append(f"GPU {index} does not answer any more")
        return lines


def _key(handle: Any) -> int:  # noqa: ANN401
    """Return the address that a handle of NVML is."""
    return pynvml.cast(handle, pynvml.c_void_p).value or 0


def watch_faults(gpus: Iterable[Gpu]) -> XidWatch | None:
    """Watch for the Xids of some GPUs; None if no card of them tells."""
    try:
        nvml.open_nvml()
        return XidWatch(gpus)
    except nvml.LostGpuError:
        return None
