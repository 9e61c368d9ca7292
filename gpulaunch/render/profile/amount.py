"""Figures with their units, as the names of keys tell them."""

from gpulaunch.core.duration import format_duration
from gpulaunch.core.size import format_size
from gpulaunch.render.terminal import figure

_UNITS = {"_percentage": "%", "_gb_per_s": "GB/s", "_w": "W"}


def amount(key: str, value: float) -> str:
    """A figure of a profile with its unit.

    Args:
        key: of the document, which ends with a unit: "power_w".
        value: of the key.

    Example:
        >>> amount("power_w", 148.2), amount("memory_mib", 2048), amount("energy_j", 12500)
        ('148.2 W', '2 GiB', '12.5 kJ')
    """
    if key.endswith("_mib"):
        return format_size(round(value * (1 << 20)))
    if key.endswith("_bytes"):
        return format_size(round(value))
    if key.endswith("_j"):
        return f"{figure(value / 1000)} kJ" if value >= 1000 else f"{figure(value)} J"
    unit = next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), None)
    if unit is None and key.endswith("_s"):
        return format_duration(value) if value >= 100 else f"{figure(value)} s"
    return f"{figure(value)} {unit}" if unit else figure(value)


def said(key: str) -> str:
    """What a key is about: its name without the unit.

    Example:
        >>> said("sm_utilization_percentage")
        'SM utilization'
    """
    endings = (*_UNITS, "_mib", "_bytes", "_j", "_s")
    name = next((key.removesuffix(ending) for ending in endings if key.endswith(ending)), key)
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


_WORDS = {"sm": "SM", "pcie": "PCIe", "nvlink": "NVLink", "tx": "sent", "rx": "received"}
