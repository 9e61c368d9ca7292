"""The NVIDIA driver; gpulaunch.machine.driver.Driver documents its functions."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FailedError, NoDriverError
from gpulaunch.machine.driver import Build, Load, OutsideUse
from gpulaunch.machine.driver_calls import NO_GPU, left_out
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import health, nvml, probe
from gpulaunch.process.system import owner_of, program_of

read_health = health.read_health
watch_faults = health.watch_faults
diagnose = probe.diagnose

IDLE_MEMORY_BYTES = 128 << 20
"""Memory in use above which some process must be present.

A CUDA context takes more. The driver's reserve is not counted.
"""

IDLE_MEMORY_WITH_RESERVE_BYTES = 1536 << 20
"""Limit like IDLE_MEMORY_BYTES where the driver's reserve may be counted as use.

The reserve is several hundred MiB on big cards.
"""

_MPS_SERVER = "nvidia-cuda-mps-server"


def is_present() -> bool:
    """Return whether NVML lists GPUs, or fails although the driver is loaded."""
    try:
        nvml.open_nvml()
        return nvml.card_count() > 0
    except NoDriverError:
        return False
    except FailedError:
        return True


def fingerprint() -> str | None:
    """Return the driver's version and the identities of all cards and MIG instances.

    A card that this process may not use is None. With a card that is lost, or a call that may be
    answered the next time, there is no fingerprint.
    """
    if left_out:
        return None
    unsteady: list[str] = []
    found: list[Any] = []
    try:
        nvml.open_nvml()
        found.append(nvml.driver_version())
        for index in range(nvml.card_count()):
            try:
                found.append(_identity(nvml.card_at(index, unsteady)))
            except nvml.HiddenGpuError:
                found.append(None)
    except (FailedError, nvml.LostGpuError):
        return None
    return None if found[0] is None or unsteady else repr(found)


def _identity(card: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return a card's UUID, and UUID and product name of each of its MIG instances."""
    parts = card.instances()
    if parts is None:
        return (card.uuid(),)
    return card.uuid(), {number: (one.uuid(), one.model()) for number, one in parts.items()}


def read() -> Build:
    """Read the cards, MIG instances and links that NVML reports."""
    return probe.probe()[0]


def read_use(gpus: Iterable[Gpu], ignored: Collection[str]) -> tuple[OutsideUse, ...]:
    """Return the GPUs that have processes, or memory in use by processes that are not visible."""
    nvml.open_nvml()
    uses = []
    for gpu in gpus:
        try:
            card = nvml.card_of(gpu.uuid, gpu.card)
            uses.append(_find_obstacle(card, gpu) or _find_use(card, gpu, ignored))
        except nvml.LostGpuError as problem:
            uses.append(OutsideUse(gpu.uuid, str(problem), lost=True))
    return tuple(filter(None, uses))


def pids_at_work(uuids: Iterable[str]) -> dict[int, int]:
    """Return the compute processes and MPS clients on the GPUs with these UUIDs.

    Returns:
        For each the bytes that it holds on the GPU where it holds most.
    """
    held: dict[int, int] = {}
    for uuid in uuids:
        for kind in ("compute", "mps"):
            with suppress(nvml.LostGpuError):
                for pid, size in nvml.card_of(uuid, NO_GPU).memory_by_pid(kind).items():
                    held[pid] = max(size, held.get(pid, 0))
    return held


def _find_obstacle(card: nvml.NvmlDevice, gpu: Gpu) -> OutsideUse | None:
    """Return the reason why no process could use a GPU, or None."""
    if gpu.mig is None and card.in_mig_mode():  # changed since the topology was read
        return OutsideUse(gpu.uuid, "it is in MIG mode now")
    fault = health.why_barred(card, gpu)
    if fault:
        return OutsideUse(gpu.uuid, fault, state="barred")
    if card.compute_mode() == nvml.PROHIBITED:
        return OutsideUse(gpu.uuid, "compute mode Prohibited", state="barred")
    return None


def _find_use(card: nvml.NvmlDevice, gpu: Gpu, ignored: Collection[str]) -> OutsideUse | None:
    """Return the use of a GPU by compute processes, or by memory without a visible process.

    Clients of an MPS server are listed apart from it, and the server alone is no use, unless the
    compute mode keeps other processes out. Graphics processes do not count, nor ignored ones, and
    beside them memory in use cannot be attributed.
    """
    compute = card.pids("compute")
    servers = {pid for pid in compute if program_of(pid) == _MPS_SERVER}
    seen = compute | card.pids("mps")
    pids = tuple(
        sorted(pid for pid in seen - servers if not ignored or program_of(pid) not in ignored)
    )
    if pids:
        return OutsideUse(gpu.uuid, "; ".join(map(_describe_process, pids)), pids)
    if servers and card.compute_mode() == nvml.EXCLUSIVE_PROCESS:
        who = "; ".join(map(_describe_process, sorted(servers)))
        return OutsideUse(
            gpu.uuid,
            f"an MPS server keeps it in compute mode EXCLUSIVE_PROCESS: {who}",
            tuple(servers),
        )
    # Memory that the GPU shares with the CPUs says nothing: whoever runs here has some of it.
    memory = None if seen else card.memory()
    if memory is None:
        return None
    idle = IDLE_MEMORY_WITH_RESERVE_BYTES if memory.with_reserve else IDLE_MEMORY_BYTES
    if memory.used <= idle or card.pids("graphics"):
        return None
    return OutsideUse(
        gpu.uuid, f"{memory.used >> 20} MiB in use by a process that is not visible here"
    )


def _describe_process(pid: int) -> str:
    owner = owner_of(pid)
    return f"pid {pid}, {owner}" if owner else f"pid {pid}"


def read_load(gpus: Iterable[Gpu]) -> tuple[Load, ...]:
    """Return utilization, memory, power and temperature; all unknown for a GPU that is lost."""
    nvml.open_nvml()
    found = []
    for gpu in gpus:
        load = Load(gpu.uuid)
        with suppress(nvml.LostGpuError):
            card = nvml.card_of(gpu.uuid, gpu.card)
            rates, memory = card.utilization(), card.memory() or card.shared_memory()
            load = Load(
                uuid=gpu.uuid,
                utilization_percentage=rates.gpu if rates else None,
                memory_utilization_percentage=rates.memory if rates else None,
                memory_used_bytes=memory.used if memory else None,
                power_w=card.power_w(),
                power_limit_w=card.power_limit_w(),
                temperature_c=card.temperature_c(),
            )
        found.append(load)
    return tuple(found)


def are_busy(gpus: Iterable[Gpu]) -> bool:
    """Return whether a kernel ran on one of the GPUs in the last sampling period, 1/6 s to 1 s."""
    nvml.open_nvml()
    try:
        found = [nvml.card_of(gpu.uuid, gpu.card).utilization() for gpu in gpus]
    except nvml.LostGpuError:
        return True
    return any(rates is None or rates.gpu > 0 for rates in found)


def version() -> str | None:
    """Return the version of the kernel driver, such as "550.54.15"."""
    nvml.open_nvml()
    return nvml.driver_version()
