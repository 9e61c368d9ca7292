"""Marks that take GPUs out of service: files of the table without a lock, one for each GPU.

A mark counts if its file is owned by root or by the owner of the state directory, and was written
since the machine was booted. Anybody else may give a file such a name, to no effect.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress

from gpulaunch.errors import FailedError
from gpulaunch.leases.directory import directory_failed
from gpulaunch.leases.record_file import DRAINED_PREFIX, read_record
from gpulaunch.machine.topology import TableKey, Topology
from gpulaunch.process.system import boot_id, now, user_name
from gpulaunch.records import Record

MOST_REASON_CHARACTERS = 200
_VERSION = 1


class Drain(Record):
    """A GPU that is out of service.

    Attributes:
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
        found = read_record(directory_fd, "", name)
    except FailedError:
        return None
    if found is None or found.user_id not in (0, os.fstat(directory_fd).st_uid):
        return None
    try:
        document = json.loads(found.content)
        drain = Drain(
            str(document["uuid"]),
            tuple(map(str, document["machine"])),
            str(document["reason"]),
            found.user_id,
            str(document["since"]),
        )
        is_of_this_boot = document["boot_id"] in ("", boot_id())
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return drain if is_of_this_boot and _name_of(drain.uuid, drain.machine) == name else None


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
