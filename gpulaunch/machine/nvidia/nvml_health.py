"""The door to what NVML tells of a GPU's health, and to its events about faults.

What a card or driver does not tell is None, and counts as healthy: no GPU is barred because a
driver is old.
"""

from collections.abc import Iterable

import pynvml

from gpulaunch.machine.nvidia.nvml import LostGpuError, NvmlDevice, card_of
from gpulaunch.records import Record
from gpulaunch.typing import Any

_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older pynvml do not name
_FIELDS = {
    "ecc_uncorrectable": pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    "pages_pending": pynvml.NVML_FI_DEV_RETIRED_PENDING,
    "rows_pending": pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    "remap_failure": pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    "recovery_action": _RECOVERY_ACTION,
    "nvlink_recoveries": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
}
_WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
_FOR_EVER_MS = 0xFFFFFFFF
_FAULTS = pynvml.nvmlEventTypeXidCriticalError


class HealthCounters(Record):
    """The fields of a card that tell of its health; None for what is unknown.

    Attributes:
        ecc_uncorrectable: uncorrectable ECC errors since the driver was loaded.
        pages_pending: 1 if pages of memory are to be retired at the next reset.
        rows_pending: 1 if rows of memory are to be remapped at the next reset.
        remap_failure: 1 if the remapping of a row has failed.
        recovery_action: nvmlDeviceGpuRecoveryAction_t; 0 for none.
        nvlink_recoveries: how often NVLinks had to recover from errors.
    """

    ecc_uncorrectable: int | None = None
    pages_pending: int | None = None
    rows_pending: int | None = None
    remap_failure: int | None = None
    recovery_action: int | None = None
    nvlink_recoveries: int | None = None


class FabricState(Record):
    """How far a GPU has been registered with its NVSwitches.

    Attributes:
        state: nvmlGpuFabricState_t: 0 no fabric, 1 not started, 2 in progress, 3 completed.
        status: nvmlReturn_t of the registration, which means something once it is completed.
    """

    state: int
    status: int


def read_counters(card: NvmlDevice) -> HealthCounters:
    """Read the fields of a card, in one call.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    values = card.ask(pynvml.nvmlDeviceGetFieldValues, list(_FIELDS.values()))
    if values is None:
        return HealthCounters()
    numbers = {
        name: _number(value)
        for name, value in zip(_FIELDS, values, strict=True)
        if value.nvmlReturn == pynvml.NVML_SUCCESS
    }
    return HealthCounters(**numbers)


def read_fabric(card: NvmlDevice) -> FabricState:
    """Read the registration of a card with its NVSwitches; state 0 if the driver does not tell.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    card.ask(pynvml.nvmlDeviceGetGpuFabricInfoV, pynvml.byref(info))
    return FabricState(int(info.state), int(info.status))


def read_throttle_reasons(card: NvmlDevice) -> int:
    """Read why a card's clocks are lower than they could be, as bits; 0 if unknown.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    return int(card.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0)


def _number(field: Any) -> int:  # noqa: ANN401
    return int(field.value.ullVal if field.valueType in _WIDE else field.value.uiVal)


class FaultEvents:
    """A set of events: the Xids of some cards from now on.

    Args:
        uuids: UUIDs of the cards, each with its index.

    Raises:
        LostGpuError: none of the cards has such events.
    """

    def __init__(self, uuids: Iterable[tuple[str, int]]) -> None:
        self._indices: dict[int, int] = {}
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as problem:
            raise LostGpuError(str(problem)) from None
        for uuid, index in uuids:
            try:
                handle = card_of(uuid, index).handle
                pynvml.nvmlDeviceRegisterEvents(handle, _FAULTS, self._set)
            except (LostGpuError, pynvml.NVMLError):  # a card without events, such as a vGPU
                continue
            self._indices[_key(handle)] = index
        if not self._indices:
            pynvml.nvmlEventSetFree(self._set)
            raise LostGpuError("no GPU tells of its Xids")

    def wait(self) -> tuple[int, int] | None:
        """Sleep until a card has an Xid; return its index and the Xid.

        None means that nothing more will come: a GPU was lost, or NVML failed.
        """
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, _FOR_EVER_MS)
            except pynvml.NVMLError as problem:
                if problem.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                return None
            if event.eventType == _FAULTS:
                return self._indices.get(_key(event.device), -1), int(event.eventData)


def _key(handle: Any) -> int:  # noqa: ANN401
    """Return the address that a handle of NVML is."""
    return pynvml.cast(handle, pynvml.c_void_p).value or 0
