"""Marks that take GPUs out of service: files of the table without a lock, one for each GPU.

A mark counts if its file is owned by root or by the owner of the state directory, and was written
since the machine was booted. Anybody else may give a file such a name, to no effect.
"""

import errno
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from gpulaunch.errors import FailedError
from gpulaunch.leases.directory import directory_failed
from gpulaunch.leases.record_file import DRAINED_PREFIX, open_record
from gpulaunch.machine.topology import TableKey, Topology
from gpulaunch.process.system import boot_id, now, user_name
from gpulaunch.records import Record

MOST_REASON_CHARACTERS = 200
_MOST_BYTES = 4096
_VERSION = 1


class Drain(Record):
    """A GPU that is out of service.

    Attributes:
        uuid: UUID of the GPU, or of the card of its MIG instances.
        machine: name and digest of a described machine; () for this machine's own GPUs.
        reason: why, in the words of whoever drained it; may be empty.
    """

    uuid: str
    machine: tuple[str, ...]
    reason: str
    user_id: int
    since: str

    @property
    def text(self) -> str:
        """User and reason, such as "drained by root: fan is loud"."""
        who = f"drained by {user_name(self.user_id)}"
        return f"{who}: {self.reason}" if self.reason else who


def drains_by_gpu(topology: Topology, drains: Iterable[Drain]) -> dict[str, Drain]:
    """Return the marks of a machine's GPUs by UUID; a card's is that of all its MIG instances."""
    by_uuid = {drain.uuid: drain for drain in drains}
    found = {}
    for gpu in topology.gpus:
        drain = by_uuid.get(gpu.uuid) or (by_uuid.get(gpu.mig.card_uuid) if gpu.mig else None)
        if drain:
            found[gpu.uuid] = drain
    return found


def machine_of(key: TableKey | None) -> tuple[str, ...]:
    """Return what names a machine in a mark."""
    return (key.name, key.digest) if key else ()


def write_drain(directory: str, uuid: str, key: TableKey | None, reason: str) -> None:
    """Take a GPU out of service, or change the reason.

    Raises:
        FailedError: this user may not, or the file cannot be written.
    """
    _refuse_others(directory)
    machine = machine_of(key)
    document = {
        "version": _VERSION,
        "uuid": uuid,
        "machine": machine,
        "reason": reason,
        "since": now(),
        "boot_id": boot_id(),
    }
    path = os.path.join(directory, _name_of(uuid, machine))
    draft = f"{path}.{os.urandom(6).hex()}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(document).encode())
            # All may read it, whatever the umask; sticky, so that systemd-tmpfiles spares it.
            os.fchmod(fd, 0o1644)
        finally:
            os.close(fd)
        os.replace(draft, path)
    except OSError as problem:
        with suppress(OSError):
            os.unlink(draft)
        raise directory_failed(directory, "cannot drain a GPU", problem) from None


def remove_drain(directory: str, uuid: str, key: TableKey | None) -> bool:
    """Put a GPU into service again; return whether it was out of it.

    Raises:
        FailedError: this user may not, or the file cannot be removed.
    """
    _refuse_others(directory)
    try:
        os.unlink(os.path.join(directory, _name_of(uuid, machine_of(key))))
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise directory_failed(directory, "cannot undrain a GPU", problem) from None
    return True


def read_drain(directory_fd: int, name: str) -> Drain | None:
    """Return the mark in a file of the table; None if it does not count."""
    try:
        fd = open_record(name, directory_fd)
    except OSError as problem:
        if problem.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    if fd is None:
        return None
    try:
        status = os.fstat(fd)
        if status.st_uid not in (0, os.fstat(directory_fd).st_uid):
            return None
        return _parse(os.read(fd, _MOST_BYTES), status, name)
    finally:
        os.close(fd)


def _parse(content: bytes, status: os.stat_result, name: str) -> Drain | None:
    """Return the mark that a file's content is; None for one of an earlier boot, or for garbage."""
    try:
        found = json.loads(content)
        drain = Drain(
            str(found["uuid"]),
            tuple(map(str, found["machine"])),
            str(found["reason"]),
            status.st_uid,
            str(found["since"]),
        )
        is_of_this_boot = found["boot_id"] in ("", boot_id())
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    named = _name_of(drain.uuid, drain.machine) == name
    return drain if named and is_of_this_boot and stat.S_ISREG(status.st_mode) else None


def _name_of(uuid: str, machine: tuple[str, ...]) -> str:
    import hashlib  # late: it loads OpenSSL, which every launch would pay for

    text = "\0".join((uuid, *machine))
    return DRAINED_PREFIX + hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def _refuse_others(directory: str) -> None:
    """Raise an error unless this user is root or owns the state directory."""
    try:
        owner = os.stat(directory + "/").st_uid
    except OSError as problem:
        raise directory_failed(directory, "cannot use this state directory", problem) from None
    if os.geteuid() not in (0, owner):
        may = user_name(owner) if owner == 0 else f"root and {user_name(owner)}"
        raise FailedError(
            f"{directory}: only {may} may take GPUs out of service or back",
            "try it with sudo",
        )
