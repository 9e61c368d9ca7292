"""The health of NVIDIA GPUs: what bars a card, and what is only to be known.

What a card or driver does not tell is None, and counts as healthy: no GPU is barred because a
driver is old.
"""

from collections.abc import Iterable, Sequence

import pynvml

from gpulaunch.machine.driver import Health
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.nvml_links import asks_by_field, find_nvlinks_down
from gpulaunch.records import Record
from gpulaunch.typing import Any

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
_WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)


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


def read_counters(card: nvml.NvmlDevice) -> HealthCounters:
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


def read_fabric(card: nvml.NvmlDevice) -> FabricState:
    """Read the registration of a card with its NVSwitches; state 0 if the driver does not tell.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    card.ask(pynvml.nvmlDeviceGetGpuFabricInfoV, pynvml.byref(info))
    return FabricState(int(info.state), int(info.status))


def read_throttle_reasons(card: nvml.NvmlDevice) -> int:
    """Read why a card's clocks are lower than they could be, as bits; 0 if unknown.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    return int(card.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0)


def _number(field: Any) -> int:  # noqa: ANN401
    return int(field.value.ullVal if field.valueType in _WIDE else field.value.uiVal)


def read_health(gpus: Iterable[Gpu]) -> tuple[Health, ...]:
    """Return the health of each GPU; of a MIG instance that of its card.

    Raises:
        FailedError: there is no NVML or no driver.
    """
    nvml.open_nvml()
    return tuple(_read_one(gpu) for gpu in gpus)


def _read_one(gpu: Gpu) -> Health:
    try:
        card = _card_of(gpu)
        counters = read_counters(card)
        problems = find_problems(counters, _fabric_of(card, gpu))
        down = find_nvlinks_down(card, gpu.compute_capability)
        warnings = find_warnings(counters, read_throttle_reasons(card), down)
        return Health(gpu.uuid, problems, warnings)
    except nvml.LostGpuError as problem:
        return Health(gpu.uuid, (f"it does not answer: {str(problem).partition(': ')[2]}",))


def why_barred(card: nvml.NvmlDevice, gpu: Gpu) -> str | None:
    """Return what bars a GPU from any use, or None; every launch asks this.

    It costs one call for each card, and another one from Hopper on.

    Args:
        card: handle of the GPU or MIG instance.
        gpu: the GPU.

    Raises:
        LostGpuError: the GPU does not answer.
    """
    card = _card_of(gpu) if gpu.mig else card
    return "; ".join(find_problems(read_counters(card), _fabric_of(card, gpu))) or None


def _card_of(gpu: Gpu) -> nvml.NvmlDevice:
    """Return a GPU's card, which has the health of all its MIG instances."""
    if gpu.mig:
        return nvml.card_of(gpu.mig.card_uuid, gpu.mig.card)
    return nvml.card_of(gpu.uuid, gpu.card)


def _fabric_of(card: nvml.NvmlDevice, gpu: Gpu) -> FabricState | None:
    """Return the registration with NVSwitches, which NVML tells from Hopper on."""
    return read_fabric(card) if asks_by_field(gpu.compute_capability) else None


def find_problems(counters: HealthCounters, fabric: FabricState | None) -> tuple[str, ...]:
    """Return what bars a GPU, in words; what is unknown does not."""
    found = []
    if counters.remap_failure:
        found.append("the remapping of a memory row has failed")
    if counters.recovery_action:
        action = counters.recovery_action
        found.append(f"the driver says that {_RECOVERY.get(action, f'it needs action {action}')}")
    if fabric and fabric.state in _FABRIC:
        found.append(
            f"its registration with the NVSwitch fabric {_FABRIC[fabric.state]}, so that CUDA "
            "fails with error 802"
        )
    elif fabric and fabric.state == _COMPLETED and fabric.status:
        found.append(f"its registration with the NVSwitch fabric failed (NVML {fabric.status})")
    return tuple(found)


def find_warnings(
    counters: HealthCounters, throttled: int, links_down: Sequence[int]
) -> tuple[str, ...]:
    """Return what is to be known of a GPU that still works, in words.

    Args:
        counters: its counters.
        throttled: why its clocks are low, as bits.
        links_down: numbers of the NVLinks that are down, of which others are up.
    """
    found = []
    if counters.ecc_uncorrectable:
        errors = counters.ecc_uncorrectable
        s = "" if errors == 1 else "s"
        found.append(f"{errors} uncorrectable ECC error{s} since the driver was loaded")
    if counters.rows_pending:
        found.append("memory rows are to be remapped at its next reset")
    if counters.pages_pending:
        found.append("memory pages are to be retired at its next reset")
    if counters.nvlink_recoveries:
        times = counters.nvlink_recoveries
        found.append(f"its NVLinks had to recover from errors {times} time{'s' * (times > 1)}")
    if links_down:
        s = "" if len(links_down) == 1 else "s"
        found.append(f"NVLink{s} {', '.join(map(str, links_down))} down")
    found += [text for bit, text in _THROTTLE.items() if throttled & bit]
    return tuple(found)
