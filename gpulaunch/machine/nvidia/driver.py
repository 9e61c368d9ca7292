"""The NVIDIA driver; gpulaunch.machine.driver.Driver documents its functions."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FailedError, NoDriverError
from gpulaunch.machine.driver import Build, Load
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import faults, health, nvml, outside_use, probe
from gpulaunch.machine.slow_calls import left_out

read_use = outside_use.read_use
pids_at_work = outside_use.pids_at_work
read_health = health.read_health
watch_faults = faults.watch_faults
diagnose = probe.diagnose


def is_present() -> bool:
    """Return whether NVML lists GPUs, or fails although the driver is loaded."""
    try:
        nvml.open_nvml()
        return nvml.card_count() > 0
    except NoDriverError:
        return False
    except FailedError:
        return True


def fingerprint() -> str | None:
    """Return the driver's version and the identities of all cards and MIG instances.

    A card that this process may not use is None. With a card that is lost, or a call that may be
    answered the next time, there is no fingerprint.
    """
    if left_out:
        return None
    unsteady: list[str] = []
    found: list[Any] = []
    try:
        nvml.open_nvml()
        found.append(nvml.driver_version())
        for index in range(nvml.card_count()):
            try:
                found.append(_identity(nvml.card_at(index, unsteady)))
            except nvml.HiddenGpuError:
                found.append(None)
    except (FailedError, nvml.LostGpuError):
        return None
    return None if found[0] is None or unsteady else repr(found)


def _identity(card: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return a card's UUID, and UUID and product name of each of its MIG instances."""
    parts = card.instances()
    if parts is None:
        return (card.uuid(),)
    return card.uuid(), {number: (one.uuid(), one.model()) for number, one in parts.items()}


def read() -> Build:
    """Read the cards, MIG instances and links that NVML reports."""
    return probe.probe()[0]


def read_load(gpus: Iterable[Gpu]) -> tuple[Load, ...]:
    """Return utilization, memory, power and temperature; all unknown for a GPU that is lost."""
    nvml.open_nvml()
    found = []
    for gpu in gpus:
        load = Load(gpu.uuid)
        with suppress(nvml.LostGpuError):
            card = nvml.card_of(gpu.uuid, gpu.card)
            rates, memory = card.utilization(), card.memory() or card.shared_memory()
            load = Load(
                uuid=gpu.uuid,
                utilization_percentage=rates.gpu if rates else None,
                memory_utilization_percentage=rates.memory if rates else None,
                memory_used_bytes=memory.used if memory else None,
                power_w=card.power_w(),
                power_limit_w=card.power_limit_w(),
                temperature_c=card.temperature_c(),
            )
        found.append(load)
    return tuple(found)


def are_busy(gpus: Iterable[Gpu]) -> bool:
    """Return whether a kernel ran on one of the GPUs in the last sampling period, 1/6 s to 1 s."""
    nvml.open_nvml()
    try:
        found = [nvml.card_of(gpu.uuid, gpu.index).utilization() for gpu in gpus]
    except nvml.LostGpuError:
        return True
    return any(rates is None or rates.gpu > 0 for rates in found)


def version() -> str | None:
    """Return the version of the kernel driver, such as "550.54.15"."""
    nvml.open_nvml()
    return nvml.driver_version()
