"""GPUs as people name them."""
# pure: decides on plain values

from collections.abc import Iterable

from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.machine.gpu import Gpu


def gpu_names(gpus: Iterable[Gpu]) -> str:
    """All of them, whatever their order: "0,2-3", and MIG instances as card:instance: "0,2-3,4:1"."""
    known = sorted(gpus, key=lambda gpu: gpu.index)
    whole = format_cpuset(frozenset(gpu.index for gpu in known if not gpu.mig))
    return ",".join(filter(None, [whole, *(gpu.name for gpu in known if gpu.mig)]))


def gpus_named(gpus: Iterable[Gpu]) -> str:
    """The same with the word for them: "GPU 3", "GPUs 0,2-3"."""
    known = list(gpus)
    return f"GPU{'' if len(known) == 1 else 's'} {gpu_names(known)}"


def gpus_text(count: int) -> str:
    """A number of GPUs in words that fit it."""
    return f"{count} GPU{'' if count == 1 else 's'}"
