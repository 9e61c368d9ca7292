"""The present use of this machine's GPUs, under a lease or not, read from NVML every time."""

from collections.abc import Collection, Iterable
from contextlib import suppress

from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.health import why_barred
from gpulaunch.machine.slow_calls import NO_GPU
from gpulaunch.process.system import owner_of, program_of

IDLE_MEMORY_BYTES = 128 << 20
"""Memory in use above which some process must be present.

A CUDA context takes more. The driver's reserve is not counted.
"""

IDLE_MEMORY_WITH_RESERVE_BYTES = 1536 << 20
"""Limit like IDLE_MEMORY_BYTES where the driver's reserve may be counted as use.

The reserve is several hundred MiB on big cards.
"""

_MPS_SERVER = "nvidia-cuda-mps-server"


def read_use(gpus: Iterable[Gpu], ignored: Collection[str] = ()) -> tuple[OutsideUse, ...]:
    """Return every GPU in use or lost, with the apparent user; leases may explain some.

    Args:
        ignored: programs whose use does not count, such as a desktop's.

    Raises:
        FailedError: there is no NVML or no driver.
    """
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
    fault = why_barred(card, gpu)
    if fault:
        return OutsideUse(gpu.uuid, fault, state="barred")
    return (
        OutsideUse(gpu.uuid, "compute mode Prohibited", state="barred")
        if card.compute_mode() == nvml.PROHIBITED
        else None
    )


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
