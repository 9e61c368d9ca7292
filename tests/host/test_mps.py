"""The life of MPS daemons: started with a share group's first job, watched, ended with the last."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from conftest import Launcher, some_of, until, wait_for_end
from fake_mps import CLIENT, CONTROL, SERVER, FakeMps, Mps, RealMps, is_alive, kill
from fake_nvml import FakeNvml
from test_crashes import at_step, ends, launcher_in, start
from test_table import put

from gpulaunch.sharing.mps_daemon import Daemon
from gpulaunch.sharing.share_group import KEPT_S

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
        self, launcher: Launcher, *options: str, deaf: bool = False, words: tuple[str, ...] = ()
    ) -> None:
        self.launcher = launcher
        words = words or ("mps_client", *(("--deaf", "--stays") if deaf else ()))
        self.process = launcher.start(*options, "--", *words, stdin=subprocess.PIPE)
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.how, pid = line.split()
        self.pid = int(pid)

    def lease(self) -> str:
        """Return the id of the only lease that there is."""
        (lease,) = json.loads(self.launcher.run("status", "--json").stdout)["leases"]
        return lease["id"]

    def end(self) -> tuple[int, str]:
        """Let the job end; return the launcher's exit status and what it said."""
        _, said = self.process.communicate("\n")
        return self.process.returncode, said

    def close(self) -> None:
        if self.process.poll() is None:
            self.end()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


@contextmanager
def client(launcher: Launcher, *options: str, **how: object):
    job = Client(launcher, *options, **how)
    try:
        yield job
    finally:
        job.close()


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


def gpu_of(job: Client) -> str:
    """Return CUDA_VISIBLE_DEVICES of a job."""
    variables = Path(f"/proc/{job.pid}/environ").read_bytes().split(b"\0")
    return next(
        v.partition(b"=")[2].decode() for v in variables if v.startswith(b"CUDA_VISIBLE_DEVICES=")
    )


def own_gpu(launcher: Launcher, *options: str) -> str:
    """Return what is said of a job that cannot share."""
    done = launcher.run(*LIGHT, *options, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (done.returncode, done.stdout) == (0, "0\n")
    return done.stderr.removeprefix("gpulaunch: warning: not shared: ").removesuffix("\n")


# ----------------------------------------------------------------------------- the life of a daemon


def test_the_life_of_a_group_of_one(launcher: Launcher, fake_mps: FakeMps) -> None:
    """The daemon is there, its server ACTIVE, before the job, its client; all end with the job."""
    with client(launcher, *LIGHT, "--share=40%") as job:
        assert job.how == "attached"
        (daemon,), (there,) = fake_mps.events("started"), fake_mps.attached()
        groups = launcher.environment["GPULAUNCH_MPS_DIRECTORY"]
        assert os.path.dirname(daemon.pipe) == groups
        assert daemon.said["environment"] == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "GPU-v100-0",
            "CUDA_MPS_PIPE_DIRECTORY": daemon.pipe,
            "CUDA_MPS_LOG_DIRECTORY": f"{daemon.pipe}/logs",
        }
        assert there.said["environment"] == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "GPU-v100-0",
            "CUDA_MPS_PIPE_DIRECTORY": daemon.pipe,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-v100-0=1024M",
        }
        kinds = [event.kind for event in fake_mps.events("started", "server", "asked", "attached")]
        assert kinds == ["started", "server", "asked", "attached"]
        heard = [line for line in fake_mps.commands() if not line.startswith("get_default")]
        assert heard[:3] == [
            "get_server_list",
            f"start_server -uid {os.geteuid()}",
            "get_server_list",
        ]
        assert stat_mode(groups) == 0o700
        assert job.end() == (0, "")
    assert fake_mps.commands("quit") == ["quit"]
    await_gone(launcher, fake_mps)


def stat_mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777


def test_the_last_one_ends_it(launcher: Launcher, fake_mps: FakeMps) -> None:
    """Jobs of a group have one daemon, whichever come and go; a later group has a new one."""
    with client(launcher, *LIGHT) as first:
        with client(launcher, *LIGHT) as second, client(launcher, *LIGHT) as third:
            assert {gpu_of(job) for job in (first, second, third)} == {"GPU-v100-0"}
            assert [
                len(fake_mps.events("started")),
                len(fake_mps.pids(SERVER)),
                len(fake_mps.attached()),
            ] == [1, 1, 3]
            assert first.end() == (0, "")
            assert third.end() == (0, "")
            assert fake_mps.commands("quit") == []
            with client(launcher, *LIGHT) as fourth:
                assert (fourth.how, gpu_of(fourth)) == ("attached", "GPU-v100-0")
            assert second.end() == (0, "")
        assert fake_mps.commands("quit") == ["quit"]
    await_gone(launcher, fake_mps)
    with client(launcher, *LIGHT) as later:
        assert later.how == "attached"
    assert len(fake_mps.events("started")) == 2
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


def test_a_slow_start(launcher: Launcher, fake_mps: FakeMps) -> None:
    """The job starts when its server is ACTIVE; a daemon that hears others is asked again.

    It is known by its process, and needs no pid file.
    """
    fake_mps.tell(looks=3, busy=4, forgets_pid_file=True)
    with client(launcher, *LIGHT) as job:
        assert job.how == "attached"
        asked = [event.said["command"].split()[0] for event in fake_mps.events("command")]
        assert asked.count("get_server_status") == 4
        assert fake_mps.events("asked")[0].time_s > fake_mps.events("command")[-1].time_s
        assert job.end() == (0, "")
    await_gone(launcher, fake_mps)


NO_ANSWER = {"hangs": ["get_server_list", "quit"]}
UNKNOWN = {"answers": {"get_server_status": ["Unknown command get_server_status"]}}


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ({"server_fails": True}, "its server does not start: "),
        ({"status": "FAULT"}, "is in state FAULT"),
        ({"dies": ["start_server"]}, "its daemon does not survive start_server"),
        (UNKNOWN, "get_server_status is unknown"),
        (NO_ANSWER, "its daemon does not answer get_server_list within 5 s"),
    ],
)
def test_a_daemon_that_fails(launcher: Launcher, fake_mps: FakeMps, told: dict, want: str) -> None:
    """Whatever MPS does, the job runs, on a GPU of its own, and nothing of MPS stays."""
    fake_mps.tell(**told)
    launcher.environment["GPULAUNCH_MPS_TIMEOUT"] = "5s"
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
    (note,) = Path(launcher.environment["GPULAUNCH_MPS_DIRECTORY"]).glob("*.hung")
    fake_mps.tell(status="ACTIVE")
    again = rf", \d+ s ago; tried again in 9 min \d+ s, or after 'rm {note}'"
    assert re.fullmatch(re.escape(first) + again, own_gpu(launcher))
    assert len(fake_mps.events("started")) == 1
    found = json.loads(note.read_text())
    for change, options in (
        ({}, ("--only", "3")),
        ({"at_s": found["at_s"] - KEPT_S}, ()),
        ({"place": ["another boot", *found["place"][1:]]}, ()),
        ({"patience_s": found["patience_s"] / 2}, ()),
    ):
        note.write_text(json.dumps(found | change))
        done = launcher.run(*LIGHT, *options, "--", "true")
        assert (done.stderr, note.exists()) == ("", change == {})
    note.write_text(json.dumps(found))
    os.utime(fake_mps.bin / CONTROL, (1, 1))  # another driver
    assert launcher.run(*LIGHT, "--", "true").stderr == ""
    await_gone(launcher, fake_mps)


def test_a_faulty_server_is_not_joined(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A job that meets a faulty server gets a GPU of its own, and the group is left alone."""
    with client(launcher, *LIGHT) as first:
        fake_mps.tell(status="FAULT")
        done = launcher.run(*LIGHT, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert done.stdout.strip() in map(str, range(1, 8))
        assert "is in state FAULT, and a job of the group still runs" in done.stderr
        assert (fake_mps.commands("quit"), is_alive(first.pid)) == ([], True)
        fake_mps.tell(status="ACTIVE")
        assert first.end() == (0, "")
    await_gone(launcher, fake_mps)


def test_a_dead_daemon_is_not_joined(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A group without its daemon takes no job; after its last one the next starts a new daemon."""
    with client(launcher, *LIGHT) as first:
        (daemon,) = fake_mps.events("started")
        os.kill(daemon.pid, signal.SIGKILL)
        wait_for_end(daemon.pid)
        with client(launcher, *LIGHT) as second:
            assert second.how == "without"
            assert (
                "its control daemon is gone, and a job of the group still runs" in second.end()[1]
            )
        assert first.end()[0] == 0
    with client(launcher, *LIGHT) as third:
        assert (third.how, gpu_of(third)) == ("attached", "GPU-v100-0")
    await_gone(launcher, fake_mps)


def orphan(launcher: Launcher, fake_mps: FakeMps, *options: str) -> str:
    """Let a group's daemon outlive its jobs and their processes; return its pipe directory."""
    launcher.is_executed = True  # its processes are found by their environment
    job = Client(launcher, *options)
    (daemon,) = fake_mps.events("started")
    for pid in processes_of(launcher):
        if pid != job.pid:
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
    fake_mps.end_client(job.pid)
    job.process.wait()
    for stream in (job.process.stdin, job.process.stdout, job.process.stderr):
        stream.close()
    assert is_alive(daemon.pid)
    return daemon.pipe


def processes_of(launcher: Launcher) -> list[int]:
    """Return the live processes of this launcher, with those that look after its jobs."""
    found = []
    mark = f"GPULAUNCH_STATE_DIR={launcher.state}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                mark in (entry / "environ").read_bytes().split(b"\0")
                and b"gpulaunch" in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("options", [(*LIGHT,), ("--only", "5")])
def test_a_daemon_that_nobody_ended(
    launcher: Launcher, fake_mps: FakeMps, options: tuple[str, ...]
) -> None:
    """A daemon that outlived everybody is ended by its user's next launch, of whatever kind."""
    pipe = orphan(launcher, fake_mps, *LIGHT)
    (old,) = fake_mps.events("started")
    with client(launcher, *options) as job:
        assert job.how == ("attached" if options == LIGHT else "without")
        assert not is_alive(old.pid)
        assert os.path.isdir(pipe) == (options == LIGHT)
    await_gone(launcher, fake_mps)


def test_a_faulty_daemon_that_nobody_uses_is_replaced(
    launcher: Launcher, fake_mps: FakeMps
) -> None:
    """One that outlived everybody and does not work is replaced."""
    pipe = orphan(launcher, fake_mps, *LIGHT)
    (old,) = fake_mps.events("started")
    (server,) = fake_mps.pids(SERVER)
    os.kill(server, signal.SIGKILL)  # what is answered is said of it, and not of the next one
    fake_mps.tell(answers={"get_server_list": [str(server)], "get_server_status": ["FAULT"]})
    job = launcher.start(*LIGHT, "--", "mps_client", stdin=subprocess.PIPE)
    wait_for_end(old.pid)
    fake_mps.tell(answers={})
    assert job.stdout.readline().split()[0] == "attached"
    job.communicate("\n")
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


@pytest.mark.parametrize("end", ["lease.release()", "", "os.kill(os.getpid(), 15)"])
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
    command = [
        "sh",
        "-c",
        'ulimit -t 77; exec "$@"',
        "sh",
        launcher.script,
        *LIGHT,
        "--",
        "mps_client",
    ]
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
        for _ in range(2):
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
def test_a_job_that_did_not_attach_is_told_of(
    launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml, seen: bool
) -> None:
    """A job that uses its GPU without MPS is told of, once; one without visible use is not."""
    job = launcher.start(
        *LIGHT, "--", "sh", "-c", "echo $$; exec sleep 600", stdin=subprocess.DEVNULL
    )
    pid = int(job.stdout.readline())
    if seen:
        dgx1_v100.add(f"process 0 {pid} 300")
        want = (
            f"pid {pid} of the job uses its GPU without MPS: neither its share of SMs nor its "
            "memory is bounded"
        )
        assert job.stderr.readline() == f"gpulaunch: warning: {want}\n"
    else:
        list_clients(fake_mps, 1)
    os.kill(pid, signal.SIGTERM)
    _, rest = job.communicate()
    assert (job.returncode, rest) == (143, "")
    await_gone(launcher, fake_mps)


def list_clients(fake_mps: FakeMps, count: int) -> None:
    """Block until the launcher has asked so often who is attached."""
    while len(fake_mps.commands("get_client_list")) < count:
        fake_mps.wait_for("command", len(fake_mps.events("command")) + 1)


def test_a_job_that_attached_is_not_asked_about_again(
    launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml
) -> None:
    """A client that NVML shows at work is not told of, even as a child of the job."""
    script = "mps_client & echo $!; wait"
    job = launcher.start(*LIGHT, "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
    pid = int(job.stdout.readline())
    assert job.stdout.readline().split() == ["attached", str(pid)]
    dgx1_v100.add(f"process 0 {pid} 300")
    list_clients(fake_mps, 1)
    fake_mps.end_client(pid)
    _, said = job.communicate()
    assert (job.returncode, said) == (0, "")
    assert len(fake_mps.commands("get_client_list")) == 1
    await_gone(launcher, fake_mps)


@pytest.mark.parametrize(
    ("mib", "status", "told"), [(1000, 3, True), (1000, 0, False), (800, 3, False)]
)
def test_a_job_that_failed_at_its_limit_is_told_whose_it_was(
    launcher: Launcher,
    fake_mps: FakeMps,
    dgx1_v100: FakeNvml,
    tmp_path: Path,
    mib: int,
    status: int,
    told: bool,
) -> None:
    """A job that fails after it has held nearly its 1 GiB learns that gpulaunch limits it."""
    calls = tmp_path / "calls"
    launcher.environment["FAKE_NVML_CALLS"] = str(calls)

    def asked(calls: Path) -> int:
        return calls.read_text().count("MPSComputeRunningProcesses")

    script = f"mps_client <&0; exit {status}"
    with client(launcher, *LIGHT, words=("sh", "-c", script)) as job:
        fake_mps.tell_nvml(dgx1_v100, client_mib=mib)
        before = asked(calls)
        until(lambda: asked(calls) > before)
        found, said = job.end()
    line = (
        "gpulaunch: warning: the job has failed, and had held 1000 MiB of GPU memory: gpulaunch "
        "limits it to 1 GiB, which --memory raises\n"
    )
    assert (found, said) == (status, line if told else "")
    await_gone(launcher, fake_mps)


def test_a_share_is_not_handed_on(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A launch that does not share is no client of a group whose variables it has found."""
    with client(launcher, *LIGHT) as job:
        variables = Path(f"/proc/{job.pid}/environ").read_bytes().decode().split("\0")
        found = dict(line.split("=", 1) for line in variables if line.startswith("CUDA_MPS"))
        done = launcher.run(
            "--", "mps_client", env=launcher.environment | found, input="\n", timeout=10
        )
        assert (done.returncode, done.stdout.split()[0]) == (0, "without")
    (fake_mps.folder / "own").mkdir()
    own = {
        "CUDA_MPS_PIPE_DIRECTORY": str(fake_mps.folder / "own"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    done = launcher.run(
        "--", "sh", "-c", "env | grep ^CUDA_MPS | sort", env=launcher.environment | own
    )
    assert done.stdout == "".join(f"{name}={value}\n" for name, value in sorted(own.items()))


def test_an_orphan_in_exclusive_process_mode(
    launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml
) -> None:
    """An MPS server on a GPU is no outside use, but in EXCLUSIVE_PROCESS, where it bars others.

    Its user's next launch ends an orphan, and gets its GPU.
    """

    def gpus() -> list[dict]:
        return json.loads(launcher.run("status", "--json").stdout)["gpus"]

    orphan(launcher, fake_mps, *LIGHT)
    (server,) = fake_mps.pids(SERVER)
    fake_mps.tell_nvml(dgx1_v100)
    assert [gpu["state"] for gpu in gpus()] == ["free"] * 8
    dgx1_v100.change(0, mode=3)
    want = f"an MPS server keeps it in compute mode EXCLUSIVE_PROCESS: pid {server}, root"
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
            fake_mps.tell_nvml(dgx1_v100)
            assert (first.how, second.how, gpu_of(second)) == ("attached", "attached", "GPU-v100-0")
            states = [
                gpu["state"] for gpu in json.loads(launcher.run("status", "--json").stdout)["gpus"]
            ]
            assert states == ["shared", *["free"] * 7]
            fake_mps.tell_nvml(dgx1_v100)
        fake_mps.tell_nvml(dgx1_v100)
    fake_mps.tell_nvml(dgx1_v100)
    await_gone(launcher, fake_mps)


# ------------------------------------------------------------------------------ the end of a client


AS_TORCHRUN = ("sh", "-c", "trap 'kill $!; wait; exit 3' TERM; mps_client --stays <&0 & wait")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("limit", ("mps_client", "--deaf", "--stays")),
        ("free", ("mps_client", "--deaf", "--stays")),
        ("free without launcher", ("mps_client", "--deaf", "--stays")),
        ("CI", ("mps_client", "--deaf", "--stays")),
        ("HUP", ("mps_client", "--stays")),
        ("CI", ("mps_client", "--stays")),
        ("free", AS_TORCHRUN),
        ("TERM", AS_TORCHRUN),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_client_is_taken_off_first(
    launcher: Launcher, fake_mps: FakeMps, how: str, words: tuple[str, ...]
) -> None:
    """However gpulaunch ends a client that does not end in order, MPS has let go of it before.

    That is so for one which ignores TERM, has no handler for it, or has a parent that passes it on.
    The others of the group go on.
    """
    with client(launcher, *LIGHT, "--name", "other") as other:
        launcher.environment["CI"] = "true" if how == "CI" else ""
        limit = ("--time-limit", "0.5s") if how == "limit" else ()
        with client(launcher, *LIGHT, *limit, words=words) as job:
            leases = json.loads(launcher.run("status", "--json").stdout)["leases"]
            if how in ("CI", "free without launcher"):
                job.process.kill()
                job.process.wait()
            if how in ("TERM", "HUP"):
                job.process.send_signal(signal.Signals[f"SIG{how}"])
            if how.startswith("free"):
                (lease,) = (lease["id"] for lease in leases if lease["name"] != "other")
                done = launcher.run("free", lease)
                assert (done.returncode, done.stderr) == (0, "")
            wait_for_end(job.pid)
            job.process.communicate()
            assert how != "limit" or job.process.returncode == 124
            fake_mps.wait_for("left", pid=job.pid)
        kinds = [event.kind for event in fake_mps.events("terminated", "left", "died")]
        assert (kinds, is_alive(other.pid)) == (["terminated", "left"], True)
        assert other.end() == (0, "")
    await_gone(launcher, fake_mps)


@pytest.mark.parametrize("how", ["free", "TERM"])
def test_a_client_that_handles_term_stays_attached(
    launcher: Launcher, fake_mps: FakeMps, how: str
) -> None:
    """A client that catches TERM ends by itself and in order: MPS is not asked to let go of it."""
    with client(launcher, *LIGHT, words=("mps_client", "--tidy")) as job:
        if how == "TERM":
            job.process.terminate()
        else:
            assert launcher.run("free", job.lease()).returncode == 0
        wait_for_end(job.pid)
    assert fake_mps.commands("terminate_client") == []
    assert ended_safely(fake_mps, job.pid)


@pytest.mark.parametrize(
    ("script", "name", "status"),
    [
        ("mps_client <&0 & exec sleep 600", "HUP", 129),
        ("trap 'echo got' HUP; mps_client <&0 & wait; wait; exit 4", "HUP", 4),
    ],
)
def test_a_signal_that_does_not_reach_a_client(
    launcher: Launcher, fake_mps: FakeMps, script: str, name: str, status: int
) -> None:
    """A client that goes on is not taken off: its parent ends without it, or reloads by HUP."""
    with client(launcher, *LIGHT, "-q", words=("sh", "-c", script)) as job:
        job.process.send_signal(signal.Signals[f"SIG{name}"])
        if status == 129:
            assert job.process.wait() == status
        else:
            assert job.process.stdout.readline() == "got\n"
        fake_mps.end_client(job.pid)
        assert job.process.wait() == status
    assert fake_mps.commands("terminate_client") == []
    await_gone(launcher, fake_mps)


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


def test_what_a_job_leaves_behind_is_ended_safely(
    launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml
) -> None:
    """A client that a job leaves is taken off MPS before it is killed; the daemon is no such."""
    script = "mps_client --deaf --stays </dev/null & echo $!; read line"
    ending = (*LIGHT, "--leftovers", "end", "-q")
    job = launcher.start(*ending, "--", "sh", "-c", script, stdin=subprocess.PIPE)
    pid = int(job.stdout.readline())
    fake_mps.wait_for("attached", pid=pid)
    fake_mps.tell_nvml(dgx1_v100)
    _, said = job.communicate("\n")
    assert (job.returncode, said, is_alive(pid)) == (0, "CUDA_ERROR_MPS_CLIENT_TERMINATED\n", False)
    assert ended_safely(fake_mps, pid)
    await_gone(launcher, fake_mps)


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ("refuses", "MPS does not let go of pid {pid}: 1"),
        ("hangs", "MPS: its daemon does not answer terminate_client within 5 s"),
    ],
)
def test_mps_that_does_not_let_go(
    launcher: Launcher, fake_mps: FakeMps, told: str, want: str
) -> None:
    """A client that MPS does not let go of is told of, and killed all the same."""
    fake_mps.tell(**{told: ["terminate_client"]})
    with client(launcher, *LIGHT, "--time-limit", "0.5s", deaf=True) as job:
        _, said = job.process.communicate()
        assert (job.process.returncode, is_alive(job.pid)) == (124, False)
        assert f"gpulaunch: warning: {want.format(pid=job.pid)}\n" in said
    fake_mps.tell(hangs=[])
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
    job = Client(launcher, *LIGHT)
    for pid in processes_of(launcher):
        if pid != job.pid:
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
    assert launcher.run("free", job.lease()).returncode == 0
    assert not is_alive(job.pid)
    job.close()
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
    """Without the program, or with a driver that cannot bound clients, nothing is shared."""
    path = launcher.environment["PATH"]
    launcher.environment["PATH"] = path.partition(os.pathsep)[2]
    assert own_gpu(launcher) == f"{CONTROL} is not on PATH"
    launcher.environment["PATH"] = path
    for driver, want in (
        ("549.99", "driver 549.99 does not tell whether its MPS works: 550 is the first to"),
        ("unheard-of", "the driver does not tell its version"),
    ):
        dgx1_v100.drop("driver")
        dgx1_v100.add(f"driver {driver}")
        assert own_gpu(launcher) == want
    assert fake_mps.events() == []


def test_a_directory_that_is_not_ours(launcher: Launcher, fake_mps: FakeMps) -> None:
    """A daemon's place that others can write to, that is no directory or full, is not used."""
    groups = Path(launcher.environment["GPULAUNCH_MPS_DIRECTORY"])
    groups.mkdir()
    groups.chmod(0o777)
    assert own_gpu(launcher) == f"{groups} is not this user's alone"
    groups.rmdir()
    groups.touch()
    assert own_gpu(launcher) == f"{groups} is not this user's alone"
    launcher.environment["GPULAUNCH_MPS_DIRECTORY"] = long = f"{fake_mps.folder}/{'x' * 90}"
    assert own_gpu(launcher) == f"{long}: the path has {len(long)} bytes: a socket has room for 79"
    launcher.environment["GPULAUNCH_MPS_DIRECTORY"] = "/no/such/place"
    assert own_gpu(launcher) == "/no/such/place: no such file or directory"
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


def test_gpus_that_differ(launcher: Launcher, fake_mps: FakeMps, dgx1_v100: FakeNvml) -> None:
    """On a GPU before Volta the job is alone, and says why; --dry-run starts nothing."""
    dgx1_v100.change(0, cc="6.0")
    assert launcher.run(*LIGHT, "--dry-run", "--", "x").returncode == 0
    assert (
        own_gpu(launcher, "--only", "0")
        == "compute capability 6.0: MPS bounds SMs and memory from 7.0 on"
    )
    assert fake_mps.events() == []


# ------------------------------------------------------------------------------------- the real one


def test_the_real_control_daemon(launcher: Launcher, real_mps: RealMps) -> None:
    """NVIDIA's daemon is started, asked, awaited and ended; without a GPU no server works."""
    for timeout in ("0.5", "0.6"):  # who waits longer tries again
        launcher.environment["GPULAUNCH_MPS_TIMEOUT"] = f"{timeout}s"
        said = own_gpu(launcher)
        assert said.startswith("MPS: its server (pid ")
        assert said.endswith(f") is still INITIALIZING after {timeout} s")
        await_gone(launcher, real_mps)


def test_the_real_daemon_lets_go_of_no_client(
    real_mps: RealMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real daemon is asked for its clients before TERM, within a moment, and has none here."""
    real_mps.start()
    monkeypatch.setenv("PATH", real_mps.environment["PATH"])
    daemon = Daemon(str(real_mps.pipe()), [], os.geteuid())
    daemon.ask(f"start_server -uid {os.geteuid()}")
    assert len(daemon.servers()) == 1
    assert daemon.terminate({os.getpid()}, signal.SIGKILL) == []
    kill(daemon.pid())
    assert daemon.terminate({os.getpid()}, signal.SIGTERM) != []
    daemon.quit()


def test_many_ask_the_real_daemon_at_once(
    real_mps: RealMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real daemon refuses askers while it is busy, and still all get an answer."""
    real_mps.start()
    monkeypatch.setenv("PATH", real_mps.environment["PATH"])
    daemon = Daemon(str(real_mps.pipe()), [], os.geteuid())
    with ThreadPoolExecutor(4) as threads:
        answers = list(
            threads.map(lambda _: daemon.ask("get_default_active_thread_percentage"), range(20))
        )
    assert set(answers) == {"100.0\n"}
    daemon.quit()
    assert real_mps.pids(CONTROL) == []


def test_the_real_daemon_of_an_old_driver(launcher: Launcher, old_mps: RealMps) -> None:
    """Driver 535's daemon cannot tell if its server works: nothing is shared, and it is ended."""
    assert own_gpu(launcher) == (
        "MPS: this driver's MPS does not tell whether its server works: get_server_status is "
        "unknown"
    )
    await_gone(launcher, old_mps)


# ----------------------------------------------------------------------------- killed at every step

OURS = ("sharing.mps_daemon.", "sharing.share_group.", "files.slow_lock.", "process.companion.")


def launch_that_shares(directory: Path, library: Path, victim: list[str]) -> int:
    """Launch a job that shares, and another one beside it; check that nothing of MPS is left."""
    launcher = launcher_in(directory)
    nvml = FakeNvml(library, directory / "nvml.txt")
    nvml.describe(V100, ["driver 550.54.15"])
    with closing(FakeMps()) as mps:
        path = f"{mps.bin}{os.pathsep}{launcher.environment['PATH']}"
        launcher.environment |= {
            **nvml.environment,
            "PATH": path,
            "GPULAUNCH_MPS_DIRECTORY": f"{mps.folder}/g",
        }
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
        "sharing.share_group.ShareGroup._make_ready:open#1",
        "sharing.share_group.ShareGroup._end:os.rmdir#1",
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
