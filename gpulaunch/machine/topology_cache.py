"""What a machine was found to be, kept in memory (tmpfs) until it may be something else.

A file of this user's alone, so that nobody else can tell him what his machine is. It is believed if
it was written in this boot for what NVML lists now, and not long ago: an NVLink that went down
since is seen at the latest then.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from gpulaunch.files import slow_lock
from gpulaunch.machine.cpuset import format_cpuset, parse_cpuset
from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.link import Link
from gpulaunch.machine.nvidia.roster import Roster
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import boot_id

MAX_AGE_S = 900.0
LOCK_TIMEOUT_S = 10.0
_MAX_BYTES = 16 << 20


def load(roster: Roster) -> Topology | None:
    """The topology that was found when NVML listed the same; None if there is none to be believed."""
    try:
        document = json.loads(_read())
        return _topology(document["topology"]) if document["key"] == _key(roster) else None
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


def store(roster: Roster, topology: Topology) -> None:
    """Keep what was found; where that is not possible it is found anew the next time."""
    document = {"key": _key(roster), "topology": _document(topology)}
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


def _key(roster: Roster) -> list[Any]:
    """What the topology depends on; among it this process's CPUs, since NVML tells only of those."""
    here = [boot_id(), os.uname().nodename, sorted(os.sched_getaffinity(0))]
    form = [*Gpu._fields, *Link._fields, *Mig._fields]
    return [form, here, roster.driver, *([uuid, mig] for uuid, mig in roster.cards)]


def _document(topology: Topology) -> list[Any]:
    gpus = [gpu._replace(cpuset=format_cpuset(gpu.cpuset)) for gpu in topology.gpus]  # type: ignore[arg-type]
    return [topology.name, gpus, topology.links, topology.source]


def _topology(document: list[Any]) -> Topology:
    name, gpus, links, source = document
    return Topology(
        name, tuple(_gpu(Gpu(*gpu)) for gpu in gpus), tuple(Link(*link) for link in links), source
    )


def _gpu(gpu: Gpu) -> Gpu:
    mig = None if gpu.mig is None else Mig(*gpu.mig)
    return gpu._replace(cpuset=parse_cpuset(gpu.cpuset), mig=mig)  # type: ignore[arg-type]
