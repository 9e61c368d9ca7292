"""A user's detached launches that have no place in the queue yet, as those after others."""

import os
import signal
from collections.abc import Collection, Iterable
from contextlib import suppress

from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.launch.past_end import is_elsewhere, is_running, open_launcher
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.find import Machine
from gpulaunch.process.ending import wait_for_one


def before_queue(
    launches: Iterable[PastLaunch], tickets: Collection[Ticket], machine: Machine | None
) -> list[PastLaunch]:
    """Return the live launches among those of this user that have no place in the queue yet.

    Args:
        launches: launches of this user.
        tickets: live tickets: what has one is in the queue.
        machine: the machine of the launches; None for any.
    """
    queued = {ticket.launcher for ticket in tickets}
    wanted = (machine.topology.name, machine.key is not None) if machine else None
    return [
        one
        for one in launches
        if not one.id
        and one.exit_status is None
        and one.launcher not in queued
        and wanted in (None, (one.topology, one.described))
        and not is_elsewhere(one)
        and is_running(one)
    ]


def end_before_queue(launch: PastLaunch, grace_s: float) -> None:
    """End a launch, and wait for that.

    Args:
        launch: a launch that has no place in the queue.
        grace_s: seconds to wait at most.
    """
    fd = open_launcher(launch)
    if fd is None:
        return
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        signal.pidfd_send_signal(fd, signal.SIGCONT)  # a stopped one would not receive TERM
    os.close(fd)
    wait_for_one([launch.launcher.pid], grace_s)
