"""Running containers keep their GPUs, whoever started them, as far as they were given them alone.

The engine is real, and the machine is one that a stand-in for NVML tells of, or a described one. No
process of these containers uses a GPU, so NVML sees nothing of them.
"""

import json
import os
import signal
from pathlib import Path

import pytest
from conftest import DGX, Launcher, held, holders, until, wait_for_end
from engine import IMAGE, write_cdi_spec
from test_docker import DESCRIBED, LONG, Host, complaint, host, real_host
from test_docker_nested import Inside

__all__ = ["host", "real_host"]

pytest_plugins = ("fake_nvml",)

BUSY = (
    "8 GPUs requested: 6 of 8 are free, 2 are in use outside gpulaunch (container server (docker))"
)
FOREVER = ("-d", "--init", "--name", "server")
TRUE = ("--", "true")


def free_gpus(launcher: Launcher, *options: str) -> list[int]:
    """Return the GPUs that status calls free."""
    return [gpu["index"] for gpu in status(launcher, *options)["gpus"] if gpu["free"]]


def status(launcher: Launcher, *options: str) -> dict:
    """Return the document of status."""
    done = launcher.run("status", *options, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def lines(launcher: Launcher, *options: str) -> list[str]:
    """Return the lines of status that name the container called server."""
    done = launcher.run("status", *options, env={**launcher.environment, "COLUMNS": "200"})
    assert (done.returncode, done.stderr) == (0, "")
    return [line.strip() for line in done.stdout.splitlines() if "container server" in line]


def used(*gpus: int) -> list[str]:
    """Return what status says of GPUs that the container called server has."""
    return [f"GPU {gpu} is in use outside gpulaunch: container server (docker)" for gpu in gpus]


# -------------------------------------------------------------------------- containers of docker's


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        ("--gpus 2", [0, 1]),  # docker counts from 0
        ("--device nvidia.com/gpu=GPU-v100-2 --device nvidia.com/gpu=4", [2, 4]),
        ("--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=7,GPU-v100-0", [0, 7]),
    ],
)
def test_gpus_that_docker_gave(real_host: Host, flags: str, gpus: list[int]) -> None:
    """GPUs that a plain docker run names or counts are given to no launch while it runs."""
    launcher = real_host.launcher
    real_host.do("run", *FOREVER, *flags.split(), *LONG)
    others = [gpu for gpu in range(8) if gpu not in gpus]
    assert free_gpus(launcher) == others
    assert lines(launcher) == used(*gpus)
    with held(launcher, "-n", str(len(others))) as job:
        assert sorted(map(int, job.gpus.split(","))) == others
        assert lines(launcher) == used(*gpus)
    done = launcher.run("-n", "all", *TRUE)
    assert (done.returncode, complaint(done)) == (75, BUSY)
    real_host.do("rm", "--force", "server")
    done = launcher.run("-n", "all", *TRUE)
    assert (done.returncode, done.stderr) == (0, "")


def test_container_that_sees_all_gpus(real_host: Host) -> None:
    """A container with all GPUs, such as a monitor's, stops nobody, and status shows it."""
    launcher = real_host.launcher
    real_host.do("run", *FOREVER, "--device", "nvidia.com/gpu=all", *LONG)
    assert launcher.run("-n", "all", *TRUE).returncode == 0
    assert lines(launcher) == ["container server (docker) sees all GPUs"]
    assert free_gpus(launcher) == list(range(8))


def test_numbers_of_real_gpus(host: Host) -> None:
    """On a described machine a container has the GPUs whose UUIDs it names, and none by number."""
    numbers = ("--device", "nvidia.com/gpu=1", "--gpus", "2")
    host.do("run", *FOREVER, *numbers, "--device", f"nvidia.com/gpu={DESCRIBED[5]}", *LONG)
    assert free_gpus(host.launcher, *DGX) == [0, 1, 2, 3, 4, 6, 7]


def test_renamed_paused_and_ended(real_host: Host) -> None:
    """A container is inspected once; a new name is told all the same, and a pause is no end."""
    launcher = real_host.launcher
    real_host.do("run", *FOREVER[:-1], "other", "--network", "none", "--gpus", "1", *LONG)
    assert free_gpus(launcher) == [1, 2, 3, 4, 5, 6, 7]
    cache = Path(launcher.environment["XDG_RUNTIME_DIR"], "gpulaunch.containers.json")
    written = cache.stat()
    real_host.do("rename", "other", "server")
    real_host.do("pause", "server")
    assert lines(launcher) == used(0)
    assert os.path.samestat(cache.stat(), written)
    real_host.do("rm", "--force", "server")
    assert free_gpus(launcher) == list(range(8))


def test_waiter_starts_when_a_container_ends(real_host: Host) -> None:
    """A launch that waits for a container's GPUs starts when it has ended."""
    real_host.do("run", *FOREVER, "--gpus", "2", *LONG)
    waiter = real_host.launcher.start("-n", "all", "--wait", *TRUE)
    assert "waiting as number 1" in waiter.stderr.readline()
    real_host.do("kill", "server")
    waiter.communicate()
    assert waiter.returncode == 0


def test_container_in_which_launches_run(host: Host) -> None:
    """A container with GPUs that may ask the engine, as a CI job's, can launch on all of them."""
    inside = Inside(host)
    socket_path = host.engine.socket
    options = [*inside.options, *inside.table, "-v", f"{socket_path}:{socket_path}"]
    gpus = [word for uuid in DESCRIBED for word in ("--device", f"nvidia.com/gpu={uuid}")]
    launch = [*inside.program, *DGX, "-n", "all", *TRUE]
    script = f"{' '.join(launch)} && {' '.join(inside.program)} status {' '.join(DGX)} --json"
    words = ["--rm", *options, "-e", f"DOCKER_HOST={host.engine.host}", *gpus, IMAGE]
    done = host.plain("run", *words, "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    (container,) = json.loads(done.stdout)["containers"]
    assert (container["gpus"], container["is_here"]) == (list(range(8)), True)


# ------------------------------------------------------------------------------- gpulaunch's own


def forget_leases(launcher: Launcher) -> None:
    """Wipe the state directory as a reboot does, and end whoever looks after a lease."""
    for name in launcher.records():
        path = launcher.state / name
        pids = holders(path)
        path.unlink()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)


def test_reboot(host: Host) -> None:
    """After a reboot the GPUs of a container that comes back by its policy are not given again."""
    write_cdi_spec(host.engine.cdi)  # not of these GPUs: some engines start none with them again
    options = ("--restart", "always", "--stop-timeout", "1", "--name", "server")
    host.detached("-q", "docker", "run", "-d", "--gpus", "2", *options, *LONG)
    host.engine.stop()
    forget_leases(host.launcher)
    assert host.leases() == []
    host.engine.start()
    until(lambda: host.state("server") == "running")
    for words in (("-n", "all", *TRUE), ("docker", "run", "--gpus", "8", IMAGE, "true")):
        done = host.run(*words)
        assert (done.returncode, complaint(done)) == (75, BUSY)
    remedy = "'docker stop server', then 'gpulaunch docker start server'"
    said = f"container server (docker) has GPUs 0,3 without a lease: {remedy}"
    assert lines(host.launcher, *DGX) == [*used(0, 3), said]
    assert host.run("-n", "6", *TRUE).returncode == 0
    assert host.run("-q", "docker", "start", "server").returncode == 0
    assert (host.lease()["gpus"], lines(host.launcher, *DGX)[1:]) == ([0, 3], [])
    host.do("rm", "--force", "server")
    host.await_free()
    assert host.run("-n", "all", *TRUE).returncode == 0


def test_docker_start_over_a_lease(host: Host) -> None:
    """A docker start by hand on GPUs that are leased since is told by status."""
    container = host.detached(
        "docker", "run", "-d", "--init", "--gpus", "2", "--name", "server", *LONG
    )
    host.do("kill", "server")
    host.await_free()
    with held(host.launcher, *DGX, "--only", "3,4", "-n", "2"):
        assert lines(host.launcher, *DGX) == []
        host.do("start", "server")
        lease = host.lease()["id"]
        beside = f"container server (docker) has GPUs 0,3 beside lease {lease}"
        assert lines(host.launcher, *DGX) == [*used(0), f"{beside}: 'docker stop server' ends it"]
        document = status(host.launcher, *DGX)
        (shown,) = document["containers"]
        assert (shown["id"], shown["gpus"], shown["leases"]) == (container, [0, 3], [lease])
        assert document["leases"][0]["containers_beside"] == [container]
    assert free_gpus(host.launcher, *DGX) == [1, 2, 4, 5, 6, 7]
