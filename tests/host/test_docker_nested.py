"""gpulaunch in containers: with the host's state directory they share its table, as in CI."""

import json
import subprocess
import sys
from collections.abc import Sequence
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
        for variable in ("PYTHONDONTWRITEBYTECODE=1", f"GPULAUNCH_STATE_DIR={launcher.state}"):
            self.options += ["-e", variable]
        self.table = ["-v", f"{launcher.state}:{launcher.state}"]
        self.program = [sys.executable, "-m", "gpulaunch"]

    def run(self, docker: Engine, flags: Sequence[str], *words: str) -> subprocess.Popen[str]:
        """Run gpulaunch on the described DGX-1 in a container that shares the host's table."""
        inner = [*self.program, *DGX, *words]
        return subprocess.Popen(
            ["docker", "run", *flags, *self.options, *self.table, IMAGE, *inner],
            env=docker.environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


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
    job = ("-n", "6", "--", "sh", "-c", f"{SHOW}; read line")
    with inside.run(docker, ["-i"], *job) as process:
        taken = set(process.stdout.readline().strip().split(","))
        assert len(taken) == 6
        (lease,) = leases(launcher)
        assert {str(index) for index in lease["gpus"]} == taken
        assert launcher.run(*DGX, "-n", "3", "--", "true").returncode == 75
        got = set(launcher.run(*DGX, "-n", "2", "--", "sh", "-c", SHOW).stdout.strip().split(","))
        assert got == {str(index) for index in range(8)} - taken
        process.communicate("\n")
    assert (process.returncode, launcher.records()) == (0, [])


def test_killed_container(launcher: Launcher, inside: Inside, docker: Engine) -> None:
    """A job in a container that is removed, launcher and all, leaves no lease alive."""
    job = ("-n", "all", "--", "sh", "-c", "echo ready; sleep 1000")
    with inside.run(docker, ["--name", "job"], *job) as process:
        assert process.stdout.readline() == "ready\n"
        assert launcher.run(*DGX, "--", "true").returncode == 75
        docker.docker("rm", "--force", "job")
        process.communicate()
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
    flags = ("--gpus", "4", *inside.options, *inside.table)
    done = launcher.run(*DGX, "-q", "docker", "run", *flags, IMAGE, "sh", "-c", script)
    own, refusal = done.stderr.splitlines()
    outer = set(own.split(","))
    assert len(outer) == 4
    assert {str(gpu["index"]) for gpu in json.loads(done.stdout)["gpus"]} < outer
    assert done.returncode == 2
    assert refusal.startswith("gpulaunch: error: 5 GPUs requested: lease ")
    assert launcher.records() == []
