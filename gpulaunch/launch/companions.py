"""The companions of leases: for what a job left running, and for a program in a share group."""

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from io import FileIO

from gpulaunch.errors import FailedError
from gpulaunch.launch.launch import Keeper
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.holders import members, nested_processes
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import wait_until_unlocked
from gpulaunch.leases.table import release
from gpulaunch.process.companion import DISMISSED, Companion, forget_environment
from gpulaunch.process.ending import SETTLE_S, end_all, wait_for_all, wait_for_one
from gpulaunch.process.identity import Process
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import (
    identify,
    is_cancelled_by_kill,
    seconds_since_boot,
    stat_fields,
    state_of,
)
from gpulaunch.records import as_list

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


def without_mps(pids: set[int]) -> set[int]:
    """Leave out MPS daemons and servers: they belong to all jobs of their share group."""
    if not pids:
        return pids
    from gpulaunch.sharing.share_group import serves_a_group  # late: few jobs leave anything

    return {pid for pid in pids if not serves_a_group(pid)}


class LeaseCompanion:
    """A process that keeps a lease for what its job left running.

    It has a session of its own and sleeps while the launcher lives. If the launcher is killed it
    takes over by itself: what the job has started may have closed the record, as Python's
    subprocess does, and would lose its GPUs with the job's main process. It ends what is there at
    the lease's time limit.

    Args:
        keeper: who keeps the lease; its launch says what becomes of what the job leaves.
        before_signal: called with processes before they get TERM or KILL.
    """

    def __init__(
        self,
        keeper: Keeper,
        before_signal: Callable[[set[int], int], object] | None = None,
    ) -> None:
        launch = keeper.launch
        # Outside this session, such as an empty tmux, what does not use the GPUs keeps no lease,
        # where that can be told.
        self._idle_s = None if launch.machine.key else launch.leftover_timeout_s
        self._session = os.getsid(0)
        self._idle_since_s: float | None = None
        self._table, self._record, self._lease = keeper.table, keeper.record, keeper.lease
        self._ends = launch.leftovers == "end"
        self._guards = self._ends and is_cancelled_by_kill()  # then the job ends with the launcher
        self._grace_s, self._before_signal = launch.grace_s, before_signal
        self._companion = Companion(self._act, self._record.fd)

    def dismiss(self) -> None:
        """End the process: the lease is over."""
        self._companion.tell(DISMISSED)

    def keep(self, pids: Iterable[int]) -> None:
        """Let it keep the lease until these processes, and what they start, have ended.

        If it has been killed meanwhile, another one is started for it.
        """
        word = json.dumps([as_list(identify(pid)) for pid in pids]).encode()
        if not self._companion.tell(word):
            Companion(self._act, self._record.fd).tell(word)

    def _act(self, word: bytes) -> None:
        if word == DISMISSED:
            return
        known = [Process(*one) for one in json.loads(word)] if word else [self._lease.job]
        if not word and not self._guards:
            self._outlive_job(known)
        with suppress(OSError):  # since when it is kept, for `status`; nothing depends on it
            os.utime(self._record.fd)
        if not word and self._ends:
            with suppress(*_NO_REASON_TO_GO):
                if not self._guards:
                    wait_for_all(self._find(known), SETTLE_S)
                end_all(lambda: self._find(known), self._grace_s, before_signal=self._before_signal)
        while self._is_kept_by(known):
            pass
        release(self._table, self._record, self._lease)

    def _outlive_job(self, known: list[Process]) -> None:
        """Wait for the end of a job whose launcher was killed.

        Args:
            known: as for _is_kept_by.
        """
        while state_of(self._lease.job):
            try:
                self._look(known)
                self._end_if_overdue(known)
                wait_for_one([self._lease.job.pid], self._pause_s())
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
            return not self._record.is_removed
        return bool(found)

    def _left_s(self) -> float:
        """Return the seconds left until the lease's time limit; infinity without one."""
        limit_s = self._lease.time_limit_s
        if limit_s is None:
            return float("inf")
        return self._lease.clock_s + limit_s - seconds_since_boot()

    def _pause_s(self) -> float:
        left_s = self._left_s()
        return min(left_s, _LOOK_EVERY_S) if left_s > 0 else _LOOK_EVERY_S

    def _end_if_overdue(self, known: Collection[Process]) -> None:
        if self._left_s() <= 0:
            end_all(lambda: self._find(known), self._grace_s, before_signal=self._before_signal)

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

        asking = [sys.executable, "-c", _ASK, _PACKAGE, *self._lease.uuids]
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
        found = members(self._record.fd, self._lease.id, alive)
        return without_mps(found - nested_processes(self._table, self._lease.id))


_DONE = b"."
_PROGRAM = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from gpulaunch.launch import companions; companions.leave_when_told(sys.argv[2])"
)


class GroupCompanion:
    """The companion, seen from the program; it waits for a word from it, or for its end.

    Args:
        lease: lease of this process, with a pipe directory.
        record_fd: descriptor of the lease's record.
    """

    def __init__(self, lease: Lease, record_fd: int) -> None:
        import subprocess  # late: few programs share

        share = lease.share
        assert share is not None  # noqa: S101  for the type checker
        read_end, write_end = (out_of_the_way(fd) for fd in os.pipe())
        # Closed with this object, also if the lease is thrown away without a release.
        self._word = FileIO(write_end, "w")
        # A new open file description, which does not hold the lock of the record.
        record_reader = out_of_the_way(os.open(f"/proc/self/fd/{record_fd}", os.O_RDONLY))
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [
                    *(sys.executable, "-c", _PROGRAM, _PACKAGE),
                    json.dumps([read_end, record_reader, share.group, share.pipe_directory]),
                ],
                pass_fds=(read_end, record_reader),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(read_end)
            os.close(record_reader)

    def dismiss(self) -> None:
        """End the companion; call it when the group has been left."""
        with suppress(OSError):
            self._word.write(_DONE)
        self._word.close()
        self._process.wait()


def leave_when_told(argument: str) -> None:
    """Wait, and leave the group unless the program says that it has done so.

    Args:
        argument: JSON that GroupCompanion wrote.
    """
    from gpulaunch.sharing.share_group import ShareGroup  # late: few programs share

    forget_environment()
    read_end, record_reader, uuids, directory = json.loads(argument)
    if os.read(read_end, 1) != _DONE:
        wait_until_unlocked(record_reader)
        ShareGroup(open_table(described=True, warn=lambda _: None), uuids, directory).leave()
