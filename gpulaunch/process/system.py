"""Facts of the host: its users, its processes, its boot, its clocks.

And turning a process into another program, as if gpulaunch had never been.
"""

import errno
import os
import pwd
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Literal, NoReturn

from gpulaunch.errors import CANNOT_EXECUTE, NOT_FOUND, printable
from gpulaunch.process import Process

if TYPE_CHECKING:
    from datetime import datetime

_LONGEST_COMMAND = 50
"""Characters of a command in a message."""

_ENDING_NOBODY = frozenset(
    getattr(signal, f"SIG{name}")
    for name in ("CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH")
)


@cache
def user_name(user_id: int) -> str:
    """Login name of a user, or "uid N" if it has none here."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"uid {user_id}"


def who_may(user_id: int) -> str:
    """Return who may do something to what a user owns, such as "alice or root"."""
    return f"{user_name(user_id)} or root" if user_id else "root"


def group_id(user_id: int) -> int:
    """Id of a user's own group; that of the user where there is no entry."""
    try:
        return pwd.getpwuid(user_id).pw_gid
    except KeyError:
        return user_id


def owner_of(pid: int) -> str | None:
    """Login name of a process's user; None if the process is not visible here."""
    user_id = user_of(pid)
    return None if user_id is None else user_name(user_id)


def user_of(pid: int) -> int | None:
    """User id of a process; None if the process is not visible here."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def program_of(pid: int) -> str:
    """Name of a process's program; empty if the process is not visible here."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = os.fsdecode(file.read().rstrip(b"\n"))
        if len(name) < 15:  # the kernel keeps no more
            return name
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            full = os.path.basename(os.fsdecode(file.read().partition(b"\0")[0]))
    except OSError:
        return ""
    return full if full.startswith(name) else name


def variable_of(pid: int, name: str) -> str | None:
    """Return a variable that a process was started with; None if that cannot be read here."""
    begin = os.fsencode(f"{name}=")
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for variable in file.read().split(b"\0"):
            if variable.startswith(begin):
                return os.fsdecode(variable.removeprefix(begin))
    return None


def pids_of_program(name: str) -> list[int]:
    """Return the processes that run a program of this name, as far as they are visible here."""
    return [
        int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and program_of(int(pid)) == name
    ]


def arguments_of(pid: int) -> list[str]:
    """Command line of a process; empty if it has ended or is not visible here."""
    import psutil  # late: few launches describe the processes of others

    with suppress(psutil.Error):
        return list(psutil.Process(pid).cmdline())
    return []


def command_text(pid: int) -> str:
    """Return a process's command as text for a message, on one line and not too long."""
    import shlex  # late: few messages name a process

    command = shlex.join(arguments_of(pid)) or program_of(pid)
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[: _LONGEST_COMMAND - 1]}…"
    return printable(command)


def is_cancelled_by_kill() -> bool:
    """Return whether this is a CI job, whose runner cancels with SIGKILL."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def boot_id() -> str:
    """Return the id of this boot of the kernel; empty if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.readline().strip()
    except OSError:
        return ""


def now() -> str:
    """Return the time as records and documents have it: ISO 8601, UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def parse_time(text: str) -> "datetime":
    """Parse a time in ISO 8601, whose fraction of a second may have any number of digits.

    Python 3.10 by itself reads neither Z nor fractions of other than 3 or 6 digits.

    Raises:
        ValueError: the text is no time.
    """
    from datetime import datetime  # late: many launches read no time

    text = re.sub(r"(\.\d{1,6})\d*", lambda found: f"{found[1]:0<7}", text)
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def iso(seconds: float) -> str:
    """Return a time as ISO 8601, UTC, with milliseconds.

    Args:
        seconds: since 1970.
    """
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{thousandths:03}Z"


def name_this_thread(name: str) -> None:
    """Give this thread a name, as `top -H` shows it.

    Args:
        name: at most 15 characters.
    """
    with suppress(OSError), open("/proc/thread-self/comm", "w") as file:
        file.write(name)


def seconds_since_boot() -> float:
    """Return seconds since boot by a clock that is never set and that goes on in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def this_process() -> Process:
    """Return the identity of this process."""
    return identify(os.getpid())


def identify(pid: int) -> Process:
    """Return the identity of a process by /proc/PID/stat."""
    fields = stat_fields(pid)
    return Process(pid, int(fields[19]) if len(fields) > 19 else 0)


def state_of(process: Process) -> str:
    """Return the process's state of /proc/PID/stat (R, S, D, T ...); empty if it is gone."""
    fields = stat_fields(process.pid)
    same = len(fields) > 19 and int(fields[19]) == process.start_time
    return fields[0] if same and fields[0] not in "ZX" else ""


def runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return stat_fields(pid)[:1] not in ([], ["Z"], ["X"])


def open_process(process: Process) -> int | None:
    """Return a descriptor that polls as readable once a process has ended; None if it has ended.

    Raises:
        OSError: no descriptors are left.
    """
    fd = open_pid(process.pid)
    if fd is None:
        return None
    # The number may belong to another process by now; from here on it cannot change.
    if identify(process.pid) == process and process.start_time:
        return fd
    os.close(fd)
    return None


def open_pid(pid: int) -> int | None:
    """Return a descriptor that polls as readable once the process with a pid has ended.

    None if there is none. The number of a process that has ended may be that of a thread by now:
    then the kernel says ENOENT or, before Linux 6.9, EINVAL.

    Raises:
        OSError: no descriptors are left.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as problem:
        if problem.errno in (errno.EMFILE, errno.ENFILE):
            raise
    except (ValueError, OverflowError):  # no pid at all, as a damaged file may have it
        pass
    return None


def is_stopped(process: Process) -> bool:
    """Return whether the process was stopped, as by Ctrl-Z, and not by a debugger."""
    return state_of(process) == "T"


def is_same(pid: int, process: Process) -> bool:
    """Return whether a process here is one that was recorded in another pid namespace."""
    fields = stat_fields(pid)
    if len(fields) <= 19 or int(fields[19]) != process.start_time:
        return False
    return _status_of(f"/proc/{pid}/status").get("NSpid", "").split()[-1:] == [str(process.pid)]


def reaction(pid: int, number: int) -> Literal["ends", "catches", "ignores"]:
    """Return what a process does with a signal; it catches one, too, that it blocks, to read it.

    Args:
        pid: a process; it "ignores" all if it is not visible here.

    Source: signal(7), default actions; proc(5), /proc/PID/status. Threads have one disposition, and
        each its own mask: the kernel takes one that does not block the signal. pid_namespaces(7):
        the first process of a namespace gets what it catches or blocks, and KILL.
    """
    status = _status_of(f"/proc/{pid}/status")
    if not status or number in _ENDING_NOBODY:
        return "ignores"
    if number == signal.SIGKILL:
        return "ends"
    if _has(status, "SigIgn", number) or _has(status, "SigCgt", number):
        return "ignores" if _has(status, "SigIgn", number) else "catches"
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            own = _status_of(f"/proc/{pid}/task/{thread}/status")
            if own and not _has(own, "SigBlk", number):
                return "ignores" if leads_namespace(pid) else "ends"
    return "catches"


def pending_signals(pid: int) -> set[int]:
    """Return the signals that wait for a process as a whole; none if it is not visible here."""
    mask = int(_status_of(f"/proc/{pid}/status").get("ShdPnd", "0"), 16)
    return {number for number in range(1, mask.bit_length() + 1) if mask >> number - 1 & 1}


def leads_namespace(pid: int) -> bool:
    """Return whether a process is the first of a pid namespace inside this one, as containers'."""
    pids = _status_of(f"/proc/{pid}/status").get("NSpid", "").split()
    return len(pids) > 1 and pids[-1] == "1"


def _has(status: Mapping[str, str], name: str, number: int) -> bool:
    """Return whether a mask of signals in a status file contains a signal."""
    return bool(int(status[name], 16) >> number - 1 & 1)


def _status_of(path: str) -> dict[str, str]:
    """Return the fields of a status file in /proc; none if the process or thread has ended."""
    try:
        with open(path, errors="replace") as file:
            return {name: value.strip() for name, _, value in (row.partition(":") for row in file)}
    except OSError:
        return {}


def system_memory() -> tuple[int, int]:
    """Return the bytes of memory that the system has, and how many are available."""
    import psutil  # late, likewise

    memory = psutil.virtual_memory()
    return memory.total, memory.available


def parents() -> dict[int, int]:
    """Return the parent of each process that is visible here, also of zombies.

    The first thread of a program may have ended, and others of it start processes still.
    """
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and len(fields := stat_fields(int(name))) > 1:
            found[int(name)] = int(fields[1])
    return found


def with_descendants(pids: Iterable[int], parent_of: Mapping[int, int]) -> set[int]:
    """Return processes and all that descend from them."""
    found: set[int] = set()
    new = set(pids)
    while new:
        found |= new
        new = {pid for pid, parent in parent_of.items() if parent in new} - found
    return found


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores from its start on; the job finds them at their default."""


def clean_environment() -> dict[bytes, bytes]:
    """Return the environment of gpulaunch's start, without what Python added (PEP 538)."""
    environment = dict(os.environb)
    if environment.get(b"LC_CTYPE") in (b"C.UTF-8", b"C.utf8", b"UTF-8"):
        given = variable_of(os.getpid(), "LC_CTYPE")
        if given is None:
            del environment[b"LC_CTYPE"]
        else:
            environment[b"LC_CTYPE"] = os.fsencode(given)
    return environment


def own_command() -> list[str]:
    """Return the command that started this gpulaunch, without arguments, to start it again."""
    return [
        sys.executable or sys.orig_argv[0],
        *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1],
    ]


def become(command: Sequence[str], without: Sequence[str] = ()) -> NoReturn:
    """Turn this process into another program, as if gpulaunch had never been, or exit as env."""
    variables = {
        name: value
        for name, value in clean_environment().items()
        if os.fsdecode(name) not in without
    }
    os._exit(execute(command, variables))


def execute(command: Sequence[str], variables: dict[bytes, bytes]) -> int:
    """Turn into the program; return the exit status that says why not if that fails."""
    for number in PYTHON_IGNORES:
        signal.signal(number, signal.SIG_DFL)
    code = errno.ENOENT
    try:
        if command[0]:  # Python does not even try an empty name
            # there is no shell, on purpose
            os.execvpe(command[0], list(command), variables)  # noqa: S606
    except OSError as problem:
        code = problem.errno or 0
    if code == errno.ENOEXEC:
        # A script without a first line: a shell would run it, and so does execvp(3).
        with suppress(OSError):
            _exec_script(command, variables)
    nowhere_in_path = code == errno.ENOTDIR and "/" not in command[0]
    complain(f"{printable(command[0]) or repr('')}: {os.strerror(code).lower()}")
    if code == errno.ENOENT and len(command) == 1 and " " in command[0].strip():
        from shlex import quote  # late: for mistakes only

        line = f"sh -c {quote(printable(command[0]))}"
        complain(f"it is one word, blanks and all: leave out its quotes, or write {line}", "hint")
    return NOT_FOUND if code == errno.ENOENT or nowhere_in_path else CANNOT_EXECUTE


def complain(text: str, kind: str = "error") -> None:
    """Print an error, or a hint, to stderr, which may be closed."""
    with suppress(OSError):
        os.write(2, os.fsencode(f"gpulaunch: {kind}: {text}\n"))


def _exec_script(command: Sequence[str], variables: dict[bytes, bytes]) -> None:
    script = os.fsencode(command[0])
    if b"/" not in script:
        directories = variables.get(b"PATH", os.defpath.encode()).split(b":")
        found = (os.path.join(directory, script) for directory in directories)
        script = next((path for path in found if os.access(path, os.X_OK)), script)
    os.execve("/bin/sh", [b"/bin/sh", script, *map(os.fsencode, command[1:])], variables)  # noqa: S606
