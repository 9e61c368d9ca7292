"""Share groups, and a job's part in one, from before its lease until after it.

A group has one MPS control daemon for one user on one exact set of GPUs. It is started with the
first of the group's jobs and ended with the last, under a lock of the group's own; the allocation
table says which jobs live. docs/decisions/sharing.md tells why each part is made this way.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from zlib import crc32

from gpulaunch.errors import FailedError, NotShareableError
from gpulaunch.files.own_cache import is_own, load, path_of, slow_lock, store
from gpulaunch.files.units import format_size
from gpulaunch.leases.environment import MPS_PATIENCE_S, MpsPlace
from gpulaunch.leases.lease import Lease, Share, share_groups
from gpulaunch.leases.record_file import Draft, wait_until_unlocked
from gpulaunch.leases.table import Table
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.find import Machine, find_at_work, most_memory
from gpulaunch.machine.gpu import find_gpu_model
from gpulaunch.machine.topology import Topology
from gpulaunch.process.ending import DISMISSED, Companion
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.records import replace
from gpulaunch.sharing.mps_daemon import (
    MEMBERS_FILE,
    Daemon,
    MpsError,
    MpsHangsError,
    serves_a_group,
)
from gpulaunch.sharing.speed import capacity_by, least_of, pace

_LOCK_MARGIN_S = 30.0
_SOCKET_BYTES = 107  # of sockaddr_un, less the end
_LONGEST_NAME = "/12345678/control_privileged"

KEPT_S = 600.0
"""Time for which a note of a server that hung counts.

Ours: a machine that was repaired should not wait much longer.
"""


class ShareGroup:
    """The jobs of this user that share exactly these GPUs.

    Args:
        uuids: UUIDs of the GPUs, ascending.
    """

    def __init__(
        self, table: Table, uuids: Sequence[str], directory: str, patience_s: float = MPS_PATIENCE_S
    ) -> None:
        self.directory = directory
        self.daemon = Daemon(directory, uuids, os.geteuid())
        self._table = table
        self._uuids = tuple(uuids)
        self._base = os.path.dirname(directory)
        self._patience_s = patience_s
        self._lock_path = f"{directory}.lock"
        # the cache that holds what was seen of a server that hung
        self._note = f"gpulaunch.mps.{os.path.basename(directory)}.hung"

    def companion(self, record_fd: int | None = None) -> Companion:
        """Fork a process that leaves the group if this one dies without doing so.

        It acts, too, if this process hands on the lease.

        Args:
            record_fd: the lease's record, open; None before there is a lease.
        """
        path = os.devnull if record_fd is None else f"/proc/self/fd/{record_fd}"
        # A descriptor that only reads the record does not hold its lock.
        read_fd = out_of_the_way(os.open(path, os.O_RDONLY))

        def act(word: bytes) -> None:
            if not word:
                if record_fd is not None:
                    wait_until_unlocked(read_fd)
                self.leave()

        try:
            return Companion(act, read_fd)
        finally:
            os.close(read_fd)

    @contextmanager
    def entered(self, *, may_fork: bool = True) -> Iterator[None]:
        """Make the group's daemon ready, and keep others from starting or ending it meanwhile.

        A lease that is published meanwhile is a member. If there is no member in the end, the
        daemon is ended, also if this process is killed before.

        Raises:
            MpsError: the daemon cannot be made ready.
        """
        _make_own(self._base)
        patience_s = self._patience_s + _LOCK_MARGIN_S
        with slow_lock(self._lock_path, patience_s) as got:
            if not got:
                raise MpsError(
                    f"{self._lock_path} cannot be had for {patience_s:g} s: another launch is at "
                    "its MPS daemon"
                )
            companion = self.companion() if may_fork else None
            try:
                self._ensure_daemon()
                yield
            finally:
                if not self.members():
                    self._end()
                if companion:
                    companion.tell(DISMISSED)

    def leave(self, patience_s: float | None = None) -> bool:
        """End the daemon if no member is left; to be called when a lease has ended.

        Args:
            patience_s: the longest wait for another launch that starts or ends the daemon; None for
                as long as that may take.

        Returns:
            Whether the daemon has been seen to.
        """
        if not is_own(self._base):
            return True
        if not os.path.isdir(self.directory) and self.daemon.pid() is None:
            return True
        if patience_s is None:
            patience_s = self._patience_s + _LOCK_MARGIN_S
        with slow_lock(self._lock_path, patience_s) as got:
            if got and not self.members():
                self._end()
            return got

    def members(self) -> list[Lease]:
        """Return the live leases of the group."""
        try:
            leases = self._table.peek().leases  # also those that no process holds, but a container
        except FailedError:  # somebody's record is damaged
            leases = self._table.own_leases()
        own = [lease for lease in leases if lease.user_id == os.geteuid()]
        return [
            lease for lease in own if lease.share and lease.share.pipe_directory == self.directory
        ]

    def _ensure_daemon(self) -> None:
        """Make the daemon ready, and say of a failure which jobs it concerns."""
        members = self.members()
        try:
            self._make_ready(alone=not members)
            with suppress(OSError):
                os.unlink(path_of(self._note))
        except MpsError as problem:
            if isinstance(problem, MpsHangsError):
                store(self._note, {"reason": str(problem), "patience_s": self._patience_s})
            if not members:
                raise MpsError(f"MPS: {problem}") from None
            one = "a job of the group still runs"
            jobs = one if len(members) == 1 else f"{len(members)} jobs still run"
            raise MpsError(f"MPS: {problem}, and {jobs}") from None
        except OSError as problem:
            reason = os.strerror(problem.errno or 0).lower()
            raise MpsError(f"{problem.filename or self.directory}: {reason}") from None

    def _make_ready(self, *, alone: bool) -> None:
        """Use the daemon that runs; without members a dead or faulty one is replaced."""
        runs = self.daemon.pid() is not None
        if alone or not runs:  # one with members works, whatever became of a slow answer
            self._recall_hang()
        if not runs and not alone:
            raise MpsError("its control daemon is gone")
        if runs:
            try:
                self.daemon.make_ready(self._patience_s)
            except MpsError:
                if not alone:
                    raise
                self._end()
            else:
                return
        shutil.rmtree(self.directory, ignore_errors=True)  # sockets of a daemon that was killed
        os.mkdir(self.directory, 0o700)
        os.mkdir(self.daemon.log_directory, 0o700)
        with open(os.path.join(self.directory, MEMBERS_FILE), "w") as file:
            json.dump([self._table.directory, self._uuids], file)
            os.fchmod(file.fileno(), 0o1600)  # sticky: systemd-tmpfiles spares it
        self.daemon.start()
        self.daemon.make_ready(self._patience_s)

    def _recall_hang(self) -> None:
        """Fail at once if the server has just hung for a launch that waited as long as this one."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = load(self._note, KEPT_S)
            if self._patience_s <= note["patience_s"]:
                again = f"within {KEPT_S / 60:g} min, or after 'rm {path_of(self._note)}'"
                raise MpsError(f"{note['reason']}; tried again {again}")

    def _end(self) -> None:
        self.daemon.quit()
        shutil.rmtree(self.directory, ignore_errors=True)


def _make_own(directory: str) -> None:
    """Make a directory that is this user's alone, short enough for the paths of sockets in it."""
    room = _SOCKET_BYTES - len(_LONGEST_NAME)
    count = len(os.fsencode(directory))
    if count > room:
        raise MpsError(f"{directory}: the path has {count} bytes: a socket has room for {room}")
    try:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    except OSError as problem:
        raise MpsError(f"{directory}: {os.strerror(problem.errno or 0).lower()}") from None
    if not is_own(directory):
        raise MpsError(f"{directory} is not this user's alone")


def sweep(base: str, table: Table) -> bool:
    """End daemons of this table that nobody uses, because all that looked after them were killed.

    Returns:
        Whether there were any.
    """
    swept = False
    for name in os.listdir(base) if is_own(base) else ():
        directory = os.path.join(base, name)
        with suppress(OSError, ValueError, TypeError):
            with open(os.path.join(directory, MEMBERS_FILE)) as file:
                table_directory, uuids = json.load(file)
            group = ShareGroup(table, uuids, directory)
            if table_directory == table.directory and not group.members():
                swept = group.leave(0.0) or swept
    return swept


def _group_directory(base: str, table: Table, uuids: Sequence[str]) -> str:
    """Return the pipe directory of the group of some GPUs, whose UUIDs ascend.

    Each table and each set of GPUs has its own; its name is short, for the path of a socket is.
    """
    key = json.dumps([os.path.realpath(table.directory), *uuids]).encode()
    return os.path.join(base, f"{crc32(key):08x}")


def leave_group(table: Table, lease: Lease) -> None:
    """Leave the share group of a lease of this user that has ended, if it was in one."""
    share = lease.share
    if share and share.pipe_directory and lease.user_id == os.geteuid():
        ShareGroup(table, share.group, share.pipe_directory).leave()


def daemon_of(lease: Lease) -> Daemon | None:
    """Return the MPS daemon of a lease, of any user; None if it has none."""
    if lease.share is None or lease.share.pipe_directory is None:
        return None
    return Daemon(lease.share.pipe_directory, lease.share.group, lease.user_id)


FIRST_LOOK_S = 1.0
"""First pause before a check whether the job has become a client of its MPS server.

Later pauses are ever longer.
"""

LONGEST_PAUSE_S = 30.0

LOOK_S = 1.0
"""Time that the daemon has to answer in such a check: signals for the job wait meanwhile."""

LEAVE_S = 5.0

NEAR = 0.97
"""Part of its limit of memory from which on a job counts as near it. Ours.

The limit is 10 % beyond the peak that was measured, so a job at its peak is at 91 %.
"""


def paces(topology: Topology, leases: Sequence[Lease]) -> dict[str, float]:
    """Return the predicted pace of jobs that share GPUs, beside those that are there now.

    It is missing where it is unknown for one of a group, as it is for jobs that have asked for a
    part of a GPU without saying what they use.

    Returns:
        By id of the lease, the speed as a part of that alone on the whole GPU.
    """
    groups = share_groups(leases)
    models = load_gpu_models() if groups else []
    capacities = {
        gpu.uuid: capacity_by(find_gpu_model(models, gpu.model), gpu.memory_bytes, 0)
        for gpu in topology.gpus
    }
    found = {}
    for group, members in groups.items():
        shares = [lease.share for lease in members if lease.share]
        if any(share.promised_pace is None for share in shares):
            continue
        capacity = least_of(capacities, group)
        at = pace(
            [share.client.demand for share in shares],
            capacity,
            [share.sm_percentage for share in shares],
        )
        for lease, speed in zip(members, at.speeds, strict=True):
            found[lease.id] = min(1.0, speed)
    return found


@contextmanager
def ready_to_share(
    share: Share, residents: Sequence[Lease], mps: MpsPlace | None, table: Table
) -> Iterator[Share]:
    """Make the MPS daemon of a share ready, and give the share with its pipe directory.

    As long as the context lasts the daemon neither comes nor goes; a lease that is published
    meanwhile is a member of the group.

    Args:
        mps: where daemons are; None on a described machine, which has none.

    Raises:
        NotShareableError: the daemon cannot be made ready.
    """
    if mps is None:
        yield share
        return
    directories = [lease.share.pipe_directory for lease in residents if lease.share]
    own = _group_directory(mps.base, table, share.group)
    directory = next(filter(None, directories), own)
    group = ShareGroup(table, share.group, directory, mps.patience_s)
    try:
        with group.entered(may_fork=mps.may_fork):
            yield replace(share, pipe_directory=directory)
    except MpsError as problem:
        raise NotShareableError(str(problem)) from None


class Membership:
    """One job's membership in a share group.

    Args:
        record: record of this job's lease; still a draft.
    """

    def __init__(self, table: Table, record: Draft, share: Share) -> None:
        self._group = ShareGroup(table, share.group, share.pipe_directory or "")
        self._companion = self._group.companion(record.fd)
        self._limit_bytes = share.client.demand.memory_bytes
        self._held_bytes = 0

    def dismiss(self) -> None:
        """Leave the group to the launch that has made it ready, as the job is not started."""
        self._companion.tell(DISMISSED)

    def leave(self) -> None:
        """Leave the group after the lease has ended; with the last one its MPS daemon ends.

        Another launch that starts or ends the daemon is not waited for long: then the companion
        process leaves in our stead once we have gone.
        """
        if self._group.leave(LEAVE_S):
            self._companion.tell(DISMISSED)

    def take_off(self, pids: set[int], number: int) -> list[str]:
        """Detach processes from their MPS server that a signal would end; return refusals."""
        return self._group.daemon.terminate(pids, number)

    def wait(
        self,
        wait_for_job: Callable[[float | None], int | None],
        limit_s: float | None,
        machine: Machine,
        uuids: Sequence[str],
        warn: Callable[[str], None],
        pids: Callable[[], set[int]],
    ) -> int | None:
        """Wait for the job, and warn if it uses its GPUs without having become a client of MPS.

        CUDA becomes a client silently when it starts, or silently does not, and no event says when
        a job starts CUDA: so the daemon is asked, ever more rarely. As rarely its memory is looked
        at, which tells at a failed job's end whether it was near its limit.

        Args:
            wait_for_job: waits for so many seconds at most (None: for ever), as Job.wait.

        Returns:
            The job's wait status; None if it runs longer than the limit.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        pause_s, known = FIRST_LOOK_S, False
        while True:
            left_s = pause_s if deadline is None else max(0.0, deadline - time.monotonic())
            status = wait_for_job(min(pause_s, left_s))
            if status is not None:
                self._tell_of_limit(status, warn)
                return status
            if deadline is not None and time.monotonic() >= deadline:
                return None
            found = pids()
            known = known or self._is_attached(machine, uuids, found, warn)
            with suppress(FailedError):
                held_bytes = most_memory(machine, uuids, found)
                self._held_bytes = max(self._held_bytes, held_bytes)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _tell_of_limit(self, status: int, warn: Callable[[str], None]) -> None:
        """Tell whose limit it was if a job failed that had come near its limit of memory.

        Only what was seen: who asked for much at once, and got nothing, had not come near it.
        """
        code = os.waitstatus_to_exitcode(status)
        if (code > 0 or code == -signal.SIGABRT) and self._held_bytes >= max(
            1.0, NEAR * self._limit_bytes
        ):
            held, limit = format_size(self._held_bytes), format_size(self._limit_bytes)
            warn(
                f"the job has failed, and had held {held} of GPU memory: gpulaunch limits it to "
                f"{limit}, which --memory raises"
            )

    def _is_attached(
        self, machine: Machine, uuids: Sequence[str], pids: set[int], warn: Callable[[str], None]
    ) -> bool:
        """Return whether it is known by now if the job is a client; warn if it is not."""
        try:
            clients = self._group.daemon.clients(LOOK_S)
        except MpsError as problem:
            warn(f"MPS: {problem}, so nobody can tell whether the job is attached")
            return True
        if pids & clients:
            return True
        at_work = find_at_work(machine, uuids, pids)
        without = sorted(pid for pid in at_work if not serves_a_group(pid))
        if not without:
            return False
        shown = ", ".join(map(str, without))
        warn(
            f"pid {shown} of the job uses its GPU without MPS: neither its share of SMs nor its "
            "memory is bounded"
        )
        return True
