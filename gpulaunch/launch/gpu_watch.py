"""A watch over what GPUs do while a job runs: a thread of the job's launcher.

The GPUs of its lease may do nothing, and it may use others. When its own were last busy is in the
modification time of the lease's file; the record itself stays as it is. docs/decisions/idle.md
gives the reasons.
"""

import _thread
import os
import signal
import time
from contextlib import suppress
from operator import attrgetter

from gpulaunch.errors import FailedError, TimedOutError
from gpulaunch.files.units import format_duration
from gpulaunch.launch.launch import Events, Keeper
from gpulaunch.launch.surroundings import find_strays
from gpulaunch.leases.holders import name_job
from gpulaunch.leases.record_file import Draft
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.find import are_busy, load_driver, watch_faults
from gpulaunch.machine.gpu import gpus_named
from gpulaunch.process.libc import ALL_SIGNALS, change_mask
from gpulaunch.process.system import name_this_thread

_LOOK_EVERY_S = 20.0
_LOOKS = 4
"""The least number of looks in the time after which a lease counts as idle."""


class GpuWatch:
    """A watch over the GPUs of a lease from the start of its job on: faults, idleness, strays.

    It ends with this process.
    """

    def __init__(self, keeper: Keeper, events: Events) -> None:
        launch, self._lease, self._table = keeper.launch, keeper.lease, keeper.table
        self._machine, self._idle = launch.machine, events.idle
        self._gpus = sorted(keeper.grant.gpus, key=attrgetter("index"))
        self._strayed_to: set[str] = set()
        self._strayed = ""  # where the job was seen outside its lease
        self._limit_is_over = False
        if keeper.grant.exclusive_reason:
            events.warn(f"not shared: {keeper.grant.exclusive_reason}")
        self._faults = watch_faults(self._machine, keeper.grant.gpus)
        if self._machine.key is None and launch.idle_after_s is not None:
            self._watch_idleness(keeper.record, launch.idle_after_s, launch.idle_limit_s)

    def tell(self, status: int) -> None:
        """Warn of what was seen, now that the job has ended with a wait status."""
        for line in self._faults.told(failed=status != 0) if self._faults else ():
            self._table.warn(line)
        if self._strayed:
            self._table.warn(f"the job computed {self._strayed}")

    def raise_if_idle(self) -> None:
        """Raise the error of a job that was ended because its GPUs were idle.

        Raises:
            TimedOutError: it was.
        """
        if self._limit_is_over:
            raise TimedOutError(
                "the job was ended, as the setting idle_limit asks: its GPUs were idle"
            )

    def _watch_idleness(self, record: Draft, after_s: float, limit_s: float | None) -> None:
        """Watch in two threads whether the GPUs are at work, and what the job does on others."""
        # Not the record's own descriptor: it may be closed, and its number another file's by then.
        self._fd = os.open(f"/proc/self/fd/{record.fd}", os.O_WRONLY | os.O_CLOEXEC)
        self._after_s = after_s
        self._limit_s = float("inf") if limit_s is None else limit_s
        self._every_s = min(_LOOK_EVERY_S, after_s / _LOOKS, self._limit_s / _LOOKS)
        mask = change_mask(signal.SIG_BLOCK, ALL_SIGNALS)  # each still interrupts the main thread
        try:
            _thread.start_new_thread(self._look_again_and_again, ())
            # Another one, so that a GPU of others that hangs in the driver delays no idle limit.
            _thread.start_new_thread(self._look_for_strays_again_and_again, ())
        finally:
            change_mask(signal.SIG_SETMASK, mask)

    def _look_again_and_again(self) -> None:
        name_this_thread("idle watch")
        told = False
        busy_s = time.monotonic()
        while True:
            time.sleep(self._every_s)
            try:
                is_busy = are_busy(self._machine, self._gpus)
            except FailedError:  # what is unknown is no idleness
                is_busy = True
            if is_busy:
                busy_s, told = time.monotonic(), False
                # This sets the file's modification time. Setting it by utime() would be an event of
                # IN_ATTRIB, which wakes those who wait for the end of the lease.
                with suppress(OSError):
                    os.pwrite(self._fd, b"{", 0)
                continue
            idle_s = time.monotonic() - busy_s
            if idle_s >= self._after_s and not told:
                told = True
                self._idle(idle_s)
            if idle_s >= self._limit_s:
                self._limit_is_over = True
                os.kill(os.getpid(), signal.SIGTERM)  # it passes that on to the job
                return

    def _look_for_strays_again_and_again(self) -> None:
        name_this_thread("stray watch")
        while True:
            time.sleep(self._every_s)
            self._look_for_strays()

    def _look_for_strays(self) -> None:
        """Look for processes of the job on other GPUs, and say so of the first."""
        topology = self._machine.topology
        others = [gpu.uuid for gpu in topology.gpus if gpu not in self._gpus]
        try:
            at_work = load_driver(topology.driver).pids_at_work
            uses = [OutsideUse(uuid, "", tuple(at_work([uuid]))) for uuid in others]
            found = find_strays(topology, uses, [self._lease])
            if found:  # they may be of a lease that was taken inside the job
                found = find_strays(topology, uses, self._table.peek().of(self._machine).leases)
        except FailedError:  # the job runs, and the next look may tell
            return
        self._strayed_to |= {use.uuid for use in found if use.stray == self._lease.id}
        if self._strayed_to:
            gpus = gpus_named(gpu for gpu in topology.gpus if gpu.uuid in self._strayed_to)
            where = f"on {gpus}, outside its lease ({gpus_named(self._gpus)})"
            # The job may end as soon as this is said, and what is said at its end has to be known.
            is_first, self._strayed = not self._strayed, where
            if is_first:
                text = f"job {name_job(self._lease)} computes {where}"
                self._table.warn(f"{text}: it has to keep the CUDA_VISIBLE_DEVICES that it got")


def over_limit(limit_s: float) -> TimedOutError:
    """Return the error of a job that has run into its limit, in seconds."""
    return TimedOutError(f"the job ran longer than its limit of {format_duration(limit_s)}")
