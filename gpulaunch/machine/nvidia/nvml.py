"""The door to NVML: the driver's answers about this machine's GPUs as plain values.

Any single call may be missing in some driver, unsupported on some card, fail, or return garbage:
its answer is then unknown, and the rest works. Only a GPU that is lost, or has no identity, is left
out.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pynvml

from gpulaunch.errors import FailedError, NoDriverError
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.driver_calls import NO_GPU, call, left_out
from gpulaunch.machine.gpu import mig_profile_name
from gpulaunch.machine.link import PathType, nvlink_version
from gpulaunch.process.libc import loading_problem
from gpulaunch.process.system import system_memory
from gpulaunch.records import Record

LIBRARY = DRIVERS["nvidia"].library
PciAddress = tuple[int, int, int]
"""Domain, bus and device."""

HINT = "without GPUs, try a described machine: --topology dgx1-v100"
_UPDATED = "the driver was updated since its kernel modules were loaded: reboot, or reload them"

LOST = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER,
    pynvml.NVML_ERROR_IRQ_ISSUE,
)
_STEADY = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
"""Errors that the next call would give, too."""

_PATHS: dict[int, PathType] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two GPUs of one board
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}

PROHIBITED = "PROHIBITED"
EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"
_COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "EXCLUSIVE_THREAD",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: EXCLUSIVE_PROCESS,
}
_CPU_WORDS = 64  # of 64 bits: more CPUs than any kernel supports
_MOST_INSTANCES = 7  # of MIG on any card so far
_P2P_READ = 0  # pynvml's NVML_P2P_CAPS_INDEX_READ is the tuple (0,) by mistake

# Drivers before 510 know version 2 only, and pynvml's unversioned functions fail there with an
# exception that is no NVMLError.
_PROCESSES = {
    "compute": (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    ),
    "graphics": (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    ),
    "mps": (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,),  # pynvml has no version 2 of it
}


class LostGpuError(Exception):
    """A GPU does not answer any more; the text says which one and how it failed."""


class HiddenGpuError(LostGpuError):
    """A GPU that this process may not use, as a device cgroup of Slurm or a container says."""


class Memory(Record):
    """The memory of a GPU, in bytes.

    Attributes:
        with_reserve: whether `used` may include memory that the driver reserves for itself.
    """

    total: int
    used: int
    with_reserve: bool


class NvmlDevice:
    """A GPU, or a MIG instance of one, queried through NVML.

    Args:
        unsteady: list to which every call is added that failed and may succeed the next time.
    """

    def __init__(self, handle: Any, index: int, unsteady: list[str]) -> None:  # noqa: ANN401
        self.handle = handle
        self._unsteady = unsteady
        self.index = index

    def ask(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Call an NVML function; return None if it gives no answer.

        Raises:
            LostGpuError: the GPU does not answer.
        """
        try:
            return call(function, self.index, self.handle, *arguments)
        except pynvml.NVMLError as problem:
            if problem.value in LOST:
                raise LostGpuError(f"GPU {self.index} is left out: {problem}") from None
            if problem.value not in _STEADY:
                self._unsteady.append(function.__name__)
        except UnicodeDecodeError:  # the answer is no text
            self._unsteady.append(function.__name__)
        return None

    def uuid(self) -> str:
        """Return the UUID, which survives reboots.

        Raises:
            LostGpuError: the GPU has none, so it cannot be leased.
        """
        uuid = self.ask(pynvml.nvmlDeviceGetUUID)
        if not uuid or not uuid.isascii() or not uuid.isprintable():
            raise LostGpuError(f"GPU {self.index} is left out: it has no UUID")
        return str(uuid)

    def model(self) -> str | None:
        """Return the product name, or None if unknown."""
        return self.ask(pynvml.nvmlDeviceGetName) or None

    def memory(self) -> Memory | None:
        """Return the memory, or None if unknown.

        The newer call tells the driver's reserve from use; the older one does not.
        """
        newer = self.ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
        if newer is not None:
            return Memory(newer.total, newer.used, with_reserve=False)
        older = self.ask(pynvml.nvmlDeviceGetMemoryInfo)
        return None if older is None else Memory(older.total, older.used, with_reserve=True)

    def shared_memory(self) -> Memory | None:
        """Return the system's memory where it is the GPU's, too, as on GB10, Thor and Jetson.

        There NVML supports no query of the memory, which it does for any other card.
        """
        try:
            call(pynvml.nvmlDeviceGetMemoryInfo, self.index, self.handle)
        except pynvml.NVMLError as problem:
            if problem.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                total, available = system_memory()
                return Memory(total, total - available, with_reserve=True)
        return None

    def address(self) -> PciAddress | None:
        """Return the address on the PCI bus, or None if unknown."""
        return address_of(self.ask(pynvml.nvmlDeviceGetPciInfo))

    def compute_capability(self) -> str | None:
        """Return the compute capability, such as "7.0", or None if unknown."""
        found = self.ask(pynvml.nvmlDeviceGetCudaComputeCapability)
        return f"{found[0]}.{found[1]}" if found else None

    def pcie(self) -> tuple[int, int]:
        """Return the highest generation and number of lanes of GPU and slot; 0 if unknown."""
        generation = self.ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration)
        return generation or 0, self.ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth) or 0

    def cpus(self) -> frozenset[int]:
        """Return the CPUs next to the GPU."""
        return _bits(self.ask(pynvml.nvmlDeviceGetCpuAffinity, _CPU_WORDS))

    def memory_nodes(self) -> frozenset[int]:
        """Return the NUMA nodes of the host's memory next to the GPU."""
        return _bits(
            self.ask(pynvml.nvmlDeviceGetMemoryAffinity, 16, pynvml.NVML_AFFINITY_SCOPE_NODE)
        )

    def utilization(self) -> Any | None:  # noqa: ANN401
        """Return the parts of the last sixth of a second or so, 0-100, or None if unknown.

        In `gpu` of it any kernel ran, in `memory` of it device memory was read or written.
        """
        return self.ask(pynvml.nvmlDeviceGetUtilizationRates)

    def power_w(self) -> float | None:
        """Return the watts that it draws now, or None if unknown."""
        milliwatts = self.ask(pynvml.nvmlDeviceGetPowerUsage)
        return None if milliwatts is None else milliwatts / 1000

    def power_limit_w(self) -> float | None:
        """Return the watts that it may draw, or None if unknown."""
        milliwatts = self.ask(pynvml.nvmlDeviceGetEnforcedPowerLimit)
        return None if milliwatts is None else milliwatts / 1000

    def temperature_c(self) -> int | None:
        """Return the temperature in degrees Celsius, or None if unknown."""
        found = self.ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
        return None if found is None else int(found)

    def compute_mode(self) -> str:
        """Return PROHIBITED, EXCLUSIVE_PROCESS, EXCLUSIVE_THREAD, or "" for the default mode."""
        return _COMPUTE_MODES.get(self.ask(pynvml.nvmlDeviceGetComputeMode), "")

    def path_to(self, other: "NvmlDevice") -> PathType:
        """Return the path type between two cards over PCIe; the farthest if it is unknown."""
        return _PATHS.get(self.ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, other.handle), "SYS")

    def reads_from(self, other: "NvmlDevice") -> bool | None:
        """Return whether this card can read the other's memory directly; None if unknown."""
        status = self.ask(pynvml.nvmlDeviceGetP2PStatus, other.handle, _P2P_READ)
        return None if status is None else status == pynvml.NVML_P2P_STATUS_OK

    def in_mig_mode(self) -> bool:
        """Return whether the card is split into MIG instances, so that it cannot be used whole."""
        modes = self.ask(pynvml.nvmlDeviceGetMigMode)  # present and pending
        return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE

    def instances(self) -> dict[int, "NvmlDevice"] | None:
        """Return its MIG instances by number; None if the card is not in MIG mode."""
        if not self.in_mig_mode():
            return None
        most = self.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount)
        found = {}
        for number in range(_MOST_INSTANCES if most is None else most):
            handle = self.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, number)
            if handle is not None:
                found[number] = NvmlDevice(handle, self.index, self._unsteady)
        return found

    def mig_profile(self, card_memory_bytes: int) -> str:
        """Return the profile of a MIG instance, such as "1g.10gb".

        It ends the product name, or is composed from the instance's attributes.

        Args:
            card_memory_bytes: memory of its card; 0 if unknown.
        """
        _, _, profile = (self.model() or "").partition(" MIG ")
        if profile:
            return profile
        parts = self.ask(pynvml.nvmlDeviceGetAttributes_v2)
        if not parts:
            return "unknown"
        return mig_profile_name(
            parts.gpuInstanceSliceCount,
            parts.computeInstanceSliceCount,
            parts.memorySizeMB << 20,
            card_memory_bytes,
        )

    def pids(self, kind: str) -> set[int]:
        """Return the processes of a kind: "compute", "graphics", or "mps" for MPS clients."""
        return set(self.memory_by_pid(kind))

    def memory_by_pid(self, kind: str) -> dict[int, int]:
        """Return the bytes of this GPU that each process of a kind holds, 0 if unknown."""
        for function in _PROCESSES[kind]:
            processes = self.ask(function)
            if processes is not None:
                return {process.pid: process.usedGpuMemory or 0 for process in processes}
        return {}


def open_nvml() -> None:
    """Initialise NVML; to be called first, any number of times.

    Raises:
        FailedError: there is no NVML or no driver.
    """
    _call(pynvml.nvmlInit)


def driver_version() -> str | None:
    """Return the driver's version, such as "550.54.15"; None if it does not say."""
    try:
        return str(call(pynvml.nvmlSystemGetDriverVersion, NO_GPU))
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def card_count() -> int:
    """Return the number of GPUs that the driver lists, including lost ones.

    Raises:
        FailedError: the driver does not say.
    """
    return int(_call(pynvml.nvmlDeviceGetCount))


def card_at(index: int, unsteady: list[str]) -> NvmlDevice:
    """Return the card with this index.

    Raises:
        LostGpuError: the card does not answer.
    """
    return NvmlDevice(_get_handle(pynvml.nvmlDeviceGetHandleByIndex, index, index), index, unsteady)


def card_of(uuid: str, index: int) -> NvmlDevice:
    """Return the GPU or MIG instance with this UUID.

    Args:
        index: index of the card, for messages; NO_GPU if unknown.

    Raises:
        LostGpuError: it does not answer, or does not exist any more.
    """
    return NvmlDevice(_get_handle(pynvml.nvmlDeviceGetHandleByUUID, uuid, index), index, [])


def _get_handle(function: Callable[..., Any], key: object, index: int) -> Any:  # noqa: ANN401
    if index in left_out:
        raise LostGpuError(f"GPU {index} is left out: {left_out[index]}")
    try:
        return call(function, index, key)
    except pynvml.NVMLError as problem:
        hidden = problem.value == pynvml.NVML_ERROR_NO_PERMISSION
        error = HiddenGpuError if hidden else LostGpuError
        raise error(f"GPU {index} is left out: {problem}") from None


def _call(function: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Call an NVML function that everything else depends on."""
    try:
        return call(function, NO_GPU)
    except pynvml.NVMLError as problem:
        if problem.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            why = loading_problem(LIBRARY)
            if why:
                raise FailedError(f"{LIBRARY} is there and does not load: {why}") from None
            raise NoDriverError(
                "no NVML library (libnvidia-ml.so.1) found, so no NVIDIA driver", HINT
            ) from None
        text = f"NVML: {function.__name__} failed: {problem}"
        if problem.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            raise NoDriverError(text, HINT) from None
        mismatch = problem.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        raise FailedError(text, _UPDATED if mismatch else None) from None


def address_of(pci: Any) -> PciAddress | None:  # noqa: ANN401
    """Return NVML's record of a PCI address as a value."""
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _bits(words: Collection[int] | None) -> frozenset[int]:
    return frozenset(
        64 * i + bit for i, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1
    )


# ---------------------------------------------------------------------- NVLinks

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
    """Return all NVLinks of a card by number; {} for a card without."""
    told = _fields(card, compute_capability)
    return {
        link: _nvlink(card, link, compute_capability, told) if state else NvlinkEnd(active=False)
        for link, state in _nvlink_states(card, told).items()
    }


def find_nvlinks_down(card: NvmlDevice, compute_capability: str | None) -> list[int]:
    """Return the numbers of NVLinks that are down; [] if none is up, as without a bridge."""
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
