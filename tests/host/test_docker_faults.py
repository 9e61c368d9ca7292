"""Leases follow containers through killed processes, engine crashes, restarts and full disks.

Told from outside: by a real engine, by `gpulaunch status`, and by launches that want the same GPUs.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import DGX, Launcher, companion_of, holders, some_of, until, wait_for_end
from engine import IMAGE, Engine
from recording_engine import RecordingEngine
from test_docker import Host, real_host

__all__ = ["real_host"]

pytest_plugins = ("fake_nvml",)

AT_STEP = Path(__file__).parents[1] / "jobs" / "at_step"
MACHINES = Path(__file__).parents[2] / "profiles" / "machines"
RUN = ("-q", "docker", "run", "--gpus", "2", "--name", "job", "--init")
FOREVER = (IMAGE, "sleep", "1000")  # ends by TERM, since --init gives it a parent that is no shell
ALL = ("-n", "all", "--", "true")
FREE = (0, "")
BUSY = "gpulaunch: error: 8 GPUs requested: 6 of 8 are free, 2 are leased"


class Containers(Host):
    """A machine described by its environment, whose GPUs get into no container."""

    def __init__(self, home: Path, engine: Engine, topology: str = DGX[1]) -> None:
        super().__init__(Launcher(home), engine)
        self.environment["GPULAUNCH_TOPOLOGY"] = topology

    def can_take_all(self) -> tuple[int, str]:
        """Return what a launch on every GPU that does not wait says: FREE, or why not."""
        done = self.run(*ALL)
        return done.returncode, done.stderr.partition("\n")[0]

    def detach(self, *options: str) -> dict:
        """Start a container in the background; return its lease."""
        self.detached(*RUN, "-d", *options, *FOREVER)
        return self.lease()


def watcher_of(host: Containers, other: int = 0) -> int:
    """Return the process that holds a detached container's lease, beside another launcher's."""
    records = [host.launcher.state / name for name in host.launcher.records() if ".lease." in name]
    (pid,) = {pid for record in records for pid in holders(record) if other not in holders(record)}
    return pid


def kill_watcher(host: Containers, other: int = 0) -> None:
    """Kill the process that holds a detached container's lease."""
    watcher = watcher_of(host, other)
    os.kill(watcher, signal.SIGKILL)
    wait_for_end(watcher)


@pytest.fixture
def host(tmp_path: Path, docker: Engine) -> Containers:
    """Return a DGX-1 whose table is empty, with the engine that all tests share."""
    return Containers(tmp_path, docker)


class Attached:
    """gpulaunch docker run in the foreground, with its three processes."""

    def __init__(self, host: Containers, *options: str) -> None:
        self.process = host.start(*RUN, *options, IMAGE, "sh", "-c", "echo ready; exec sleep 1000")
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        self.lease = host.lease()
        self.pids = {
            "gpulaunch": self.process.pid,
            "docker": self.lease["job_pid"],
            "watcher": companion_of(host.launcher, self.process.pid),
        }

    def kill(self, *who: str) -> None:
        for pid in map(self.pids.get, who):
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)

    def close(self) -> int:
        """Wait for the launcher's end; return its exit status."""
        self.process.communicate()
        return self.process.returncode


# The watcher before docker: at docker's end the launcher may hand the lease to it, and go.
WHO = ("gpulaunch", "watcher", "docker")
SUBSETS = [("gpulaunch",), ("watcher",), ("docker",), ("gpulaunch", "watcher"), WHO]


@pytest.mark.parametrize("killed", SUBSETS, ids=" and ".join)
def test_kill(host: Containers, killed: tuple[str, ...]) -> None:
    """Whatever is killed of gpulaunch, docker and watcher, the lease ends with the container."""
    job = Attached(host)
    job.kill(*killed)
    if killed == ("docker",):
        assert job.close() == 128 + signal.SIGKILL
    container = host.engine.inspect("job")["Id"]
    lease = host.lease()
    assert (lease["container"], lease["container_state"]) == (container, "running")
    assert (lease["id"], lease["uuids"]) == (job.lease["id"], job.lease["uuids"])
    assert host.can_take_all() == (75, BUSY)

    assert host.engine.docker("rm", "--force", "job").returncode == 0
    status = job.close()
    assert killed != ("watcher",) or status == 128 + signal.SIGKILL
    if not {"gpulaunch", "watcher"} <= set(killed):  # else nobody is left until somebody looks
        host.await_free()
    assert host.can_take_all() == FREE
    assert host.launcher.records() == []


def test_killed_in_turn(host: Containers) -> None:
    """A launcher starts a new watcher for a killed one when docker goes and the container stays."""
    job = Attached(host)
    job.kill("watcher")
    job.kill("docker")
    assert job.close() == 128 + signal.SIGKILL
    assert watcher_of(host) not in job.pids.values()
    host.engine.docker("kill", "job")
    host.await_free()


@pytest.mark.parametrize(
    ("watched", "options", "end"),
    [
        (True, "", "stop job"),
        (True, "--rm", "exec --detach job killall -TERM sleep"),  # its own end
        (False, "", "kill job"),
        (False, "", "rm --force job"),
    ],
)
def test_detached(host: Containers, options: str, end: str, *, watched: bool) -> None:
    """A detached container's lease ends with it, however it ends, even with no watcher left."""
    lease = host.detach(*options.split())
    if not watched:
        kill_watcher(host)
        assert (host.lease()["id"], host.can_take_all()) == (lease["id"], (75, BUSY))
    assert host.engine.docker(*end.split()).returncode == 0
    if watched:
        host.await_free()
    until(lambda: host.can_take_all() == FREE)
    assert host.launcher.records() == []


def test_restart_by_hand(host: Containers) -> None:
    """Docker restart, with gpulaunch or without, takes the container away, and not its lease."""
    lease = host.detach()
    for _ in range(3):  # without waiting for a start, about every fourth loses it
        assert host.engine.docker("restart", "job").returncode == 0
        done = host.run("docker", "restart", "-t0", "job")
        assert (done.returncode, done.stdout, done.stderr) == (0, "job\n", "")
        assert (host.lease()["id"], host.state("job")) == (lease["id"], "running")
        assert host.can_take_all() == (75, BUSY)
    host.engine.docker("rm", "--force", "job")
    host.await_free()


def test_restart_by_hand_attached(host: Containers) -> None:
    """Docker restart of a container in the foreground ends the docker command, not the lease."""
    job = Attached(host)
    assert host.engine.docker("restart", "job").returncode == 0
    assert job.close() == 128 + signal.SIGTERM
    until(lambda: host.state("job") == "running")
    assert (host.lease()["id"], host.can_take_all()) == (job.lease["id"], (75, BUSY))
    host.engine.docker("rm", "--force", "job")
    host.await_free()


def play(home: Path, engine: Engine, action: str, subject: str) -> None:
    """Launch a detached container, hit at one step or only watched, and check all that follows.

    Args:
        home: of the launcher, a new one.
        engine: where the container is.
        action: KILL, or trace.
        subject: the step, or the file to trace to.
    """
    home.mkdir()
    machine = home / "machine.toml"  # of its own, so that it is in no other launch's way
    text = (MACHINES / "dgx1-v100.toml").read_text()
    machine.write_text(text.replace('"dgx1-v100"', json.dumps(home.name), 1))
    host = Containers(home, engine, str(machine))
    run = ("-q", "docker", "run", "-d", "--gpus", "2", "--init", "--name", home.name, *FOREVER)
    command = (AT_STEP, action, subject, *run)
    subprocess.run(command, env=host.environment, capture_output=True, check=False)
    for pid in marked(
        host.launcher
    ):  # a launcher that was killed leaves its docker command at work
        if Path(f"/proc/{pid}/comm").read_text() == "docker\n":
            wait_for_end(pid)
    named = [one for one in engine.containers() if one["Names"] == [f"/{home.name}"]]
    running = [one["Id"] for one in named if one["State"] == "running"]
    # A watcher is sure a moment after the client has gone that nobody starts what is made.
    until(lambda: [one["container"] for one in host.leases() if one["container"]] == running)
    assert host.can_take_all() == ((75, BUSY) if running else FREE)
    engine.docker("rm", "--force", home.name)
    until(lambda: host.can_take_all() == FREE)
    assert host.launcher.records() == []


@pytest.mark.parametrize("every", [9])
def test_killed_at_every_step(tmp_path: Path, docker: Engine, every: int) -> None:
    """Wherever launcher or watcher is killed, a lease is there exactly while a container runs."""
    trace = tmp_path / "trace"
    play(tmp_path / "traced", docker, "trace", str(trace))
    steps = trace.read_text().split()
    begin = next(at for at, step in enumerate(steps) if step.startswith("process.ending.Companion"))
    ends: dict[str, list[str]] = {}
    for step in steps[begin:]:
        ends.setdefault(step.partition("#")[0], []).append(step)
    steps = [step for same in ends.values() for step in dict.fromkeys((same[0], same[-1]))]
    certain = {"process.ending.Companion.tell:os.write#1"}
    assert certain < set(steps), steps

    wrong = {}

    def play_one(number: int, step: str) -> None:
        try:
            play(tmp_path / f"step-{number}", docker, "KILL", step)
        except AssertionError as problem:
            wrong[step] = str(problem)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(play_one, itertools.count(), some_of(steps, every, certain)))
    assert wrong == {}


# --------------------------------------------------------------------------------- restart policies


def test_restart_policy(host: Containers) -> None:
    """A container that its policy restarts has its lease until it is removed, running or not."""
    lease = host.detach("--restart", "always")
    first = host.engine.inspect("job")["State"]["Pid"]
    host.engine.docker("exec", "job", "sh", "-c", "kill -TERM $(pidof sleep)")
    until(lambda: host.engine.inspect("job")["State"]["Pid"] not in (0, first))
    assert host.lease()["id"] == lease["id"]
    host.engine.docker("stop", "job")
    assert (host.state("job"), host.lease()["container_state"]) == ("exited", "exited")
    assert host.can_take_all() == (75, BUSY)
    host.engine.docker("rm", "job")
    host.await_free()


def test_free(host: Containers) -> None:
    """`gpulaunch free` tells a container to end first, also a paused one that nobody watches.

    No policy starts it again.
    """
    script = "trap 'echo told; exit 0' TERM; echo ready; sleep 1000 & wait"
    host.detached(*RUN, "-d", "--restart", "always", IMAGE, "sh", "-c", script)
    until(lambda: "ready" in host.do("logs", "job"))
    host.do("pause", "job")
    kill_watcher(host)
    assert "keeps its GPUs: container job is paused" in host.run("status").stdout
    lease = host.lease()
    done = host.run("free", lease["id"])
    assert (done.returncode, done.stdout) == (0, f"ended {lease['id']} (GPUs 0,3)\n")
    assert (host.launcher.records(), host.state("job")) == ([], "exited")
    assert host.do("logs", "job").split() == ["ready", "told"]


# --------------------------------------------------------------------------------------- the engine


def test_engine_crash_with_live_restore(host: Containers) -> None:
    """While the engine is away the lease stays, and status says why; a live container keeps it."""
    engine = host.engine
    engine.reload(live_restore=True)
    job = Attached(host)
    engine.kill()
    job.close()
    lease = host.lease()
    why = f"cannot reach the Docker Engine at {engine.socket}: connection refused"
    assert (lease["id"], lease["container_problem"]) == (job.lease["id"], why)
    text = host.run("status").stdout
    assert f" keeps its GPUs until its engine reports on its container: {why}\n" in text
    assert host.can_take_all() == (75, BUSY)
    done = host.run("free", lease["id"])
    assert done.returncode == 125
    assert done.stderr.splitlines()[0] == f"gpulaunch: error: lease {lease['id']}: {why}"

    engine.start()
    lease = host.lease()
    assert (lease["id"], lease["container_state"]) == (job.lease["id"], "running")
    engine.docker("kill", "job")
    until(lambda: host.can_take_all() == FREE)


def test_engine_crash(host: Containers) -> None:
    """Without live-restore container and lease outlive the engine, and end when it is back."""
    job = Attached(host, "--stop-timeout", "1")
    pid = host.engine.inspect("job")["State"]["Pid"]
    host.engine.kill()
    job.close()
    assert Path(f"/proc/{pid}").exists()
    assert host.can_take_all() == (75, BUSY)
    host.engine.start()
    assert host.state("job") == "exited"
    until(lambda: host.can_take_all() == FREE)
    assert host.launcher.records() == []


def test_engine_restarts_containers(real_host: Host) -> None:
    """A container that its policy starts again with the engine has its lease all the time."""
    engine = real_host.engine
    policy = ("--restart", "always", "--init", "--stop-timeout", "1", "--name", "job")
    real_host.detached("docker", "run", "-d", *policy, "--gpus", "2", *FOREVER)
    lease = real_host.lease()
    for end in (engine.stop, engine.kill):
        end()
        assert real_host.lease()["id"] == lease["id"]
        engine.start()
        until(lambda: real_host.state("job") == "running")
        assert real_host.lease()["id"] == lease["id"]
        assert real_host.run("-n", "all", "--", "true").returncode == 75


def test_another_engine(host: Containers, tmp_path: Path) -> None:
    """An engine that does not know the container is no proof that it has ended.

    The lease cannot be freed then: one line says what to do, and that works.
    """
    lease = host.detach()
    kill_watcher(host)
    other = RecordingEngine(tmp_path)
    other.answers = {"/info": {"ID": "new", "ServerVersion": "1"}, "/containers/json": []}
    host.environment["DOCKER_HOST"] = other.host
    found = host.lease()
    assert found["container_problem"] == "its Docker Engine does not run here"
    assert (found["id"], host.can_take_all()) == (lease["id"], (75, BUSY))
    done = host.run("free", lease["id"])
    error, hint = done.stderr.splitlines()
    gone = f"gpulaunch: error: lease {lease['id']}: its Docker Engine does not run here"
    assert (done.returncode, error) == (125, gone)
    (record,) = host.launcher.state.glob("gpulaunch.lease.*")
    assert str(record) in hint
    record.unlink()
    assert host.can_take_all() == FREE
    other.close()


# ------------------------------------------------------------------------------------ never started


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("--pull never no-such-image", 125),
        ("-d bb:1 no-such-command", 127),
        ("-d --restart always bb:1 /etc", 126),
        ("-d --restart always --device /dev/no-such-device bb:1 true", 127),
    ],
)
def test_container_that_never_starts(host: Containers, line: str, status: int) -> None:
    """A container that cannot start, or ends at once, leaves nothing, and keeps docker's status."""
    run = [word for word in RUN if word != "--init"]  # that would start, whatever it is to start
    assert host.run(*run, *line.split()).returncode == status
    host.await_free()
    assert host.can_take_all() == FREE
    until(lambda: not marked(host.launcher))


def test_what_nobody_is_left_to_start(host: Containers, tmp_path: Path) -> None:
    """A container that docker run had only made holds nothing once all that watched it are gone."""
    docker = shutil.which("docker", path=host.environment["PATH"])
    client = tmp_path / "docker"
    client.write_text(f'#!/bin/sh\nshift\n{docker} create "$@"\nread _\n')
    client.chmod(0o755)
    path = f"{tmp_path}:{host.environment['PATH']}"
    words = ("docker", "run", "--gpus", "8", *FOREVER)
    with host.start(*words, stdin=subprocess.PIPE, env={**host.environment, "PATH": path}) as job:
        made = job.stdout.readline().strip()
        assert host.engine.inspect(made)["State"]["Status"] == "created"
        (record,) = host.launcher.records()
        everybody = {job.pid, *marked(host.launcher), *holders(host.launcher.state / record)}
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
    until(lambda: host.can_take_all() == FREE)
    host.do("rm", made)


def marked(launcher: Launcher) -> list[int]:
    """Return the processes of this test's launches."""
    mark = f"GPULAUNCH_STATE_DIR={launcher.state}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [int(path.parts[2])] if mark in path.read_bytes().split(b"\0") else []
        except OSError:
            continue
    return found


def test_name_conflict(host: Containers) -> None:
    """A name that is taken costs the second launch its GPUs and not the first."""
    lease = host.detach()
    done = host.run(*RUN, "-d", *FOREVER)
    assert (done.returncode, "Conflict" in done.stderr) == (125, True)
    assert host.lease() == lease
