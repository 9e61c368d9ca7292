"""What goes on without the command line that started it: detached launches, and reservations.

A detached launch is an ordinary command line of gpulaunch in a session of its own, which is told by
a variable that it is detached, and answers by a pipe (docs/decisions/detached.md). The keeper of a
reservation is the launcher and the job of its lease, and a fork of the command line that the user
types (docs/decisions/reserve.md).
"""

import fcntl
import json
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from shutil import which
from typing import TYPE_CHECKING, NoReturn

from gpulaunch.decide.decision import Refuse
from gpulaunch.errors import (
    CANNOT_EXECUTE,
    NOT_FOUND,
    FailedError,
    GpulaunchError,
    UsageError,
    call_failed,
    printable,
    quoted,
)
from gpulaunch.files.document import make_own
from gpulaunch.history.line import history_directory, state_home
from gpulaunch.history.read import RECENT_S, read_history
from gpulaunch.launch.acquire import acquire
from gpulaunch.launch.launch import Events, Keeper, Launch, preview
from gpulaunch.launch.listeners import LaunchInHistory
from gpulaunch.launch.options import Options
from gpulaunch.launch.past import is_running
from gpulaunch.launch.surroundings import open_table
from gpulaunch.process import Process
from gpulaunch.process.ending import stand_apart
from gpulaunch.process.libc import ENDING_SIGNALS, out_of_the_way, outlive_parent
from gpulaunch.process.system import (
    clean_environment,
    identify,
    open_process,
    own_command,
    seconds_since_boot,
    user_name,
)
from gpulaunch.records import Record, as_list, replace

if TYPE_CHECKING:
    import subprocess

_VARIABLE = "GPULAUNCH_DETACHED"
"""Variable by which a launch learns that it is detached; the job never sees it."""

_READY = b"ready\n"
"""First answer of a launch that others can find by its name now; any other is an error."""

_DAY_S = 86400.0
_LINGER = "/var/lib/systemd/linger"
_MOST_BYTES = 1 << 16
_TERMINAL_PROGRAMS = ("dtach", "script")
_LONGEST_STEM = 20
_LONGEST_FILE = 60
_SCRIPTS = (".py", ".sh")
_PATIENCE_S = 30.0
"""How long a launch that was started may take to answer; another may have the host-wide lock."""


class Detached(Record):
    """What a detached launch is told.

    Attributes:
        terminal: socket of the program that holds its terminal, or None.
        shell: the SHELL of the user, if it was changed on the way here.
    """

    key: str
    log: str
    terminal: str | None
    ready_fd: int
    shell: str | None


def what_was_told() -> Detached | None:
    """Take what this launch was told out of its environment; None if it is not detached yet."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return None
    told = Detached(*json.loads(text))
    if told.terminal:
        os.environ.pop("SHELL", None)
        if told.shell is not None:
            os.environ["SHELL"] = told.shell
    return told


class Detachment:
    """The side of a detached launch: its answers to the process that started it, and its end.

    Until the job starts, it reports the end of the launch at a signal, too.

    Attributes:
        pipe: descriptor for the one answer that is awaited; None once it is given.

    Raises:
        FailedError: it cannot be written into the history, or nobody waits for that any more; the
            launch must not go on.
    """

    def __init__(
        self, told: Detached, history: LaunchInHistory, ended: Callable[[int], None]
    ) -> None:
        self.pipe: int | None = out_of_the_way(told.ready_fd)
        self._ended = ended
        self._numbers = [
            number for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN
        ]
        for number in self._numbers:
            signal.signal(number, self._end)
        why = history.written_at_once(told.key, told.log, told.terminal)
        text = f"{history_directory()}: the history cannot be written, so nobody could find the job"
        failed = call_failed(text, why) if why else None
        try:  # not by its output, for which the disk may be too full as well
            os.write(self.pipe, f"{failed.message}\n".encode() if failed else _READY)
        except OSError as problem:  # it was interrupted, so its user knows nothing of this launch
            raise call_failed("the launch that was to be detached was given up", problem) from None
        if failed:
            raise failed

    def answer(self, standing: str) -> None:
        """Tell the process that detached this launch what it does now; what follows is not told.

        Args:
            standing: such as "is running on GPUs 0,3".
        """
        if self.pipe is not None:
            with suppress(OSError):  # nobody may wait for it any more
                os.write(self.pipe, f"{json.dumps(standing)}\n".encode())
            os.close(self.pipe)
            self.pipe = None

    def has_job(self) -> None:
        """Leave signals to the job, which is about to start."""
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        self._numbers = []

    def _end(self, number: int, _frame: object) -> None:
        with suppress(Exception):
            self._ended(128 + number)
        os._exit(128 + number)


def detach(
    options: Options, launch: Launch, tell: Callable[[str], None], inform: Callable[[str], None]
) -> int:
    """Start this command line again in a session of its own; say whether it runs or waits.

    If it ends at once, as one that may not wait, so does this, with the same words and status.

    Args:
        tell: prints a warning.
        inform: prints a message, unless the user wants none.

    Raises:
        UsageError: it could never run, or a live launch has its name.
        FailedError: it cannot be started, or its history or its output cannot be written.
    """
    _refuse_what_cannot_be(options, launch, tell)
    with _logs_locked() as directory:
        name = _choose_name(launch, tell)
        key = os.urandom(6).hex()
        log = f"{directory}/{_file_name(name)}-{key}.log"
        terminal = f"{directory}/{key}.terminal" if options.terminal else None
        told = Detached(key, log, terminal, -1, os.environ.get("SHELL"))
        process, answers = _start(told, name)
    unwritten = None
    with answers:
        try:  # now, since whoever ends this while it waits below has a job all the same
            os.write(1, os.fsencode(f"{name}\n"))
        except OSError as problem:
            unwritten = call_failed("cannot write to stdout", problem).message
        standing = _standing(answers)
    if standing is None:
        return _report_end(told, process, name)
    if unwritten:  # not an error: who tries again would run it twice
        tell(f"{unwritten}; {name} {standing}")
    shown = shlex.quote(name)
    inform(f"{name} {standing}; gpulaunch logs -f {shown}")
    if terminal:
        inform(f"'gpulaunch attach {shown}' goes to its terminal")
    return 0


def _refuse_what_cannot_be(options: Options, launch: Launch, tell: Callable[[str], None]) -> None:
    option = options.flag("detach")
    if sys.stdout is None:
        raise FailedError("stdout is closed, so nobody could know the name of the job")
    if options.json_status_fd is not None:
        raise UsageError(f"{option} and -o json_status_fd: nobody would read that")
    if not launch.in_history:
        raise UsageError(
            f"{option}: the setting 'history = false' keeps jobs from being found again",
            "GPULAUNCH_HISTORY=true before the command is for this launch alone",
        )
    for program in _TERMINAL_PROGRAMS:
        if options.terminal and which(program) is None:
            raise FailedError(f"--terminal: {program} is not installed")
    decision, _ = preview(launch, tell)
    if isinstance(decision, Refuse):
        raise UsageError(decision.reason)
    program = launch.command[0]
    if which(program) is None:
        found = which(program, os.F_OK) is not None
        reason = "permission denied" if found else "no such file or directory"
        problem = GpulaunchError(f"{printable(program) or repr('')}: {reason}")
        problem.exit_status = CANNOT_EXECUTE if found else NOT_FOUND
        raise problem


@contextmanager
def _logs_locked() -> Iterator[str]:
    """Yield the directory of logs, locked against other launches that choose a name."""
    directory = f"{state_home()}/logs"
    try:
        make_own(directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        raise call_failed(directory, problem) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(fd)


def _choose_name(launch: Launch, tell: Callable[[str], None]) -> str:
    """Return the name of a launch: the given one, or the first that no recent launch has."""
    history = read_history(within_s=RECENT_S)
    snapshot = open_table(private=launch.private, warn=tell).peek()
    own = os.geteuid()
    live = {ticket.name for ticket in snapshot.tickets if ticket.user_id == own}
    live |= {lease.name for lease in snapshot.leases if lease.user_id == own}
    live |= {one.name for one in history if one.exit_status is None and is_running(one)}
    if launch.name is None:
        return _free_name(launch.command, live | {one.name for one in history})
    if launch.name in live:
        raise UsageError(
            f"a job of yours that has not ended is called {quoted(launch.name)}",
            "give another --name, or none",
        )
    return launch.name


def _free_name(command: Sequence[str], taken: Collection[str | None]) -> str:
    """Return a name such as train-1 for `python train.py`: the smallest number that is free."""
    script = next((word for word in command if word.endswith(_SCRIPTS)), None)
    program = os.path.basename(command[0])
    if script:
        stem = os.path.basename(script)[:-3]
    elif program.startswith("python") and "-m" in command[1:-1]:
        stem = command[command.index("-m") + 1].rpartition(".")[2]
    else:
        stem = program
    stem = _file_name(stem)[:_LONGEST_STEM].strip("-.") or "job"
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def _file_name(name: str) -> str:
    """Return a name with a _ for each character that might do harm in a path, and not too long."""
    return re.sub(r"^\.|[^\w.+=@-]", "_", name, flags=re.ASCII)[:_LONGEST_FILE]


def _start(told: Detached, name: str) -> tuple["subprocess.Popen[bytes]", FileIO]:
    """Start the launch; return it once it is in the history, with the pipe of its next answer."""
    arguments = [f"--name={name}", "--wait", *sys.argv[1:]]
    try:
        log_fd = os.open(told.log, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    except OSError as problem:
        raise call_failed(told.log, problem) from None
    try:
        for prefix in _ways_out_of_the_login():
            os.ftruncate(log_fd, 0)
            process, answers = _run(prefix, arguments, told, log_fd)
            if line := answers.readline():
                break
    finally:
        os.close(log_fd)
    if line not in (_READY, b""):
        os.unlink(told.log)
        raise FailedError(line.decode().rstrip())
    return process, answers


def _standing(answers: FileIO) -> str | None:
    """Return what a launch does, such as "is running on GPUs 0-3"; None if it has ended."""
    if not select.select([answers], [], [], _PATIENCE_S)[0]:
        return "has been started, but has neither GPUs nor a place in the queue yet"
    line = answers.readline()
    return str(json.loads(line)) if line else None


def _report_end(told: Detached, process: "subprocess.Popen[bytes]", name: str) -> int:
    """Print what a launch has said that ended at once, and return its exit status."""
    with open(told.log, "rb") as log:
        printed = log.read(_MOST_BYTES)
    with suppress(OSError):
        os.write(2, printed)
    past = next((one for one in read_history(within_s=RECENT_S) if one.key == told.key), None)
    if past is None:  # nobody could find it
        os.unlink(told.log)
    status = past.exit_status if past else process.wait()
    if not printed or not status:
        problem = FailedError(f"{name} ended before it had GPUs or a place in the queue")
        problem.exit_status = status or problem.exit_status
        raise problem
    return status


def _run(
    prefix: Sequence[str], arguments: Sequence[str], told: Detached, log_fd: int
) -> tuple["subprocess.Popen[bytes]", FileIO]:
    import subprocess  # late: the keeper of a reservation does without as long as it sleeps

    read_end, write_end = os.pipe()
    told = replace(told, ready_fd=write_end)
    command, environment = [*own_command(), *arguments], clean_environment()
    environment[_VARIABLE.encode()] = json.dumps(as_list(told)).encode()
    if told.terminal:  # script starts what it is given by the SHELL, and appends to the log
        script = ["script", "-qefa", "-c", f"exec {shlex.join(command)}", told.log]
        command = ["dtach", "-n", told.terminal, *script]
        environment[b"SHELL"] = b"/bin/sh"
    try:
        process = subprocess.Popen(  # noqa: S603  the user's own command line
            [*prefix, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    except OSError as problem:
        os.close(read_end)
        raise call_failed("cannot start the launch", problem) from None
    finally:
        os.close(write_end)
    return process, FileIO(read_end)  # unbuffered: select() has to see the second answer


def _ways_out_of_the_login() -> Collection[Sequence[str]]:
    """Return what to put before a command for it to outlive the login; the first that works counts.

    A session of its own is enough, unless systemd ends all of a user's processes at logout. Who
    lingers has a systemd of his own that stays, which can be asked for a place outside the login.
    """
    if os.path.exists(f"{_LINGER}/{user_name(os.geteuid())}") and which("systemd-run"):
        return (["systemd-run", "--user", "--scope", "--quiet", "--"], [])
    return ([],)


def hold(
    launch: Launch,
    events: Events,
    leader: Process | None,
    parent: int,
    show: Callable[[Keeper], None],
) -> NoReturn:
    """Hold the GPUs of a reservation as its keeper, until it is over.

    Args:
        leader: the process with which it ends; None for none.
        parent: pipe to the command line, which is told once the GPUs are held.
        show: tells the user what a shell needs to use them.
    """
    table = open_table(private=launch.private, warn=events.warn)
    keeper = acquire(launch, table, events, Keeper)
    try:
        show(keeper)
    except BaseException:
        keeper.release()
        raise
    stand_apart(keeper.record.fd, parent)
    outlive_parent()
    events.granted(keeper)
    os.chdir("/")
    with suppress(OSError):  # the command line has been interrupted, so nobody uses the GPUs
        os.write(parent, b".")
        os.close(parent)
        _sleep_until_its_end(leader, keeper.lease.clock_s + (launch.time_limit_s or 0))
    keeper.release()
    events.ended(0)  # each of its ends is as it should be
    os._exit(0)


def session_leader() -> Process | None:
    """Return the shell of this session, with which a reservation ends; None if there is none.

    There is none if this process leads its session itself, if the leader has ended, or if it is in
    another pid namespace, as that of `docker exec` is.
    """
    pid = os.getsid(0)
    leader = identify(pid) if pid not in (0, os.getpid()) else Process(0, 0)
    return leader if leader.start_time else None


def _sleep_until_its_end(leader: Process | None, until_s: float) -> None:
    """Sleep until a reservation is over: by time (since boot), by a signal, or with its leader."""
    read_end, write_end = map(out_of_the_way, os.pipe2(os.O_NONBLOCK))
    signal.set_wakeup_fd(write_end)
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: None)
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    if leader:
        process = open_process(leader)
        if process is None:
            return
        poll.register(process, select.POLLIN)
    # In days, since the kernel does not take centuries.
    while (left_s := until_s - seconds_since_boot()) > 0:
        if poll.poll(min(left_s, _DAY_S) * 1000):
            return
