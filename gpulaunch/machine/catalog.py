"""Described machines and GPU models by name or path: shipped ones and the user's own."""

import os
import re
from functools import lru_cache
from zlib import crc32

from gpulaunch.errors import UsageError, printable
from gpulaunch.files.data_files import config_directory, file_names, find_file, shipped_directory
from gpulaunch.files.document import parse_document, parsed, read_document, read_text
from gpulaunch.machine.gpu_model import GpuModel, parse_gpu_model
from gpulaunch.machine.read_description import described_topology, measurements
from gpulaunch.machine.topology import Measured, Topology

SYSTEM_MACHINES = "/etc/gpulaunch/machines"

_SHIPPED = ("machines", os.path.join("machines", "made-up"))
"""Kinds of shipped descriptions: machines that people have, then those of papers and examples."""


def load_gpu_models() -> tuple[GpuModel, ...]:
    """Read all GPU models, the user's own first.

    If two files have the same name, the user's is read.

    Raises:
        UsageError: a file is wrong.
    """
    own = os.path.join(config_directory(), "gpus")
    directories = [own, shipped_directory("gpus")]
    names = dict.fromkeys([*file_names([own]), *file_names(directories)])
    paths = [find_file(name, directories, "GPU model", "") for name in names]
    return tuple(parsed(read_document(path), parse_gpu_model) for path in paths)


def own_machine_file(name: str) -> str:
    """Return the path of this user's description of a machine, which need not exist."""
    return os.path.join(config_directory(), "machines", f"{name}.toml")


def _machine_directories() -> list[str]:
    shipped = [shipped_directory(kind) for kind in _SHIPPED]
    return [os.path.dirname(own_machine_file("")), SYSTEM_MACHINES, *shipped]


def machine_names() -> list[str]:
    """Return the sorted names of the described machines that can be found."""
    return file_names(_machine_directories())


def load_measurements(topology: Topology) -> tuple[Measured, ...]:
    """Return the measurements in the file of a machine's name; () without one for the same GPUs.

    Raises:
        UsageError: the file is wrong.
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
    """Read a described machine by name or path; return it with the absolute path of its file.

    Raises:
        UsageError: there is no such machine, or its description is wrong.
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
    """Read a machine file, or a saved `nvidia-smi topo -m`, once.

    A Python program may ask for GPUs many times.
    """
    text = read_text(path)
    try:
        document = parse_document(path, text)
    except UsageError as problem:
        if path.endswith(".toml"):
            raise
        from gpulaunch.machine.smi_text import WANTED, looks_like_matrix  # late: rarely used

        if looks_like_matrix(text):
            return _text_machine(path, text)
        where, _, why = problem.message.rpartition(": ")
        neither = "neither a matrix of 'nvidia-smi topo -m' as printed nor a machine file in TOML"
        raise UsageError(f"{where}: {neither}: {why}", WANTED) from None
    return parsed(document, lambda data: described_topology(data, _digest(text)))


def _digest(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def _text_machine(path: str, text: str) -> Topology:
    """Return the machine of the matrix that `nvidia-smi topo -m` prints."""
    from gpulaunch.machine.smi_text import WANTED, TextError, parse_topology_text, text_topology

    source = f"nvidia-smi topo -m in {printable(os.path.basename(path))}"
    stem = os.path.splitext(os.path.basename(path))[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", stem) or "machine"
    try:
        matrix = parse_topology_text(text)
    except TextError as problem:
        raise UsageError(f"{path}:{problem.line}: {problem.message}", WANTED) from None
    return text_topology(matrix, name, source, _digest(text))
