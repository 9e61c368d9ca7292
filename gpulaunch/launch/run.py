"""The run of a launch: request -> decision -> lease -> job -> release."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.errors import TimedOutError
from gpulaunch.files.units import format_duration
from gpulaunch.launch.acquire import Acquired, acquire
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.launch import Callbacks, Launch
from gpulaunch.launch.open_table import open_table_of
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import watch_faults

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.launch.process_keeper import ProcessKeeper
    from gpulaunch.leases.lease import Share


def run(
    launch: Launch,
    callbacks: Callbacks,
    granted: Callable[["Acquired[ProcessKeeper]"], None],
    ended: Callable[[int], None],
) -> int | Wait | Refuse:
    """Run the command on GPUs of its own until it ends.

    Args:
        launch: the launch to run.
        callbacks: functions to call while the launch waits for its GPUs.
        granted: called with the lease before the job starts; must not raise.
        ended: called with the job's wait status as soon as it has ended; must not raise.

    Returns:
        The job's wait status; its GPUs are free again, unless left-overs keep its lease. Or the
        decision if that was no Grant.

    Raises:
        FailedError: the table cannot be used; nothing is held and nothing has run.
        TimedOutError: the wait timeout or the job's time limit is over; nothing is held any more.
    """
    from gpulaunch.launch.process_keeper import ProcessKeeper  # late: containers do without

    table = open_table_of(launch, callbacks.warn)

    def prepare(record: Draft, share: "Share | None") -> ProcessKeeper:
        if share is not None and share.pipe_directory is None:  # on a described machine: no MPS
            share = None
        return ProcessKeeper(launch, table, record, share)

    acquired = acquire(launch, table, callbacks, prepare)
    if not isinstance(acquired, Acquired):
        return acquired
    keeper, watch = acquired.holder, None
    try:
        granted(acquired)
        keeper.start(acquired.lease, acquired.grant)
        watch = GpuWatch(launch, table, acquired, callbacks)
        status = keeper.wait(launch.time_limit_s)
        in_time = status is not None
        if status is None:
            status = keeper.end()
        ended(status)
        watch.tell(status)
    finally:  # also if a callback or the job's start fails
        keeper.release(acquired.lease)
    watch.raise_if_idle()
    if not in_time:
        raise over_limit(launch.time_limit_s or 0)
    return status


def over_limit(limit_s: float) -> TimedOutError:
    """Return the error of a job that has run into its limit, in seconds."""
    return TimedOutError(f"the job ran longer than its limit of {format_duration(limit_s)}")


class GpuWatch:
    """A watch over the GPUs of a lease from the start of its job on: faults, idleness, strays.

    Args:
        launch: the launch.
        table: the allocation table.
        acquired: its lease.
        callbacks: functions to call.
    """

    def __init__(
        self, launch: Launch, table: Table, acquired: Acquired[Any], callbacks: Callbacks
    ) -> None:
        self._warn, self._idle = table.warn, None
        if acquired.grant.exclusive_reason:
            callbacks.warn(f"not shared: {acquired.grant.exclusive_reason}")
        self._faults = watch_faults(launch.machine, granted_gpus(launch, acquired.grant))
        if launch.machine.key is None and launch.idle_after_s is not None:
            from gpulaunch.launch.idle_watch import IdleWatch  # late: not on described machines

            limits, lease = (launch.idle_after_s, launch.idle_limit_s), acquired.lease
            self._idle = IdleWatch(
                launch.machine, table, lease, acquired.record, limits, callbacks.idle
            )

    def tell(self, status: int) -> None:
        """Warn of what was seen, now that the job has ended with a wait status."""
        for line in self._faults.told(failed=status != 0) if self._faults else ():
            self._warn(line)
        if self._idle and self._idle.strayed:
            self._warn(f"the job computed {self._idle.strayed}")

    def raise_if_idle(self) -> None:
        """Raise the error of a job that was ended because its GPUs were idle.

        Raises:
            TimedOutError: it was.
        """
        if self._idle and self._idle.limit_is_over:
            raise TimedOutError(
                "the job was ended, as the setting idle_limit asks: its GPUs were idle"
            )
