"""gpulaunch in containers: with the host's state directory they share its table, as in CI."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DGX, Launcher
from engine import IMAGE, Engine

import gpulaunch

SHOW = "echo $CUDA_VISIBLE_DEVICES"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")


class Inside:
    """Options and words that run gpulaunch in a container, with this host's Python mounted."""

    def __init__(self, launcher: Launcher) -> None:
        places = {sys.prefix, sys.base_prefix, str(Path(gpulaunch.__file__).parent.parent)}
        mounts = [path for path in SYSTEM if Path(path).exists()]
        mounts += [path for path in sorted(places) if not path.startswith("/usr")]
        self.options = [word for path in mounts for word in ("-v", f"{path}:{path}:ro")]
        self.options += [
            "-e",
            "PYTHONDONTWRITEBYTECODE=1",
            "-e",
            f"GPULAUNCH_STATE_DIR={launcher.state}",
        ]
        self.table = ["-v", f"{launcher.state}:{launcher.state}"]
        self.program = [sys.executable, "-m", "gpulaunch"]


@pytest.fixture
def launcher(launcher: Launcher, docker: Engine) -> Launcher:
    """Return a launcher with a Docker Engine in reach."""
    path = f"{docker.environment['PATH']}:{launcher.environment['PATH']}"
    launcher.environment |= {**docker.environment, "PATH": path}
    return launcher


@pytest.fixture
def inside(launcher: Launcher) -> Inside:
    return Inside(launcher)


def leases(launcher: Launcher) -> list[dict]:
    return json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"]


def test_job_in_a_container(launcher: Launcher, inside: Inside, docker: Engine) -> None:
    """A launch in a container of a CI runner, and one on the host, cannot get the same GPU."""
    words = [
        "run",
        "-i",
        *inside.options,
        *inside.table,
        IMAGE,
        *inside.program,
        *DGX,
        "-n",
        "6",
        "--",
    ]
    words += ["sh", "-c", f"{SHOW}; read line"]
    job = subprocess.Popen(
        ["docker", *words],
        env=docker.environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with job:
        taken = set(job.stdout.readline().strip().split(","))
        assert len(taken) == 6
        (lease,) = leases(launcher)
        assert {str(index) for index in lease["gpus"]} == taken
        assert launcher.run(*DGX, "-n", "3", "--", "true").returncode == 75
        got = set(launcher.run(*DGX, "-n", "2", "--", "sh", "-c", SHOW).stdout.strip().split(","))
        assert got == {str(index) for index in range(8)} - taken
        job.communicate("\n")
    assert (job.returncode, launcher.records()) == (0, [])


def test_killed_container(launcher: Launcher, inside: Inside, docker: Engine) -> None:
    """A job in a container that is removed, launcher and all, leaves no lease alive."""
    words = [
        "run",
        "--name",
        "job",
        *inside.options,
        *inside.table,
        IMAGE,
        *inside.program,
        *DGX,
        "-n",
        "all",
        "--",
    ]
    words += ["sh", "-c", "echo ready; sleep 1000"]
    with subprocess.Popen(
        ["docker", *words], env=docker.environment, text=True, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout.readline() == "ready\n"
        assert launcher.run(*DGX, "--", "true").returncode == 75
        docker.docker("rm", "--force", "job")
        job.communicate()
    assert launcher.run(*DGX, "-n", "all", "--", "true").returncode == 0
    assert launcher.records() == []


def test_launch_inside_a_launched_container(launcher: Launcher, inside: Inside) -> None:
    """A launch in a container that gpulaunch launched takes GPUs from that container's lease."""
    script = f"""
        run() {{ {" ".join(inside.program)} "$@"; }}
        run -n 2 --json --dry-run -- true > /tmp/two && cat /tmp/two
        run -n all -- sh -c '{SHOW}' >&2
        run -n 5 -- true
    """
    words = [
        "docker",
        "run",
        "--gpus",
        "4",
        *inside.options,
        *inside.table,
        IMAGE,
        "sh",
        "-c",
        script,
    ]
    done = launcher.run(*DGX, "-q", *words)
    own, refusal = done.stderr.splitlines()
    outer = set(own.split(","))
    assert len(outer) == 4
    assert {str(gpu["index"]) for gpu in json.loads(done.stdout)["gpus"]} < outer
    assert (done.returncode, refusal.startswith("gpulaunch: error: 5 GPUs requested: lease ")) == (
        2,
        True,
    )
    assert launcher.records() == []
