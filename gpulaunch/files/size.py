"""Amounts of memory as people write them."""
# pure: decides on plain values

import re

from gpulaunch.errors import UsageError, quoted

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
