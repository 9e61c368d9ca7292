"""A GPU as a value: a card or a MIG instance of one, with its CPUs; the words for several.

And GPU models: their figures, from profiles/gpus/NAME.toml, and the choice of a GPU's model.
"""
# pure: decides on plain values

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpulaunch.errors import UsageError, quoted
from gpulaunch.files.fields import FieldTable, ListOf, checked
from gpulaunch.records import Record

MAX_CPUS = 1 << 16
"""Limit of a CPU's number, above that of any kernel: a typing mistake must not fill the memory."""

_MEMORY_EIGHTHS = 8
_GIB = 1 << 30
_MIG_NAME = r"(?i)(?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.(?P<memory>\d+)gb(?P<extras>[+-]\S+)?"


class Mig(Record):
    """The identity of a MIG instance: a slice of a card, with its own memory and processors.

    Attributes:
        instance: number on the card, as nvidia-smi -L counts; gaps are possible.
        profile: name of its size, such as "1g.10gb".
    """

    card: int
    card_uuid: str
    instance: int
    profile: str


class Gpu(Record):
    """One GPU: a card, or a MIG instance of one.

    Attributes:
        index: number by PCI order, as NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID count; gaps are
            possible. A MIG instance has its mig_index.
        uuid: identity that survives reboots, "GPU-..." or "MIG-...".
        memory_bytes: total device memory; 0 if unknown.
        numa_node: NUMA node of the CPUs next to it, or None if unknown.
        cpuset: CPUs next to it; empty if unknown.
        compute_capability: major and minor version, such as "7.0", or None if unknown.
        pcie_generation: highest that GPU and slot support (the current one drops when idle); 0 if
            unknown.
        pcie_width: highest number of lanes that GPU and slot support; 0 if unknown.
        nvlink_version: major version of its NVLinks; 0 if it has none.
        nvlink_gb_per_s: bandwidth of one NVLink per direction, from the driver or description; 0 if
            unknown.
        pci_address: "domain:bus:device", or None if unknown.
        mig: identity as a MIG instance; None for a card.
    """

    index: int
    uuid: str
    model: str
    memory_bytes: int
    numa_node: int | None = None
    cpuset: frozenset[int] = frozenset()
    compute_capability: str | None = None
    pcie_generation: int = 0
    pcie_width: int = 0
    nvlink_version: int = 0
    nvswitch_links: int = 0
    cpu_nvlinks: int = 0
    nvlink_gb_per_s: float = 0.0
    pci_address: str | None = None
    mig: Mig | None = None

    @property
    def card(self) -> int:
        """Index of the card that this GPU is, or is an instance of."""
        return self.mig.card if self.mig else self.index

    @property
    def name(self) -> str:
        """Name for people: the index, or "card:instance"."""
        return f"{self.mig.card}:{self.mig.instance}" if self.mig else str(self.index)


def mig_index(card: int, instance: int) -> int:
    """Return the index of a MIG instance: 100 x (card + 1) + instance, unique and easy to read.

    CUDA has no number for it; there it is named by its UUID.
    """
    return 100 * (card + 1) + instance


def parse_cpuset(text: str) -> frozenset[int]:
    """Read a Linux CPU list such as "0-19,40-59"; an empty text is the empty set.

    Raises:
        ValueError: the text is no CPU list.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, dash, last = part.partition("-")
            low, high = int(first), int(last if dash else first)
            if not low <= high < MAX_CPUS:
                raise ValueError(text)
            cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpuset(cpus: frozenset[int]) -> str:
    """Write a set of CPUs as Linux does: the inverse of parse_cpuset."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


MigSize = tuple[int, int, int, str]
"""Slices of the card's processors, memory by its name in GB, slices that compute, and extras."""


def parse_mig_profile(name: str) -> MigSize | None:
    """Return the size that a name says, such as "1g.10gb", "1c.2g.10gb", "1g.10gb+me".

    Fewer slices compute than there are if others use the rest. Extras are what else it has or
    lacks, such as "+me" or "+gfx".
    """
    found = re.fullmatch(_MIG_NAME, name)
    if not found:
        return None
    slices = int(found["slices"])
    compute = int(found["compute"] or slices)
    return slices, int(found["memory"]), compute, (found["extras"] or "").casefold()


def is_of_profile(name: str, asked: MigSize) -> bool:
    """Return whether a name says the size that is asked for; extras count only if asked for."""
    found = parse_mig_profile(name)
    return found is not None and asked in (found, (*found[:3], ""))


def size_order(profile: str) -> tuple[int, int, bool]:
    """Return a key that sorts names of instances with equal memory from small to large.

    Those with extras come last, since few of a card's instances can have them.
    """
    slices, _, compute, extras = parse_mig_profile(profile) or (0, 0, 0, "")
    return slices, compute, bool(extras)


def mig_profile_name(
    slices: int, compute_slices: int, memory_bytes: int, card_memory_bytes: int
) -> str:
    """Return the name of an instance's size.

    The memory in it is the instance's eighths of the card's memory, rounded up, not what the
    instance can use: 39.25 of 80 GiB are "40gb".

    Args:
        card_memory_bytes: memory of the card; 0 if unknown.

    Source: NVIDIA go-nvlib pkg/nvlib/device/mig_profile.go, getMigMemorySizeInGB.
    """
    memory_gb = round(memory_bytes / _GIB)
    if card_memory_bytes:
        eighths = math.ceil(memory_bytes / card_memory_bytes * _MEMORY_EIGHTHS)
        memory_gb = round(eighths / _MEMORY_EIGHTHS * math.ceil(card_memory_bytes / _GIB))
    compute = "" if compute_slices == slices else f"{compute_slices}c."
    return f"{compute}{slices}g.{memory_gb}gb"


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


_FIGURES: FieldTable = {
    "compute_capability": str,
    "sm_count": (1, 4096),
    "max_clock_mhz": (1.0, 1e5),
    "dram_bandwidth_gb_per_s": (0.001, 1e9),
    "power_limit_w": (0.001, 1e6),
    "mps_clients": (1, 4096),
}
_MODEL: FieldTable = {
    "name": str,
    "models": ListOf(str, least=1),
    **_FIGURES,
    "source": str,
    "estimated": ListOf(tuple(_FIGURES)),
}
_REQUIRED = ("name", "models", *_FIGURES, "source")

_OTHER_MODEL = frozenset({"ti", "super", "d", "laptop", "mobile", "max-q", "ada"})
"""Words after a model's name that make it the name of another model."""


class GpuModel(Record):
    """The figures of one GPU model on which sharing is decided.

    Attributes:
        models: product names that NVML reports for it.
        compute_capability: major and minor version, such as "8.0".
        max_clock_mhz: boost clock of the SMs in MHz.
        dram_bandwidth_gb_per_s: theoretical bandwidth of device memory in GB/s.
        power_limit_w: default limit of the board in W.
        mps_clients: most CUDA contexts of MPS on one GPU: 16 before Volta, then 48; 60 with CUDA
            13.1 and later.
    """

    name: str
    models: tuple[str, ...]
    compute_capability: str
    sm_count: int
    max_clock_mhz: float
    dram_bandwidth_gb_per_s: float
    power_limit_w: float
    mps_clients: int


def parse_gpu_model(document: Mapping[str, Any]) -> GpuModel:
    """Read a GPU model from its parsed TOML.

    The keys are the attributes of GpuModel, with the origin of the figures as source, and as
    estimated the keys whose values are not published.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    table = checked(document, _MODEL, required=_REQUIRED)
    figures = {key: table[key] for key in _FIGURES}
    return GpuModel(name=table["name"], models=tuple(table["models"]), **figures)


def find_gpu_model(models: Iterable[GpuModel], product_name: str) -> GpuModel | None:
    """Return the model of a GPU, or None if it is unknown.

    A model whose text is the whole product name comes first, then the one with the longest text
    inside it, as whole words: "NVIDIA A10" is not in "NVIDIA A100X", and an "RTX 3090 Ti" is no RTX
    3090. If several fit equally well, the first wins.

    Args:
        models: models in order of preference.
        product_name: name that NVML reports; a MIG instance has the figures of its whole card.
    """
    words = _words(product_name.partition(" MIG ")[0])

    def fit(model: GpuModel) -> int:
        return max(_fit_length(_words(text), words) for text in model.models)

    best = max(models, key=fit, default=None)
    return best if best and fit(best) else None


def named_gpu_model(models: Sequence[GpuModel], text: str) -> GpuModel:
    """Return the one GPU model that a text names, by its name or a part of it in whole words.

    Raises:
        UsageError: there is none, or there are several.
    """
    wanted = set(_words(text.replace("-", " ")))
    found = []
    for model in models:
        names = [model.name, *model.models]
        if text.lower() in [name.lower() for name in names]:
            return model
        if wanted and any(wanted <= set(_words(name.replace("-", " "))) for name in names):
            found.append(model)
    if len(found) == 1:
        return found[0]
    known = ", ".join(model.name for model in found or models)
    if not found:
        raise UsageError(f"unknown GPU model {quoted(text)}", f"known are {known}")
    message = f"GPU model {quoted(text)} can be {len(found)} models"
    raise UsageError(message, f"name one: {known}")


def _words(text: str) -> list[str]:
    return text.lower().split()


def _fit_length(text: list[str], name: list[str]) -> int:
    """Return the length of a text within a product name; 1 << 30 for the whole, 0 if not there."""
    if text == name:
        return 1 << 30
    for start in range(len(name) - len(text) + 1):
        end = start + len(text)
        if name[start:end] == text:
            is_other = end < len(name) and name[end] in _OTHER_MODEL
            return 0 if is_other else len(" ".join(text))
    return 0
