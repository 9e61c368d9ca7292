"""What a machine was found to be, kept in memory (tmpfs) until it may be something else.

A file of this user's alone, so that nobody else can tell him what his machine is. It is believed if
it was written in this boot for what the driver lists now, and not long ago: an NVLink that went
down since is seen at the latest then.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from gpulaunch.files import slow_lock
from gpulaunch.machine.cpuset import format_cpuset, parse_cpuset
from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import boot_id
from gpulaunch.records import as_dict, as_list, field_names
from gpulaunch.typing import Any

MAX_AGE_S = 900.0
LOCK_TIMEOUT_S = 10.0
_MAX_BYTES = 16 << 20


def load(driver: str, fingerprint: str) -> Topology | None:
    """Return the topology that was found when this driver had the same fingerprint; None if none is to be believed."""
    try:
        document = json.loads(_read())
        return (
            _topology(document["topology"])
            if document["key"] == _key(driver, fingerprint)
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read() -> bytes:
    """The file, if it is this user's alone and young; else nothing."""
    fd = os.open(_path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        mine = (
            stat.S_ISREG(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o022
        )
        young = 0 <= time.time() - status.st_mtime < MAX_AGE_S
        return os.read(fd, _MAX_BYTES) if mine and young else b""
    finally:
        os.close(fd)


def store(fingerprint: str, topology: Topology) -> None:
    """Keep what was found; where that is not possible it is found anew the next time."""
    document = {"key": _key(topology.driver, fingerprint), "topology": _document(topology)}
    with suppress(OSError):
        draft = f"{_path()}.{os.getpid()}"
        try:
            fd = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(fd, "w") as file:
                json.dump(document, file, separators=(",", ":"))
            os.replace(draft, _path())
        except OSError:
            os.unlink(draft)


def forget() -> None:
    """Have it found anew the next time."""
    with suppress(OSError):
        os.unlink(_path())


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one launcher find out while the others wait for what it finds; not for ever, and not where it cannot be."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(slow_lock.held(f"{_path()}.lock", LOCK_TIMEOUT_S))
        yield


def _path() -> str:
    """In the user's own directory on tmpfs where there is one, else in one that is made.

    Raises:
        OSError: there is none, or somebody else has made what ought to be the user's.
    """
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(own) or not _is_mine(own):
        own = f"/dev/shm/gpulaunch.{os.geteuid()}"  # noqa: S108  it is checked for its owner
        with suppress(FileExistsError):
            os.mkdir(own, 0o700)
        if not _is_mine(own):
            raise PermissionError(errno.EPERM, "not this user's own", own)
    return os.path.join(own, "gpulaunch.topology.json")


def _is_mine(directory: str) -> bool:
    """Whether it is a directory in which this user alone can make files."""
    with suppress(OSError):
        status = os.lstat(directory)
        return (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o022
        )
    return False


def _key(driver: str, fingerprint: str) -> list[Any]:
    """Return what the topology depends on; among it this process's CPUs, since NVML tells only of those."""
    here = [boot_id(), os.uname().nodename, sorted(os.sched_getaffinity(0))]
    form = [*field_names(Gpu), *field_names(Link), *field_names(Mig)]
    return [form, here, driver, fingerprint]


def _document(topology: Topology) -> list[Any]:
    gpus = [_gpu_row(gpu) for gpu in topology.gpus]
    links = [as_list(link) for link in topology.links]
    return [topology.name, gpus, links, topology.source, topology.driver]


def _topology(document: list[Any]) -> Topology:
    name, gpus, links, source, driver = document
    return Topology(
        name,
        tuple(_gpu(row) for row in gpus),
        tuple(Link(*row) for row in links),
        source,
        driver=driver,
    )


def _gpu_row(gpu: Gpu) -> list[Any]:
    mig = as_list(gpu.mig) if gpu.mig else None
    return list((as_dict(gpu) | {"cpuset": format_cpuset(gpu.cpuset), "mig": mig}).values())


def _gpu(row: list[Any]) -> Gpu:
    fields = dict(zip(field_names(Gpu), row, strict=True))
    mig = Mig(*fields["mig"]) if fields["mig"] else None
    return Gpu(**fields | {"cpuset": parse_cpuset(fields["cpuset"]), "mig": mig})
