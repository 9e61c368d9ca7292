"""The life of MPS daemons: started with a share group's first job, watched, ended with the last."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Launcher, some_of, until, wait_for_end
from fake_mps import CLIENT, CONTROL, SERVER, FakeMps, Mps, is_alive, kill, meet
from fake_nvml import FakeNvml
from test_crashes import at_step, ends, launcher_in, start
from test_table import put

from gpulaunch.process.system import user_name
from gpulaunch.sharing.membership import KEPT_S
from gpulaunch.sharing.mps_daemon import Daemon

pytest_plugins = ("fake_mps", "fake_nvml")

LIGHT = ("--share", "-o", "objective=energy", "-o", "utilization=10,5", "--memory", "1GiB")
V100 = [
    {"uuid": f"GPU-v100-{i}", "name": "Tesla V100", "memory_mib": 16160, "cc": "7.0"}
    for i in range(2)
]
HEAVY = ("--share", "-o", "utilization=95,5", "--memory", "1GiB")


@pytest.fixture(autouse=True)
def _machine(dgx1_v100: FakeNvml, launcher: Launcher) -> None:
    """Describe eight V100 with a driver that knows all of MPS."""
    dgx1_v100.add("driver 550.54.15")
    launcher.environment |= {"GPULAUNCH_GRACE": "0.3s"}


class Client:
    """A job that is a client of MPS and runs until it is told to end.

    Attributes:
        launcher: what started it.
        process: of the launcher.
        pid: of the client.
        how: "attached", or "without" MPS.
    """

    def __init__(
        self,
        launcher: Launcher,
        *options: str,
        words: tuple[str, ...] = ("mps_client",),
        **process: object,
    ) -> None:
        self.launcher = launcher
        self.process = launcher.start(*options, "--", *words, stdin=subprocess.PIPE, **process)
        line = self.process.stdout.readline()
        assert line, (self.process.wait(), self.process.stderr.read())
        self.how, pid = line.split()
        self.pid = int(pid)

    def lease(self) -> str:
        """Return the id of the job's lease."""
        leases = json.loads(self.launcher.run("status", "--json").stdout)["leases"]
        return next(lease["id"] for lease in leases if lease["pid"] == self.process.pid)

    def end(self) -> tuple[int, str]:
        """Let the job end; return the launcher's exit status and what it said."""
        _, said = self.process.communicate("\n")
        return self.process.returncode, said


@contextmanager
def client(launcher: Launcher, *options: str, **how: object):
    job = Client(launcher, *options, **how)
    with job.process:
        try:
            yield job
        finally:
            if job.process.poll() is None:
                job.end()


def await_gone(launcher: Launcher, mps: Mps) -> None:
    """Block until no daemon, server, group directory or record is left."""
    groups = Path(launcher.environment["GPULAUNCH_MPS_DIRECTORY"])

    def is_gone() -> bool:
        launcher.run("status")  # puts away the records of launchers that were killed
        left = [path for path in groups.glob("*") if path.suffix not in (".lock", ".hung")]
        return not (*mps.pids(CONTROL), *mps.pids(SERVER), *left, *launcher.records())

    until(is_gone)


def ended_safely(fake_mps: FakeMps, pid: int) -> bool:
    """Return whether MPS let go of a client before that ended; the daemon notices that late."""
    fake_mps.wait_for("left", pid=pid)
    return fake_mps.ended_safely(pid)


def variables_of(job: Client) -> dict[str, str]:
    """Return the environment of a job."""
    lines = Path(f"/proc/{job.pid}/environ").read_bytes().decode().split("\0")[:-1]
    return dict(line.split("=", 1) for line in lines)


def gpu_of(job: Client) -> str:
    """Return CUDA_VISIBLE_DEVICES of a job."""
    return variables_of(job)["CUDA_VISIBLE_DEVICES"]


def own_gpu(launcher: Launcher, *options: str) -> str:
    """Return what is said of a job that cannot share."""
    done = launcher.run(*LIGHT, *options, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (done.returncode, done.stdout) == (0, "0\n")
    return done.stderr.removeprefix("gpulaunch: warning: not shared: ").removesuffix("\n")


@contextmanager
def two_v100(directory: Path, library: Path) -> Iterator[tuple[Launcher, FakeMps, FakeNvml]]:
    """Yield a launcher in a directory, MPS, and a driver that tells of two V100."""
    launcher = launcher_in(directory)
    nvml = FakeNvml(library, directory / "nvml.txt")
    nvml.describe(V100, ["driver 550.54.15"])
    with closing(FakeMps()) as mps:
        meet(launcher, mps)
        launcher.environment |= nvml.environment
        yield launcher, mps, nvml


class Group(NamedTuple):
    """A share group that a client of it keeps up; tests join it."""

    launcher: Launcher
    mps: FakeMps
    nvml: FakeNvml
    other: Client

    def asked(self, pid: int) -> list[str]:
        """Return the commands to let go of a client."""
        return [one for one in self.mps.commands("terminate_client") if one.endswith(f" {pid}")]


@pytest.fixture(scope="module")
def group(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Yield a group of one for all tests that need no daemon of their own; it ends in the end."""
    with two_v100(tmp_path_factory.mktemp("group"), fake_nvml_library) as (launcher, mps, nvml):
        with client(launcher, *LIGHT) as other:
            list_clients(mps, 1)  # this launcher will not ask again
            yield Group(launcher, mps, nvml, other)
            assert other.end() == (0, "")
        await_gone(launcher, mps)


# ----------------------------------------------------------------------------- the life of a daemon


def test_the_life_of_a_group_of_one(launcher: Launcher, fake_mps: FakeMps) -> None:
    """The daemon is there, its server ACTIVE, before the job, its client; all end with the job.

    A daemon that hears others is asked again.
    """
    fake_mps.tell(looks=3, busy=4)
    with client(launcher, *LIGHT, "--share=40%") as job:
        assert job.how == "attached"
        (daemon,), (there,) = fake_mps.events("started"), fake_mps.attached()
        groups = launcher.environment["GPULAUNCH_MPS_DIRECTORY"]
        assert os.path.dirname(daemon.pipe) == groups
        here = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "GPU-v100-0",
            "CUDA_MPS_PIPE_DIRECTORY": daemon.pipe,
        }
        assert daemon.said["environment"] == here | {
            "CUDA_MPS_LOG_DIRECTORY": f"{daemon.pipe}/logs"
        }
        assert there.said["environment"] == here | {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-v100-0=1024M",
        }
        # Whoever asks before the server is ACTIVE is not attached.
        kinds = [event.kind for event in fake_mps.events("started", "server", "asked", "attached")]
        assert kinds == ["started", "server", "asked", "attached"]
        heard = [line for line in fake_mps.commands() if not line.startswith("get_default")]
        start = f"start_server -uid {os.geteuid()}"
        assert heard[:3] == ["get_server_list", start, "get_server_list"]
        assert len(fake_mps.commands("get_server_status")) == 4
        assert os.stat(groups).st_mode & 0o777 == 0o700
        assert job.end() == (0, "")
    assert fake_mps.commands("quit") == ["quit"]
    await_gone(launcher, fake_mps)


def test_the_last_one_ends_it(launcher: Launcher, fake_mps: FakeMps) -> None:
    """Jobs of a group have one daemon, whichever come and go; a later group has a new one."""
    with client(launcher, *LIGHT) as first:
        with client(launcher, *LIGHT) as second:
            assert gpu_of(first) == gpu_of(second) == "GPU-v100-0"
            assert len(fake_mps.attached()) == 2
            assert (len(fake_mps.events("started")), len(fake_mps.pids(SERVER))) == (1, 1)
            assert first.end() == (0, "")
            assert fake_mps.commands("quit") == []
            with client(launcher, *LIGHT) as third:
                assert (third.how, gpu_of(third)) == ("attached", "GPU-v100-0")
            assert second.end() == (0, "")
        assert fake_mps.commands("quit") == ["quit"]
    await_gone(launcher, fake_mps)
    with client(launcher, *LIGHT) as later:
        assert later.how == "attached"
    assert len(fake_mps.events("started")) == 2
    await_gone(launcher, fake_mps)


def test_the_pace_of_a_resident(launcher: Launcher, fake_mps: FakeMps) -> None:
    """As soon as a newcomer is there, status shows a resident's pace beside it."""
    options = ("--share", "-o", "objective=energy", "-o", "utilization=45,5", "--memory", "1GiB")

    def paces() -> dict[str, float]:
        leases = json.loads(launcher.run("status", "--json").stdout)["leases"]
        return {lease["name"]: lease["pace"] for lease in leases}

    with client(launcher, *options, "--name", "first") as first:
        alone = paces()["first"]
        with client(launcher, *options, "--name", "second") as second:
            assert gpu_of(first) == gpu_of(second)
            both = paces()
            assert both["first"] == pytest.approx(both["second"], abs=0.02)
            assert both["first"] < 0.95 * alone
        assert paces() == {"first": alone}
        assert first.end() == (0, "")
    await_gone(launcher, fake_mps)


def test_each_set_of_gpus_has_its_own(launcher: Launcher, fake_mps: FakeMps) -> None:
    """Groups on different GPUs have different daemons, and never CUDA's default directory."""
    with (
        client(launcher, *LIGHT, "-n", "2") as pair,
        client(launcher, *LIGHT) as one,
        client(launcher, *HEAVY) as two,
    ):
        pipes = {
            event.said["environment"]["CUDA_VISIBLE_DEVICES"]: event.pipe
            for event in fake_mps.events("started")
        }
        assert set(pipes) == {",".join(sorted(gpu_of(pair).split(","))), gpu_of(one), gpu_of(two)}
        assert len({*pipes.values(), "/tmp/nvidia-mps"}) == 4
        assert all(len(pipe) + len("/control_privileged") < 108 for pipe in pipes.values())
    await_gone(launcher, fake_mps)


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ({"server_fails": True}, "its server does not start: "),
        ({"status": "FAULT"}, "is in state FAULT"),
        ({"dies": ["start_server"]}, "its daemon does not survive start_server"),
    ],
)
def test_a_daemon_that_fails(launcher: Launcher, fake_mps: FakeMps, told: dict, want: str) -> None:
    """Whatever MPS does, the job runs, on a GPU of its own, and nothing of MPS stays."""
    fake_mps.tell(**told)
    said = own_gpu(launcher)
    assert (said.startswith("MPS: "), want in said) == (True, True), said
    await_gone(launcher, fake_mps)


def test_a_server_that_hung_is_not_tried_again_soon(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A server that hung costs one launch its wait; later ones say so, and what makes them try."""
    fake_mps.tell(status="INITIALIZING")
    launcher.environment["GPULAUNCH_MPS_TIMEOUT"] = "0.3s"
    first = own_gpu(launcher)
    (server,) = fake_mps.events("server")
    assert first == f"MPS: its server (pid {server.pid}) is still INITIALIZING after 0.3 s"
    (note,) = Path(launcher.environment["XDG_RUNTIME_DIR"]).glob("*.hung")
    fake_mps.tell(status="ACTIVE")
    assert own_gpu(launcher) == f"{first}; tried again within 10 min, or after 'rm {note}'"
    assert len(fake_mps.events("started")) == 1
    content = note.read_bytes()
    for timeout, age_s in (("0.4s", 0), ("0.3s", KEPT_S)):
        note.write_bytes(content)
        os.utime(note, (time.time() - age_s,) * 2)
        launcher.environment["GPULAUNCH_MPS_TIMEOUT"] = timeout
        done = launcher.run(*LIGHT, "--", "true")
        assert (done.stderr, note.exists()) == ("", False)
    await_gone(launcher, fake_mps)


@pytest.mark.parametrize(
    "want", ["is in state FAULT, and", "its control daemon is gone, and"], ids=["faulty", "dead"]
)
def test_a_daemon_that_does_not_work_is_not_joined(
    launcher: Launcher, fake_mps: FakeMps, want: str
) -> None:
    """A job that meets one gets a GPU of its own; the group is left alone until its last job."""
    with client(launcher, *LIGHT) as first:
        (daemon,) = fake_mps.events("started")
        if "FAULT" in want:
            fake_mps.tell(status="FAULT")
        else:
            kill(daemon.pid)
        done = launcher.run(*LIGHT, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert done.stdout.strip() in map(str, range(1, 8))
        assert f"{want} a job of the group still runs" in done.stderr
        assert (fake_mps.commands("quit"), is_alive(first.pid)) == ([], True)
        fake_mps.tell(status="ACTIVE")
        assert first.end()[0] == 0
    with client(launcher, *LIGHT) as later:
        assert (later.how, gpu_of(later)) == ("attached", "GPU-v100-0")
    await_gone(launcher, fake_mps)


def kill_all_but(job: Client) -> None:
    """Kill the launcher of a job, and all that look after it."""
    mark = f"GPULAUNCH_STATE_DIR={job.launcher.state}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = mark in (path / "environ").read_bytes().split(b"\0")
            if is_ours and b"gpulaunch" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    for pid in found:
        if pid != job.pid:
            kill(pid)


def orphan(launcher: Launcher, fake_mps: FakeMps) -> str:
    """Let a group's daemon outlive its jobs and their processes; return its pipe directory."""
    launcher.is_executed = True  # its processes are found by their environment
    with client(launcher, *LIGHT) as job:
        (daemon,) = fake_mps.events("started")
        kill_all_but(job)
        fake_mps.end_client(job.pid)
    assert is_alive(daemon.pid)
    return daemon.pipe


def test_a_daemon_that_nobody_ended(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A daemon that outlived everybody is ended by its user's next launch, which starts its own."""
    pipe = orphan(launcher, fake_mps)
    (old,) = fake_mps.events("started")
    with client(launcher, *LIGHT) as job:
        assert (job.how, is_alive(old.pid)) == ("attached", False)
        assert [event.pipe for event in fake_mps.events("started")] == [pipe, pipe]
    await_gone(launcher, fake_mps)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_while_its_server_starts(launcher: Launcher, fake_mps: FakeMps, number: int) -> None:
    """A launcher that ends while it waits for its server leaves neither that nor the daemon."""
    fake_mps.tell(status="INITIALIZING")
    job = launcher.start(*LIGHT, "--", "mps_client", stdin=subprocess.DEVNULL)
    fake_mps.wait_for("server")
    job.send_signal(number)
    job.communicate()
    assert job.returncode == -number
    await_gone(launcher, fake_mps)


PROGRAM = """
import os, sys, gpulaunch
lease = gpulaunch.allocate(share=True, utilization=[10, 5], memory="1GiB")
lease.apply()
print("ready", flush=True)
sys.stdin.readline()
{end}
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 15)"])
def test_a_program_that_ends(launcher: Launcher, fake_mps: FakeMps, end: str) -> None:
    """However a Python program that shares ends, its daemon goes with it."""
    command = [sys.executable, "-c", PROGRAM.format(end=end)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=launcher.environment, text=True, **pipes) as program:
        assert program.stdout.readline() == "ready\n", program.stderr.read()
        assert len(fake_mps.daemons()) == 1
        program.communicate("\n")
    await_gone(launcher, fake_mps)


def test_the_daemon_is_nobodys(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A daemon has nothing of the first job: no secrets, limits, descriptors or session."""
    launcher.environment["SECRET"] = "1"
    command = ["sh", "-c", 'ulimit -t 77; exec "$@"', "sh", launcher.script]
    command += [*LIGHT, "--", "mps_client"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=launcher.environment, text=True, **pipes) as job:
        assert job.stdout.readline().startswith("attached")
        (server,) = fake_mps.pids(SERVER)
        process = Path(f"/proc/{server}")
        assert b"SECRET=1" not in (process / "environ").read_bytes().split(b"\0")
        limits = (process / "limits").read_text().splitlines()
        hard = next(line for line in limits if line.startswith("Max cpu time")).split()
        assert hard[3] == hard[4]
        state = str(launcher.state)
        assert not [fd for fd in (process / "fd").iterdir() if os.readlink(fd).startswith(state)]
        assert os.getsid(server) != os.getsid(job.pid)
        job.communicate("\n")
    await_gone(launcher, fake_mps)


def test_another_place_of_the_same_name(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A daemon of a directory that has the same name in another mount namespace is left alone."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    with client(launcher, *LIGHT) as job:
        (daemon,) = fake_mps.events("started")
        groups = launcher.environment["GPULAUNCH_MPS_DIRECTORY"]
        state = launcher.state.parent / "other"
        state.mkdir()
        words = [launcher.script, *LIGHT, "--only", "0", "--", "true"]
        script = f"mount -t tmpfs -o mode=700 tmpfs {groups} && exec {' '.join(words)}"
        environment = launcher.environment | {"GPULAUNCH_STATE_DIR": str(state)}
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert is_alive(daemon.pid)
        assert job.end() == (0, "")
    await_gone(launcher, fake_mps)


# --------------------------------------------------------------------------------------- attachment


@pytest.mark.parametrize("seen", [True, False])
def test_a_job_that_did_not_attach_is_told_of(group: Group, seen: bool) -> None:
    """A job that uses its GPU without MPS is told of, once; one without visible use is not."""
    command = ("--", "sh", "-c", "echo $$; exec sleep 600")
    asked = len(group.mps.commands("get_client_list"))
    job = group.launcher.start(*LIGHT, *command, stdin=subprocess.DEVNULL)
    pid = int(job.stdout.readline())
    if seen:
        group.nvml.add(f"process 0 {pid} 300")
        want = f"pid {pid} of the job uses its GPU without MPS: neither its share of SMs nor its "
        assert job.stderr.readline() == f"gpulaunch: warning: {want}memory is bounded\n"
        group.nvml.drop(f"process 0 {pid}")
    else:
        list_clients(group.mps, asked + 1)
    os.kill(pid, signal.SIGTERM)
    _, rest = job.communicate()
    assert (job.returncode, rest) == (143, "")


def list_clients(fake_mps: FakeMps, count: int) -> None:
    """Block until launchers have asked so often who is attached."""
    until(lambda: len(fake_mps.commands("get_client_list")) >= count)


def test_a_job_that_attached_is_not_asked_about_again(group: Group) -> None:
    """A client that NVML shows at work is not told of, even as a child of the job."""
    asked = len(group.mps.commands("get_client_list"))
    with client(group.launcher, *LIGHT, words=("sh", "-c", "mps_client <&0 & wait")) as job:
        group.nvml.add(f"process 0 {job.pid} 300")
        list_clients(group.mps, asked + 1)
        group.mps.end_client(job.pid)
        assert job.end() == (0, "")
    group.nvml.drop(f"process 0 {job.pid}")
    assert len(group.mps.commands("get_client_list")) == asked + 1


@pytest.mark.parametrize(
    ("mib", "status", "told"), [(1000, 3, True), (1000, 0, False), (800, 3, False)]
)
def test_a_job_that_failed_at_its_limit_is_told_whose_it_was(
    group: Group, tmp_path: Path, mib: int, status: int, told: bool
) -> None:
    """A job that fails after it has held nearly its 1 GiB learns that gpulaunch limits it."""
    calls = tmp_path / "calls"

    def asked() -> int:
        return calls.read_text().count("MPSComputeRunningProcesses")

    environment = group.launcher.environment | {"FAKE_NVML_CALLS": str(calls)}
    script = f"mps_client <&0; exit {status}"
    with client(group.launcher, *LIGHT, words=("sh", "-c", script), env=environment) as job:
        group.mps.tell_nvml(group.nvml, client_mib=mib)
        before = asked()
        until(lambda: asked() > before)
        found, said = job.end()
    group.mps.tell_nvml(group.nvml)
    line = (
        "gpulaunch: warning: the job has failed, and had held 1000 MiB of GPU memory: gpulaunch "
        "limits it to 1 GiB, which --memory raises\n"
    )
    assert (found, said) == (status, line if told else "")


def test_a_share_is_not_handed_on(group: Group) -> None:
    """A launch that does not share is no client of a group whose variables it has found."""
    variables = variables_of(group.other).items()
    found = {name: text for name, text in variables if name.startswith("CUDA_MPS")}
    environment = group.launcher.environment | found
    done = group.launcher.run("--", "mps_client", env=environment, input="\n")
    assert (done.returncode, done.stdout.split()[0]) == (0, "without")
    own = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PIPE_DIRECTORY": str(group.mps.pipe("own")),
    }
    environment = group.launcher.environment | own
    done = group.launcher.run("--", "sh", "-c", "env | grep ^CUDA_MPS | sort", env=environment)
    assert done.stdout == "".join(f"{name}={value}\n" for name, value in own.items())


def test_an_orphan_in_exclusive_process_mode(
    launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml
) -> None:
    """An MPS server on a GPU is no outside use, but in EXCLUSIVE_PROCESS, where it bars others.

    Its user's next launch ends an orphan, and gets its GPU.
    """

    def gpus() -> list[dict]:
        return json.loads(launcher.run("status", "--json").stdout)["gpus"]

    orphan(launcher, fake_mps)
    (server,) = fake_mps.pids(SERVER)
    fake_mps.tell_nvml(dgx1_v100)
    assert [gpu["state"] for gpu in gpus()] == ["free"] * 8
    dgx1_v100.change(0, mode=3)
    user = user_name(os.geteuid())
    want = f"an MPS server keeps it in compute mode EXCLUSIVE_PROCESS: pid {server}, {user}"
    assert (gpus()[0]["state"], gpus()[0]["outside"]) == ("outside", want)
    command = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line")
    job = launcher.start("--only", "0", *command, stdin=subprocess.PIPE)
    wait_for_end(server)
    fake_mps.tell_nvml(dgx1_v100)
    assert job.communicate("\n") == ("0\n", "")
    await_gone(launcher, fake_mps)


def test_exclusive_process_mode(launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml) -> None:
    """Where the administrator has set EXCLUSIVE_PROCESS, jobs share through the one server."""
    for gpu in range(8):
        dgx1_v100.change(gpu, mode=3)
    with client(launcher, *LIGHT) as first:
        fake_mps.tell_nvml(dgx1_v100)
        with client(launcher, *LIGHT) as second:
            assert (first.how, second.how, gpu_of(second)) == ("attached", "attached", "GPU-v100-0")
            fake_mps.tell_nvml(dgx1_v100)
        fake_mps.tell_nvml(dgx1_v100)
    fake_mps.tell_nvml(dgx1_v100)
    await_gone(launcher, fake_mps)


# ------------------------------------------------------------------------------ the end of a client


DEAF = ("mps_client", "--deaf", "--stays")
STAYS = ("mps_client", "--stays")
AS_TORCHRUN = ("sh", "-c", "trap 'kill $!; wait; exit 3' TERM; mps_client --stays <&0 & wait")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("limit", DEAF),
        ("free", DEAF),
        ("free without launcher", DEAF),
        ("CI", DEAF),
        ("CI", STAYS),
        ("HUP", STAYS),
        ("free", AS_TORCHRUN),
        ("TERM", AS_TORCHRUN),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_client_is_taken_off_first(group: Group, how: str, words: tuple[str, ...]) -> None:
    """However gpulaunch ends a client that does not end in order, MPS has let go of it before.

    That is so for one which ignores TERM, has no handler for it, or has a parent that passes it on.
    The others of the group go on.
    """
    limit = ("--time-limit", "0.5s") if how == "limit" else ()
    environment = group.launcher.environment | {"CI": "true" if how == "CI" else ""}
    with client(group.launcher, *LIGHT, *limit, words=words, env=environment) as job:
        lease = job.lease() if how.startswith("free") else ""
        if how in ("CI", "free without launcher"):
            job.process.kill()
            job.process.wait()
        if how in ("TERM", "HUP"):
            job.process.send_signal(signal.Signals[f"SIG{how}"])
        if lease:
            done = group.launcher.run("free", lease)
            assert (done.returncode, done.stderr) == (0, "")
        wait_for_end(job.pid)
        job.process.communicate()
        assert how != "limit" or job.process.returncode == 124
        group.mps.wait_for("left", pid=job.pid)
    events = group.mps.events("terminated", "left", "died", pid=job.pid)
    assert [event.kind for event in events] == ["terminated", "left"]
    assert is_alive(group.other.pid)


@pytest.mark.parametrize("how", ["free", "TERM"])
def test_a_client_that_handles_term_stays_attached(group: Group, how: str) -> None:
    """A client that catches TERM ends by itself and in order: MPS is not asked to let go of it."""
    with client(group.launcher, *LIGHT, words=("mps_client", "--tidy")) as job:
        if how == "TERM":
            job.process.terminate()
        else:
            assert group.launcher.run("free", job.lease()).returncode == 0
        wait_for_end(job.pid)
    assert group.asked(job.pid) == []
    assert ended_safely(group.mps, job.pid)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("mps_client <&0 & exec sleep 600", 129),
        ("trap 'echo got' HUP; mps_client <&0 & wait; wait; exit 4", 4),
    ],
)
def test_a_signal_that_does_not_reach_a_client(group: Group, script: str, status: int) -> None:
    """A client that goes on is not taken off: its parent ends without it, or reloads by HUP."""
    with client(group.launcher, *LIGHT, "-q", words=("sh", "-c", script)) as job:
        job.process.send_signal(signal.SIGHUP)
        if status == 129:
            assert job.process.wait() == status
        else:
            assert job.process.stdout.readline() == "got\n"
        group.mps.end_client(job.pid)
        assert job.process.wait() == status
    assert group.asked(job.pid) == []


def test_a_launch_inside_keeps_its_client(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A launch inside a job that shares is a client, too, and outlives it, as the daemon then does.

    TERM to the job lets its client be: that has a lease of its own.
    """
    script = "gpulaunch -- mps_client <&0 2>/dev/null & wait"
    outer = launcher.start(*LIGHT, "--", "sh", "-c", script, stdin=subprocess.PIPE)
    (inner,) = fake_mps.wait_for("attached")
    outer.terminate()
    assert (outer.wait(), fake_mps.commands("terminate_client")) == (143, [])
    assert (is_alive(inner.pid), fake_mps.commands("quit")) == (True, [])
    fake_mps.end_client(inner.pid)
    outer.communicate()
    await_gone(launcher, fake_mps)


def test_what_a_job_leaves_behind_is_ended_safely(group: Group) -> None:
    """A client that a job leaves is taken off MPS before it is killed; the daemon is no such."""
    script = "sh -c 'echo $$; exec mps_client --deaf --stays' </dev/null & read line"
    ending = (*LIGHT, "--leftovers", "end", "-q")
    job = group.launcher.start(*ending, "--", "sh", "-c", script, stdin=subprocess.PIPE)
    pid = int(job.stdout.readline())
    group.mps.wait_for("attached", pid=pid)
    group.mps.tell_nvml(group.nvml)
    _, said = job.communicate("\n")
    assert (job.returncode, said, is_alive(pid)) == (0, "CUDA_ERROR_MPS_CLIENT_TERMINATED\n", False)
    assert ended_safely(group.mps, pid)
    group.mps.tell_nvml(group.nvml)


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ({"refuses": ["terminate_client"]}, "MPS does not let go of pid {pid}: 1"),
        (
            {"hangs": ["terminate_client", "quit"]},
            "MPS: its daemon does not answer terminate_client within 5 s",
        ),
    ],
    ids=["refuses", "hangs"],
)
def test_mps_that_does_not_let_go(
    launcher: Launcher, fake_mps: FakeMps, told: dict, want: str
) -> None:
    """A client that MPS does not let go of is told of, and killed all the same; so is a daemon."""
    fake_mps.tell(**told)
    with client(launcher, *LIGHT, "--time-limit", "0.5s", words=DEAF) as job:
        _, said = job.process.communicate()
        assert (job.process.returncode, is_alive(job.pid)) == (124, False)
        assert f"gpulaunch: warning: {want.format(pid=job.pid)}\n" in said
    await_gone(launcher, fake_mps)


# ---------------------------------------------------------------------------- the end of a launcher


def test_a_killed_launcher_leaves_no_daemon(launcher: Launcher, fake_mps: FakeMps) -> None:
    """The job of a launcher that is killed goes on as a client; with its end the daemon goes."""
    with client(launcher, *LIGHT) as job:
        job.process.kill()
        job.process.wait()
        assert (is_alive(job.pid), len(fake_mps.daemons())) == (True, 1)
        with client(launcher, *LIGHT) as other:
            assert (other.how, gpu_of(other)) == ("attached", "GPU-v100-0")
        assert fake_mps.commands("quit") == []
        fake_mps.end_client(job.pid)
    await_gone(launcher, fake_mps)


def test_a_damaged_record_keeps_a_daemon(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A damaged record, which hides who lives, keeps a daemon from being ended."""
    with client(launcher, *LIGHT) as first:
        with client(launcher, *LIGHT) as second:
            damaged = put(launcher, "gpulaunch.lease.aaaaaaaaaaaa", b"garbage", live=True)
            assert second.end()[0] == 0
        assert fake_mps.commands("quit") == []
        os.close(damaged)
        assert first.end()[0] == 0
    await_gone(launcher, fake_mps)


def test_free_where_nobody_else_looks_after_the_daemon(
    launcher: Launcher, fake_mps: FakeMps
) -> None:
    """`gpulaunch free` ends the daemon, too, if launcher and companions have been killed."""
    launcher.is_executed = True  # its processes are found by their environment
    with client(launcher, *LIGHT) as job:
        lease = job.lease()
        kill_all_but(job)
        assert launcher.run("free", lease).returncode == 0
        assert not is_alive(job.pid)
    await_gone(launcher, fake_mps)


def test_crowd(launcher: Launcher, fake_mps: FakeMps) -> None:
    """Jobs that come and go at once on one GPU have one daemon at a time, none at the end."""
    options = ("-q", "--only", "0", "--wait", *LIGHT, "--", "mps_client")
    jobs = [launcher.start(*options, stdin=subprocess.PIPE) for _ in range(6)]
    outcomes = []
    for job in jobs:
        said, problems = job.communicate("\n")
        outcomes.append((job.returncode, said.split()[:1], problems))
    assert outcomes == [(0, ["attached"], "")] * 6
    attached = [(event.said["server"], event.pid) for event in fake_mps.events("attached")]
    assert len({pid for _, pid in attached}) == len(attached) == 6
    await_gone(launcher, fake_mps)


# ------------------------------------------------------------------------------- where it cannot be


def test_where_mps_is_not_even_started(
    launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml
) -> None:
    """Where others can write to the daemon's place, or there is none, nothing is shared.

    Nor is it with a driver of which nobody knows whether it can bound clients.
    """
    groups = Path(launcher.environment["GPULAUNCH_MPS_DIRECTORY"])
    groups.mkdir()
    groups.chmod(0o777)
    assert own_gpu(launcher) == f"{groups} is not this user's alone"
    launcher.environment["GPULAUNCH_MPS_DIRECTORY"] = long = f"{fake_mps.folder}/{'x' * 90}"
    assert own_gpu(launcher) == f"{long}: the path has {len(long)} bytes: a socket has room for 79"
    launcher.environment["GPULAUNCH_MPS_DIRECTORY"] = "/no/such/place"
    assert own_gpu(launcher) == "/no/such/place: no such file or directory"
    dgx1_v100.drop("driver")
    dgx1_v100.add("driver unheard-of")
    assert own_gpu(launcher) == "the driver does not tell its version"
    assert fake_mps.events() == []


def test_a_full_disk(launcher: Launcher, fake_mps: FakeMps) -> None:
    """Where the daemon's directory has no room, the job gets its own GPU, and nothing stays."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    groups = Path(launcher.environment["GPULAUNCH_MPS_DIRECTORY"])
    groups.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3,mode=700", "tmpfs", groups], check=True
    )
    try:
        assert "no space left on device" in own_gpu(launcher)
        assert fake_mps.events() == []
    finally:
        subprocess.run(["umount", "--lazy", groups], check=True)


# ------------------------------------------------------------------------------------- the real one


def test_the_real_control_daemon(launcher: Launcher, real_mps: Mps) -> None:
    """NVIDIA's daemon is started, asked, awaited and ended; without a GPU no server works."""
    launcher.environment["GPULAUNCH_MPS_TIMEOUT"] = "0.5s"
    said = own_gpu(launcher)
    assert said.startswith("MPS: its server (pid ")
    assert said.endswith(") is still INITIALIZING after 0.5 s")
    await_gone(launcher, real_mps)


def test_asking_the_real_daemon(real_mps: Mps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real daemon refuses askers while it is busy, and still all get an answer.

    It is asked for its clients before TERM, within a moment, and has none here.
    """
    real_mps.start()
    monkeypatch.setenv("PATH", real_mps.environment["PATH"])
    daemon = Daemon(str(real_mps.pipe()), [], os.geteuid())
    question = "get_default_active_thread_percentage"
    with ThreadPoolExecutor(4) as threads:
        answers = set(threads.map(lambda _: daemon.ask(question), range(12)))
    assert answers == {"100.0\n"}
    daemon.ask(f"start_server -uid {os.geteuid()}")
    assert len(daemon.servers()) == 1
    assert daemon.terminate({os.getpid()}, signal.SIGKILL) == []
    kill(daemon.pid())
    assert daemon.terminate({os.getpid()}, signal.SIGTERM) != []
    daemon.quit()
    assert real_mps.pids(CONTROL) == []


def test_the_real_daemon_of_an_old_driver(launcher: Launcher, old_mps: Mps) -> None:
    """Driver 535's daemon cannot tell if its server works: nothing is shared, and it is ended."""
    assert own_gpu(launcher) == (
        "MPS: this driver's MPS does not tell whether its server works: get_server_status is "
        "unknown"
    )
    await_gone(launcher, old_mps)


# ----------------------------------------------------------------------------- killed at every step

OURS = (
    *("sharing.mps_daemon.", "sharing.membership.", "files.own_cache."),
    *("process.ending.Companion", "process.ending.fork_orphan", "process.ending.stand_apart"),
)


def launch_that_shares(directory: Path, library: Path, victim: list[str]) -> int:
    """Launch a job that shares, and another one beside it; check that nothing of MPS is left."""
    with two_v100(directory, library) as (launcher, mps, _):
        with start(launcher, *LIGHT, "--", "mps_client", before=victim) as first:
            try:
                began = first.stdout.readline().split()
                assert began[:1] in ([], ["attached"]), began
                with client(launcher, *LIGHT) as second:
                    assert (second.how, gpu_of(second)) == ("attached", "GPU-v100-0")
                status, _, _ = ends(first)
            except AssertionError:
                for pid in mps.pids(CLIENT):  # whose pipes would be waited for
                    kill(pid)
                raise
        await_gone(launcher, mps)
    return status


@pytest.mark.parametrize("every", [18])
def test_killed_at_every_step_of_sharing(
    fake_nvml_library: Path, tmp_path: Path, every: int
) -> None:
    """Wherever a launcher or its companion is killed, others share the GPU, and MPS ends."""
    trace = tmp_path / "trace"
    assert (
        launch_that_shares(tmp_path / "traced", fake_nvml_library, at_step("trace", str(trace)))
        == 0
    )
    found: dict[str, list[str]] = {}
    for step in trace.read_text().split():
        forked_to_ask = step.startswith("child:sharing.mps_daemon.")
        if step.removeprefix("child:").startswith(OURS) and not forked_to_ask:
            found.setdefault(step.partition("#")[0], []).append(step)
    steps = [step for same in found.values() for step in dict.fromkeys((same[0], same[-1]))]
    certain = {
        "sharing.membership.ShareGroup._make_ready:open#1",
        "sharing.membership.ShareGroup._end:os.rmdir#1",
    }
    assert certain < set(steps)
    steps = some_of(steps, every, certain)

    def play(step: str) -> tuple[str, object]:
        try:
            return step, launch_that_shares(
                tmp_path / step, fake_nvml_library, at_step("KILL", step)
            )
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            return step, str(problem)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = dict(pool.map(play, steps))
    wrong = {step: outcome for step, outcome in outcomes.items() if not isinstance(outcome, int)}
    assert wrong == {}
    missed = [
        step for step, status in outcomes.items() if status == 0 and not step.startswith("child:")
    ]
    assert [step for step in missed if step.endswith("#1")] == []
    assert len(missed) <= len(steps) / 5, missed
