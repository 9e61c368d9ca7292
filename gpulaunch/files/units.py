"""Times and sizes with their units, as people write them."""
# pure: decides on plain values

import re

from gpulaunch.errors import UsageError, quoted

_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
# Texts, which re compiles and keeps at their first use: few command lines have a length of time.
_PART = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(d|h|min|m|s)\s*"
_NUMBER = r"[0-9]{0,9}\.?[0-9]{1,9}"
# days-hours, with or without minutes and seconds; else hours:minutes:seconds or minutes:seconds.
_SLURM = (
    r"([0-9]{1,9})-([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?"
    r"|(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9})"
)
_SLURM_UNITS_S = (86400, 3600, 60, 1, 3600, 60, 1)


def parse_duration(text: str) -> float:
    """Return the seconds in "90s", "1.5h" or "1h30m", or in Slurm's "90:00" or "1-02:30:00".

    Units are d, h, m (or min) and s, in any case. A number without one is refused: Slurm's are
    minutes, and those of timeout are seconds.

    Raises:
        UsageError: the text is no positive length of time.
    """
    written = text.strip().lower()
    total_s = 0.0
    if clock := re.fullmatch(_SLURM, written):
        fields = zip(clock.groups(), _SLURM_UNITS_S, strict=True)
        total_s = sum(int(number) * unit_s for number, unit_s in fields if number)
    elif not re.sub(_PART, "", written):
        total_s = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, written))
    elif re.fullmatch(_NUMBER, written) and float(written):
        raise UsageError(f"{quoted(text)} has no unit: write {written}s, {written}m or {written}h")
    if not 0 < total_s < 1e10:
        raise UsageError(f"{quoted(text)} is no length of time such as 90s, 10m or 1h30m")
    return total_s


def format_duration(seconds: float) -> str:
    """Return a length of time in at most two units: 0.5 s, 5 s, 3 min, 2 h 05 min, 3 d 4 h."""
    if 0 < seconds < 10 and seconds != int(seconds):
        return f"{seconds:.2g} s"
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02} min"
    if minutes and whole % 60 and minutes < 10:
        return f"{minutes} min {whole % 60:02} s"
    return f"{minutes} min" if minutes else f"{whole} s"


_SIZE = re.compile(r"([0-9]*\.?[0-9]+)\s*([KMGT]?)(I?B)?")
_LEAST_BYTES = 1 << 20  # a smaller amount lacks its unit
_SOLD = 0.98
"""Least part of what is on its box that a GPU has: error correction and the driver take some.

An A10G sold with 24 GB shows 22,731 MiB, a T4 sold with 16 GB 15,079 MiB: 99.3 and 98.8 %.
"""


class Size(int):
    """An amount of memory in bytes.

    Attributes:
        of_gpu_bytes: the least memory of a GPU that people call this large. It is the amount
            itself, but for units such as G alone: a GPU is sold with 80 GB, and a job that may
            allocate 80G expects 80 GiB, as of docker, Slurm or Java.
    """

    of_gpu_bytes: int


def parse_size(text: str) -> Size:
    """Return the amount in "8GiB" (binary), "8GB" (decimal) or "8G" (see Size), in any case.

    Raises:
        UsageError: the text is no amount of memory.
    """
    found = _SIZE.fullmatch(text.strip().upper())
    number, prefix, suffix = found.groups() if found else ("0", "", "B")
    power = " KMGT".index(prefix or " ")
    decimal = float(number) * 1000**power
    amount = decimal if suffix == "B" else float(number) * 1024**power
    if not 1 <= amount < 1 << 63:
        raise UsageError(f"{quoted(text)} is no amount of memory such as 8GiB")
    if amount < _LEAST_BYTES:
        raise UsageError(f"{quoted(text)} is {int(amount)} bytes: write a unit, such as 8GiB")
    size = Size(amount)
    size.of_gpu_bytes = int(decimal * _SOLD) if prefix and not suffix else size
    return size


def format_size(size_bytes: int) -> str:
    """Return an amount in the largest binary unit that leaves a figure of at least 1."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
