"""The data files: profiles, described machines, GPU models and settings, by name or by path."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.document import Document, parse_toml, parsed, read_document, read_text
from gpulaunch.machine.described import described_topology, measurements
from gpulaunch.machine.topology import Measured, Topology
from gpulaunch.profiles.chain import read_chain
from gpulaunch.profiles.document.inherit import read_reference
from gpulaunch.profiles.profile import Profile

if TYPE_CHECKING:
    from gpulaunch.machine.gpu_model import GpuModel

PROFILES_VARIABLE = "GPULAUNCH_PROFILE_DIR"
"""Where profiles are looked for first: a batch has those there that its file of jobs brings along."""

SYSTEM_MACHINES = "/etc/gpulaunch/machines"
MAX_LABEL_CHARACTERS = 8192

_INSTEAD = "--profile NAME is used instead of what an image says"


def config_directory() -> str:
    """Where this user's settings and profiles lie."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "gpulaunch")


def _shipped(kind: str) -> str:
    """Where the files that come with gpulaunch lie: inside a wheel, or beside the package in the repository."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "_profiles", kind)
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), "profiles", kind)


def _is_path(name: str) -> bool:
    return os.sep in name or name.endswith(".toml")


def _find(name: str, directories: list[str], subject: str, hint: str) -> str:
    """Path of a data file: the name itself if it looks like one, else NAME.toml in the first directory that has it."""
    if _is_path(name):
        return name
    for directory in directories:
        path = os.path.join(directory, f"{name}.toml")
        if os.path.isfile(path):
            return path
    raise UsageError(f"unknown {subject} {quoted(name)}", hint)


def _profile_directories() -> list[str]:
    brought = os.environ.get(PROFILES_VARIABLE)
    return [*([brought] if brought else []), os.path.join(config_directory(), "profiles"), _shipped("workloads")]


def find_profile(name: str) -> str:
    """Path of a profile: a path as it is, else by name: what a batch brings along, the user's own, those shipped.

    Args:
        name: or path; what stands behind an @ is asked of the profile, and makes no difference here.
    """
    return _find_profile(read_reference(name).name, _profile_directories())


def _find_profile(name: str, directories: list[str]) -> str:
    return _find(name, directories, "profile", "'gpulaunch profiles' lists them")


def name_in_reach(path: str) -> str | None:
    """What asks for a profile by name, if its file lies where profiles are looked for."""
    directory, file = os.path.split(os.path.realpath(path))
    found = directory in map(os.path.realpath, _profile_directories())
    return file.removesuffix(".toml") if found and file.endswith(".toml") else None


def load_profile(name: str, document: Document | None = None) -> Profile:
    """Read the profile that has this name or path, with what it stands on.

    Args:
        name: or path, with the variants that are asked for: "alexnet@batch=1", "./my.toml@batch=4,precision=fp16".
        document: of its file, if that has been read.

    Raises:
        UsageError: there is none, or it is wrong.
    """
    reference = read_reference(name)
    if document is None:
        document = read_document(_find_profile(reference.name, _profile_directories()))
    return read_chain(document, reference.variants, _find_base)


def _find_base(name: str, asker: str) -> str:
    """Path of a profile that another one names.

    A path begins where the file is that names it. A name that is that file's own means the next file of that name: so a
    user's vgg16 may stand on the one that is shipped.
    """
    if _is_path(name):
        return os.path.normpath(os.path.join(os.path.dirname(asker), name))
    directories = _profile_directories()
    own, file = os.path.split(os.path.abspath(asker))
    if file == f"{name}.toml":
        places = [os.path.abspath(directory) for directory in directories]
        directories = directories[places.index(own) + 1 :] if own in places else directories
    return _find_profile(name, directories)


def profile_within(document: Document) -> Profile:
    """The profile that is a table of another file, with what it stands on.

    Raises:
        UsageError: it is wrong.
    """
    return read_chain(document, (), _find_base)


def portable(table: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """A profile's table as it may be written into another directory: a base's path begins at the root.

    Args:
        table: of a profile, already checked.
        file: where it stands.
    """
    base = table.get("base")
    if base is None or not _is_path(read_reference(base).name):
        return table
    return {**table, "base": os.path.abspath(os.path.join(os.path.dirname(file), base))}


class Label(NamedTuple):
    """A profile in a container image.

    Attributes:
        image: its name.
        key: of the label.
        text: name of a profile that is in reach here, or a whole profile as TOML.
    """

    image: str
    key: str
    text: str


def labelled_profile(label: Label) -> Profile:
    """The profile that an image's label names or contains.

    Raises:
        UsageError: there is none of that name, or it is wrong, or longer than MAX_LABEL_CHARACTERS.
    """
    if len(label.text) > MAX_LABEL_CHARACTERS:
        size = f"{len(label.text)} characters, more than {MAX_LABEL_CHARACTERS}"
        raise UsageError(f"image {printable(label.image)}: label {label.key} has {size}", _INSTEAD)
    origin = f"image {printable(label.image)}: label {label.key}"
    try:
        key, equals, _ = label.text.partition("=")
        if equals and "@" not in key:  # else it is a name with a variant: alexnet@batch=1
            return read_chain(parse_toml(origin, label.text), (), _find_named)
        if not _is_path(label.text):  # an image does not choose files of this host
            return load_profile(label.text)
        message = f"{origin}: {quoted(label.text)} is no name of a profile"
    except UsageError as problem:
        message = problem.message if problem.message.startswith(origin) else f"{origin}: {problem.message}"
    raise UsageError(message, _INSTEAD)


def _find_named(name: str, _asker: str) -> str:
    if _is_path(name):
        raise UsageError(f"{quoted(name)} is no name of a profile")
    return _find_profile(name, _profile_directories())


def profile_names() -> list[str]:
    """Names of all profiles in reach, sorted."""
    return _names(_profile_directories())


def load_gpu_models() -> "tuple[GpuModel, ...]":
    """All GPU models in reach: the user's own, then those shipped; of two files of one name the user's is read.

    Raises:
        UsageError: a file is wrong.
    """
    from gpulaunch.machine.gpu_model import parse_gpu_model

    own = os.path.join(config_directory(), "gpus")
    directories = [own, _shipped("gpus")]
    names = dict.fromkeys([*_names([own]), *_names(directories)])
    paths = [_find(name, directories, "GPU model", "") for name in names]
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
    return [os.path.dirname(own_machine_file("")), SYSTEM_MACHINES, _shipped("machines")]


def machine_names() -> list[str]:
    """Names of the described machines in reach, sorted."""
    return _names(_machine_directories())


def load_measurements(topology: Topology) -> tuple[Measured, ...]:
    """What the file of a machine's name says that was measured; nothing if there is none, or it is of other GPUs.

    Raises:
        UsageError: it is wrong.
    """
    for directory in _machine_directories()[:2]:
        path = os.path.join(directory, f"{topology.name}.toml")
        if os.path.isfile(path):
            document = read_document(path)
            models = {gpu.model for gpu in parsed(document, lambda data: described_topology(data, "")).gpus}
            same = models == {gpu.model for gpu in topology.gpus}
            return parsed(document, measurements) if same else ()
    return ()


@contextmanager
def profiles_at_hand(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Profiles that this process and those that it starts find by name, before all others, as long as this lasts.

    Args:
        tables: by name, as in TOML.

    Raises:
        FailedError: they cannot be written.
    """
    if not tables:
        yield
        return
    from tempfile import TemporaryDirectory  # late: it costs 4 ms

    from gpulaunch.files.write import document_text, write_text

    before = os.environ.get(PROFILES_VARIABLE)
    with TemporaryDirectory(prefix="gpulaunch-profiles-") as directory:
        for name, table in tables.items():
            write_text(os.path.join(directory, f"{name}.toml"), document_text({"name": name, **table}))
        os.environ[PROFILES_VARIABLE] = directory
        try:
            yield
        finally:
            del os.environ[PROFILES_VARIABLE]
            if before is not None:
                os.environ[PROFILES_VARIABLE] = before


def _names(directories: list[str]) -> list[str]:
    found: set[str] = set()
    for directory in directories:
        if os.path.isdir(directory):
            files = [entry.name for entry in os.scandir(directory) if entry.name.endswith(".toml") and entry.is_file()]
            found.update(name.removesuffix(".toml") for name in files)
    return sorted(found)


def load_described_machine(name: str) -> tuple[Topology, str]:
    """A described machine by name or path, and the absolute path of its description.

    Raises:
        UsageError: there is none, or it is wrong.
    """
    own = f"./{name}" if os.path.isfile(name) else "a file"
    hint = f"known are {', '.join(machine_names())}, or give {own}"
    path = name if name.endswith(".txt") else _find(name, _machine_directories(), "topology", hint)
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
        return parse_toml(path, text)
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
    name = re.sub(r"[^A-Za-z0-9._-]", "-", os.path.splitext(os.path.basename(called or path))[0]) or "machine"
    try:
        return text_document(parse_topology_text(text), name, f"nvidia-smi topo -m in {printable(file)}")
    except TextError as problem:
        raise UsageError(f"{path}:{problem.line}: {problem.message}") from None


def load_paper(name: str) -> dict[str, Any]:
    """What comes with gpulaunch of a paper's data, by the paper's name.

    Raises:
        UsageError: there is none.
    """
    return read_document(_find(name, [_shipped("papers")], "paper", "profiles/papers has them")).data
