"""The run of a launch: request -> decision -> lease -> job -> release."""

from gpulaunch.launch.acquire import acquire
from gpulaunch.launch.launch import Events, GpuWatch, Launch, over_limit
from gpulaunch.launch.process_keeper import ProcessKeeper
from gpulaunch.launch.surroundings import open_table


def run(launch: Launch, events: Events) -> int:
    """Run a command on GPUs of its own until it ends, and return its wait status.

    Its GPUs are free again then, unless left-overs keep its lease.

    Raises:
        GpulaunchError: it does not get its GPUs: see acquire. Nothing has run.
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    table = open_table(private=launch.private, warn=events.warn)
    keeper = acquire(launch, table, events, ProcessKeeper)
    try:
        events.granted(keeper)
        keeper.start()
        watch = GpuWatch(keeper, events)
        status = keeper.wait(launch.time_limit_s)
        in_time = status is not None
        if status is None:
            status = keeper.end(launch.grace_s)
        events.over(status)
        watch.tell(status)
    finally:  # also if a listener or the job's start fails
        keeper.release()
    watch.raise_if_idle()
    if not in_time:
        raise over_limit(launch.time_limit_s or 0)
    return status
