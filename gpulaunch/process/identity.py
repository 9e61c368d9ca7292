"""Processes that cannot be mistaken for later ones with the same number: pid and start time."""

import os
from typing import NamedTuple


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same number.

    Attributes:
        pid: as seen where the record was written.
        start_time: in clock ticks since boot; 0 if unknown.
    """

    pid: int
    start_time: int


def this_process() -> Process:
    """The process that runs this."""
    return identify(os.getpid())


def identify(pid: int) -> Process:
    """A process with its start time, from /proc/PID/stat."""
    fields = stat_fields(pid)
    return Process(pid, int(fields[19]) if len(fields) > 19 else 0)


def state_of(process: Process) -> str:
    """The process's state as /proc/PID/stat has it (R, S, D, T ...); empty if it is gone, or not visible here."""
    fields = stat_fields(process.pid)
    same = len(fields) > 19 and int(fields[19]) == process.start_time
    return fields[0] if same and fields[0] not in "ZX" else ""


def is_stopped(process: Process) -> bool:
    """Whether the process was stopped, as Ctrl-Z does; not by a debugger, which does so for moments."""
    return state_of(process) == "T"


def is_same(pid: int, process: Process) -> bool:
    """Whether a process here is the one that a launcher in another pid namespace recorded."""
    fields = stat_fields(pid)
    if len(fields) <= 19 or int(fields[19]) != process.start_time:
        return False
    try:
        with open(f"/proc/{pid}/status") as file:
            pids = next((line.split() for line in file if line.startswith("NSpid:")), [])
    except OSError:
        return False
    return pids[-1:] == [str(process.pid)]


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []
