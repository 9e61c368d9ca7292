"""This user's launches that other processes run: found, awaited, and ended before they queue."""

import os
import select
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.history.past_launch import LEAST_CHARACTERS, PastLaunch, find_past
from gpulaunch.history.read import read_history
from gpulaunch.launch.open_table import open_table
from gpulaunch.leases.directory import own_table
from gpulaunch.leases.lease import Ticket
from gpulaunch.machine.find import Machine
from gpulaunch.process.ending import wait_for_one
from gpulaunch.process.system import boot_id, open_process


def find_launch(text: str) -> PastLaunch:
    """Return the launch of this user that a text means, by its name or an id.

    Args:
        text: what find_past accepts; or the id of its place in the queue, or the beginning of that.

    Raises:
        UsageError: there is none, or the beginning of an id fits several.
    """
    history = read_history()
    try:
        return find_past(text, history, is_running)
    except UsageError:
        if len(text) < LEAST_CHARACTERS:
            raise
        # The history of one that waits knows no id yet, but which process it is.
        tickets = open_table(described=True, warn=lambda _: None).peek(problems=[]).tickets
        launchers = [ticket.launcher for ticket in tickets if ticket.id.startswith(text)]
        found = [launch for launch in history if launch.launcher in launchers]
        if len(found) != 1:
            raise
        return found[0]


def is_running(launch: PastLaunch) -> bool:
    """Return whether the launcher of a launch is there, on this machine and since its boot."""
    fd = open_launcher(launch)
    if fd is None:
        return False
    ended = select.select([fd], [], [], 0)[0]  # a zombie has ended, if its parent never asks
    os.close(fd)
    return not ended


def open_launcher(launch: PastLaunch) -> int | None:
    """Return a descriptor that polls as readable at the launcher's end; None if it has ended.

    Raises:
        OSError: no descriptors are left.
    """
    if launch.boot_id != boot_id():
        return None
    return open_process(launch.launcher)


def wait_for_end(launch: PastLaunch, warn: Callable[[str], None]) -> PastLaunch:
    """Sleep until a launch has ended; return it as the history has it then.

    If the launcher was killed, its job may go on: then until that has ended.

    Args:
        launch: the launch.
        warn: called with each warning.
    """
    if launch.exit_status is None:
        _wait_for(open_launcher(launch))
        launch = read_again(launch)
        if launch.exit_status is None:
            _wait_for(open_job(launch, warn))
    return launch


def read_again(launch: PastLaunch) -> PastLaunch:
    """Return what the history has of a launch now."""
    found = (one for one in read_history() if one.key == launch.key)
    return next(found, launch)


def is_elsewhere(launch: PastLaunch) -> bool:
    """Return whether a launch of this boot is on another table than that of this process."""
    return launch.boot_id == boot_id() and launch.table not in (None, own_table())


def unknown_end(launch: PastLaunch, name: str) -> FailedError:
    """Return the error that nobody knows how a launch has ended.

    Args:
        launch: the launch, whose launcher is gone.
        name: what the user calls it.
    """
    if launch.boot_id != boot_id():
        return FailedError(f"{name}: it ran before this machine was started, or on another machine")
    if is_elsewhere(launch):
        table = f"on another table, GPULAUNCH_STATE_DIR={printable(launch.table or '')}"
        return FailedError(f"{name}: its launcher was killed, and its job is {table}")
    return FailedError(f"{name}: its launcher was killed, so nobody knows how the job has ended")


def _wait_for(process: int | None) -> None:
    """Sleep until the process of a descriptor has ended, and close it."""
    if process is not None:
        poll = select.poll()  # select takes no descriptor from 1024 on
        poll.register(process, select.POLLIN)
        poll.poll()
        os.close(process)


def open_job(launch: PastLaunch, warn: Callable[[str], None]) -> int | None:
    """Return a descriptor that polls as readable at the end of the job whose launcher was killed.

    Args:
        launch: the launch.
        warn: called with each warning.

    Returns:
        The descriptor; None if nothing of the job is there any more.
    """
    if not launch.id or launch.boot_id != boot_id():
        return None
    table = open_table(described=launch.described, warn=warn)
    lease = next((one for one in table.own_leases() if one.id == launch.id), None)
    return open_process(lease.job) if lease else None


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
