"""The run of a launch: request -> decision -> lease -> job -> release."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.errors import TimedOutError
from gpulaunch.files.duration import format_duration
from gpulaunch.launch.acquire import Acquired, acquire
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.launch import Callbacks, Launch
from gpulaunch.launch.open_table import open_table_of
from gpulaunch.leases.record_file import Draft
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import watch_faults

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.launch.idle_watch import IdleWatch
    from gpulaunch.launch.process_keeper import ProcessKeeper
    from gpulaunch.leases.share import Share


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
    keeper = acquired.holder
    try:
        granted(acquired)
        if acquired.grant.exclusive_reason:
            callbacks.warn(f"not shared: {acquired.grant.exclusive_reason}")
        keeper.start(acquired.lease, acquired.grant)
        watch = watch_faults(launch.machine, granted_gpus(launch, acquired.grant))
        idle_watch = _watch_idleness(launch, table, acquired, callbacks)
        status = keeper.wait(launch.time_limit_s)
        in_time = status is not None
        if status is None:
            status = keeper.end()
        ended(status)
        for line in watch.told(failed=status != 0) if watch else ():
            table.warn(line)
        if idle_watch and idle_watch.strayed:
            table.warn(f"the job computed {idle_watch.strayed}")
    finally:  # also if a callback or the job's start fails
        keeper.release(acquired.lease)
    if idle_watch and idle_watch.limit_is_over:
        raise TimedOutError("the job was ended, as the setting idle_limit asks: its GPUs were idle")
    if not in_time:
        limit = format_duration(launch.time_limit_s or 0)
        raise TimedOutError(f"the job ran longer than its limit of {limit}")
    return status


def _watch_idleness(
    launch: Launch, table: Table, acquired: "Acquired[ProcessKeeper]", callbacks: Callbacks
) -> "IdleWatch | None":
    """Watch the use of the GPUs if they are this machine's own."""
    if launch.machine.key or launch.idle_after_s is None:
        return None
    from gpulaunch.launch.idle_watch import IdleWatch  # late: nothing to watch on described ones

    limits, lease = (launch.idle_after_s, launch.idle_limit_s), acquired.lease
    return IdleWatch(launch.machine, table, lease, acquired.record, limits, callbacks.idle)
