"""A quick list of what NVML sees: the driver's version, and the UUIDs of GPUs and MIG instances.

It uses ctypes, since importing pynvml costs 20 ms, more than all the rest of showing a machine from
the cache. If anything is odd there is no roster, and the machine is read through pynvml, which
reports what is odd. MIG instances are found here for both.
"""

import ctypes
from collections.abc import Callable
from functools import cache

from gpulaunch.machine.slow_calls import NO_GPU, call, left_out
from gpulaunch.records import Record
from gpulaunch.typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_MIG_ENABLED = 1
_MOST_INSTANCES = 7  # largest number on any card so far

# nvmlReturn_t
NOT_FOUND = 6
FUNCTION_NOT_FOUND = 13
_NO_PERMISSION = 4
_NO_DRIVER = (9, 12)  # DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND
_STEADY = (2, 3, _NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND)  # INVALID_ARGUMENT, NOT_SUPPORTED

Refused = Callable[[str, int], None]
"""What to do about a call without an answer: the function's name and the error code."""


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
        library = _load()
    except OSError:
        return why_not_loaded() is not None
    problem = call(library.nvmlInitWithFlags, NO_GPU, 0)
    if problem:
        return problem not in _NO_DRIVER
    count = ctypes.c_uint()
    return bool(library.nvmlDeviceGetCount_v2(ctypes.byref(count)) or count.value)


def why_not_loaded() -> str | None:
    """Return why the library cannot be loaded although it is there, else None."""
    try:
        _load()
    except OSError as problem:
        why = str(problem)  # of a library that is missing for this one it names that one alone
        absent = why.endswith("No such file or directory") and _LIBRARY in why
        return None if absent else why
    return None


def read_roster() -> Roster | None:
    """List the GPUs of this machine; None without a driver, or if anything about it is odd."""
    if left_out:
        return None
    try:
        library = _load()
        _check(call(library.nvmlInitWithFlags, NO_GPU, 0))
        count = ctypes.c_uint()
        _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        driver = _read_string(library.nvmlSystemGetDriverVersion, NO_GPU)
        return Roster(driver, tuple(_list_card(library, index) for index in range(count.value)))
    # no library, no such function, or an NVML error
    except (OSError, AttributeError, _OddError, UnicodeDecodeError):
        return None


def is_in_mig_mode(card: Any, gpu: int, refused: Refused) -> bool:  # noqa: ANN401
    """Return whether a card is split into MIG instances, so that it cannot be used whole.

    Args:
        card: NVML's handle, of this module or of pynvml.
        gpu: index of the card.
        refused: called if NVML does not answer; the card then counts as whole.
    """
    mode, pending = ctypes.c_uint(), ctypes.c_uint()
    asked = ctypes.byref(mode), ctypes.byref(pending)
    return _call("nvmlDeviceGetMigMode", gpu, refused, card, *asked) and mode.value == _MIG_ENABLED


def find_instances(card: Any, gpu: int, refused: Refused) -> dict[int, Any] | None:  # noqa: ANN401
    """Return the handles of a card's MIG instances by number; None if it is not in MIG mode.

    Args:
        card: NVML's handle, of this module or of pynvml.
        gpu: index of the card.
        refused: called for each call without an answer; a number without an instance is one.
    """
    if not is_in_mig_mode(card, gpu, refused):
        return None
    most = ctypes.c_uint()
    is_known = _call("nvmlDeviceGetMaxMigDeviceCount", gpu, refused, card, ctypes.byref(most))
    found: dict[int, Any] = {}
    for number in range(most.value if is_known else _MOST_INSTANCES):
        instance = ctypes.c_void_p()
        asked = ctypes.c_uint(number), ctypes.byref(instance)
        if _call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, refused, card, *asked):
            found[number] = instance
    return found


class _OddError(Exception):
    """A call did not succeed."""


@cache
def _load() -> ctypes.CDLL:
    return ctypes.CDLL(_LIBRARY)


def _call(name: str, gpu: int, refused: Refused, *arguments: Any) -> bool:  # noqa: ANN401
    """Call a function of NVML, which old drivers may lack; return whether it answered."""
    function = getattr(_load(), name, None)
    code = call(function, gpu, *arguments) if function else FUNCTION_NOT_FOUND
    if code:
        refused(name, code)
    return not code


def _check(result: int) -> None:
    if result:
        raise _OddError


def _check_steady(_: str, code: int) -> None:
    """Let errors pass that the next call would give as well; a lost GPU's is none of them."""
    if code not in _STEADY:
        raise _OddError


def _read_string(function: Any, gpu: int, *arguments: object) -> str:  # noqa: ANN401
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    _check(call(function, gpu, *arguments, text, ctypes.c_uint(_TEXT_BYTES)))
    return text.value.decode()


def _list_card(library: ctypes.CDLL, index: int) -> Listed | None:
    card = ctypes.c_void_p()
    asked = ctypes.c_uint(index), ctypes.byref(card)
    problem = call(library.nvmlDeviceGetHandleByIndex_v2, index, *asked)
    if problem == _NO_PERMISSION:
        return None
    _check(problem)
    uuid = _read_string(library.nvmlDeviceGetUUID, index, card)
    found = find_instances(card, index, _check_steady)
    if found is None:
        return Listed(uuid, None)
    instances = {}
    for number, instance in found.items():
        name = _read_string(library.nvmlDeviceGetName, index, instance)
        uuid_of_instance = _read_string(library.nvmlDeviceGetUUID, index, instance)
        instances[str(number)] = [uuid_of_instance, name]
    return Listed(uuid, instances)
