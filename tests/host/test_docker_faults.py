"""Leases follow containers through killed processes, engine crashes, restarts and full disks.

The engine is real; each test has one of its own if it is to be hurt. Told from outside: by the
engine, by `gpulaunch status`, and by launches that want the same GPUs.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from itertools import chain, combinations
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest
from conftest import DGX, SCRIPT, Launcher, companion_of, holders, some_of, until, wait_for_end
from engine import IMAGE, Engine

from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.engine import NoAnswerError
from gpulaunch.containers.standings import (
    START_FOLLOWS_S,
    STOP_FOLLOWS_S,
    Followed,
    _settling_s,
    _since_start,
)

AT_STEP = Path(__file__).parents[1] / "jobs" / "at_step"
MACHINES = Path(__file__).parents[2] / "profiles" / "machines"
RUN = (*DGX, "-q", "docker", "run", "--gpus", "2", "--name", "job", "--init")
FOREVER = (IMAGE, "sleep", "1000")  # ends by TERM, since --init gives it a parent that is no shell
ALL = (*DGX, "-n", "all", "--", "true")
FREE = (0, "")
BUSY = "gpulaunch: error: 8 GPUs requested: 6 of 8 are free, 2 are leased"


class Containers(Launcher):
    """The installed gpulaunch with a Docker Engine in reach."""

    def __init__(self, home: Path, engine: Engine) -> None:
        super().__init__(home)
        self.engine = engine
        environment = engine.environment
        self.environment |= {**environment, "PATH": f"{SCRIPT.parent}:{environment['PATH']}"}

    def leases(self) -> list[dict]:
        """Return the leases, as status shows them."""
        done = self.run("status", *DGX, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["leases"]

    def lease(self) -> dict:
        """Return the only lease."""
        (lease,) = self.leases()
        return lease

    def can_take_all(self) -> tuple[int, str]:
        """Return what a launch on every GPU that does not wait says: FREE, or why not."""
        done = self.run(*ALL)
        return done.returncode, done.stderr.partition("\n")[0]

    def await_free(self) -> None:
        """Wait until the record's holder has removed it; no other process looks."""
        until(lambda: not self.records())

    def detach(self, *options: str, command: tuple[str, ...] = FOREVER) -> dict:
        """Start a container in the background; return its lease."""
        done = self.run(*RUN, "-d", *options, *command)
        assert (done.returncode, done.stderr) == (0, "")
        return self.lease()

    def container(self, key: str = "Status") -> str:
        """Return a key of the state of the container called job."""
        return self.engine.docker(
            "inspect", "--format", f"{{{{.State.{key}}}}}", "job"
        ).stdout.strip()


class Apart(Containers):
    """Containers on a DGX-1 of their own, so that they are in no other test's way."""

    def __init__(self, home: Path, engine: Engine) -> None:
        super().__init__(home, engine)
        text = (MACHINES / "dgx1-v100.toml").read_text()
        self._machine = home / "machine.toml"
        self._machine.write_text(text.replace('"dgx1-v100"', json.dumps(home.name), 1))

    def there(self, *arguments: str) -> tuple[str, ...]:
        """Return arguments with that machine in place of the usual one."""
        return tuple(str(self._machine) if word == DGX[1] else word for word in arguments)

    def run(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        return super().run(*self.there(*arguments), **options)


def watcher_of(launcher: Containers) -> int:
    """Return the process that holds a detached container's lease."""
    (pid,) = holders(launcher.state / launcher.records()[0])
    return pid


@pytest.fixture
def launcher(tmp_path: Path, docker: Engine) -> Containers:
    """Return a launcher whose table is empty, with the engine that all tests share."""
    return Containers(tmp_path, docker)


@pytest.fixture
def own(tmp_path: Path, engine: Engine) -> Iterator[Containers]:
    """Yield a launcher with an engine of its own, which may be hurt and stops containers soon."""
    (tmp_path / "own").mkdir()
    engine = Engine(shutdown_timeout=1)
    engine.start()
    yield Containers(tmp_path / "own", engine)
    engine.close()


class Attached:
    """gpulaunch docker run in the foreground, with its three processes."""

    def __init__(self, launcher: Containers, *options: str) -> None:
        self.process = launcher.start(
            *RUN, *options, IMAGE, "sh", "-c", "echo ready; exec sleep 1000"
        )
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        self.lease = launcher.lease()
        self.docker = self.lease["job_pid"]
        self.watcher = companion_of(launcher, self.process.pid)

    def pid(self, who: str) -> int:
        return {"gpulaunch": self.process.pid, "docker": self.docker, "watcher": self.watcher}[who]

    def kill(self, *who: str) -> None:
        for pid in map(self.pid, who):
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)

    def close(self) -> int:
        """Wait for the launcher's end; return its exit status."""
        self.process.communicate(timeout=30)
        return self.process.returncode


# The watcher before docker: at docker's end the launcher may hand the lease to it, and go.
WHO = ("gpulaunch", "watcher", "docker")
SUBSETS = list(chain.from_iterable(combinations(WHO, n) for n in (1, 2, 3)))


@pytest.mark.parametrize("killed", SUBSETS, ids=" and ".join)
def test_kill(launcher: Containers, killed: tuple[str, ...]) -> None:
    """Whatever is killed of gpulaunch, docker and watcher, the lease ends with the container."""
    job = Attached(launcher)
    job.kill(*killed)
    if killed == ("docker",):
        assert job.close() == 128 + signal.SIGKILL
    container = launcher.engine.docker("ps", "--quiet", "--no-trunc").stdout.strip()
    lease = launcher.lease()
    assert (lease["container"], lease["container_state"]) == (container, "running")
    assert (lease["id"], lease["uuids"]) == (job.lease["id"], job.lease["uuids"])
    assert launcher.can_take_all() == (75, BUSY)

    assert launcher.engine.docker("rm", "--force", "job").returncode == 0
    job.close()
    if not {"gpulaunch", "watcher"} <= set(
        killed
    ):  # else nobody is left to remove it, until somebody looks
        launcher.await_free()
    assert launcher.can_take_all() == FREE
    assert launcher.records() == []


def test_killed_in_turn(launcher: Containers) -> None:
    """A launcher starts a new watcher for a killed one when docker goes and the container stays."""
    job = Attached(launcher)
    job.kill("watcher")
    job.kill("docker")
    assert job.close() == 128 + signal.SIGKILL
    assert watcher_of(launcher) not in (job.process.pid, job.docker, job.watcher)
    launcher.engine.docker("kill", "job")
    launcher.await_free()


ENDS = {
    "docker stop": ("stop", "job"),
    "docker kill": ("kill", "job"),
    "docker rm --force": ("rm", "--force", "job"),
    "its own end": ("exec", "job", "sh", "-c", "kill -TERM $(pidof sleep)"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "watcher killed"])
def test_detached(launcher: Containers, end: str, watched: bool) -> None:
    """A detached container's lease ends with it, however it ends, even with no watcher left."""
    lease = launcher.detach()
    if not watched:
        watcher = watcher_of(launcher)
        os.kill(watcher, signal.SIGKILL)
        wait_for_end(watcher)
        assert (launcher.lease()["id"], launcher.can_take_all()) == (lease["id"], (75, BUSY))
    assert launcher.engine.docker(*ENDS[end]).returncode == 0
    if watched:
        launcher.await_free()
    until(lambda: launcher.can_take_all() == FREE)
    assert launcher.records() == []


def test_restart_by_hand(launcher: Containers) -> None:
    """Docker restart takes the container away for a moment, and not its lease."""
    lease = launcher.detach()
    for _ in range(10):  # without waiting for a start, about every fourth loses it
        assert launcher.engine.docker("restart", "job").returncode == 0
        assert (launcher.lease()["id"], launcher.container()) == (lease["id"], "running")
        assert launcher.can_take_all() == (75, BUSY)
    launcher.engine.docker("rm", "--force", "job")
    launcher.await_free()


def test_restart_by_hand_attached(launcher: Containers) -> None:
    """Docker restart of a container in the foreground ends the docker command, not the lease."""
    job = Attached(launcher)
    assert launcher.engine.docker("restart", "job").returncode == 0
    assert job.close() == 128 + signal.SIGTERM
    until(lambda: launcher.container() == "running")
    assert (launcher.lease()["id"], launcher.can_take_all()) == (job.lease["id"], (75, BUSY))
    launcher.engine.docker("rm", "--force", "job")
    launcher.await_free()


@pytest.mark.parametrize(
    ("sentence", "actions", "seconds"),
    [
        ("an end of its own", ["create", "start", "die"], 0),
        ("docker kill, or docker stop that goes on", ["start", "kill", "die"], STOP_FOLLOWS_S),
        (
            "docker stop, or docker restart that goes on",
            ["start", "kill", "die", "stop"],
            START_FOLLOWS_S,
        ),
        (
            "the same as a starting engine tells it",
            ["start", "kill", "stop", "die"],
            START_FOLLOWS_S,
        ),
        ("docker rm -f", ["start", "kill", "die", "destroy"], 0),
        (
            "an end of its own after docker restart",
            ["start", "kill", "die", "stop", "start", "die"],
            0,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_how_long_a_start_may_follow(sentence: str, actions: list[str], seconds: float) -> None:
    """After an end through the engine the lease waits a moment in case of docker restart."""
    assert _settling_s(_since_start(actions)) == seconds, sentence


def test_paused(launcher: Containers) -> None:
    """A paused container keeps its lease, and status says so."""
    lease = launcher.detach()
    launcher.engine.docker("pause", "job")
    text = launcher.run("status", *DGX).stdout
    assert " keeps its GPUs: container job is paused" in text
    assert launcher.can_take_all() == (75, BUSY)
    assert launcher.run("free", lease["id"]).returncode == 0
    assert (launcher.records(), launcher.container()) == ([], "exited")


class Played:
    """A launch of a detached container, hit at one step or only watched, and all that follows.

    Args:
        home: of the launcher, a new one.
        engine: where the container is.
        action: KILL, or trace.
        subject: the step, or the file to trace to.
    """

    def __init__(self, home: Path, engine: Engine, action: str, subject: str) -> None:
        home.mkdir()
        launcher = Apart(home, engine)
        name = ("--name", home.name)
        command = (
            AT_STEP,
            action,
            subject,
            *launcher.there(*DGX),
            "-q",
            "docker",
            "run",
            "-d",
            "--gpus",
            "2",
            "--init",
            *name,
            *FOREVER,
        )
        subprocess.run(
            command, env=launcher.environment, capture_output=True, timeout=60, check=False
        )
        for pid in marked(launcher):  # a launcher that was killed leaves its docker command at work
            if Path(f"/proc/{pid}/comm").read_text() == "docker\n":
                wait_for_end(pid)
        running = engine.docker(
            "ps", "--quiet", "--no-trunc", "--filter", f"name=^{home.name}$"
        ).stdout.split()
        assert [lease["container"] for lease in launcher.leases() if lease["container"]] == running
        assert launcher.can_take_all() == ((75, BUSY) if running else FREE)
        engine.docker("rm", "--force", home.name)
        until(lambda: launcher.can_take_all() == FREE)
        assert launcher.records() == []


@pytest.mark.parametrize("every", [5])
def test_killed_at_every_step(tmp_path: Path, docker: Engine, every: int) -> None:
    """Wherever launcher or watcher is killed, a lease is there exactly while a container runs."""
    trace = tmp_path / "trace"
    Played(tmp_path / "traced", docker, "trace", str(trace))
    steps = trace.read_text().split()
    begin = next(at for at, step in enumerate(steps) if step.startswith("process.companion."))
    ends: dict[str, list[str]] = {}
    for step in steps[begin:]:
        ends.setdefault(step.partition("#")[0], []).append(step)
    steps = [step for same in ends.values() for step in dict.fromkeys((same[0], same[-1]))]
    certain = {
        "child:containers.watcher.Watcher._act:os.read#1",
        "process.companion.Companion.tell:os.write#1",
    }
    assert certain & set(steps), steps

    wrong = {}

    def play(numbered: tuple[int, str]) -> None:
        number, step = numbered
        try:
            Played(tmp_path / f"step-{number}", docker, "KILL", step)
        except AssertionError as problem:
            wrong[step] = str(problem)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(play, enumerate(some_of(steps, every, certain))))
    assert wrong == {}


# --------------------------------------------------------------------------------- restart policies


def test_restart_policy(launcher: Containers) -> None:
    """A container that its policy restarts has its lease until it is removed, running or not."""
    lease = launcher.detach("--restart", "always")
    first = launcher.container("Pid")
    launcher.engine.docker("exec", "job", "sh", "-c", "kill -TERM $(pidof sleep)")
    until(
        lambda: launcher.container() == "running" and launcher.container("Pid") != first,
    )
    assert launcher.lease()["id"] == lease["id"]
    launcher.engine.docker("stop", "job")
    assert (launcher.container(), launcher.lease()["container_state"]) == ("exited", "exited")
    assert launcher.can_take_all() == (75, BUSY)
    launcher.engine.docker("rm", "job")
    launcher.await_free()


def test_free_ends_a_restart_policy(launcher: Containers) -> None:
    """Gpulaunch free stops a container so that it does not come back, and keeps what is in it."""
    lease = launcher.detach("--restart", "always")
    done = launcher.run("free", *DGX, lease["id"])
    assert (done.returncode, done.stdout) == (
        0,
        f"ended {lease['id']} (GPUs 0,3)\n",
    )
    assert (launcher.records(), launcher.container()) == ([], "exited")


def test_free_without_watcher(launcher: Containers) -> None:
    """Gpulaunch free also ends a container whose watcher is gone."""
    lease = launcher.detach()
    os.kill(watcher_of(launcher), signal.SIGKILL)
    assert launcher.run("free", lease["id"]).returncode == 0
    assert (launcher.records(), launcher.container()) == ([], "exited")


# --------------------------------------------------------------------------------------- the engine


def unreachable(own: Containers) -> str:
    return f"cannot reach the Docker Engine at {own.engine.socket}: connection refused"


@pytest.mark.parametrize("killed", [(), WHO], ids=["all alive", "all killed"])
def test_engine_crash_with_live_restore(own: Containers, killed: tuple[str, ...]) -> None:
    """While the engine is away the lease stays, and status says why; a live container keeps it."""
    own.engine.restart(live_restore=True)
    job = Attached(own)
    job.kill(*killed)
    own.engine.kill()
    job.close()
    lease = own.lease()
    assert (lease["id"], lease["container_problem"]) == (job.lease["id"], unreachable(own))
    text = own.run("status", *DGX).stdout
    why = f"until its engine reports on its container: {unreachable(own)}"
    assert f" keeps its GPUs {why}\n" in text
    assert own.can_take_all() == (75, BUSY)
    done = own.run("free", lease["id"])
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        125,
        f"gpulaunch: error: lease {lease['id']}: {unreachable(own)}",
    )

    own.engine.start()
    assert (own.lease()["id"], own.lease()["container_state"]) == (lease["id"], "running")
    own.engine.docker("kill", "job")
    until(lambda: own.can_take_all() == FREE)


@pytest.mark.parametrize("killed", [(), WHO], ids=["all alive", "all killed"])
def test_engine_crash(own: Containers, killed: tuple[str, ...]) -> None:
    """Without live-restore container and lease outlive the engine, and end when it is back."""
    job = Attached(own, "--stop-timeout", "1")
    pid = int(own.container("Pid"))
    job.kill(*killed)
    own.engine.kill()
    job.close()
    assert Path(f"/proc/{pid}").exists()
    assert own.can_take_all() == (75, BUSY)
    own.engine.start()
    assert own.container() == "exited"
    until(lambda: own.can_take_all() == FREE)
    assert own.records() == []


def test_engine_restarts_containers(own: Containers) -> None:
    """A container that its policy starts again with the engine has its lease all the time."""
    lease = own.detach("--restart", "always", "--stop-timeout", "1")
    own.engine.kill()
    assert own.lease()["id"] == lease["id"]
    own.engine.start()
    until(lambda: own.container() == "running")
    assert (own.lease()["id"], own.can_take_all()) == (lease["id"], (75, BUSY))
    own.engine.docker("rm", "--force", "job")
    own.await_free()


def test_engine_stopped_in_order(own: Containers) -> None:
    """An engine that is stopped ends its containers; their leases end once it tells of that."""
    own.detach()
    own.engine.stop()
    assert own.lease()["container_problem"] == "its Docker Engine does not run here"
    own.engine.start()
    own.await_free()


def test_another_engine(own: Containers, launcher: Containers) -> None:
    """An engine that does not know the container is no proof that it has ended."""
    lease = own.detach()
    os.kill(watcher_of(own), signal.SIGKILL)
    own.environment |= launcher.engine.environment
    assert own.lease()["container_problem"] == "its Docker Engine does not run here"
    assert (own.lease()["id"], own.can_take_all()) == (lease["id"], (75, BUSY))


class _Replaced(BaseHTTPRequestHandler):
    """An engine called "new", without any container."""

    def do_GET(self) -> None:
        answer = {"ID": "new", "ServerVersion": "1"} if self.path == "/info" else []
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_an_engine_that_was_replaced_tells_a_watcher_nothing(tmp_path: Path) -> None:
    """Another engine at the same socket tells nothing of the container's end."""
    path = str(tmp_path / "s")
    with ThreadingUnixStreamServer(path, _Replaced) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert Followed(DockerClient(path), "new", "lease", None, 0.0)._holders() == []
        with pytest.raises(NoAnswerError, match="another Docker Engine is at"):
            Followed(DockerClient(path), "old", "lease", None, 0.0)._holders()
        server.shutdown()


# ------------------------------------------------------------------------------------ never started

NEVER = {
    "an image that is not there": (("--pull", "never", "no-such-image"), 125),
    "a command that is not there": ((IMAGE, "no-such-command"), 127),
    "a command that cannot be executed": ((IMAGE, "/etc"), 126),
    "a flag that the engine refuses": (("--memory", "1k", IMAGE, "true"), 125),
    "a device that is not there": (("--device", "/dev/no-such-device", IMAGE, "true"), 127),
}


@pytest.mark.parametrize(
    "detached",
    [(), ("-d",), ("-d", "--restart", "always")],
    ids=["attached", "detached", "with a restart policy"],
)
@pytest.mark.parametrize("why", NEVER)
def test_container_that_never_starts(
    launcher: Containers, why: str, detached: tuple[str, ...]
) -> None:
    """A container that cannot be started leaves no lease or process, and keeps docker's status."""
    arguments, status = NEVER[why]
    options = (
        option for option in RUN if option != "--init"
    )  # that would start, whatever it is to start
    done = launcher.run(*options, *detached, *arguments)
    assert (done.returncode, launcher.records()) == (status, [])
    assert launcher.can_take_all() == FREE
    until(lambda: not marked(launcher))


def marked(launcher: Containers) -> list[int]:
    """Return the processes of this test's launches."""
    mark = f"GPULAUNCH_STATE_DIR={launcher.state}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [int(path.parts[2])] if mark in path.read_bytes().split(b"\0") else []
        except OSError:
            continue
    return found


def test_name_conflict(launcher: Containers) -> None:
    """A name that is taken costs the second launch its GPUs and not the first."""
    lease = launcher.detach()
    done = launcher.run(*RUN, "-d", *FOREVER)
    assert (done.returncode, "Conflict" in done.stderr) == (125, True)
    assert launcher.lease() == lease


def test_full_disk(launcher: Containers, tmp_path: Path) -> None:
    """Where no record can be written no container is made."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,mode=1777", "tmpfs", str(small)], check=True
    )
    try:
        (small / "filler").write_bytes(b"x" * 4096)
        launcher.environment["GPULAUNCH_STATE_DIR"] = str(small)
        done = launcher.run(*RUN, *FOREVER)
        assert (done.returncode, done.stderr) == (
            125,
            f"gpulaunch: error: {small}: cannot write a record: no space left on device\n",
        )
        assert launcher.engine.docker("ps", "--all", "--quiet").stdout == ""
        assert [path.name for path in small.iterdir()] == ["filler"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


# --------------------------------------------------------------------------- cancelled, and waiting


@pytest.mark.parametrize("and_docker", [(), ("docker",)], ids=["launcher", "launcher and docker"])
def test_cancelled_in_ci(launcher: Containers, and_docker: tuple[str, ...]) -> None:
    """Where CI=true, a launcher that is killed takes its container along."""
    launcher.environment["CI"] = "true"
    job = Attached(launcher)
    job.kill("gpulaunch", *and_docker)
    launcher.await_free()
    job.close()
    assert launcher.container() == "exited"


def test_detached_in_ci(launcher: Containers) -> None:
    """Where CI=true, a detached container outlives its launcher, which has ended in order."""
    launcher.environment["CI"] = "true"
    launcher.detach()
    assert (launcher.container(), launcher.can_take_all()) == ("running", (75, BUSY))


def test_waiting_for_a_container(launcher: Containers) -> None:
    """A waiter in the queue gets a container's GPUs when it ends."""
    launcher.detach()
    waiting = launcher.start(*DGX, "-n", "all", "--wait", "--wait-timeout", "60s", "--", "true")
    until(lambda: any("ticket" in name for name in launcher.records()))
    launcher.engine.docker("rm", "--force", "job")
    assert (waiting.communicate(timeout=30)[1].count("error"), waiting.returncode) == (0, 0)


def test_waiting_for_a_container_that_nobody_watches(launcher: Containers) -> None:
    """The head of the queue asks the engine by itself where no process is left to tell."""
    launcher.detach()
    os.kill(watcher_of(launcher), signal.SIGKILL)
    waiting = launcher.start(*DGX, "-n", "all", "--wait", "--wait-timeout", "60s", "--", "true")
    until(lambda: any("ticket" in name for name in launcher.records()))
    launcher.engine.docker("rm", "--force", "job")
    assert (waiting.communicate(timeout=30)[1].count("error"), waiting.returncode) == (0, 0)
