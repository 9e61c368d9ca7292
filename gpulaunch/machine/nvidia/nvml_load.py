"""The door to what NVML tells of a GPU's load: how busy it is, what it draws, how warm it is.

Who asks decides what an error means: each function takes
`ask`, which calls a function of NVML for one GPU and returns None where there is no answer.
"""

from collections.abc import Callable

import pynvml

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
