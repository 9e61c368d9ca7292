"""Figures with their units, as the names of keys tell them."""

from math import floor, log10

from gpulaunch.files.duration import format_duration
from gpulaunch.files.size import format_size, parse_size
from gpulaunch.show.terminal import figure

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


def amount_between_runs(key: str, value: float, deviation: float) -> str:
    """A figure with its deviation, both to the same digits and in the same unit; without one that rounds to 0.

    Args:
        key: of the document.
        value: of the key.
        deviation: in the key's unit.

    Example:
        >>> amount_between_runs("memory_mib", 6000, 7.07), amount_between_runs("power_w", 610, 0.04)
        ('5.859 GiB ± 0.007 GiB', '610 W')
    """
    text = amount(key, value)
    number, _, unit = text.partition(" ")
    if " " in unit or unit == "min":  # such as 2 h 05 min
        return _with_duration(text, value, deviation)
    if "e" in number or not float(number):
        return f"{text} ± {amount(key, deviation)}" if deviation else text
    scaled = deviation * _factor(key, unit)
    most = max(0, 3 - floor(log10(abs(float(number)))))
    rounded = f"{scaled:.{most}f}"
    if not float(rounded):
        return text
    digits = max(_decimals(rounded), _decimals(number))
    return f"{float(number):.{digits}f} {unit}".rstrip() + f" ± {scaled:.{digits}f} {unit}".rstrip()


def _decimals(number: str) -> int:
    """Digits behind the point, zeros at the end left out."""
    return len(number.partition(".")[2].rstrip("0"))


def _factor(key: str, unit: str) -> float:
    """From the unit of a key to one that it is shown in."""
    if key.endswith(("_mib", "_bytes")):
        return (1 << 20 if key.endswith("_mib") else 1) / parse_size(f"1{unit}")
    return 1e-3 if unit == "kJ" else 1.0


def _with_duration(text: str, value_s: float, deviation_s: float) -> str:
    step_s = next(step for least, step in ((86400, 3600), (600, 60), (0, 1)) if value_s >= least)
    rounded_s = round(deviation_s / step_s) * step_s
    return f"{text} ± {format_duration(rounded_s)}" if rounded_s else text


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
