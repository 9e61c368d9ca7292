"""The door to NVML: this machine's GPUs, how they are wired, and who uses them.

Only this file imports pynvml. Any single call may be missing on some driver or unsupported on some card: what it would
have told is then unknown, and the rest works. A GPU that fell off the bus is reported and left out.
"""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pynvml

from gpulaunch.core.decide import OutsideUse
from gpulaunch.core.hardware.bandwidth import PathType
from gpulaunch.core.hardware.topology import Gpu, Topology, Wire, wired
from gpulaunch.errors import FailedError
from gpulaunch.host.system import owner_of, program_of

IDLE_MEMORY_BYTES = 128 << 20
"""More in use than this, beyond what the driver reserves, and some process must be there: a CUDA context takes more."""

_LOST = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER,
    pynvml.NVML_ERROR_IRQ_ISSUE,
)
_ABSENT = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_UNKNOWN = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    *_LOST,  # _call has told, or will tell at the next launch
)

_PATHS: dict[int, PathType] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two GPUs of one board
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}

_MAJOR_NVLINK_VERSION = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # NVML counts 1.0, 2.0, 2.2, 3.0, 3.1, 4.0 ...

# Drivers before 510 know version 2 only, and pynvml's unversioned functions fail there with no NVMLError.
_COMPUTE_PROCESSES = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
)
_GRAPHICS_PROCESSES = (
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
)


PciAddress = tuple[int, int, int]  # domain, bus, device


class NvlinkEnd(NamedTuple):
    """One active NVLink of a GPU: major version, and where it goes."""

    version: int
    to_switch: bool
    remote: PciAddress | None


class Device(NamedTuple):
    """A GPU in NVML's terms."""

    handle: Any
    address: PciAddress | None
    nvlinks: list[NvlinkEnd]
    gpu: Gpu


class Reading(NamedTuple):
    """What NVML says.

    Attributes:
        topology: the GPUs in service and their links.
        outside: each GPU at work, with who seems to be at it; leases may explain some.
        problems: what was left out, a line each.
    """

    topology: Topology
    outside: tuple[OutsideUse, ...]
    problems: tuple[str, ...]


def read(ignored: Collection[str] = ()) -> Reading:
    """Read this machine once: static topology and present use.

    Args:
        ignored: programs whose use does not count, such as a desktop's.

    Raises:
        FailedError: there is no NVML, no driver, no GPU, or a call fails that nothing can be known without.
    """
    _call(pynvml.nvmlInit)
    problems: list[str] = []
    machine: dict[int, Device] = {}
    for index in range(_call(pynvml.nvmlDeviceGetCount)):
        try:
            machine[index] = _device(index)
        except _LostGpuError as problem:
            problems.append(str(problem))
    if not machine:
        raise FailedError("; ".join(["NVML lists no GPU in service", *problems]), _HINT)
    nvlinks = _direct_nvlinks(machine)
    gpus = tuple(device.gpu for device in machine.values())
    links = wired(gpus, lambda a, b: Wire(_pcie_path(machine[a], machine[b]), nvlinks.get((a, b), 0)))
    topology = Topology(os.uname().nodename, gpus, links, "NVML")
    outside = (_use(device.handle, device.gpu, ignored) for device in machine.values())
    return Reading(topology, tuple(filter(None, outside)), tuple(problems))


def read_use(gpus: Iterable[Gpu], ignored: Collection[str] = ()) -> tuple[OutsideUse, ...]:
    """Who uses these GPUs now; read() has been called before.

    Raises:
        FailedError: NVML fails. A GPU that is lost by now counts as in use.
    """
    uses = []
    for gpu in gpus:
        try:
            handle = _call(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid, gpu=gpu.index)
            uses.append(_use(handle, gpu, ignored))
        except _LostGpuError as problem:
            uses.append(OutsideUse(gpu.uuid, str(problem)))
    return tuple(filter(None, uses))


def compute_pids(uuids: Iterable[str]) -> set[int]:
    """Processes at work on these GPUs, as far as NVML tells."""
    pids: set[int] = set()
    for uuid in uuids:
        with suppress(pynvml.NVMLError, FailedError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pids.update(process.pid for process in _processes(_COMPUTE_PROCESSES, handle, 0))
    return pids


def is_present() -> bool:
    """Whether this machine has NVIDIA GPUs, as far as NVML knows."""
    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as problem:
        return problem.value not in _ABSENT  # a driver that fails is there all the same


_HINT = "without GPUs, try a described machine: --topology dgx1-v100"


class _LostGpuError(Exception):
    """A GPU does not answer any more."""


def _call(function: Callable[..., Any], *arguments: object, gpu: int | None = None) -> Any:  # noqa: ANN401
    """A call that nothing can be known without."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as problem:
        where = "" if gpu is None else f" on GPU {gpu}"
        if problem.value in _LOST and gpu is not None:
            raise _LostGpuError(f"GPU {gpu} is left out: {problem}") from None
        if problem.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise FailedError("no NVML library (libnvidia-ml.so.1) found, so no NVIDIA driver", _HINT) from None
        raise FailedError(
            f"NVML: {function.__name__} failed{where}: {problem}", _HINT if problem.value in _ABSENT else None
        ) from None


def _ask(function: Callable[..., Any], *arguments: object, gpu: int) -> Any:  # noqa: ANN401
    """A call whose answer may be unknown: then None."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as problem:
        if problem.value in _UNKNOWN:
            return None
        raise FailedError(f"NVML: {function.__name__} failed on GPU {gpu}: {problem}") from None


def _device(index: int) -> Device:
    handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index, gpu=index)
    address = _address(_ask(pynvml.nvmlDeviceGetPciInfo, handle, gpu=index))
    nvlinks = _nvlink_ends(handle, index)
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle, gpu=index)
    gpu = Gpu(
        index=index,
        uuid=_call(pynvml.nvmlDeviceGetUUID, handle, gpu=index),
        model=_call(pynvml.nvmlDeviceGetName, handle, gpu=index),
        memory_bytes=_call(pynvml.nvmlDeviceGetMemoryInfo, handle, gpu=index).total,
        numa_node=_numa_node(handle, index, address),
        cpuset=_cpuset(handle, index),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        pcie_generation=_ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle, gpu=index) or 0,
        pcie_width=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle, gpu=index) or 0,
        nvlink_version=min((end.version for end in nvlinks), default=0),
        nvswitch_links=sum(end.to_switch for end in nvlinks),
    )
    return Device(handle, address, nvlinks, gpu)


def _cpuset(handle: Any, index: int) -> frozenset[int]:  # noqa: ANN401
    words = _ask(pynvml.nvmlDeviceGetCpuAffinity, handle, ((os.cpu_count() or 1) + 63) // 64, gpu=index)
    return frozenset(64 * i + bit for i, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1)


def _numa_node(handle: Any, index: int, address: PciAddress | None) -> int | None:  # noqa: ANN401
    """NUMA node of the CPUs next to the GPU, as the kernel tells by PCI address.

    (nvmlDeviceGetNumaNodeId is about the GPU's own memory.) NVML's memory affinity is asked where sysfs is silent.
    """
    if address:
        domain, bus, device = address
        try:
            with open(f"/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node") as file:
                node = int(file.read())
            if node >= 0:
                return node
        except (OSError, ValueError):
            pass
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = _ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, 16, scope, gpu=index)
    nodes = [64 * i + bit for i, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _nvlink_ends(handle: Any, index: int) -> list[NvlinkEnd]:  # noqa: ANN401
    ends = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link, gpu=index)
        if state == pynvml.NVML_FEATURE_ENABLED:
            version = _ask(pynvml.nvmlDeviceGetNvLinkVersion, handle, link, gpu=index)
            kind = _ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link, gpu=index)
            remote = _ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link, gpu=index)
            to_switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            ends.append(NvlinkEnd(_MAJOR_NVLINK_VERSION.get(version, 6) if version else 1, to_switch, _address(remote)))
    return ends


def _address(pci: Any) -> PciAddress | None:  # noqa: ANN401
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _direct_nvlinks(machine: dict[int, Device]) -> dict[tuple[int, int], int]:
    """How many NVLinks join each pair of GPUs directly."""
    index_at = {device.address: index for index, device in machine.items() if device.address}
    counts: dict[tuple[int, int], int] = {}
    for index, device in machine.items():
        for end in device.nvlinks:
            peer = index_at.get(end.remote) if end.remote else None
            if peer is not None and index < peer:
                counts[index, peer] = counts.get((index, peer), 0) + 1
    return counts


def _pcie_path(a: Device, b: Device) -> PathType:
    level = _ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, a.handle, b.handle, gpu=a.gpu.index)
    return _PATHS.get(level, "SYS")


def _use(handle: Any, gpu: Gpu, ignored: Collection[str]) -> OutsideUse | None:  # noqa: ANN401
    """Who uses a GPU, if anyone does: its compute processes, or memory in use where no process at all is visible.

    A desktop's processes do not count, nor those to be ignored, and where there are some their memory cannot be told
    from others'.
    """
    processes = sorted(process.pid for process in _processes(_COMPUTE_PROCESSES, handle, gpu.index))
    pids = tuple(pid for pid in processes if not ignored or program_of(pid) not in ignored)
    if pids:
        return OutsideUse(gpu.uuid, _who(pids), pids)
    if processes or _processes(_GRAPHICS_PROCESSES, handle, gpu.index):
        return None
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2, gpu=gpu.index)
    if memory is not None and memory.used > IDLE_MEMORY_BYTES:
        return OutsideUse(gpu.uuid, f"{memory.used >> 20} MiB in use by a process that is not visible here")
    return None


def _processes(versions: Sequence[Callable[..., Any]], handle: Any, index: int) -> list[Any]:  # noqa: ANN401
    return next((found for ask in versions if (found := _ask(ask, handle, gpu=index)) is not None), [])


def _who(pids: Sequence[int]) -> str:
    return "; ".join(f"pid {pid}, {owner}" if (owner := owner_of(pid)) else f"pid {pid}" for pid in pids)
