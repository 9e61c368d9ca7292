"""`gpulaunch --share docker run` with a real engine: containers share GPUs through CUDA MPS.

The MPS daemon is the stand-in of fake_mps, and the program in the container its client. It finds
its daemon by nothing but what gpulaunch gives the container: the tests mount no directory of the
daemon's.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Launcher, until, wait_for_end
from engine import IMAGE, Engine
from fake_mps import CLIENT, CONTROL, SERVER, FakeMps, interpreter
from test_docker import TOLD_BY_NVML, Host, complaint, freed, host, started, variables

__all__ = ["host"]

pytest_plugins = ("fake_nvml", "fake_mps")

LIGHT = ("--share", "-o", "utilization=10,5", "--memory", "1GiB")
DOCKER = (*LIGHT, "docker", "run")


@pytest.fixture
def real_host(launcher: Launcher, docker: Engine, dgx1_v100, fake_mps: FakeMps) -> Iterator[Host]:  # noqa: ARG001
    """Yield a DGX-1 by what NVML says, with MPS; after every test no daemon may be left."""
    yield from freed(Host(launcher, docker, TOLD_BY_NVML, ()))
    docker.remove_all()
    await_no_daemon(fake_mps)


def await_no_daemon(mps: FakeMps) -> None:
    """Wait until neither a daemon nor a server is left, nor their directory."""
    until(lambda: not mps.pids(CONTROL) and not mps.pids(SERVER))
    until(lambda: not any(path.is_dir() for path in (mps.folder / "g").glob("*")))


def cuda_program(mps: FakeMps, *words: str) -> tuple[str, ...]:
    """Return flags, image and command of a container that runs MPS's stand-in client."""
    _, home = interpreter()
    homes = {part for part in home.split(":") if not part.startswith("/usr")}
    paths = ["/usr", "/bin", "/lib", "/lib64", *homes, mps.folder / "bin", mps.folder / "lib"]
    mounts = [word for path in paths for word in ("-v", f"{path}:{path}:ro")]
    for path in (mps.folder / "told.json", mps.folder / "events.jsonl"):
        mounts += ["-v", f"{path}:{path}"]
    return (*mounts, IMAGE, str(mps.bin / CLIENT), *words)


def pid_in(host: Host, container: str) -> int:
    """Return the host's pid of what a container runs."""
    return host.engine.inspect(container)["State"]["Pid"]


@contextmanager
def attached(
    host: Host, mps: FakeMps, *, flags: tuple[str, ...] = (), words: tuple[str, ...] = (), **options
) -> Iterator[subprocess.Popen[str]]:
    """Yield a launch whose container, called job, has become a client of MPS."""
    with started(
        host, *DOCKER, "--name", "job", *flags, *cuda_program(mps, *words), **options
    ) as process:
        assert process.stdout.readline().startswith("attached ")
        yield process


def ended_safely(mps: FakeMps) -> bool:
    """Return whether every client of MPS that has died was taken off its server before."""
    return not mps.events("died") and bool(mps.events("attached"))


# ------------------------------------------------------------------------------------ what it finds


def test_what_the_container_finds(host: Host) -> None:
    """A container finds its GPU by UUID and its shares of SMs and memory; its label says so."""
    done = host.run(*LIGHT, "--share=40%", "docker", "run", "--name", "job", IMAGE, "env")
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        name: value for name, value in variables(done.stdout).items() if name.startswith("CUDA_")
    }
    assert found == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-dgx1-v100-0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-dgx1-v100-0=1024M",
    }
    assert host.labels("job")["io.gpulaunch.share"] == "40"
    assert host.launcher.records() == []


# ---------------------------------------------------------------------------------- what is refused


def test_user_of_the_image(host: Host) -> None:
    """An image of another user, or one that is not here yet, is refused; -u helps with both."""
    host.engine.import_image("job:1", ["USER 1234:5"])
    done = host.run(*DOCKER, "--rm", "job:1", "true")
    assert (done.returncode, "image job:1 runs as 1234: " in complaint(done)) == (2, True)
    assert "hint: add -u 0:0" in done.stderr
    assert host.run(*DOCKER, "--rm", "-u", "0:0", "job:1", "true").returncode == 0
    done = host.run(*DOCKER, "--rm", "--pull", "never", "job:2", "true")
    assert (done.returncode, "image job:2 is not here yet" in complaint(done)) == (2, True)
    assert (
        host.run(*DOCKER, "--rm", "--pull", "never", "-u", "0:0", "job:2", "true").returncode == 125
    )


def test_only_docker_run_shares(host: Host) -> None:
    """Docker create refuses --share; with the setting it gets GPUs of its own."""
    done = host.run(*LIGHT, "docker", "container", "create", IMAGE)
    refused = "docker create: only docker run shares GPUs"
    assert (done.returncode, complaint(done)) == (2, refused)
    host.environment["GPULAUNCH_SHARE"] = "true"
    done = host.run("docker", "container", "create", IMAGE)
    assert (done.returncode, done.stderr) == (0, "")


def test_start_of_one_that_shared(host: Host) -> None:
    """A container that shared cannot be started again: its MPS daemon has gone with its lease."""
    host.run(*DOCKER, "--name", "job", IMAGE, "true")
    done = host.run("docker", "start", "job")
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint(done).startswith("container job was made to share its GPUs")
    assert host.launcher.records() == []


def test_inside_a_lease_that_shares(host: Host) -> None:
    """A container launched inside a job that shares takes part in it, and must suit MPS."""
    script = (
        f"gpulaunch docker run --rm {IMAGE} env; gpulaunch docker run --rm -u 1234 {IMAGE} true; "
        "echo $?"
    )
    done = host.run(*LIGHT, "--share=30%", "--", "sh", "-c", script)
    assert variables(done.stdout)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert done.stdout.splitlines()[-1] == "2"
    assert complaint(done).startswith("-u 1234 runs as 1234")


# ------------------------------------------------------------------------------- with an MPS daemon


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-v", "/dev/shm:/dev/shm"),  # docker refuses a second mount there
        ("--ipc=host", "--read-only", "--tmpfs", "/tmp", "-u", "0:0"),
    ],
    ids=lambda flags: " ".join(flags) or "none",
)
def test_attaches(real_host: Host, fake_mps: FakeMps, flags: tuple[str, ...]) -> None:
    """The container's program finds its daemon without a word; the daemon ends with it."""
    with attached(real_host, fake_mps, flags=("-i", *flags), stdin=subprocess.PIPE) as process:
        lease = real_host.lease()
        (client,) = fake_mps.attached()
        assert client.pid == pid_in(real_host, "job")
        assert client.said["environment"]["CUDA_VISIBLE_DEVICES"] == TOLD_BY_NVML[0]
        assert (lease["shared"], lease["container_state"]) == (True, "running")
        real_host.do("exec", "job", "touch", f"/dev/shm/{lease['id']}")
        os.unlink(f"/dev/shm/{lease['id']}")
        assert process.communicate("\n") == ("", "")
    assert (process.returncode, ended_safely(fake_mps)) == (0, True)
    assert (real_host.launcher.records(), fake_mps.pids(CONTROL), fake_mps.pids(SERVER)) == (
        [],
        [],
        [],
    )


def test_told_of_who_did_not_attach(
    real_host: Host, fake_mps: FakeMps, dgx1_v100, tmp_path: Path
) -> None:
    """A process in the container that uses a GPU without MPS is told of once, by host pid."""
    said = tmp_path / "said"
    command = (*DOCKER, "--name", "job", IMAGE, "sleep", "1000")
    with said.open("w") as stderr, started(real_host, *command, stderr=stderr) as process:
        until(lambda: "job" in real_host.do("ps", "--format", "{{.Names}}"))
        pid = pid_in(real_host, "job")
        dgx1_v100.add(f"process 0 {pid} 300")
        until(said.read_text)
        real_host.do("kill", "job")
        assert process.wait() == 137
    (warning,) = said.read_text().splitlines()
    assert warning.startswith(f"gpulaunch: warning: pid {pid} of the job uses its GPU without MPS")
    await_no_daemon(fake_mps)


# -------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("options", "flags"), [(("--time-limit", "2s"), ("-d",)), ((), ("--rm", "--init"))]
)
def test_taken_off_before_kill(
    real_host: Host, fake_mps: FakeMps, options: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    """A client that ignores TERM is taken off MPS, by the host's pid, before it is killed."""
    real_host.environment["GPULAUNCH_GRACE"] = "0.3s"
    deaf = cuda_program(fake_mps, "--deaf", "--stays")
    with started(real_host, *options, *DOCKER, "--name", "job", *flags, *deaf) as process:
        (client,) = fake_mps.wait_for("attached")
        if not options:  # gpulaunch free ends it
            done = real_host.launcher.run("free", real_host.lease()["id"])
            assert (done.returncode, done.stderr) == (0, "")
        process.communicate()
        real_host.await_free()
    assert fake_mps.ended_safely(client.pid), fake_mps.events(pid=client.pid)
    assert fake_mps.commands("terminate_client")[-1].split()[2] == str(client.pid)
    await_no_daemon(fake_mps)


def test_ends_within_its_grace(real_host: Host, fake_mps: FakeMps) -> None:
    """A client that ends on TERM has its grace, stays on MPS, and the engine does not cut it."""
    wait = "trap 'sleep 0.5; exit 5' TERM; echo attached; sleep 1000 & wait"
    done = real_host.run(*DOCKER, "-d", "--name", "job", IMAGE, "sh", "-c", wait)
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: "attached" in real_host.do("logs", "job"))
    real_host.do("pause", "job")
    done = real_host.launcher.run("free", real_host.lease()["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert real_host.do("inspect", "--format", "{{.State.ExitCode}}", "job") == "5"
    assert fake_mps.commands("terminate_client") == []
    await_no_daemon(fake_mps)


def test_others_stay_on(real_host: Host, fake_mps: FakeMps) -> None:
    """A container and a process on one GPU have one daemon, which goes with the last of them.

    Only the clients in the container are taken off; the other job of the group goes on.
    """
    real_host.environment["GPULAUNCH_GRACE"] = "0.2s"
    with started(real_host, *LIGHT, "--", CLIENT, stdin=subprocess.PIPE) as job:
        assert job.stdout.readline().startswith("attached ")
        with attached(real_host, fake_mps, words=("--deaf", "--stays")) as process:
            assert len(fake_mps.events("started")) == 1
            assert [lease["gpus"] for lease in real_host.leases()] == [[0], [0]]
            lease = next(lease for lease in real_host.leases() if lease["container"])
            assert real_host.launcher.run("free", lease["id"]).returncode == 0
            assert process.wait() == 137
        assert (len(fake_mps.attached()), len(fake_mps.daemons())) == (1, 1)
        assert job.communicate("\n") == ("", "")
    assert fake_mps.pids(CONTROL) == []
    assert ended_safely(fake_mps)


def test_mps_that_does_not_answer(real_host: Host, fake_mps: FakeMps) -> None:
    """A daemon that does not let go of a client does not keep a container from its end."""
    fake_mps.tell(refuses=["terminate_client"])
    real_host.environment["GPULAUNCH_GRACE"] = "0.2s"
    with attached(real_host, fake_mps, words=("--deaf", "--stays")) as process:
        assert real_host.launcher.run("free", real_host.lease()["id"]).returncode == 0
        assert process.wait() == 137
    await_no_daemon(fake_mps)


# ------------------------------------------------------------------------------ how long the daemon


def test_launcher_killed(real_host: Host, fake_mps: FakeMps) -> None:
    """After launcher and docker command are killed, container, lease and daemon end together."""
    with attached(real_host, fake_mps) as process:
        job = real_host.lease()["job_pid"]
        process.kill()
        os.kill(job, signal.SIGKILL)
        process.wait()
        assert real_host.lease()["container_state"] == "running"
        assert len(fake_mps.attached()) == 1
        real_host.do("kill", "--signal", "USR1", "job")
        real_host.await_free()
    await_no_daemon(fake_mps)
    assert ended_safely(fake_mps)


def test_everybody_killed(real_host: Host, fake_mps: FakeMps) -> None:
    """With all watchers killed the daemon outlives its container, until the next shared launch."""
    with attached(real_host, fake_mps) as process:
        for pid in (
            process.pid,
            *map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()),
        ):
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
        assert real_host.lease()["container_state"] == "running"
        assert len(fake_mps.attached()) == 1
        real_host.do("kill", "--signal", "USR1", "job")
        until(lambda: real_host.leases() == [])
    assert real_host.run(*LIGHT, "--", "true").returncode == 0
    await_no_daemon(fake_mps)


def test_container_that_cannot_start(real_host: Host, fake_mps: FakeMps) -> None:
    """A container that cannot start leaves no daemon."""
    done = real_host.run(*DOCKER, "--name", "job", IMAGE, "no-such-command")
    assert done.returncode == 127
    real_host.await_free()
    await_no_daemon(fake_mps)
