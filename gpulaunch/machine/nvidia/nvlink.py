"""NVLinks as NVIDIA's driver tells of them, and the version that a GPU's links have."""
# pure: decides on plain values

from gpulaunch.records import Record

LIBRARY = "libnvidia-ml.so.1"
"""File name of NVML."""

PciAddress = tuple[int, int, int]
"""Domain, bus and device."""

_VERSION_BY_CAPABILITY = {"7": 2, "8": 3, "9": 4, "10": 5}
"""Major NVLink version by major compute capability; of 6, only 6.0 has NVLink.

Source: NCCL src/graph/topo.h, ncclTopoNVLinkBw, which goes by compute capability alone.
"""

_VERSION_BY_NUMBER = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""Major version by NVML's number, as nvml.h counts: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0."""


class NvlinkEnd(Record):
    """One NVLink of a GPU.

    Attributes:
        active: whether it is up, or only asleep.
        version: major; 0 if unknown.
        remote: kind of its other end: "gpu", "switch", "cpu", or "" if unknown.
        address: PCI address of the other end; None if unknown, or if its kind is enough.
        gb_per_s: bandwidth per direction as the driver reports it; 0 if it does not.
    """

    active: bool
    version: int = 0
    remote: str = ""
    address: PciAddress | None = None
    gb_per_s: float = 0.0


def version_by_capability(compute_capability: str | None) -> int | None:
    """Return the major NVLink version of a GPU; None if its compute capability does not tell.

    Drivers of 2023 and 2024 answer nvmlDeviceGetNvLinkVersion with the resource manager's number,
    which from NVLink 2.2 on is one more than nvml.h's. So that is asked only where this is None.

    Args:
        compute_capability: version such as "9.0", or None if unknown.
    """
    major, _, minor = (compute_capability or "").partition(".")
    return 1 if (major, minor) == ("6", "0") else _VERSION_BY_CAPABILITY.get(major)


def version_by_number(number: int | None) -> int:
    """Return the major version for a number of NVML's; 0 if unknown.

    Args:
        number: answer of nvmlDeviceGetNvLinkVersion; a newer one counts as the newest known.
    """
    newest = max(_VERSION_BY_NUMBER.values())
    return _VERSION_BY_NUMBER.get(number, newest) if number else 0
