"""The door to CUDA MPS: the program nvidia-cuda-mps-control, and the daemons and servers that it starts.

The program's exit status tells only whether there is a daemon; whatever goes wrong else stands in
the text of its answer or in the daemon's log. Sockets outlive their daemon, so whether it is alive
is seen from its process.
"""

import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress

from gpulaunch.errors import printable
from gpulaunch.process.ending import wait_for_one
from gpulaunch.process.system import (
    arguments_of,
    group_id,
    owner_of,
    pids_of_program,
    program_of,
    user_of,
)
from gpulaunch.records import Record

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

ANSWER_S = 5.0
"""What a daemon gets to answer in; it does so in milliseconds."""

QUIT_S = 3.0
"""What it gets to go in, once it has been told to; a server that never got ready keeps it from
that.
"""

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


def program() -> str | None:
    """Path of nvidia-cuda-mps-control; None if it is not on PATH."""
    return shutil.which(CONTROL)


def is_daemon(pid: int) -> bool:
    """Whether a process that runs nvidia-cuda-mps-control is a daemon: who asks one runs the same, for moments."""
    return not {"-d", "-f"}.isdisjoint(arguments_of(pid))


def pipe_directory_of(pid: int) -> str | None:
    """What a control daemon or server was started with as its pipe directory; None for any other process."""
    return _pipe_directory(pid) if program_of(pid) in (CONTROL, SERVER) else None


class _Said(Record):
    """Exit status, answer and complaint of nvidia-cuda-mps-control."""

    status: int
    answer: str
    problem: str


class Daemon:
    """The control daemon of one pipe directory, whether it is there or not.

    Args:
        directory: its pipe directory, short: a socket's path takes 107 bytes at most.
        uuids: the GPUs that it is for.
        user_id: whose it is. Root asks another user's as that user: the directory is that one's
            choice.
    """

    def __init__(self, directory: str, uuids: Iterable[str], user_id: int) -> None:
        self.directory = directory
        self._uuids = tuple(uuids)
        self._user_id = user_id

    @property
    def log_directory(self) -> str:
        """Where it and its server write what goes wrong; "log" beside it is a pipe of theirs."""
        return os.path.join(self.directory, "logs")

    def pid(self) -> int | None:
        """Of the daemon; None if there is none."""
        return next(iter(self._daemons()), None)

    def start(self) -> None:
        """Start the daemon; its directories must be there.

        Raises:
            MpsError: it does not start.
        """
        said = self._run(["-d"], "", "-d has not returned")
        if said.status:
            raise MpsError(
                f"{CONTROL} -d: {said.problem or self._logged() or f'exit status {said.status}'}"
            )

    def make_ready(self, patience_s: float) -> None:
        """Start a server for this user unless there is one, and wait until it is ACTIVE.

        Raises:
            MpsError: it does not become so.
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
            if not servers and (said := self._logged("exited with status")):
                raise MpsError(f"its server does not start: {said}")
            if time.monotonic() > deadline:
                where = (
                    f"its server (pid {servers[0]}) is still {state}"
                    if servers
                    else "there is no server"
                )
                raise MpsError(f"{where} after {patience_s:g} s")
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
        """Pids of its servers; one at most, as far as is known.

        Raises:
            MpsError: it does not answer in time.
        """
        return _pids(self.ask("get_server_list", timeout_s))

    def clients(self, timeout_s: float = ANSWER_S) -> set[int]:
        """Pids of the processes that are attached.

        Args:
            timeout_s: for each of the two answers.

        Raises:
            MpsError: it does not answer.
        """
        servers = self.servers(timeout_s)[:_MOST_SERVERS]
        return {
            pid
            for server in servers
            for pid in _pids(self.ask(f"get_client_list {server}", timeout_s))
        }

    def terminate(self, pids: Collection[int]) -> list[str]:
        """Take processes off their server, as is to be done before they are killed; returns what was refused.

        Source: NVIDIA, Multi-Process Service, "terminate_client": a client that is ended by a
            signal leaves the server undefined, and others on it may hang.
        """
        refused = []
        try:
            for server in self.servers()[:_MOST_SERVERS]:
                for client in sorted(
                    set(pids).intersection(_pids(self.ask(f"get_client_list {server}")))
                ):
                    answer = self.ask(f"terminate_client {server} {client}").strip()
                    if (
                        answer not in ("", "0") and client in self.clients()
                    ):  # asked twice, it may be off already
                        refused.append(f"MPS does not let go of pid {client}: {printable(answer)}")
        except (
            MpsError,
            OSError,
            ValueError,
        ) as problem:  # another user may have written the record
            refused.append(f"MPS: {problem}")
        return refused

    def ask(self, command: str, timeout_s: float = ANSWER_S) -> str:
        """What the daemon answers to a command of its own.

        Raises:
            MpsError: there is none, or it does not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = _POLL_S
        while True:
            late = f"does not answer {command.partition(' ')[0]}"
            left_s = max(round(deadline - time.monotonic(), 2), _POLL_S)
            said = self._run([], f"{command}\n{_LAST}\n", late, left_s)
            if whole := _WHOLE.fullmatch(said.answer):
                return whole[1]
            # It hears one at a time: who comes while another is heard is sent away, at times with
            # an empty answer and
            # status 0. So a question that always has an answer comes last.
            if not self.pid():
                died = f"its daemon does not survive {command.partition(' ')[0]}"
                raise MpsError(f"{CONTROL}: {said.problem}" if said.problem else died)
            if time.monotonic() + pause_s > deadline:
                raise MpsError(
                    f"{CONTROL}: {said.problem}"
                    if said.problem
                    else f"its daemon {late} within {timeout_s:g} s"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def _run(
        self, options: list[str], text: str, late: str, timeout_s: float = ANSWER_S
    ) -> "_Said":
        """Run nvidia-cuda-mps-control out of the terminal's reach: its signals are for the job.

        Into files in memory: a daemon that it starts may keep a pipe open for as long as it lives.
        """
        import subprocess  # late: few launches need it, and it costs 10 ms

        other = self._user_id != os.geteuid()
        with ExitStack() as stack:
            try:
                answer, problem = (
                    stack.enter_context(open(os.memfd_create(name), "w+b"))
                    for name in ("answer", "error")
                )
                done = subprocess.run(  # noqa: S603
                    [CONTROL, *options],
                    env=self._environment(),
                    cwd="/",
                    start_new_session=True,
                    input=text.encode(),
                    stdout=answer,
                    stderr=problem,
                    timeout=timeout_s,
                    check=False,
                    user=self._user_id if other else None,
                    group=group_id(self._user_id) if other else None,
                    extra_groups=[] if other else None,
                    preexec_fn=_free_of_limits if options else None,
                )
            except OSError as error:
                raise MpsError(f"{CONTROL}: {os.strerror(error.errno or 0).lower()}") from None
            except subprocess.TimeoutExpired:
                raise MpsError(f"its daemon {late} within {timeout_s:g} s") from None
            answer.seek(0)
            problem.seek(0)
            told = printable(problem.read(_MOST_BYTES).decode(errors="replace").strip())
            return _Said(done.returncode, answer.read(_MOST_BYTES).decode(errors="replace"), told)

    def quit(self) -> None:
        """Let the daemon and its server go, if need be by KILL: nobody may be using them any more.

        The daemon waits for its server, so that is killed first; a daemon that is killed leaves its
        server behind.
        """
        deadline = time.monotonic() + QUIT_S
        if self.pid():
            with suppress(MpsError):
                self.ask("quit", QUIT_S)
        for find in (self._servers_left, self._left):
            while (left := self._left()) and time.monotonic() < deadline:
                wait_for_one(left, deadline - time.monotonic())
            for pid in find() if left else ():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + QUIT_S

    def _servers_left(self) -> list[int]:
        return self._processes(SERVER)

    def _left(self) -> list[int]:
        return [*self._daemons(), *self._processes(SERVER)]

    def _daemons(self) -> list[int]:
        return list(filter(is_daemon, self._processes(CONTROL)))

    def _processes(self, name: str) -> list[int]:
        return [
            pid
            for pid in pids_of_program(name)
            if _pipe_directory(pid) == self.directory and self._is_here(pid)
        ]

    def _is_here(self, pid: int) -> bool:
        """Whether a process means the same directory: it may be in another mount namespace, with another /tmp."""
        with suppress(OSError):
            if os.path.isdir(self.directory):
                there = os.stat(f"/proc/{pid}/root{self.directory}")
                return os.path.samestat(os.stat(self.directory), there)
            return os.path.samestat(os.stat("/proc/self/ns/mnt"), os.stat(f"/proc/{pid}/ns/mnt"))
        return False

    def _environment(self) -> dict[str, str]:
        """Little of this process's own: the daemon lives for other jobs, too, and its user may not be this one."""
        return {name: os.environ[name] for name in _KEPT if name in os.environ} | {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(self._uuids),
            _PIPE_VARIABLE: self.directory,
            "CUDA_MPS_LOG_DIRECTORY": self.log_directory,
        }

    def _logged(self, containing: str = "") -> str:
        """The last line of the daemon's log with a text in it; empty if there is none."""
        with suppress(OSError), open(os.path.join(self.log_directory, "control.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
            return printable(next((line for line in reversed(lines) if containing in line), ""))
        return ""


def _pids(answer: str) -> list[int]:
    """The numbers of an answer that lists pids, a line each; anything else is text about what went wrong."""
    lines = (line.strip() for line in answer.split("\n"))
    return [int(line) for line in lines if line.isdecimal() and len(line) <= _MOST_DIGITS]


def _free_of_limits() -> None:
    """In the daemon that is to be: what bounds the job that happens to come first bounds no other."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _pipe_directory(pid: int) -> str | None:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        found = (variable.partition(b"=") for variable in file.read().split(b"\0"))
        return next(
            (os.fsdecode(value) for name, _, value in found if name == _PIPE_VARIABLE.encode()),
            None,
        )
    return None
