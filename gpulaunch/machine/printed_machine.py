"""Machines in what nvidia-smi prints."""

import os
import re
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.errors import UsageError, printable
from gpulaunch.machine.gpu_model import GpuModel, find_gpu_model
from gpulaunch.machine.pasted_text import TextError, name_other_text
from gpulaunch.machine.smi_details import CardFacts, read_details
from gpulaunch.machine.smi_machine import text_document
from gpulaunch.machine.smi_text import SmiMatrix, looks_like_topology_text, parse_topology_text
from gpulaunch.records import replace
from gpulaunch.typing import Any


def is_printed(text: str) -> bool:
    """Return whether a file that is no TOML is meant as a topology, or is another known output."""
    return looks_like_topology_text(text) or name_other_text(text) is not None


def printed_document(
    path: str,
    text: str,
    load_models: Callable[[], Sequence[GpuModel]],
    called: str | None = None,
    gpu_model: str | None = None,
) -> dict[str, Any]:
    """Return the machine file's document of a topology that another program has printed.

    Args:
        path: path of the file, for messages.
        text: its content.
        load_models: returns all GPU models; called if the text or gpu_model names one.
        called: path whose stem names the machine, instead of the file's own.
        gpu_model: name of a GPU model, for a text that does not tell it.

    Raises:
        UsageError: the text is no topology, or the GPU model is unknown.
    """
    file = printable(os.path.basename(path))
    stem = os.path.splitext(os.path.basename(called or path))[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", stem) or "machine"
    model = _choose_model(gpu_model, load_models()) if gpu_model is not None else None
    try:
        matrix = parse_topology_text(text)
        cards = _find_cards(matrix, read_details(text), model, load_models)
    except TextError as problem:
        raise UsageError(f"{path}:{problem.line}: {problem.message}", problem.hint) from None
    source = f"nvidia-smi topo -m in {file}"
    if gpu_model is not None:
        source += f"; the GPU model is given as {printable(gpu_model)}"
    return text_document(matrix, name, source, cards)


def _find_cards(
    matrix: SmiMatrix,
    details: Mapping[int, CardFacts],
    model: GpuModel | None,
    load_models: Callable[[], Sequence[GpuModel]],
) -> list[CardFacts]:
    """Return what is known of each GPU of the matrix beside its links.

    Raises:
        TextError: the text beside the matrix is about other GPUs.
    """
    if not details and model is None:
        return []
    missing = [number for number in matrix.gpus if number not in details]
    if details and missing:
        found = f"{len(details)} GPUs have a name in this text, and its matrix has"
        raise TextError(1, f"{found} {len(matrix.gpus)}: GPU{missing[0]} has none")
    models = [model] if model else load_models()
    cards = []
    for number in matrix.gpus:
        facts = details.get(number) or CardFacts(model.models[0] if model else "")
        known = model or find_gpu_model(models, facts.model)
        capability = known.compute_capability if known else None
        cards.append(replace(facts, compute_capability=capability))
    return cards


def _choose_model(text: str, models: Sequence[GpuModel]) -> GpuModel:
    """Return the one GPU model that a text names, by its name or a part of it in whole words.

    Raises:
        UsageError: there is none, or there are several.
    """
    wanted = text.lower().split()

    def is_named(name: str) -> bool:
        words = re.split(r"[\s-]+", name.lower())
        return name.lower().split() == wanted or (bool(wanted) and set(wanted) <= set(words))

    exact = [m for m in models if text.lower() in {name.lower() for name in (m.name, *m.models)}]
    found = exact or [m for m in models if any(map(is_named, (m.name, *m.models)))]
    if len(found) == 1:
        return found[0]
    names = ", ".join(model.name for model in found or models)
    if not found:
        raise UsageError(f"unknown GPU model {printable(text)!r}", f"known are {names}")
    raise UsageError(
        f"GPU model {printable(text)!r} can be {len(found)} models", f"name one: {names}"
    )
