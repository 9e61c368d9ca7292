"""Who is at work on this machine's GPUs, whether under a lease or not: a question to NVML, asked anew every time."""

from collections.abc import Collection, Iterable

from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.process.system import owner_of, program_of

IDLE_MEMORY_BYTES = 128 << 20
"""More in use than this, beyond what the driver reserves, and some process must be there: a CUDA
context takes more.
"""

IDLE_MEMORY_WITH_RESERVE_BYTES = 1536 << 20
"""The same where the reserve may be counted as use: it is several hundred MiB on big cards."""

_MPS_SERVER = "nvidia-cuda-mps-server"


def read_use(gpus: Iterable[Gpu], ignored: Collection[str] = ()) -> tuple[OutsideUse, ...]:
    """Each GPU at work, with who seems to be at it; leases may explain some. A GPU that is lost by now counts, too.

    Args:
        gpus: of this machine.
        ignored: programs whose use does not count, such as a desktop's.

    Raises:
        FailedError: there is no NVML or no driver.
    """
    nvml.open_nvml()
    uses = []
    for gpu in gpus:
        try:
            card = nvml.card_of(gpu.uuid, gpu.index)
            uses.append(_unusable(card, gpu) or _use(card, gpu, ignored))
        except nvml.LostGpuError as problem:
            uses.append(OutsideUse(gpu.uuid, str(problem), lost=True))
    return tuple(filter(None, uses))


def compute_pids(gpus: Iterable[str]) -> set[int]:
    """Processes at work on the GPUs of these UUIDs, as far as NVML tells."""
    pids: set[int] = set()
    for uuid in gpus:
        try:
            card = nvml.card_of(uuid, 0)
            pids |= card.pids("compute") | card.pids("mps")
        except nvml.LostGpuError:
            continue
    return pids


def _unusable(card: nvml.Card, gpu: Gpu) -> OutsideUse | None:
    """Why nobody could use a GPU, whoever is at work there."""
    if gpu.mig is None and card.in_mig_mode():  # since the topology was read
        return OutsideUse(gpu.uuid, "it is in MIG mode now")
    return (
        OutsideUse(gpu.uuid, "its compute mode is Prohibited")
        if card.compute_mode() == nvml.PROHIBITED
        else None
    )


def _use(card: nvml.Card, gpu: Gpu, ignored: Collection[str]) -> OutsideUse | None:
    """Who uses a GPU, if anyone does: its compute processes, or memory in use where no process at all is visible.

    Clients of an MPS server are listed apart from it, and the server alone is nobody's use, unless
    the compute mode lets no other process come. A desktop's processes do not count, nor those to be
    ignored, and where there are some their memory cannot be told from others'.
    """
    compute = card.pids("compute")
    servers = {pid for pid in compute if program_of(pid) == _MPS_SERVER}
    seen = compute | card.pids("mps")
    pids = tuple(
        sorted(pid for pid in seen - servers if not ignored or program_of(pid) not in ignored)
    )
    if pids:
        return OutsideUse(gpu.uuid, "; ".join(map(_who, pids)), pids)
    if servers and card.compute_mode() == nvml.EXCLUSIVE_PROCESS:
        who = "; ".join(map(_who, sorted(servers)))
        return OutsideUse(
            gpu.uuid,
            f"an MPS server keeps it in compute mode EXCLUSIVE_PROCESS: {who}",
            tuple(servers),
        )
    if seen or card.pids("graphics"):
        return None
    memory = card.memory()
    if memory is None:
        return None
    if memory.used > (IDLE_MEMORY_WITH_RESERVE_BYTES if memory.with_reserve else IDLE_MEMORY_BYTES):
        return OutsideUse(
            gpu.uuid, f"{memory.used >> 20} MiB in use by a process that is not visible here"
        )
    return None


def _who(pid: int) -> str:
    owner = owner_of(pid)
    return f"pid {pid}, {owner}" if owner else f"pid {pid}"
