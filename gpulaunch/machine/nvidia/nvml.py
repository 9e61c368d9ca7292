"""The door to NVML: what the driver answers about this machine's GPUs, call by call, in plain values.

Only this file imports pynvml. Any single call may be missing on some driver, unsupported on some
card, fail, or be answered with garbage: what it would have told is then unknown, and the rest
works. Only a GPU that is lost, or has no identity, is left out.
"""

from collections.abc import Callable, Collection

import pynvml

from gpulaunch.errors import FailedError
from gpulaunch.machine.link_bandwidth import PathType
from gpulaunch.records import Record
from gpulaunch.typing import Any

HINT = "without GPUs, try a described machine: --topology dgx1-v100"

LOST = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER,
    pynvml.NVML_ERROR_IRQ_ISSUE,
)
_ABSENT = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_USUAL = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
)
_STEADY = (*_USUAL, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION)

_PATHS: dict[int, PathType] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two GPUs of one board
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}

_MAJOR_NVLINK_VERSION = {
    1: 1,
    2: 2,
    3: 2,
    4: 3,
    5: 3,
    6: 4,
    7: 5,
    8: 6,
}  # NVML counts 1.0, 2.0, 2.2, 3.0, 3.1, 4.0 ...
_NVLINK_ENDS = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: "gpu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: "cpu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: "switch",
}
PROHIBITED = "PROHIBITED"
EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"
_COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "EXCLUSIVE_THREAD",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: EXCLUSIVE_PROCESS,
}
_MOST_INSTANCES = 7  # of any card so far
_MOST_NVLINKS = max(36, pynvml.NVML_NVLINK_MAX_LINKS)  # older pynvml say 18, and Rubin has 36
_CPU_WORDS = 64  # of 64 bits: more than any kernel has CPUs
_HOPPER = 9  # major compute capability
_P2P_READ = 0  # pynvml's NVML_P2P_CAPS_INDEX_READ is the tuple (0,) by mistake

_ABOUT_WHAT_A_CARD_MAY_LACK = (
    pynvml.nvmlDeviceGetNvLinkState,
    pynvml.nvmlDeviceGetNvLinkRemotePciInfo,
    pynvml.nvmlDeviceGetFieldValues,
    pynvml.nvmlDeviceGetMigMode,
    pynvml.nvmlDeviceGetMaxMigDeviceCount,
    pynvml.nvmlDeviceGetMigDeviceHandleByIndex,
    pynvml.nvmlDeviceGetComputeMode,
)

# Drivers before 510 know version 2 only, and pynvml's unversioned functions fail there with no
# NVMLError.
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

PciAddress = tuple[int, int, int]
"""Domain, bus and device."""


class LostGpuError(Exception):
    """A GPU does not answer any more; the text says which and how."""


class Unanswered(Record):
    """A call that told nothing.

    Attributes:
        call: name of NVML's function.
        gpu: index that was asked about.
        why: NVML's words.
        usual: whether that is to be expected of a card that has not got what the call is about,
            such as NVLinks.
        steady: whether it would be the same the next time.
    """

    call: str
    gpu: int
    why: str
    usual: bool
    steady: bool


class NvlinkEnd(Record):
    """One NVLink of a GPU.

    Attributes:
        active: whether it is up, or only asleep.
        version: major; 0 if unknown.
        remote: what is at its other end: "gpu", "switch", "cpu", or "" if unknown.
        address: of that.
        gb_per_s: what the driver says that it carries per direction; 0 if it does not say.
    """

    active: bool
    version: int = 0
    remote: str = ""
    address: PciAddress | None = None
    gb_per_s: float = 0.0


class Memory(Record):
    """A GPU's memory.

    Attributes:
        total: bytes.
        used: bytes.
        with_reserve: whether what the driver reserves for itself may be counted as used.
    """

    total: int
    used: int
    with_reserve: bool


class Card:
    """A GPU, or a MIG instance of one, as NVML answers about it.

    Args:
        handle: NVML's.
        index: of the card, for messages.
        unanswered: grows by every call that told nothing.
    """

    def __init__(self, handle: Any, index: int, unanswered: list[Unanswered]) -> None:  # noqa: ANN401
        self.handle = handle
        self._unanswered = unanswered
        self.index = index

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """A call whose answer may be unknown: then None.

        Raises:
            LostGpuError: the GPU does not answer.
        """
        try:
            return function(self.handle, *arguments)
        except pynvml.NVMLError as problem:
            if problem.value in LOST:
                raise LostGpuError(f"GPU {self.index} is left out: {problem}") from None
            usual = problem.value in _USUAL and function in _ABOUT_WHAT_A_CARD_MAY_LACK
            self._note(function, str(problem), usual=usual, steady=problem.value in _STEADY)
        except UnicodeDecodeError:
            self._note(function, "the answer is no text", usual=False, steady=False)
        return None

    def _note(self, function: Callable[..., Any], why: str, *, usual: bool, steady: bool) -> None:
        self._unanswered.append(Unanswered(function.__name__, self.index, why, usual, steady))

    def uuid(self) -> str:
        """Identity that survives reboots.

        Raises:
            LostGpuError: it has none, so it cannot be leased.
        """
        uuid = self._ask(pynvml.nvmlDeviceGetUUID)
        if not uuid or not uuid.isascii() or not uuid.isprintable():
            raise LostGpuError(f"GPU {self.index} is left out: it has no UUID")
        return str(uuid)

    def model(self) -> str | None:
        """Product name."""
        return self._ask(pynvml.nvmlDeviceGetName) or None

    def memory(self) -> Memory | None:
        """Its memory, by the newer call, which tells the driver's reserve from use, else by the older one."""
        newer = self._ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
        if newer is not None:
            return Memory(newer.total, newer.used, with_reserve=False)
        older = self._ask(pynvml.nvmlDeviceGetMemoryInfo)
        return None if older is None else Memory(older.total, older.used, with_reserve=True)

    def address(self) -> PciAddress | None:
        """Where it is on the PCI bus."""
        return _address(self._ask(pynvml.nvmlDeviceGetPciInfo))

    def compute_capability(self) -> str | None:
        """Such as "7.0"."""
        found = self._ask(pynvml.nvmlDeviceGetCudaComputeCapability)
        return f"{found[0]}.{found[1]}" if found else None

    def pcie(self) -> tuple[int, int]:
        """Highest generation and number of lanes that GPU and slot can do; 0 for what is unknown."""
        generation = self._ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration)
        return generation or 0, self._ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth) or 0

    def cpus(self) -> frozenset[int]:
        """CPUs next to it."""
        return _bits(self._ask(pynvml.nvmlDeviceGetCpuAffinity, _CPU_WORDS))

    def memory_nodes(self) -> frozenset[int]:
        """NUMA nodes of the host's memory next to it."""
        return _bits(
            self._ask(pynvml.nvmlDeviceGetMemoryAffinity, 16, pynvml.NVML_AFFINITY_SCOPE_NODE)
        )

    def compute_mode(self) -> str:
        """Who may use it: everybody if this is empty, else PROHIBITED, EXCLUSIVE_PROCESS or EXCLUSIVE_THREAD."""
        return _COMPUTE_MODES.get(self._ask(pynvml.nvmlDeviceGetComputeMode), "")

    def nvlinks(self, *, by_field: bool) -> dict[int, NvlinkEnd]:
        """All its NVLinks by number; empty for a card without.

        Args:
            by_field: ask for states and speeds of single links by field, as Hopper and later can;
                the older calls do not know that a link may sleep.
        """
        states = {
            link: self._nvlink_state(link, by_field=by_field) for link in range(_MOST_NVLINKS)
        }
        return {
            link: self._nvlink(link, by_field=by_field) if state else NvlinkEnd(active=False)
            for link, state in states.items()
            if state is not None
        }

    def _nvlink_state(self, link: int, *, by_field: bool) -> int | None:
        """0 down, 1 up, 2 asleep; None if there is no such link, or it is unknown."""
        state = self._field(pynvml.NVML_FI_DEV_NVLINK_GET_STATE, link) if by_field else None
        return self._ask(pynvml.nvmlDeviceGetNvLinkState, link) if state is None else state

    def _nvlink(self, link: int, *, by_field: bool) -> NvlinkEnd:
        version = self._ask(pynvml.nvmlDeviceGetNvLinkVersion, link)
        kind = self._ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, link)
        remote = self._ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, link)
        speed = self._field(pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, link) if by_field else None
        if speed is None:
            speed = self._field(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)
        return NvlinkEnd(
            active=True,
            version=_MAJOR_NVLINK_VERSION.get(version, max(_MAJOR_NVLINK_VERSION.values()))
            if version
            else 0,
            remote=_NVLINK_ENDS.get(kind, ""),
            address=_address(remote),
            gb_per_s=(speed or 0) / 1000,
        )

    def _field(self, field: int, scope: int) -> int | None:
        values = self._ask(pynvml.nvmlDeviceGetFieldValues, [(field, scope)])
        if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    def path_to(self, other: "Card") -> PathType:
        """How the two meet over PCIe; the farthest if that is unknown."""
        return _PATHS.get(
            self._ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, other.handle), "SYS"
        )

    def reads_from(self, other: "Card") -> bool | None:
        """Whether it can read the other's memory directly; None if unknown."""
        status = self._ask(pynvml.nvmlDeviceGetP2PStatus, other.handle, _P2P_READ)
        return None if status is None else status == pynvml.NVML_P2P_STATUS_OK

    def in_mig_mode(self) -> bool:
        """Whether it is split into MIG instances, so that it cannot be used whole."""
        modes = self._ask(pynvml.nvmlDeviceGetMigMode)
        return bool(modes and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE)

    def instances(self) -> dict[int, "Card"] | None:
        """Its MIG instances by number; None if it is not in MIG mode."""
        if not self.in_mig_mode():
            return None
        found = {}
        most = self._ask(pynvml.nvmlDeviceGetMaxMigDeviceCount)
        for number in range(_MOST_INSTANCES if most is None else most):
            handle = self._ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, number)
            if handle is not None:
                found[number] = Card(handle, self.index, self._unanswered)
        return found

    def mig_profile(self) -> str:
        """Of a MIG instance, such as "1g.10gb": its product name ends so, or it is made of its attributes."""
        _, _, profile = (self.model() or "").partition(" MIG ")
        if profile:
            return profile
        parts = self._ask(pynvml.nvmlDeviceGetAttributes_v2)
        return (
            f"{parts.gpuInstanceSliceCount}g.{round(parts.memorySizeMB / 1024)}gb"
            if parts
            else "unknown"
        )

    def pids(self, kind: str) -> set[int]:
        """Processes at work on it: "compute", "graphics", or "mps" for clients of an MPS server."""
        for function in _PROCESSES[kind]:
            processes = self._ask(function)
            if processes is not None:
                return {process.pid for process in processes}
        return set()


def asks_by_field(compute_capability: str | None) -> bool:
    """Whether a GPU's single NVLinks are asked for by field, as Hopper and later can."""
    major = (compute_capability or "").partition(".")[0]
    return major.isdecimal() and int(major) >= _HOPPER


def open_nvml() -> None:
    """Begin; to be called first, and as often as one likes.

    Raises:
        FailedError: there is no NVML or no driver.
    """
    _call(pynvml.nvmlInit)


def driver_version() -> str | None:
    """The driver's, such as "550.54.15"; None if it does not say."""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def card_count() -> int:
    """How many GPUs the driver lists, lost ones among them.

    Raises:
        FailedError: it does not say.
    """
    return int(_call(pynvml.nvmlDeviceGetCount))


def card_at(index: int, unanswered: list[Unanswered]) -> Card:
    """The GPU of this index.

    Raises:
        LostGpuError: it does not answer.
    """
    return Card(_handle(pynvml.nvmlDeviceGetHandleByIndex, index, index), index, unanswered)


def card_of(uuid: str, index: int) -> Card:
    """The GPU or MIG instance of this UUID.

    Args:
        uuid: its identity.
        index: for messages.

    Raises:
        LostGpuError: it does not answer, or is there no more.
    """
    return Card(_handle(pynvml.nvmlDeviceGetHandleByUUID, uuid, index), index, [])


def _handle(function: Callable[..., Any], key: object, index: int) -> Any:  # noqa: ANN401
    try:
        return function(key)
    except pynvml.NVMLError as problem:
        raise LostGpuError(f"GPU {index} is left out: {problem}") from None


def _call(function: Callable[..., Any]) -> Any:  # noqa: ANN401
    """A call that nothing can be known without."""
    try:
        return function()
    except pynvml.NVMLError as problem:
        if problem.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise FailedError(
                "no NVML library (libnvidia-ml.so.1) found, so no NVIDIA driver", HINT
            ) from None
        raise FailedError(
            f"NVML: {function.__name__} failed: {problem}",
            HINT if problem.value in _ABSENT else None,
        ) from None


def _address(pci: Any) -> PciAddress | None:  # noqa: ANN401
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _bits(words: Collection[int] | None) -> frozenset[int]:
    return frozenset(
        64 * i + bit for i, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1
    )
