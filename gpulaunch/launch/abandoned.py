"""The end of containers that should have ended, but whose companion was killed before."""

import os

from gpulaunch.errors import FailedError, UsageError
from gpulaunch.files.duration import format_duration
from gpulaunch.launch.free import free
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Snapshot, Table
from gpulaunch.process.system import seconds_since_boot


def end_abandoned(table: Table, snapshot: Snapshot, grace_s: float, tried: set[str]) -> bool:
    """End this user's containers that nobody looks after, and that are over their time or CI's.

    Those of other users are left alone, also by root: a record says what its owner likes, and might
    name somebody else's container.

    Args:
        table: the allocation table.
        snapshot: leases with the ids of those that no process holds.
        grace_s: seconds between TERM and KILL.
        tried: ids of leases to leave alone; those that are tried are added.

    Returns:
        Whether any has been tried.
    """
    abandoned = [
        (lease, reason)
        for lease in snapshot.leases
        if lease.id in snapshot.unlocked - tried and lease.user_id == os.geteuid()
        if (reason := reason_to_end(lease))
    ]
    for lease, reason in abandoned:
        tried.add(lease.id)
        try:
            free(table, lease.id, grace_s)
        except UsageError:  # it has ended meanwhile
            continue
        except FailedError as problem:
            table.warn(f"{problem.message}, and {reason}")
        else:
            table.warn(f"ended lease {lease.id}: {reason}")
    return bool(abandoned)


def reason_to_end(lease: Lease) -> str:
    """Return why a lease that no process holds has to end; empty if its container may go on."""
    if lease.ends_with_launcher:
        return "its CI job is gone, and its container was left"
    limit_s = lease.time_limit_s
    if limit_s is not None and seconds_since_boot() >= lease.clock_s + limit_s:
        return f"its container outlived the time limit of {format_duration(limit_s)}"
    return ""
