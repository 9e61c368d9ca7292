"""A quick list of what NVML sees: the driver's version, and the UUIDs of GPUs and MIG instances.

It uses ctypes, since importing pynvml costs 20 ms, more than all the rest of showing a machine from
the cache. If anything is odd there is no roster, and the machine is read through pynvml, which
reports what is odd.
"""

import ctypes

from gpulaunch.records import Record
from gpulaunch.typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_NO_DRIVER = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION
_TEXT_BYTES = 96
_MIG_ENABLED = 1


class Listed(Record):
    """A card that answers.

    Attributes:
        uuid: UUID of the card.
        instances: UUID and product name, which tells the size, of its MIG instances by number; None
            if it is not in MIG mode.
    """

    uuid: str
    instances: dict[str, list[str]] | None


class Roster(Record):
    """All that NVML lists.

    Attributes:
        driver: version of the driver.
        cards: cards by index, which all answer; None for one that this process may not use.
    """

    driver: str
    cards: tuple[Listed | None, ...]


def is_present() -> bool:
    """Return whether NVML lists GPUs; a driver that fails counts as present."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    problem = library.nvmlInitWithFlags(0)
    if problem:
        return problem not in _NO_DRIVER
    count = ctypes.c_uint()
    return bool(library.nvmlDeviceGetCount_v2(ctypes.byref(count)) or count.value)


def read_roster() -> Roster | None:
    """List the GPUs of this machine; None without a driver, or if anything about it is odd."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        _check(library.nvmlInitWithFlags(0))
        count = ctypes.c_uint()
        _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        driver = _read_string(library.nvmlSystemGetDriverVersion)
        return Roster(driver, tuple(_list_card(library, index) for index in range(count.value)))
    # no library, no such function, or an NVML error
    except (OSError, AttributeError, _OddError, UnicodeDecodeError):
        return None


class _OddError(Exception):
    """A call did not succeed."""


def _check(result: int) -> None:
    if result:
        raise _OddError


def _read_string(function: Any, *arguments: object) -> str:  # noqa: ANN401
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    _check(function(*arguments, text, ctypes.c_uint(_TEXT_BYTES)))
    return text.value.decode()


def _list_card(library: ctypes.CDLL, index: int) -> Listed | None:
    card = ctypes.c_void_p()
    problem = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(card))
    if problem == _NO_PERMISSION:
        return None
    _check(problem)
    uuid = _read_string(library.nvmlDeviceGetUUID, card)
    mode, pending = ctypes.c_uint(), ctypes.c_uint()
    unsupported = library.nvmlDeviceGetMigMode(card, ctypes.byref(mode), ctypes.byref(pending))
    if unsupported or mode.value != _MIG_ENABLED:
        return Listed(uuid, None)
    most = ctypes.c_uint()
    _check(library.nvmlDeviceGetMaxMigDeviceCount(card, ctypes.byref(most)))
    instances = {}
    for number in range(most.value):
        instance = ctypes.c_void_p()
        if not library.nvmlDeviceGetMigDeviceHandleByIndex(
            card, ctypes.c_uint(number), ctypes.byref(instance)
        ):
            instances[str(number)] = [
                _read_string(library.nvmlDeviceGetUUID, instance),
                _read_string(library.nvmlDeviceGetName, instance),
            ]
    return Listed(uuid, instances)
