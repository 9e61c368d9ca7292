"""The present load of NVIDIA GPUs."""

from collections.abc import Iterable

from gpulaunch.machine.driver import Load
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.nvml_load import (
    read_busy,
    read_power_limit_w,
    read_power_w,
    read_temperature_c,
)


def read_load(gpus: Iterable[Gpu]) -> tuple[Load, ...]:
    """Return the load of each GPU; all unknown for one that does not answer.

    Raises:
        FailedError: there is no NVML or no driver.
    """
    nvml.open_nvml()
    return tuple(_read_one(gpu) for gpu in gpus)


def _read_one(gpu: Gpu) -> Load:
    try:
        card = nvml.card_of(gpu.uuid, gpu.card)
        busy, memory = read_busy(card.ask), card.memory() or card.shared_memory()
        return Load(
            uuid=gpu.uuid,
            utilization_percentage=busy.gpu_percentage if busy else None,
            memory_utilization_percentage=busy.memory_percentage if busy else None,
            memory_used_bytes=memory.used if memory else None,
            power_w=read_power_w(card.ask),
            power_limit_w=read_power_limit_w(card.ask),
            temperature_c=read_temperature_c(card.ask),
        )
    except nvml.LostGpuError:
        return Load(gpu.uuid)
