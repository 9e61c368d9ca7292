"""The door to CUDA MPS: the program nvidia-cuda-mps-control, its daemons and their servers.

The program's exit status tells only whether there is a daemon; anything else that goes wrong stands
in the text of its answer or in the daemon's log. Sockets outlive their daemon, so whether it is
alive is seen from its process.
"""

import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from gpulaunch.errors import printable
from gpulaunch.leases.environment import MPS_CONTROL, MPS_SERVER
from gpulaunch.process.ending import marked_by, wait_for_one
from gpulaunch.process.system import (
    arguments_of,
    group_id,
    owner_of,
    pids_of_program,
    program_of,
    reaction,
    user_of,
    variable_of,
)

if TYPE_CHECKING:
    import subprocess

ANSWER_S = 5.0
"""Time that a daemon has to answer; it does so in milliseconds."""

QUIT_S = 3.0
"""Time that a daemon has to end once told to; a server that never got ready keeps it from that."""

MEMBERS_FILE = "group.json"
"""File in the pipe directory of a share group that tells it from others."""

_PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_ACTIVE, _STARTING = "ACTIVE", "INITIALIZING"
_LAST = "get_default_active_thread_percentage"
_WHOLE = re.compile(r"((?:.*\n)*)\d+\.\d+\n")
_POLL_S = 0.02
_LONGEST_POLL_S = 0.25
_LOG_BYTES = 4096
_MOST_BYTES = 1 << 16
_MOST_SERVERS = 2
_MOST_DIGITS = 10
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


class MpsError(Exception):
    """MPS does not do what it should; the text says why, in lower case without a full stop."""


class MpsHangsError(MpsError):
    """MPS does not get anywhere in the time that it has."""


def program() -> str | None:
    """Return the path of nvidia-cuda-mps-control; None if it is not on PATH."""
    return shutil.which(MPS_CONTROL)


def is_daemon(pid: int) -> bool:
    """Return True for a daemon; clients that query it run the same program briefly."""
    return not {"-d", "-f"}.isdisjoint(arguments_of(pid))


def is_of_a_group(directory: str) -> bool:
    """Return whether a pipe directory is that of a share group."""
    return os.path.exists(os.path.join(directory, MEMBERS_FILE))


def serves_a_group(pid: int) -> bool:
    """Return whether a process is the MPS daemon or server of a share group.

    It belongs to all of its jobs, and to none.
    """
    if program_of(pid) not in (MPS_CONTROL, MPS_SERVER):
        return False
    directory = variable_of(pid, _PIPE_VARIABLE)
    return directory is not None and is_of_a_group(directory)


class Daemon:
    """The control daemon of one pipe directory, whether it runs or not.

    Args:
        directory: its pipe directory, short: a socket's path takes 107 bytes at most.
        user_id: the user whose daemon it is. Root queries another user's daemon as that user, who
            chose the directory.
    """

    def __init__(self, directory: str, uuids: Iterable[str], user_id: int) -> None:
        self.directory = directory
        self._uuids = tuple(uuids)
        self._user_id = user_id

    @property
    def log_directory(self) -> str:
        """Directory that it and its server log to; "log" beside it is a pipe."""
        return os.path.join(self.directory, "logs")

    def pid(self) -> int | None:
        """Return the pid of the daemon that runs, if one does."""
        return next(iter(self._daemons()), None)

    def start(self) -> None:
        """Start the daemon; its directories must exist.

        Raises:
            MpsError: it does not start.
        """
        said = self._run(["-d"], "", "-d has not returned")
        if said.returncode:
            why = said.stderr or self._last_log_line() or f"exit status {said.returncode}"
            raise MpsError(f"{MPS_CONTROL} -d: {why}")

    def make_ready(self, patience_s: float) -> None:
        """Start a server for this user unless there is one, and wait until it is ACTIVE.

        Raises:
            MpsError: it does not become so; MpsHangsError if that took its time.
        """
        deadline = time.monotonic() + patience_s
        if not self.servers():
            self.ask(f"start_server -uid {self._user_id}")
        pause_s = _POLL_S
        while True:
            servers = self.servers()
            state = self._state(servers[0]) if servers else "not there"
            if state == _ACTIVE:
                return
            if state not in (_STARTING, "not there"):
                raise MpsError(f"its server (pid {servers[0]}) is in state {printable(state)}")
            if not servers and (said := self._last_log_line("exited with status")):
                raise MpsError(f"its server does not start: {said}")
            if time.monotonic() > deadline:
                where = (
                    f"its server (pid {servers[0]}) is still {state}"
                    if servers
                    else "there is no server"
                )
                raise MpsHangsError(f"{where} after {patience_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def _state(self, server: int) -> str:
        owner = user_of(server)
        if owner not in (None, self._user_id):
            raise MpsError(
                f"its server (pid {server}) is {owner_of(server)}'s: others have to wait until "
                "that is done"
            )
        state = self.ask(f"get_server_status {server}").strip()
        if state.lower().startswith("unknown command"):
            raise MpsError(
                "this driver's MPS does not tell whether its server works: get_server_status is "
                "unknown"
            )
        return state

    def servers(self, timeout_s: float = ANSWER_S) -> list[int]:
        """Return the pids of its servers; one at most, as far as is known.

        Raises:
            MpsError: it does not answer in time.
        """
        return _read_pids(self.ask("get_server_list", timeout_s))

    def clients(self, timeout_s: float = ANSWER_S) -> set[int]:
        """Return the pids of the processes that are attached.

        Raises:
            MpsError: one of the two answers does not come in time.
        """
        found: set[int] = set()
        for server in self.servers(timeout_s)[:_MOST_SERVERS]:
            found.update(_read_pids(self.ask(f"get_client_list {server}", timeout_s)))
        return found

    def terminate(self, pids: Collection[int], number: int) -> list[str]:
        """Detach processes from their server that a signal would end; return what was refused.

        One that catches the signal may end in order, so it stays attached.

        Args:
            pids: processes that are about to get the signal; others than clients do not count.

        Source: NVIDIA, Multi-Process Service, "terminate_client": a client that is ended by a
            signal leaves the server undefined, and others on it may hang.
        """
        refused: list[str] = []
        ending = {pid for pid in pids if reaction(pid, number) == "ends"}
        if not ending:
            return refused
        try:
            for server in self.servers()[:_MOST_SERVERS]:
                clients = _read_pids(self.ask(f"get_client_list {server}"))
                for client in sorted(ending.intersection(clients)):
                    answer = self.ask(f"terminate_client {server} {client}").strip()
                    # ask() may have sent it twice: then the client is off already.
                    if answer not in ("", "0") and client in self.clients():
                        refused.append(f"MPS does not let go of pid {client}: {printable(answer)}")
        # Another user may have written the record, so its directory may be anything.
        except (MpsError, OSError, ValueError) as problem:
            refused.append(f"MPS: {problem}")
        return refused

    def ask(self, command: str, timeout_s: float = ANSWER_S) -> str:
        """Return what the daemon answers to a command of its own.

        Raises:
            MpsError: there is none, or it does not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = _POLL_S
        while True:
            late = f"does not answer {command.partition(' ')[0]}"
            left_s = max(round(deadline - time.monotonic(), 2), _POLL_S)
            said = self._run([], f"{command}\n{_LAST}\n", late, left_s)
            if whole := _WHOLE.fullmatch(said.stdout):
                return whole[1]
            # The daemon serves one client at a time, and sends others away, at times with an empty
            # answer and status 0. So a question that always has an answer comes last.
            if not self.pid():
                died = f"its daemon does not survive {command.partition(' ')[0]}"
                raise MpsError(f"{MPS_CONTROL}: {said.stderr}" if said.stderr else died)
            if time.monotonic() + pause_s > deadline:
                if said.stderr:
                    raise MpsError(f"{MPS_CONTROL}: {said.stderr}")
                raise MpsHangsError(f"its daemon {late} within {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def _run(
        self, options: list[str], text: str, late: str, timeout_s: float = ANSWER_S
    ) -> "subprocess.CompletedProcess[str]":
        """Run nvidia-cuda-mps-control out of the terminal's reach, whose signals are for the job.

        It reads and writes files in memory: a daemon that it starts may keep a pipe open for as
        long as it lives, and one that ends before it has read would end gpulaunch by SIGPIPE.
        """
        import subprocess  # late: few launches need it, and it costs 10 ms

        other = self._user_id != os.geteuid()
        with ExitStack() as stack:
            try:
                question, answer, problem = (
                    stack.enter_context(open(os.memfd_create(name), "w+b"))
                    for name in ("question", "answer", "error")
                )
                question.write(text.encode())
                question.seek(0)
                done = subprocess.run(  # noqa: S603
                    [MPS_CONTROL, *options],
                    env=self._environment(),
                    cwd="/",
                    start_new_session=True,
                    stdin=question,
                    stdout=answer,
                    stderr=problem,
                    timeout=timeout_s,
                    check=False,
                    user=self._user_id if other else None,
                    group=group_id(self._user_id) if other else None,
                    extra_groups=[] if other else None,
                    preexec_fn=_lift_limits if options else None,
                )
            except OSError as error:
                raise MpsError(f"{MPS_CONTROL}: {os.strerror(error.errno or 0).lower()}") from None
            except subprocess.TimeoutExpired:
                raise MpsHangsError(f"its daemon {late} within {timeout_s:g} s") from None
            answer.seek(0)
            problem.seek(0)
            told = answer.read(_MOST_BYTES).decode(errors="replace")
            complaint = printable(problem.read(_MOST_BYTES).decode(errors="replace").strip())
            return subprocess.CompletedProcess(done.args, done.returncode, told, complaint)

    def quit(self) -> None:
        """End the daemon and its server, if need be by KILL; nobody may be using them any more.

        The daemon waits for its server, so that is killed first; a daemon that is killed leaves its
        server behind.
        """
        deadline = time.monotonic() + QUIT_S
        if self.pid():
            with suppress(MpsError):
                self.ask("quit", QUIT_S)
        for is_last in (False, True):
            while (left := self._left()) and time.monotonic() < deadline:
                wait_for_one(left, deadline - time.monotonic())
            doomed = self._left() if is_last else self._processes(MPS_SERVER)
            for pid in doomed if left else ():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + QUIT_S

    def _left(self) -> list[int]:
        return [*self._daemons(), *self._processes(MPS_SERVER)]

    def _daemons(self) -> list[int]:
        return list(filter(is_daemon, self._processes(MPS_CONTROL)))

    def _processes(self, name: str) -> list[int]:
        return [
            pid
            for pid in pids_of_program(name)
            if variable_of(pid, _PIPE_VARIABLE) == self.directory and self._is_here(pid)
        ]

    def _is_here(self, pid: int) -> bool:
        """Return whether a process means this directory.

        In another mount namespace it may have another /tmp.
        """
        with suppress(OSError):
            if os.path.isdir(self.directory):
                there = os.stat(f"/proc/{pid}/root{self.directory}")
                return os.path.samestat(os.stat(self.directory), there)
            return os.path.samestat(os.stat("/proc/self/ns/mnt"), os.stat(f"/proc/{pid}/ns/mnt"))
        return False

    def _environment(self) -> dict[str, str]:
        """Return the daemon's environment, with little of this process's own.

        The daemon lives for other jobs, too, and its user may not be this one.
        """
        return {name: os.environ[name] for name in _KEPT if name in os.environ} | {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(self._uuids),
            _PIPE_VARIABLE: self.directory,
            "CUDA_MPS_LOG_DIRECTORY": self.log_directory,
        }

    def _last_log_line(self, containing: str = "") -> str:
        """Return the last line of the daemon's log that contains a text; empty without one."""
        with suppress(OSError), open(os.path.join(self.log_directory, "control.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
            return printable(next((line for line in reversed(lines) if containing in line), ""))
        return ""


def take_off(pids: Collection[int], number: int) -> None:
    """Detach processes from whichever MPS servers they are clients of, as Daemon.terminate does."""
    for directory, clients in marked_by(_PIPE_VARIABLE).items():
        Daemon(directory, (), os.geteuid()).terminate(clients.intersection(pids), number)


def _read_pids(answer: str) -> list[int]:
    """Return the numbers of an answer that lists pids, a line each.

    Anything else in it is text about what went wrong.
    """
    lines = (line.strip() for line in answer.split("\n"))
    return [int(line) for line in lines if line.isdecimal() and len(line) <= _MOST_DIGITS]


def _lift_limits() -> None:
    """Drop limits in the daemon's child: those of the first job would bound all others."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
