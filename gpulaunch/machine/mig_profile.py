"""The sizes of MIG instances: names such as "1g.10gb", read and composed."""
# pure: decides on plain values

import math
import re

from gpulaunch.records import Record, replace

_MEMORY_EIGHTHS = 8
_GIB = 1 << 30
_NAME = re.compile(
    r"(?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.(?P<memory>\d+)gb(?P<extras>[+-]\S+)?",
    re.IGNORECASE,
)


class MigProfile(Record):
    """The size of a MIG instance.

    Attributes:
        slices: of the card's processors that its GPU instance has.
        memory_gb: memory by its name, GB.
        compute_slices: those of the slices that it computes with; fewer if others use the rest.
        extras: what else it has or lacks, such as "+me" or "+gfx"; "" for nothing.
    """

    slices: int
    memory_gb: int
    compute_slices: int
    extras: str


def parse_mig_profile(name: str) -> MigProfile | None:
    """Return the size that a name says, such as "1g.10gb", "1c.2g.10gb", "1g.10gb+me"."""
    found = _NAME.fullmatch(name)
    if not found:
        return None
    slices = int(found["slices"])
    compute = int(found["compute"] or slices)
    return MigProfile(slices, int(found["memory"]), compute, (found["extras"] or "").casefold())


def is_of_profile(name: str, asked: MigProfile) -> bool:
    """Return whether a name says the size that is asked for; extras count only if asked for."""
    found = parse_mig_profile(name)
    return found is not None and asked in (found, replace(found, extras=""))


def size_order(profile: str) -> tuple[int, int, bool]:
    """Return a key that sorts names of instances with equal memory from small to large.

    Those with extras come last, since few of a card's instances can have them.
    """
    found = parse_mig_profile(profile)
    return (found.slices, found.compute_slices, bool(found.extras)) if found else (0, 0, False)


def mig_profile_name(
    slices: int, compute_slices: int, memory_bytes: int, card_memory_bytes: int
) -> str:
    """Return the name of an instance's size.

    The memory in it is the instance's eighths of the card's memory, rounded up, not what the
    instance can use: 39.25 of 80 GiB are "40gb".

    Args:
        slices: of its GPU instance.
        compute_slices: of its compute instance.
        memory_bytes: memory of the instance.
        card_memory_bytes: memory of the card; 0 if unknown.

    Source: NVIDIA go-nvlib pkg/nvlib/device/mig_profile.go, getMigMemorySizeInGB.
    """
    memory_gb = round(memory_bytes / _GIB)
    if card_memory_bytes:
        eighths = math.ceil(memory_bytes / card_memory_bytes * _MEMORY_EIGHTHS)
        memory_gb = round(eighths / _MEMORY_EIGHTHS * math.ceil(card_memory_bytes / _GIB))
    compute = "" if compute_slices == slices else f"{compute_slices}c."
    return f"{compute}{slices}g.{memory_gb}gb"
