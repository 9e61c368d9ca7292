"""Leases follow containers through killed processes, engine crashes, restarts and full disks.

Told from outside: by a real engine, by `gpulaunch status`, and by launches that want the same GPUs.
"""

import itertools
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import DGX, SCRIPT, Launcher, companion_of, holders, some_of, until, wait_for_end
from engine import IMAGE, Engine
from recording_engine import RecordingEngine
from test_docker import Host, real_host

__all__ = ["real_host"]

pytest_plugins = ("fake_nvml",)

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

    def container(self) -> str:
        """Return what the container called job does."""
        return self.engine.state("job")


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


def kill_watcher(launcher: Containers) -> None:
    """Kill the process that holds a detached container's lease."""
    watcher = watcher_of(launcher)
    os.kill(watcher, signal.SIGKILL)
    wait_for_end(watcher)


@pytest.fixture
def launcher(tmp_path: Path, docker: Engine) -> Containers:
    """Return a launcher whose table is empty, with the engine that all tests share."""
    return Containers(tmp_path, docker)


class Attached:
    """gpulaunch docker run in the foreground, with its three processes."""

    def __init__(self, launcher: Containers, *options: str) -> None:
        self.process = launcher.start(
            *RUN, *options, IMAGE, "sh", "-c", "echo ready; exec sleep 1000"
        )
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        self.lease = launcher.lease()
        self.pids = {
            "gpulaunch": self.process.pid,
            "docker": self.lease["job_pid"],
            "watcher": companion_of(launcher, self.process.pid),
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
def test_kill(launcher: Containers, killed: tuple[str, ...]) -> None:
    """Whatever is killed of gpulaunch, docker and watcher, the lease ends with the container."""
    job = Attached(launcher)
    job.kill(*killed)
    if killed == ("docker",):
        assert job.close() == 128 + signal.SIGKILL
    container = launcher.engine.inspect("job")["Id"]
    lease = launcher.lease()
    assert (lease["container"], lease["container_state"]) == (container, "running")
    assert (lease["id"], lease["uuids"]) == (job.lease["id"], job.lease["uuids"])
    assert launcher.can_take_all() == (75, BUSY)

    assert launcher.engine.docker("rm", "--force", "job").returncode == 0
    status = job.close()
    assert killed != ("watcher",) or status == 128 + signal.SIGKILL
    if not {"gpulaunch", "watcher"} <= set(killed):  # else nobody is left until somebody looks
        launcher.await_free()
    assert launcher.can_take_all() == FREE
    assert launcher.records() == []


def test_killed_in_turn(launcher: Containers) -> None:
    """A launcher starts a new watcher for a killed one when docker goes and the container stays."""
    job = Attached(launcher)
    job.kill("watcher")
    job.kill("docker")
    assert job.close() == 128 + signal.SIGKILL
    assert watcher_of(launcher) not in job.pids.values()
    launcher.engine.docker("kill", "job")
    launcher.await_free()


@pytest.mark.parametrize(
    ("watched", "options", "end"),
    [
        (True, "", "stop job"),
        (True, "--rm", "exec job killall -TERM sleep"),  # its own end
        (False, "", "kill job"),
        (False, "", "rm --force job"),
    ],
)
def test_detached(launcher: Containers, options: str, end: str, *, watched: bool) -> None:
    """A detached container's lease ends with it, however it ends, even with no watcher left."""
    lease = launcher.detach(*options.split())
    if not watched:
        kill_watcher(launcher)
        assert (launcher.lease()["id"], launcher.can_take_all()) == (lease["id"], (75, BUSY))
    assert launcher.engine.docker(*end.split()).returncode == 0
    if watched:
        launcher.await_free()
    until(lambda: launcher.can_take_all() == FREE)
    assert launcher.records() == []


def test_restart_by_hand(launcher: Containers) -> None:
    """Docker restart, with gpulaunch or without, takes the container away, and not its lease."""
    lease = launcher.detach()
    for _ in range(3):  # without waiting for a start, about every fourth loses it
        assert launcher.engine.docker("restart", "job").returncode == 0
        done = launcher.run(*DGX, "docker", "restart", "-t0", "job")
        assert (done.returncode, done.stdout, done.stderr) == (0, "job\n", "")
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


def play(home: Path, engine: Engine, action: str, subject: str) -> None:
    """Launch a detached container, hit at one step or only watched, and check all that follows.

    Args:
        home: of the launcher, a new one.
        engine: where the container is.
        action: KILL, or trace.
        subject: the step, or the file to trace to.
    """
    home.mkdir()
    launcher = Apart(home, engine)
    run = ("-q", "docker", "run", "-d", "--gpus", "2", "--init", "--name", home.name, *FOREVER)
    command = (AT_STEP, action, subject, *launcher.there(*DGX), *run)
    subprocess.run(command, env=launcher.environment, capture_output=True, check=False)
    for pid in marked(launcher):  # a launcher that was killed leaves its docker command at work
        if Path(f"/proc/{pid}/comm").read_text() == "docker\n":
            wait_for_end(pid)
    named = [one for one in engine.containers() if one["Names"] == [f"/{home.name}"]]
    running = [one["Id"] for one in named if one["State"] == "running"]
    assert [lease["container"] for lease in launcher.leases() if lease["container"]] == running
    assert launcher.can_take_all() == ((75, BUSY) if running else FREE)
    engine.docker("rm", "--force", home.name)
    until(lambda: launcher.can_take_all() == FREE)
    assert launcher.records() == []


@pytest.mark.parametrize("every", [9])
def test_killed_at_every_step(tmp_path: Path, docker: Engine, every: int) -> None:
    """Wherever launcher or watcher is killed, a lease is there exactly while a container runs."""
    trace = tmp_path / "trace"
    play(tmp_path / "traced", docker, "trace", str(trace))
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

    def play_one(number: int, step: str) -> None:
        try:
            play(tmp_path / f"step-{number}", docker, "KILL", step)
        except AssertionError as problem:
            wrong[step] = str(problem)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(play_one, itertools.count(), some_of(steps, every, certain)))
    assert wrong == {}


# --------------------------------------------------------------------------------- restart policies


def test_restart_policy(launcher: Containers) -> None:
    """A container that its policy restarts has its lease until it is removed, running or not."""
    lease = launcher.detach("--restart", "always")
    first = launcher.engine.inspect("job")["State"]["Pid"]
    launcher.engine.docker("exec", "job", "sh", "-c", "kill -TERM $(pidof sleep)")
    until(lambda: launcher.engine.inspect("job")["State"]["Pid"] not in (0, first))
    assert launcher.lease()["id"] == lease["id"]
    launcher.engine.docker("stop", "job")
    assert (launcher.container(), launcher.lease()["container_state"]) == ("exited", "exited")
    assert launcher.can_take_all() == (75, BUSY)
    launcher.engine.docker("rm", "job")
    launcher.await_free()


def test_free_ends_a_restart_policy(launcher: Containers) -> None:
    """Free stops a container so that it does not come back, though its watcher is gone."""
    lease = launcher.detach("--restart", "always")
    kill_watcher(launcher)
    done = launcher.run("free", *DGX, lease["id"])
    assert (done.returncode, done.stdout) == (0, f"ended {lease['id']} (GPUs 0,3)\n")
    assert (launcher.records(), launcher.container()) == ([], "exited")


# --------------------------------------------------------------------------------------- the engine


def test_engine_crash_with_live_restore(launcher: Containers) -> None:
    """While the engine is away the lease stays, and status says why; a live container keeps it."""
    engine = launcher.engine
    engine.reload(live_restore=True)
    job = Attached(launcher)
    engine.kill()
    job.close()
    lease = launcher.lease()
    why = f"cannot reach the Docker Engine at {engine.socket}: connection refused"
    assert (lease["id"], lease["container_problem"]) == (job.lease["id"], why)
    text = launcher.run("status", *DGX).stdout
    assert f" keeps its GPUs until its engine reports on its container: {why}\n" in text
    assert launcher.can_take_all() == (75, BUSY)
    done = launcher.run("free", lease["id"])
    assert done.returncode == 125
    assert done.stderr.splitlines()[0] == f"gpulaunch: error: lease {lease['id']}: {why}"

    engine.start()
    lease = launcher.lease()
    assert (lease["id"], lease["container_state"]) == (job.lease["id"], "running")
    engine.docker("kill", "job")
    until(lambda: launcher.can_take_all() == FREE)


def test_engine_crash(launcher: Containers) -> None:
    """Without live-restore container and lease outlive the engine, and end when it is back."""
    job = Attached(launcher, "--stop-timeout", "1")
    pid = launcher.engine.inspect("job")["State"]["Pid"]
    launcher.engine.kill()
    job.close()
    assert Path(f"/proc/{pid}").exists()
    assert launcher.can_take_all() == (75, BUSY)
    launcher.engine.start()
    assert launcher.container() == "exited"
    until(lambda: launcher.can_take_all() == FREE)
    assert launcher.records() == []


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


def test_another_engine(launcher: Containers, tmp_path: Path) -> None:
    """An engine that does not know the container is no proof that it has ended.

    The lease cannot be freed then: one line says what to do, and that works.
    """
    lease = launcher.detach()
    kill_watcher(launcher)
    other = RecordingEngine(tmp_path)
    other.answers = {"/info": {"ID": "new", "ServerVersion": "1"}, "/containers/json": []}
    launcher.environment["DOCKER_HOST"] = other.host
    found = launcher.lease()
    assert found["container_problem"] == "its Docker Engine does not run here"
    assert (found["id"], launcher.can_take_all()) == (lease["id"], (75, BUSY))
    done = launcher.run("free", lease["id"])
    error, hint = done.stderr.splitlines()
    gone = f"gpulaunch: error: lease {lease['id']}: its Docker Engine does not run here"
    assert (done.returncode, error) == (125, gone)
    (record,) = launcher.state.glob("gpulaunch.lease.*")
    assert str(record) in hint
    record.unlink()
    assert launcher.can_take_all() == FREE
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
def test_container_that_never_starts(launcher: Containers, line: str, status: int) -> None:
    """A container that cannot start, or ends at once, leaves nothing, and keeps docker's status."""
    run = [word for word in RUN if word != "--init"]  # that would start, whatever it is to start
    assert launcher.run(*run, *line.split()).returncode == status
    launcher.await_free()
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


# --------------------------------------------------------------------------- cancelled, and waiting


def test_cancelled_in_ci(launcher: Containers) -> None:
    """Where CI=true, a launcher that is killed takes its container along."""
    launcher.environment["CI"] = "true"
    job = Attached(launcher)
    job.kill("gpulaunch", "docker")
    launcher.await_free()
    job.close()
    assert launcher.container() == "exited"


def test_waiting_for_a_container_that_nobody_watches(launcher: Containers) -> None:
    """The head of the queue asks the engine by itself where no process is left to tell."""
    launcher.detach()
    kill_watcher(launcher)
    waiting = launcher.start(*DGX, "-n", "all", "--wait", "--", "true")
    until(lambda: any("ticket" in name for name in launcher.records()))
    launcher.engine.docker("rm", "--force", "job")
    assert (waiting.communicate()[1].count("error"), waiting.returncode) == (0, 0)
