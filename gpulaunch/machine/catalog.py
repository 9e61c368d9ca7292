"""Described machines and GPU models by name or path: those that are shipped, and those of the user."""

import os
import re
from contextlib import suppress
from functools import lru_cache
from zlib import crc32

from gpulaunch.errors import UsageError, printable
from gpulaunch.files.data_files import config_directory, file_names, find_file, shipped_directory
from gpulaunch.files.document import Document, parse_document, parsed, read_document, read_text
from gpulaunch.machine.described import described_topology, measurements
from gpulaunch.machine.topology import Measured, Topology
from gpulaunch.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulaunch.machine.gpu_model import GpuModel

SYSTEM_MACHINES = "/etc/gpulaunch/machines"


def load_gpu_models() -> "tuple[GpuModel, ...]":
    """All GPU models in reach: the user's own, then those shipped; of two files of one name the user's is read.

    Raises:
        UsageError: a file is wrong.
    """
    from gpulaunch.machine.gpu_model import parse_gpu_model

    own = os.path.join(config_directory(), "gpus")
    directories = [own, shipped_directory("gpus")]
    names = dict.fromkeys([*file_names([own]), *file_names(directories)])
    paths = [find_file(name, directories, "GPU model", "") for name in names]
    return tuple(parsed(read_document(path), parse_gpu_model) for path in paths)


def memory_of(model: str) -> int | None:
    """Bytes that a GPU with this product name has, if some described machine has one; else None."""
    for name in machine_names() if model else ():
        with suppress(UsageError):  # 'gpulaunch topo' tells of a file that is wrong
            for gpu in load_described_machine(name)[0].gpus:
                if gpu.model == model and gpu.memory_bytes:
                    return gpu.memory_bytes
    return None


def own_machine_file(name: str) -> str:
    """Where this user's description of a machine stands, or will."""
    return os.path.join(config_directory(), "machines", f"{name}.toml")


def _machine_directories() -> list[str]:
    return [os.path.dirname(own_machine_file("")), SYSTEM_MACHINES, shipped_directory("machines")]


def machine_names() -> list[str]:
    """Names of the described machines in reach, sorted."""
    return file_names(_machine_directories())


def load_measurements(topology: Topology) -> tuple[Measured, ...]:
    """What the file of a machine's name says that was measured; nothing if there is none, or it is of other GPUs.

    Raises:
        UsageError: it is wrong.
    """
    for directory in _machine_directories()[:2]:
        path = os.path.join(directory, f"{topology.name}.toml")
        if os.path.isfile(path):
            document = read_document(path)
            models = {
                gpu.model
                for gpu in parsed(document, lambda data: described_topology(data, "")).gpus
            }
            same = models == {gpu.model for gpu in topology.gpus}
            return parsed(document, measurements) if same else ()
    return ()


def load_described_machine(name: str) -> tuple[Topology, str]:
    """A described machine by name or path, and the absolute path of its description.

    Raises:
        UsageError: there is none, or it is wrong.
    """
    own = f"./{name}" if os.path.isfile(name) else "a file"
    hint = f"known are {', '.join(machine_names())}, or give {own}"
    path = (
        name if name.endswith(".txt") else find_file(name, _machine_directories(), "topology", hint)
    )
    try:
        status = os.stat(path)
    except OSError as problem:
        raise UsageError(f"{path}: {os.strerror(problem.errno or 0).lower()}") from None
    version = (status.st_ino, status.st_size, status.st_mtime_ns)
    return _described_machine(path, version), os.path.abspath(path)


@lru_cache(maxsize=8)
def _described_machine(path: str, _version: tuple[int, int, int]) -> Topology:
    """Read once: a Python program may ask for GPUs many times."""
    document = read_description(path)
    digest = f"{crc32(document.text.encode()):08x}"
    return parsed(document, lambda data: described_topology(data, digest))


def read_description(path: str) -> Document:
    """A machine's description: a TOML file, or text in which nvidia-smi topo -m prints its matrix.

    Raises:
        UsageError: it cannot be read or is neither.
    """
    text = read_text(path)
    try:
        return parse_document(path, text)
    except UsageError:
        from gpulaunch.machine.smi_text import looks_like_topology_text

        if not looks_like_topology_text(text):
            raise
    return Document(path, text, _text_machine(path, text))


def load_text_machine(path: str, called: str | None = None) -> Topology:
    """The machine of a file in which nvidia-smi topo -m has printed its matrix.

    Args:
        path: of the file.
        called: path whose stem names the machine, if it is not the file's own.

    Raises:
        UsageError: it cannot be read, or is no such text.
    """
    text = read_text(path)
    return described_topology(_text_machine(path, text, called), f"{crc32(text.encode()):08x}")


def _text_machine(path: str, text: str, called: str | None = None) -> dict[str, Any]:
    from gpulaunch.machine.smi_text import TextError, parse_topology_text, text_document

    file = os.path.basename(path)
    name = (
        re.sub(r"[^A-Za-z0-9._-]", "-", os.path.splitext(os.path.basename(called or path))[0])
        or "machine"
    )
    try:
        return text_document(
            parse_topology_text(text), name, f"nvidia-smi topo -m in {printable(file)}"
        )
    except TextError as problem:
        raise UsageError(f"{path}:{problem.line}: {problem.message}") from None
