"""The keeper of a job that is a process here, and the companion that keeps what it leaves running.

If GPUs are shared through CUDA MPS, the process is a member of a share group.
"""

import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.errors import FailedError, call_failed
from gpulaunch.files.units import format_duration
from gpulaunch.launch.launch import Keeper, Launch, visible_gpus
from gpulaunch.launch.surroundings import inherited_variables
from gpulaunch.leases.environment import job_environment
from gpulaunch.leases.holders import members, nested_processes
from gpulaunch.leases.lease import Share
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import find_at_work
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process import Process
from gpulaunch.process.ending import (
    DISMISSED,
    SETTLE_S,
    Companion,
    descendants,
    end_all,
    family,
    is_companion,
    reached_by,
    wait_for_all,
    wait_for_one,
)
from gpulaunch.process.job import Job
from gpulaunch.process.system import (
    command_text,
    identify,
    is_cancelled_by_kill,
    seconds_since_boot,
    stat_fields,
    state_of,
)
from gpulaunch.records import as_list

if TYPE_CHECKING:  # few launches share
    from gpulaunch.sharing.membership import Membership


_LOOK_EVERY_S = 60.0
"""Time between two looks for what left-over processes have started meanwhile."""

_NO_REASON_TO_GO = (OSError, FailedError, MemoryError)  # no descriptors left, for one
_ASK_S = 30.0
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# "" on the path is the current directory, where a json.py of the user may lie.
_ASK = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from gpulaunch.machine.find import find_machine; "
    "used = {use.uuid for use in find_machine(None, lambda _: None).outside}; "
    "print(not used.isdisjoint(sys.argv[2:]))"
)


class ProcessKeeper(Keeper):
    """Keeps a lease for a job that is a child of this process, forked here and started later.

    The job inherits the lock of the record; see Keeper for the arguments. A share without a pipe
    directory is that of a described machine, which has no MPS.

    What the job leaves running is kept by a companion, a process in a session of its own that
    sleeps while the launcher lives. If the launcher is killed it takes over by itself: what the job
    has started may have closed the record, as Python's subprocess does, and would lose its GPUs
    with the job's main process. It ends what is there at the lease's time limit.
    """

    def __init__(
        self, launch: Launch, table: Table, record: Draft, share: Share | None = None
    ) -> None:
        super().__init__(launch, table, record, share)
        self._membership: Membership | None = None
        by_mps = share is not None and share.pipe_directory is not None
        if share and by_mps:
            from gpulaunch.sharing import membership  # late: few launches share

            self._membership = membership.Membership(table, record, share)
        self._before_signal = self._take_off_mps if by_mps else None
        self._companion: Companion | None = None
        self._ends = launch.leftovers == "end"
        self._guards = self._ends and is_cancelled_by_kill()  # then the job ends with the launcher
        # Outside this session, such as an empty tmux, what does not use the GPUs keeps no lease,
        # where that can be told.
        self._session = os.getsid(0)
        self._idle_s = None if launch.machine.key else launch.leftover_timeout_s
        self._idle_since_s: float | None = None
        self._over_limit = False
        self._after_term_s = launch.grace_s if is_cancelled_by_kill() else None
        # A shell that execs this program, as `sh -c 'server & gpulaunch -- true'` does, leaves its
        # children to this process: they are not the job's.
        self._earlier = [identify(pid) for pid in family()]
        self._job = Job(keep=record.fd, before_signal=self._prepare_for_signal if by_mps else None)
        self.process = self._job.process

    @property
    def stopped_s(self) -> float:
        """Seconds for which the job and this process were stopped, as by Ctrl-Z."""
        return self._job.stopped_s

    def _take_off_mps(self, pids: set[int], number: int) -> None:
        """Detach processes from their MPS server before a signal that would end them attached."""
        assert self._membership  # noqa: S101  for the type checker
        for problem in self._membership.take_off(pids, number):
            self.table.warn(problem)

    def dismiss(self) -> None:
        """End the child without starting the job, and the companions, and leave the share group."""
        self._job.dismiss()
        if self._membership:
            self._membership.dismiss()

    def start(self) -> None:
        """Start the job on the GPUs of its lease, as they were granted."""
        lease, gpus = self.lease, self.grant.gpus
        self._companion = Companion(self._act, self.record.fd)
        environment = job_environment(
            visible_gpus(self.launch, self.grant),
            driver=self.launch.machine.topology.driver,
            by_uuid=self.launch.by_uuid,
            count=len(gpus),
            lease_id=lease.id,
            share=lease.share,
            program=self.launch.command[0],
        )
        environment_changes: dict[str, str | None] = {**inherited_variables(), **environment}
        if self.launch.docker == "lease":
            from gpulaunch.launch.docker_run import door_of_lease  # late: few leases have a door

            environment_changes |= door_of_lease(self.table.path_of(lease), environment)
        self._job.start(self.launch.command, environment_changes, self._cpus(gpus))

    def _cpus(self, gpus: Sequence[Gpu]) -> frozenset[int]:
        """Return the core of a map of ranks, else the CPUs next to the GPUs; empty for any."""
        if self.launch.core is not None and self.launch.bind_cpu:
            if self.launch.core in os.sched_getaffinity(0):
                return frozenset({self.launch.core})
            self.table.warn(f"core {self.launch.core} is not one of those that this rank may use")
        nodes = {gpu.numa_node for gpu in gpus}
        if not self.launch.bind_cpu or len(nodes) != 1 or gpus[0].numa_node is None:
            return frozenset()
        allowed = os.sched_getaffinity(0)
        near = gpus[0].cpuset & allowed
        return frozenset() if near == allowed else near

    def wait(self, limit_s: float | None) -> int | None:
        """Wait for the job; return its wait status, or None if it runs longer than the limit.

        Warn of a job that shares and does not become a client of MPS.
        """
        if self._membership is None:
            return self._wait(limit_s)
        return self._membership.wait(
            self._wait, limit_s, self.launch.machine, self.lease.uuids, self.table.warn, self.pids
        )

    def _wait(self, limit_s: float | None) -> int | None:
        """Wait for the job; in CI, kill one that goes on after a TERM when the grace is over."""
        grace_s = self._after_term_s
        status = self._job.wait(limit_s, grace_s)
        since_s = self._job.first_term_s
        if status is not None or grace_s is None or since_s is None:
            return status
        if time.monotonic() - since_s < grace_s:
            return None
        grace = format_duration(self.launch.grace_s)
        self.table.warn(f"the job goes on {grace} after TERM: it is killed, as CI=true")
        return self.end(0.0)

    def pids(self) -> set[int]:
        """Return the processes of the job."""
        return family(self._earlier_pids())

    def _earlier_pids(self) -> set[int]:
        """Return the live processes that this one had as descendants before it forked the job."""
        return {process.pid for process in self._earlier if state_of(process)}

    def end(self, grace_s: float) -> int:
        """End the job: TERM, and KILL after the grace, in seconds. Return its wait status."""
        self._over_limit = True
        return self._job.end(grace_s)

    def _prepare_for_signal(self, number: int) -> None:
        """Announce a signal for the job, which may pass it on to its children."""
        others = self.pids() - nested_processes(self.table, self.record.id)
        self._take_off_mps(reached_by(number, {self._job.pid}, others), number)

    def release(self) -> None:
        """Release the lease, unless something that the job left running keeps it.

        What the job left is ended only if somebody asked for that: by --leftovers end, by a signal
        to this process, or by a time limit. All else goes on, and a companion keeps the lease. The
        MPS daemon of a share group ends with its last member.
        """
        try:
            released = self._release()
        except (OSError, FailedError) as problem:  # the job's exit status matters more
            if isinstance(problem, OSError):
                problem = call_failed(f"cannot release lease {self.lease.id}", problem)
            self.table.warn(problem.message)
            self.record.close()
            return
        if released and self._membership:
            self._membership.leave()

    def _release(self) -> bool:
        """Release the lease if nothing keeps it; return whether it has been released."""
        # Before the waits below. Without a companion nobody would look after what goes on.
        asked_s = self._job.asked_to_end_s
        is_asked = self._over_limit or (
            asked_s is not None and time.monotonic() - asked_s <= self.launch.grace_s + SETTLE_S
        )
        ends = self._ends or self._companion is None or is_asked
        left = self._left_overs()
        if left:
            wait_for_all(left, SETTLE_S)  # they may be about to end
            left = self._left_overs()
        if left and ends:
            if self._ends:
                self.table.warn(f"the job has ended, and {_named(left)} with it")
            survivors = self._end_left_overs()
            left = self._left_overs()
            if survivors:
                self.table.warn(
                    f"lease {self.lease.id} stays: some of what the job left behind survives KILL"
                )
        if not left:
            super().release()
            if self._companion:
                self._companion.tell(DISMISSED)
            return True
        self._keep(left)
        self.record.close()
        return False

    def _keep(self, left: set[int]) -> None:
        """Leave the lease to what the job left running, and say so."""
        if not self._companion:
            return
        word = json.dumps([as_list(identify(pid)) for pid in left]).encode()
        if not self._companion.tell(word):  # it has been killed meanwhile
            Companion(self._act, self.record.fd).tell(word)
        lease = self.lease
        names = {gpu.uuid: gpu.name for gpu in self.launch.machine.topology.gpus}
        gpus = ",".join(names.get(uuid, uuid) for uuid in lease.uuids)
        one = len(left) == 1
        self.table.warn(
            f"the job has ended, but {_named(left)} {'goes' if one else 'go'} on and "
            f"{'keeps' if one else 'keep'} GPU{'s' if len(lease.uuids) > 1 else ''} {gpus}: "
            f"'gpulaunch free {lease.id}' ends {'it' if one else 'them'}"
        )

    def _left_overs(self) -> set[int]:
        """Return the processes that the job left.

        Nested launches have leases of their own, which outlive this one: they are spared.
        """
        earlier = self._earlier_pids()
        if not descendants(earlier):
            return set()
        found = descendants(nested_processes(self.table, self.lease.id) | earlier)
        return without_mps({pid for pid in found if not is_companion(pid)})

    def _end_left_overs(self) -> set[int]:
        """End what the job left, or what of it uses its GPUs; return what cannot be ended.

        What --leftovers end means is all of it, and what a signal or a time limit means is what is
        at work: an ssh-agent or a tmux server goes on. On a described machine, where nothing tells
        what uses a GPU, it is all.
        """

        def find() -> set[int]:
            found = self._left_overs()
            if self._ends:
                return found
            return find_at_work(self.launch.machine, self.lease.uuids, found)

        return end_all(find, self.launch.grace_s, self._job.ignored, self._before_signal)

    # ------------------------------------------------------------------ in the companion's process

    def _act(self, word: bytes) -> None:
        """Keep the lease for the processes in the word; without one the launcher was killed."""
        if word == DISMISSED:
            return
        known = [Process(*one) for one in json.loads(word)] if word else [self.lease.job]
        if not word and not self._guards:
            self._outlive_job(known)
        with suppress(OSError):  # since when it is kept, for `status`; nothing depends on it
            os.utime(self.record.fd)
        if not word and self._ends:
            with suppress(*_NO_REASON_TO_GO):
                if not self._guards:
                    wait_for_all(self._find(known), SETTLE_S)
                self._end_all(known)
        while self._is_kept_by(known):
            pass
        super().release()

    def _outlive_job(self, known: list[Process]) -> None:
        """Wait for the end of a job whose launcher was killed."""
        while state_of(self.lease.job):
            try:
                self._look(known)
                self._end_if_overdue(known)
                wait_for_one([self.lease.job.pid], self._pause_s())
            except _NO_REASON_TO_GO:
                time.sleep(1.0)

    def _is_kept_by(self, known: list[Process]) -> bool:
        """Wait for a change of what keeps the lease, a while at most; return whether anything does.

        Args:
            known: processes that belong to the lease; those that they have started are added.
        """
        try:
            self._end_if_overdue(known)
            found = self._look(known)
            pause_s = self._pause_s()
            if self._idle_s is not None and found:
                pause_s = min(pause_s, max(1.0, self._idle_s))
                if self._are_idle(found, self._idle_s):
                    return False
            wait_for_all(found, pause_s)
        except _NO_REASON_TO_GO:
            time.sleep(1.0)
            # Without its record, as if the whole directory was removed, there is nothing to keep.
            return not self.record.is_removed
        return bool(found)

    def _left_s(self) -> float:
        """Return the seconds left until the lease's time limit; infinity without one."""
        limit_s = self.lease.time_limit_s
        if limit_s is None:
            return float("inf")
        return self.lease.clock_s + limit_s - seconds_since_boot()

    def _pause_s(self) -> float:
        left_s = self._left_s()
        return min(left_s, _LOOK_EVERY_S) if left_s > 0 else _LOOK_EVERY_S

    def _end_if_overdue(self, known: Collection[Process]) -> None:
        if self._left_s() <= 0:
            self._end_all(known)

    def _end_all(self, known: Collection[Process]) -> None:
        end_all(lambda: self._find(known), self.launch.grace_s, before_signal=self._before_signal)

    def _are_idle(self, found: set[int], idle_s: float) -> bool:
        """Return whether none of the processes keeps the lease any more; they go on unharmed.

        It is one for all: where a process works whose pid is not visible here, as in a container,
        nobody can tell which one.
        """
        session = [str(self._session)]
        in_session = any(stat_fields(pid)[3:4] == session for pid in found)
        if in_session or self._gpus_are_in_use():
            self._idle_since_s = None
            return False
        if self._idle_since_s is None:
            self._idle_since_s = time.monotonic()
        return time.monotonic() - self._idle_since_s >= idle_s

    def _gpus_are_in_use(self) -> bool:
        """Return whether anything uses one of the lease's GPUs, or that cannot be told.

        Another program asks: the driver's library is open in the launcher, from which this process
        was forked, and it must not be used in both.
        """
        import subprocess  # late: few jobs leave anything

        asking = [sys.executable, "-c", _ASK, _PACKAGE, *self.lease.uuids]
        try:
            done = subprocess.run(asking, capture_output=True, check=True, timeout=_ASK_S)  # noqa: S603
            return done.stdout.strip() != b"False"
        except (OSError, subprocess.SubprocessError):
            return True

    def _look(self, known: list[Process]) -> set[int]:
        """Return the lease's processes, and add them to the known ones."""
        found = self._find(known)
        known += [identify(pid) for pid in found.difference(one.pid for one in known)]
        return found

    def _find(self, known: Collection[Process]) -> set[int]:
        alive = {process.pid for process in known if state_of(process)}
        found = members(self.record.fd, self.lease.id, alive)
        return without_mps(found - nested_processes(self.table, self.lease.id))


def _named(pids: set[int]) -> str:
    """Return processes as text for a message: how many, and the first with its command."""
    first = min(pids)
    command = command_text(first)
    if len(pids) == 1:
        return f"pid {first} ({command})"
    return f"{len(pids)} of its processes, the first of them pid {first} ({command}),"


def without_mps(pids: set[int]) -> set[int]:
    """Leave out MPS daemons and servers: they belong to all jobs of their share group."""
    if not pids:
        return pids
    from gpulaunch.sharing.mps_daemon import serves_a_group  # late: few jobs leave anything

    return {pid for pid in pids if not serves_a_group(pid)}
