"""The health of NVIDIA GPUs: what bars a card, and what is only to be known.

What a card or driver does not tell is None, and counts as healthy: no GPU is barred because a
driver is old.
"""

from collections.abc import Iterable, Mapping

import pynvml

from gpulaunch.errors import counted
from gpulaunch.machine.driver import Health
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml

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


def read_counters(card: nvml.NvmlDevice) -> dict[str, int]:
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
            card = nvml.card_of(*card_key(gpu))
            counters = read_counters(card)
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
    card = nvml.card_of(*card_key(gpu)) if gpu.mig else card
    return "; ".join(_find_problems(card, gpu, read_counters(card))) or None


def card_key(gpu: Gpu) -> tuple[str, int]:
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
