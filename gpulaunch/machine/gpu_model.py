"""GPU models: their figures, from profiles/gpus/NAME.toml, and the choice of a GPU's model."""
# pure: decides on plain values

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpulaunch.errors import UsageError, quoted
from gpulaunch.files.fields import FieldTable, ListOf, checked
from gpulaunch.records import Record

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

    Example:
        >>> find_gpu_model([], "Tesla V100-SXM2-16GB") is None
        True
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
