"""The health of NVIDIA GPUs: what bars a card, and what is only to be known.

And a watch for their faults while a job runs: a thread that sleeps in NVML.

What a card or driver does not tell is None, and counts as healthy: no GPU is barred because a
driver is old.
"""

import _thread
import signal
from collections.abc import Iterable, Mapping
from typing import Any

import pynvml

from gpulaunch.errors import counted
from gpulaunch.machine.driver import Health
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.process.system import name_this_thread

_RECOVERY = {
    1: "it has to be reset",
    2: "the machine has to be booted",
    3: "its peer-to-peer traffic has to be drained",
    4: "it has to be drained and reset",
    5: "its IMEX domain has to be recovered",
    6: "its bus has to be reset",
    7: "the system has to be booted",
}
"""What a driver asks for; nvml.h, nvmlDeviceGpuRecoveryAction_t."""

_FABRIC = {1: "has not started", 2: "is in progress"}
_COMPLETED = 3
_THROTTLE = {
    0x08: "slowed down by its hardware",
    0x20: "slowed down by the driver, as it is too hot",
    0x40: "slowed down by its hardware, as it is too hot",
    0x80: "slowed down by the power supply (power brake)",
}
"""Reasons for low clocks that are faults; a power cap, idling and set clocks are none (nvml.h)."""

_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older pynvml do not name
_FIELDS = {
    "ecc_uncorrectable": pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    "pages_pending": pynvml.NVML_FI_DEV_RETIRED_PENDING,
    "rows_pending": pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    "remap_failure": pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    "recovery_action": _RECOVERY_ACTION,
    "nvlink_recoveries": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
}
"""What tells of a card's health: counts since the driver was loaded, 1 for yes, or an action."""

_WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)


def _read_counters(card: nvml.NvmlDevice) -> dict[str, int]:
    """Read those of _FIELDS that a card has, in one call.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    values = card.ask(pynvml.nvmlDeviceGetFieldValues, list(_FIELDS.values())) or ()
    found = {}
    for name, field in zip(_FIELDS, values, strict=False):
        if field.nvmlReturn == pynvml.NVML_SUCCESS:
            wide = field.valueType in _WIDE
            found[name] = int(field.value.ullVal if wide else field.value.uiVal)
    return found


def read_health(gpus: Iterable[Gpu]) -> tuple[Health, ...]:
    """Return the health of each GPU; of a MIG instance that of its card.

    Raises:
        FailedError: there is no NVML or no driver.
    """
    nvml.open_nvml()
    found = []
    for gpu in gpus:
        try:
            card = nvml.card_of(*_card_key(gpu))
            counters = _read_counters(card)
            problems = _find_problems(card, gpu, counters)
            found.append(Health(gpu.uuid, problems, _find_warnings(card, gpu, counters)))
        except nvml.LostGpuError as lost:
            why = f"it does not answer: {str(lost).partition(': ')[2]}"
            found.append(Health(gpu.uuid, (why,)))
    return tuple(found)


def why_barred(card: nvml.NvmlDevice, gpu: Gpu) -> str | None:
    """Return what bars a GPU from any use, or None; every launch asks this.

    It costs one call for each card, and another one from Hopper on.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    card = nvml.card_of(*_card_key(gpu)) if gpu.mig else card
    return "; ".join(_find_problems(card, gpu, _read_counters(card))) or None


def _card_key(gpu: Gpu) -> tuple[str, int]:
    """Return UUID and index of a GPU's card, which has the health of all its MIG instances."""
    return (gpu.mig.card_uuid if gpu.mig else gpu.uuid, gpu.card)


def _find_problems(card: nvml.NvmlDevice, gpu: Gpu, counters: Mapping[str, int]) -> tuple[str, ...]:
    """Return what bars a GPU, in words; what is unknown does not."""
    found = []
    if counters.get("remap_failure"):
        found.append("the remapping of a memory row has failed")
    if action := counters.get("recovery_action"):
        found.append(f"the driver says that {_RECOVERY.get(action, f'it needs action {action}')}")
    if nvml.asks_by_field(gpu.compute_capability):  # NVML tells of a fabric from Hopper on
        info = pynvml.c_nvmlGpuFabricInfoV_t()  # state 0 if the driver does not tell
        card.ask(pynvml.nvmlDeviceGetGpuFabricInfoV, pynvml.byref(info))
        if info.state in _FABRIC:
            found.append(
                f"its registration with the NVSwitch fabric {_FABRIC[info.state]}, so that CUDA "
                "fails with error 802"
            )
        elif info.state == _COMPLETED and info.status:
            found.append(f"its registration with the NVSwitch fabric failed (NVML {info.status})")
    return tuple(found)


def _find_warnings(card: nvml.NvmlDevice, gpu: Gpu, counters: Mapping[str, int]) -> tuple[str, ...]:
    """Return what is to be known of a GPU that still works, in words."""
    found = []
    if errors := counters.get("ecc_uncorrectable"):
        noun = counted(errors, "uncorrectable ECC error")
        found.append(f"{noun} since the driver was loaded")
    if counters.get("rows_pending"):
        found.append("memory rows are to be remapped at its next reset")
    if counters.get("pages_pending"):
        found.append("memory pages are to be retired at its next reset")
    if times := counters.get("nvlink_recoveries"):
        found.append(f"its NVLinks had to recover from errors {counted(times, 'time')}")
    if down := nvml.find_nvlinks_down(card, gpu.compute_capability):
        s = "" if len(down) == 1 else "s"
        found.append(f"NVLink{s} {', '.join(map(str, down))} down")
    throttled = int(card.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0)
    found += [text for bit, text in _THROTTLE.items() if throttled & bit]
    return tuple(found)


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
        self._cards = sorted({_card_key(gpu) for gpu in gpus})
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
                _read_counters(nvml.card_of(uuid, index))
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
