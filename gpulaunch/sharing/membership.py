"""A job's part in its share group, from before its lease until after it."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from gpulaunch.errors import FailedError, NotShareableError
from gpulaunch.files.units import format_size
from gpulaunch.leases.environment import MpsPlace
from gpulaunch.leases.lease import Lease, Share, share_groups
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.find import Machine, find_at_work, most_memory
from gpulaunch.machine.gpu import find_gpu_model
from gpulaunch.machine.topology import Topology
from gpulaunch.process.ending import DISMISSED
from gpulaunch.records import replace
from gpulaunch.sharing.mps_daemon import MpsError, serves_a_group
from gpulaunch.sharing.share_group import ShareGroup, group_directory
from gpulaunch.sharing.speed import capacity_by, least_of, pace

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
    own = group_directory(mps.base, table, share.group)
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
