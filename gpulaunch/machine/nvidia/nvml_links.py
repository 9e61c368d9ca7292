"""A card's NVLinks, as NVML tells of them."""

from collections.abc import Mapping

import pynvml

from gpulaunch.machine.link import nvlink_version
from gpulaunch.machine.nvidia.nvml import NvmlDevice, PciAddress, address_of
from gpulaunch.records import Record

_NVLINK_ENDS = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: "gpu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: "cpu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: "switch",
}
_VERSION_BY_NUMBER = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""Major version by NVML's number, as nvml.h counts: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0."""

_MOST_NVLINKS = max(36, pynvml.NVML_NVLINK_MAX_LINKS)  # older pynvml says 18, and Rubin has 36
_HOPPER = 9  # major compute capability
_FIELDS_OF_ALL = (
    (pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0),
    (pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0),
)
_FIELDS_OF_LINKS = tuple(
    (field, link)
    for field in (pynvml.NVML_FI_DEV_NVLINK_GET_STATE, pynvml.NVML_FI_DEV_NVLINK_GET_SPEED)
    for link in range(_MOST_NVLINKS)
)


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


def read_nvlinks(card: NvmlDevice, compute_capability: str | None) -> dict[int, NvlinkEnd]:
    """Return all NVLinks of a card by number; {} for a card without.

    Args:
        compute_capability: that of the card, or None if unknown.
    """
    told = _fields(card, compute_capability)
    return {
        link: _nvlink(card, link, compute_capability, told) if state else NvlinkEnd(active=False)
        for link, state in _nvlink_states(card, told).items()
    }


def find_nvlinks_down(card: NvmlDevice, compute_capability: str | None) -> list[int]:
    """Return the numbers of a card's NVLinks that are down; [] if none is up, as without a bridge.

    Args:
        compute_capability: that of the card, or None if unknown.
    """
    states = _nvlink_states(card, _fields(card, compute_capability))
    return [link for link, state in states.items() if not state] if any(states.values()) else []


def _nvlink_states(card: NvmlDevice, told: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Return the state of each of a card's NVLinks; 0 is down.

    One call tells their number and, from Hopper on, the state of each. Older cards are asked
    link by link, and do not know that a link may sleep.
    """
    count = told.get((pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0), _MOST_NVLINKS)
    by_field = any(field == pynvml.NVML_FI_DEV_NVLINK_GET_STATE for field, _ in told)
    found: dict[int, int] = {}
    for link in range(_MOST_NVLINKS):
        if len(found) == count:
            break
        state = told.get((pynvml.NVML_FI_DEV_NVLINK_GET_STATE, link))
        if not by_field:
            state = card.ask(pynvml.nvmlDeviceGetNvLinkState, link)
        if state is not None:
            found[link] = state
    return found


def _fields(card: NvmlDevice, compute_capability: str | None) -> dict[tuple[int, int], int]:
    """Return what one call tells of all NVLinks, by field and link."""
    asked = list(_FIELDS_OF_ALL)
    if asks_by_field(compute_capability):
        asked += _FIELDS_OF_LINKS
    values = card.ask(pynvml.nvmlDeviceGetFieldValues, asked)
    return {
        key: int(value.value.uiVal)
        for key, value in zip(asked, values or (), strict=False)
        if value.nvmlReturn == pynvml.NVML_SUCCESS
    }


def _nvlink(
    card: NvmlDevice, link: int, compute_capability: str | None, told: Mapping[tuple[int, int], int]
) -> NvlinkEnd:
    version = nvlink_version(compute_capability)
    if version is None:
        # Drivers of 2023 and 2024 answer with the resource manager's number, which from NVLink 2.2
        # on is one more than nvml.h's, so this is asked only of GPUs that no table knows.
        number = card.ask(pynvml.nvmlDeviceGetNvLinkVersion, link) or 0
        newest = max(_VERSION_BY_NUMBER.values())
        version = _VERSION_BY_NUMBER.get(number, newest) if number else 0
    kind = card.ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, link)
    remote = _NVLINK_ENDS.get(kind, "")
    pci = None
    if remote not in ("switch", "cpu"):
        pci = card.ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, link)
    common = told.get((pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0), 0)
    speed = told.get((pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, link), common)
    return NvlinkEnd(
        active=True,
        version=version,
        remote=remote,
        address=address_of(pci),
        gb_per_s=speed / 1000,
    )


def asks_by_field(compute_capability: str | None) -> bool:
    """Return whether single NVLinks are to be read by field, as Hopper and later allow."""
    major = (compute_capability or "").partition(".")[0]
    return major.isdecimal() and int(major) >= _HOPPER
