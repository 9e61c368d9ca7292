"""Names and counts of GPUs in messages."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence

from gpulaunch.machine.gpu import Gpu, format_cpuset


def gpu_names(gpus: Iterable[Gpu]) -> str:
    """Return the names of GPUs, sorted: "0,2-3"; MIG instances as card:instance: "0,2-3,4:1"."""
    known = sorted(gpus, key=lambda gpu: gpu.index)
    whole = format_cpuset(frozenset(gpu.index for gpu in known if not gpu.mig))
    return ",".join(filter(None, [whole, *(gpu.name for gpu in known if gpu.mig)]))


def gpus_named(gpus: Iterable[Gpu]) -> str:
    """Return the names of GPUs with the word for them: "GPU 3", "GPUs 0,2-3"."""
    known = list(gpus)
    return f"GPU{'' if len(known) == 1 else 's'} {gpu_names(known)}"


def names_in_order(names: Iterable[str]) -> str:
    """Return names of GPUs in their order, with three that follow one another as "0-2"."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name.isdecimal() and runs[-1][-1] == str(int(name) - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    parts = [run if len(run) < 3 else [f"{run[0]}-{run[-1]}"] for run in runs]
    return ",".join(part for run in parts for part in run)


def gpus_called(names: Sequence[str]) -> str:
    """Return names of GPUs, in their order, with the word for them: "GPU 3", "GPUs 3,0-2"."""
    return f"GPU{'' if len(names) == 1 else 's'} {names_in_order(names)}"


def gpus_text(count: int) -> str:
    """Return a number of GPUs in words: "1 GPU", "2 GPUs"."""
    return f"{count} GPU{'' if count == 1 else 's'}"
