"""CUDA MPS without a GPU: a stand-in for daemon, server and clients, and NVIDIA's real daemon.

A test module that writes pytest_plugins = ("fake_mps",) has these fixtures; each puts
nvidia-cuda-mps-control on the PATH of `launcher`, and ends every daemon, server and client
afterwards:

fake_mps: the stand-in, which does what a test tells it, and tells what it was asked.
    stand_in/daemon.py says what of it
    is known from the real one.
real_mps: the real control daemon of driver 550; its server is the stand-in's, so that it never
    becomes ACTIVE.
old_mps: the same of driver 535, which knows no get_server_status.

PYTEST_DONT_REWRITE: a module that imports from here does so before pytest hears of the plugin.
"""

import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import until, wait_for_end

CONTROL, SERVER, CLIENT = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "mps_client"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_STAND_IN = Path(__file__).with_name("stand_in")
_BUILT = Path(__file__).parents[2] / "build" / "mps-control"
_REAL = Path(
    os.environ.get("GPULAUNCH_TEST_MPS") or _BUILT
)  # read now: no test sees such a variable
_START = """\
#!/bin/bash
PYTHONHOME={home} exec -a {name} {python} -sS {script} "$@"
"""
"""What starts the daemon: its name is that of its file in /proc/PID/comm, and of its argv[0]."""


class Event(NamedTuple):
    """Something that a stand-in has written down.

    Attributes:
        kind: see FakeMps.
        pid: whose it is.
        pipe: the pipe directory.
        said: everything else.
    """

    kind: str
    pid: int
    pipe: str
    said: dict


class Mps:
    """A nvidia-cuda-mps-control in a folder of its own. Nothing of it outlives close().

    Attributes:
        folder: short, since a socket's address has at most 107 bytes, and open to all users.
        bin: the folder with the programs; it belongs on PATH.
        environment: variables of a process that is to meet it.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
        self.folder.chmod(0o1777)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.environment = {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        (self.folder / "events.jsonl").touch()
        (self.folder / "events.jsonl").chmod(0o666)
        for name in (SERVER, CLIENT):
            self._add(name)

    def _add(self, name: str) -> None:
        """Add a program of program.c; it does what its name says."""
        (self.bin / name).write_bytes(program())
        (self.bin / name).chmod(0o755)

    def pipe(self, name: str = "p") -> Path:
        """Make a pipe directory with a folder "logs" in it."""
        directory = self.folder / name
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        return directory

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment of a daemon, or of a program that talks to it."""
        pipe = self.pipe()
        return {**os.environ, **self.environment, PIPE: str(pipe), LOG: str(pipe / "logs"), **more}

    def start(self, **more: str) -> subprocess.CompletedProcess[str]:
        """`nvidia-cuda-mps-control -d`, with these variables on top."""
        return self._run(["-d"], "", self.variables(**more))

    def ask(self, *commands: str) -> subprocess.CompletedProcess[str]:
        """Give commands to the daemon, one a line."""
        return self._run([], "".join(f"{line}\n" for line in commands), self.variables())

    def _run(
        self, arguments: list[str], text: str, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / CONTROL, *arguments],
            input=text,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def pids(self, program: str) -> list[int]:
        """Return the living processes of a program that belong here: CONTROL, SERVER or CLIENT.

        Front ends are CONTROL, too.
        """
        found = []
        for pid in self._processes():
            words = _command(pid)
            if words and os.path.basename(words[0]) == program:
                found.append(pid)
        return found

    def daemons(self) -> list[int]:
        """Return the living control daemons, without the front ends by which they are asked."""
        return [pid for pid in self.pids(CONTROL) if "-d" in _command(pid)]

    def _processes(self) -> list[int]:
        """Who has the folder in its PATH or in the name of its pipe directory."""
        ours = os.fsencode(f":{self.folder}/")
        found = []
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                variables = dict(line.partition(b"=")[::2] for line in lines)
                pipe, path = variables.get(PIPE.encode()), variables.get(b"PATH", b"")
                if pipe is not None and ours in b":" + path + b":" + pipe and pid != os.getpid():
                    found.append(pid)
        return [pid for pid in found if _command(pid)]

    def close(self) -> None:
        """Kill everybody who was started to use it, and remove the folder."""
        while left := self._processes():
            for pid in left:
                kill(pid)
        events = (self.folder / "events.jsonl").read_text()
        # A daemon that was killed may be removing its sockets still.
        shutil.rmtree(self.folder, ignore_errors=True)
        assert '"crashed"' not in events, events


class FakeMps(Mps):
    """The stand-in for MPS.

    What happens is told by events(), in order:

    started, ended: a daemon; said: uid, environment (its CUDA_ variables). command: a daemon has
    got one; said: command (the line), uid. server: said: uid. asked: a client has connected, from
    cuInit as it were; said: uid, environment (its CUDA_ variables). attached: it has a server;
    said: server (pid), environment. terminated: by terminate_client; said: server.
    left: a client has ended in order, or after it was terminated, or without having been attached.
    died: an attached client has ended without MPS knowing of it, by a signal, as NVIDIA forbids it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._add(CONTROL)
        library = self.folder / "lib"
        library.mkdir()
        shutil.copy(_STAND_IN / "daemon.py", library)
        python, home = interpreter()
        (library / CONTROL).symlink_to(python)
        words = (home, CONTROL, str(library / CONTROL), str(library / "daemon.py"))
        names = ("home", "name", "python", "script")
        start = library / "start-daemon"
        start.write_text(_START.format(**dict(zip(names, map(shlex.quote, words), strict=True))))
        start.chmod(0o755)
        self._shown: list[str] = []
        self._told = {
            "status": "ACTIVE",
            "looks": 0,
            "hangs": [],
            "dies": [],
            "refuses": [],
            "answers": {},
            "server_fails": False,
            "busy": 0,
        }
        self.tell()

    # ------------------------------------------------------------------------------------- steering

    def tell(self, **wishes: object) -> None:
        """Set what all daemons do from the next command on.

        Args:
            wishes: status: of servers, ACTIVE, INITIALIZING or FAULT.
                looks: how often each server is INITIALIZING first, when its status is asked.
                hangs: commands that get no answer.
                dies: commands at which the daemon kills itself.
                refuses: ["terminate_client"] prints 1 and lets the client be.
                answers: for a command the lines that are printed in place of its own.
                server_fails: servers end as they start.
                busy: so many connections are sent away first.
        """
        assert wishes.keys() <= self._told.keys(), wishes
        self._told |= wishes
        draft = self.folder / "told.new"
        draft.write_text(json.dumps(self._told))
        draft.chmod(0o644)
        draft.replace(self.folder / "told.json")

    def tell_nvml(self, nvml, *, client_mib: int = 300, server_mib: int = 30) -> None:
        """Let a fake NVML (see fake_nvml) see just the servers and attached clients of this moment.

        On each GPU that CUDA_VISIBLE_DEVICES of their daemon names, by UUID or by number.
        """
        uuids = [str(gpu["uuid"]) for gpu in nvml._gpus]
        gpus = {}
        for event in self.events("started"):
            names = event.said["environment"].get("CUDA_VISIBLE_DEVICES", "").split(",")
            gpus[event.pipe] = [
                gpu for gpu, uuid in enumerate(uuids) if {uuid, str(gpu)}.intersection(names)
            ]
        servers = [event for event in self.events("server") if is_alive(event.pid)]
        seen = [("mps", event, client_mib) for event in self.attached()]
        seen += [("process", event, server_mib) for event in servers]
        for line in self._shown:
            nvml.drop(line)
        self._shown = [
            f"{what} {gpu} {event.pid} {mib}"
            for what, event, mib in seen
            for gpu in gpus[event.pipe]
        ]
        nvml.add(*self._shown)

    # -------------------------------------------------------------------------------------- looking

    def events(self, *kinds: str, pid: int | None = None) -> list[Event]:
        """Return what has happened, in order; of these kinds, this process."""
        found = []
        for line in (self.folder / "events.jsonl").read_text().splitlines():
            said = json.loads(line)
            own = [said.pop(key) for key in ("event", "pid", "pipe")]
            event = Event(*own, said)
            if (not kinds or event.kind in kinds) and pid in (None, event.pid):
                found.append(event)
        return found

    def wait_for(self, kind: str, count: int = 1, **which) -> list[Event]:
        """Block until there are so many events of a kind; see events."""
        until(lambda: len(self.events(kind, **which)) >= count)
        return self.events(kind, **which)

    def commands(self, beginning: str = "") -> list[str]:
        """Return the commands that daemons have got, in order."""
        lines = [event.said["command"] for event in self.events("command")]
        return [line for line in lines if line.startswith(beginning)]

    def attached(self) -> list[Event]:
        """Return the events "attached" of the clients that are attached now."""
        now: dict[int, Event] = {}
        for event in self.events("attached", "terminated", "left", "died"):
            if event.kind == "attached":
                now[event.pid] = event
            else:
                now.pop(event.pid, None)
        return [event for event in now.values() if is_alive(event.pid)]

    def ended_safely(self, pid: int) -> bool:
        """Return whether a client that is gone left in order, or was first terminated by MPS."""
        events = self.events("attached", "terminated", "left", "died", pid=pid)
        kinds = [event.kind for event in events]
        return kinds in (["attached", "left"], ["attached", "terminated", "left"])

    def end_client(self, pid: int) -> None:
        """Let a client end in order, with status 0, and wait for it."""
        os.kill(pid, signal.SIGUSR1)
        wait_for_end(pid)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not as a zombie."""
    return bool(_command(pid))


def kill(pid: int) -> None:
    """Kill a process, if it is still there, and wait for its end."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def _command(pid: int) -> list[str]:
    """Return a process's command line; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []
    return [os.fsdecode(word) for word in words]


@functools.cache
def program() -> bytes:
    """Return the stand-ins that are written in C; a machine without gcc skips the test."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "program")
        options = ("-Wall", "-Wextra", "-O1", "-o", output)
        subprocess.run(["gcc", *options, _STAND_IN / "program.c"], check=True)
        return output.read_bytes()


@functools.cache
def interpreter() -> tuple[str, str]:
    """Return a Python that all users can start, and the PYTHONHOME it needs under another name."""
    mine = os.path.realpath(sys.executable)
    reachable = all(parent.stat().st_mode & 0o001 for parent in Path(mine).parents)
    python = mine if reachable or not os.path.exists("/usr/bin/python3") else "/usr/bin/python3"
    script = "import sys; print(sys.base_prefix, sys.base_exec_prefix, sep=':')"
    said = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True)
    return python, said.stdout.strip()


def _real(launcher, branch: str) -> Iterator[Mps]:
    if not (_REAL / branch / CONTROL).exists():
        pytest.skip(f"no {_REAL / branch / CONTROL}: .ci/mps-control fetches it")
    with closing(Mps()) as mps:
        shutil.copy(_REAL / branch / CONTROL, mps.bin)
        meet(launcher, mps)
        yield mps


def meet(launcher, mps: Mps) -> None:
    """Let a launcher find it, and have its share groups' directories where they go with it."""
    launcher.environment["PATH"] = f"{mps.bin}{os.pathsep}{launcher.environment['PATH']}"
    launcher.environment["GPULAUNCH_MPS_DIRECTORY"] = str(mps.folder / "g")


@pytest.fixture
def real_mps(launcher) -> Iterator[Mps]:
    """Return the real control daemon of driver 550."""
    yield from _real(launcher, "550")


@pytest.fixture
def old_mps(launcher) -> Iterator[Mps]:
    """Return the real control daemon of driver 535."""
    yield from _real(launcher, "535")


@pytest.fixture
def fake_mps(launcher) -> Iterator[FakeMps]:
    """Return the stand-in in its tamest form."""
    with closing(FakeMps()) as mps:
        meet(launcher, mps)
        yield mps
