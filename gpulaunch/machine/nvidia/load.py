"""The load of NVIDIA GPUs: how busy each is, what it draws, how warm it is.

Who asks decides what an error means: the functions that read one figure take `ask`, which calls a
function of NVML for one GPU and returns None where there is no answer.
"""

from collections.abc import Callable, Iterable

import pynvml

from gpulaunch.machine.driver import Load
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.records import Record
from gpulaunch.typing import Any

Ask = Callable[..., Any]


class BusyShares(Record):
    """Parts of the last sixth of a second or so, 0-100.

    Attributes:
        gpu_percentage: in which any kernel ran.
        memory_percentage: in which device memory was read or written.
    """

    gpu_percentage: int
    memory_percentage: int


def read_busy(ask: Ask) -> BusyShares | None:
    """Return how busy a GPU is, or None if unknown, as of a MIG instance."""
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates)
    return None if rates is None else BusyShares(int(rates.gpu), int(rates.memory))


def read_power_w(ask: Ask) -> float | None:
    """Return the watts that a GPU draws now, or None if unknown."""
    return _watts(ask(pynvml.nvmlDeviceGetPowerUsage))


def read_power_limit_w(ask: Ask) -> float | None:
    """Return the watts that a GPU may draw, or None if unknown."""
    return _watts(ask(pynvml.nvmlDeviceGetEnforcedPowerLimit))


def read_temperature_c(ask: Ask) -> int | None:
    """Return the temperature of a GPU in degrees Celsius, or None if unknown."""
    found = ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
    return None if found is None else int(found)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


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
