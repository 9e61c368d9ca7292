"""Launches that began earlier: what became of them, their output, and waiting for their end."""

import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FailedError, UsageError, printable, quoted
from gpulaunch.history.past_launch import LEAST_CHARACTERS, PastLaunch, find_past
from gpulaunch.history.read import read_history
from gpulaunch.launch.surroundings import open_table, shown_settings
from gpulaunch.leases.directory import own_table
from gpulaunch.leases.lease import Ticket
from gpulaunch.machine.find import Machine
from gpulaunch.process.ending import wait_for_one
from gpulaunch.process.system import boot_id, iso, open_process, state_of, user_name
from gpulaunch.records import Record, replace


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
        tickets = open_table(private=True, warn=lambda _: None).peek(problems=[]).tickets
        launchers = [ticket.launcher for ticket in tickets if ticket.id.startswith(text)]
        found = [launch for launch in history if launch.launcher in launchers]
        if len(found) != 1:
            raise
        return found[0]


def is_running(launch: PastLaunch) -> bool:
    """Return whether the launcher of a launch is there, on this machine and since its boot."""
    return launch.boot_id == boot_id() and state_of(launch.launcher) != ""


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
    """Return the error that nobody knows how a launch has ended."""
    if launch.boot_id != boot_id():
        return FailedError(f"{name}: it ran before this machine was started, or on another machine")
    if is_elsewhere(launch):
        table = f"on another table, GPULAUNCH_STATE_DIR={printable(launch.table or '')}"
        return FailedError(f"{name}: its launcher was killed, and its job is {table}")
    return FailedError(f"{name}: its launcher was killed, so nobody knows how the job has ended")


def _wait_for(process: int | None) -> None:
    """Sleep until the process of a descriptor has ended, and close it."""
    if process is not None:
        _has_ended(process, None)
        os.close(process)


def open_job(launch: PastLaunch, warn: Callable[[str], None]) -> int | None:
    """Return a descriptor that polls as readable at the end of the job whose launcher was killed.

    Returns:
        The descriptor; None if nothing of the job is there any more.
    """
    if not launch.id or launch.boot_id != boot_id():
        return None
    table = open_table(private=launch.described, warn=warn)
    lease = next((one for one in table.own_leases() if one.id == launch.id), None)
    return open_process(lease.job) if lease else None


def before_queue(
    launches: Iterable[PastLaunch], tickets: Collection[Ticket], machine: Machine | None
) -> list[PastLaunch]:
    """Return the live launches among those of this user that have no place in the queue yet.

    Args:
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


_PIECE_BYTES = 1 << 16
_INTERVAL_S = 0.2  # between two looks at the file
_LONGEST_S = 5.0


def begin_of_last(fd: int, lines: int) -> int:
    """Return where the last lines of a file begin, in bytes.

    Args:
        lines: how many; an unfinished one at the end counts.
    """
    with open(fd, "rb", closefd=False) as file:
        last = deque(file, maxlen=lines)
        return file.tell() - sum(map(len, last))


def follow(
    launch: PastLaunch, fd: int, at: int, warn: Callable[[str], None]
) -> Iterator[bytes | PastLaunch]:
    """Yield the output of a launch as it comes, and at last the launch as it has ended.

    Args:
        at: where to begin, in bytes.
    """
    ended = launch.exit_status is not None
    process = None if ended else open_launcher(launch)
    wait_s = 0.0
    while True:
        if process is not None and _has_ended(process, wait_s):
            os.close(process)
            process = None
        wait_s = _INTERVAL_S
        if process is None and not ended:
            launch, ended = read_again(launch), True
            if launch.exit_status is None:  # its launcher was killed, but its job may go on
                process = open_job(launch, warn)
        if process is None and launch.terminal:  # what stands before the log may be behind
            wait_until_closed(launch.terminal)
        if os.fstat(fd).st_size < at:  # somebody has emptied it
            at = 0
        while piece := os.pread(fd, _PIECE_BYTES, at):
            at += len(piece)
            yield piece
        if process is None:
            yield launch
            return


def _has_ended(process: int, within_s: float | None) -> bool:
    """Sleep until a process has ended, or the time, if any, is over; return whether it has."""
    poll = select.poll()  # select takes no descriptor from 1024 on
    poll.register(process, select.POLLIN)
    return bool(poll.poll(within_s and within_s * 1000))


def connect(path: str) -> socket.socket | None:
    """Return a connection to the socket of the dtach that holds a terminal; None if it is closed.

    A path may be longer than the kernel takes for a socket, so it is reached by its directory.
    """
    end = socket.socket(socket.AF_UNIX)
    directory = -1
    try:
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
        end.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except OSError:
        end.close()
        return None
    finally:
        if directory >= 0:
            os.close(directory)
    return end


def wait_until_closed(path: str) -> None:
    """Sleep until a terminal whose job has ended is closed, for a few seconds at most."""
    end = connect(path)
    if end is None:
        return
    with end, suppress(OSError):
        poll = select.poll()
        poll.register(end, 0)  # for the end alone
        poll.poll(_LONGEST_S * 1000)


class Predecessor(Record):
    """A launch that has to end before another one begins.

    Attributes:
        name: what the user calls it, printable.
        any_end: whether it may end as it likes; otherwise it has to end with 0.
    """

    name: str
    launch: PastLaunch
    any_end: bool

    @property
    def text(self) -> str:
        """The name, and :any if any end will do, as --after takes it."""
        return f"{self.name}:any" if self.any_end else self.name


def split_after(text: str, known: Collection[str | None]) -> list[tuple[str, bool]]:
    """Return the names in the value of an option --after, each with whether any end will do.

    Args:
        text: names with a comma between them, each with :any behind it or nothing.
        known: names that there are: one with a comma in it is one name.

    Raises:
        UsageError: a name is missing.
    """
    whole = _split_end(text)
    found = [whole] if whole[0] in known else [_split_end(word) for word in text.split(",")]
    if not all(name for name, _ in found):
        raise UsageError(f"{quoted(text)}: a name is missing")
    return found


def _split_end(word: str) -> tuple[str, bool]:
    name = word.removesuffix(":any")
    return name, name != word


def find_predecessors(texts: Sequence[str]) -> list[Predecessor]:
    """Return the launches that options --after name.

    Raises:
        UsageError: one of them does not exist.
    """
    history = read_history()
    names = {one.name for one in history}
    found = []
    for text in texts:
        try:
            for name, any_end in split_after(text, names):
                launch = find_past(name, history, is_running)
                found.append(Predecessor(printable(name), launch, any_end))
        except UsageError as problem:
            raise UsageError(f"--after: {problem.message}", problem.hint) from None
    return found


def wait_for_predecessors(
    before: Sequence[Predecessor],
    warn: Callable[[str], None],
    waiting: Callable[[str], None],
) -> None:
    """Sleep until launches have ended.

    Args:
        waiting: called with the name of each that has not ended yet.

    Raises:
        FailedError: one has not ended as it should; nothing runs after it.
    """
    for one in before:
        if one.launch.exit_status is None:
            waiting(one.name)
        ended = wait_for_end(one.launch, warn)
        may_run = ended.exit_status is None and is_elsewhere(ended)
        if ended.exit_status == 0 or (one.any_end and not may_run):
            continue
        hint = None if may_run else f"--after {one.name}:any runs a job however {one.name} ends"
        if ended.exit_status is None:
            raise FailedError(f"not run: {unknown_end(ended, one.name).message}", hint)
        raise FailedError(f"not run: {one.name} has ended with {ended.exit_status}", hint)


def launch_documents(
    launches: Sequence[PastLaunch], warn: Callable[[str], None], topology: str | None = None
) -> list[dict[str, Any]]:
    """Return what `gpulaunch history --json` says of launches on the machine of --topology."""
    states, now_s = _states_of(launches, warn, topology), time.time()
    return [_launch_document(one, states.get(one.key, "ended"), now_s) for one in launches]


def _states_of(
    launches: Sequence[PastLaunch], warn: Callable[[str], None], topology: str | None
) -> dict[str, str]:
    """Return what has become of the launches without an end, by their keys.

    What neither waits nor runs was killed, or is unknown if its lease may be in another table.
    """
    unended = [launch for launch in launches if launch.ended_s is None]
    if not unended:
        return {}
    private = unended[0].described or shown_settings(topology).table == "private"
    table = open_table(private=private, warn=warn)
    leases = {lease.id for lease in table.peek(problems=[]).leases}
    boot = boot_id()
    states = {}
    for launch in unended:
        elsewhere = is_elsewhere(launch)
        may_live = elsewhere or (launch.started_s is None and launch.boot_id == boot)
        if launch.id in leases or (may_live and state_of(launch.launcher)):
            states[launch.key] = "waiting" if launch.started_s is None else "running"
        else:
            states[launch.key] = "unknown" if elsewhere else "killed"
    return states


def _launch_document(launch: PastLaunch, state: str, now_s: float) -> dict[str, Any]:
    # Those that run are counted up to now.
    until_now = replace(launch, ended_s=now_s) if state == "running" else launch
    duration_s = until_now.duration_s
    return {
        "key": launch.key,
        "lease": launch.id or None,
        "user": user_name(launch.user_id),
        "name": launch.name,
        "command": [printable(argument) for argument in launch.command],
        "directory": launch.directory,
        "gpus": list(launch.gpus),
        "count": len(launch.gpus) or launch.count or None,
        "sm_percentage": launch.sm_percentage,
        "profile": launch.profile,
        "pattern": launch.pattern,
        "submitted_at": iso(launch.submitted_s),
        "started_at": None if launch.started_s is None else iso(launch.started_s),
        "ended_at": None if launch.ended_s is None else iso(launch.ended_s),
        "state": state,
        "exit_status": launch.exit_status,
        "duration_s": None if duration_s is None else round(duration_s, 3),
        "gpu_hours": round(until_now.gpu_hours, 6),
        "time_limit_s": launch.time_limit_s,
        "log": launch.log,
        "table": launch.table,
    }
