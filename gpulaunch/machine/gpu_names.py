"""Names and counts of GPUs in messages."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence

from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.machine.gpu import Gpu


def gpu_names(gpus: Iterable[Gpu]) -> str:
    """Return the names of GPUs, sorted: "0,2-3"; MIG instances as card:instance: "0,2-3,4:1"."""
    known = sorted(gpus, key=lambda gpu: gpu.index)
    whole = format_cpuset(frozenset(gpu.index for gpu in known if not gpu.mig))
    return ",".join(filter(None, [whole, *(gpu.name for gpu in known if gpu.mig)]))


def gpus_named(gpus: Iterable[Gpu]) -> str:
    """Return the names of GPUs with the word for them: "GPU 3", "GPUs 0,2-3"."""
    known = list(gpus)
    return f"GPU{'' if len(known) == 1 else 's'} {gpu_names(known)}"


def gpus_called(names: Sequence[str]) -> str:
    """Return names of GPUs, in their order, with the word for them: "GPU 3", "GPUs 3,0"."""
    return f"GPU{'' if len(names) == 1 else 's'} {','.join(names)}"


def gpus_text(count: int) -> str:
    """Return a number of GPUs in words: "1 GPU", "2 GPUs"."""
    return f"{count} GPU{'' if count == 1 else 's'}"
