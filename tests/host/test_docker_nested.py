"""gpulaunch in containers: with the host's state directory they share its table, as in CI."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conftest import DGX
from engine import IMAGE
from test_docker import Host, host

import gpulaunch

__all__ = ["host"]

SHOW = "echo $CUDA_VISIBLE_DEVICES"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")


class Inside:
    """Options and words that run gpulaunch in a container, with this host's Python mounted."""

    def __init__(self, host: Host) -> None:
        self.host, state = host, host.launcher.state
        places = {sys.prefix, sys.base_prefix, str(Path(gpulaunch.__file__).parent.parent)}
        mounts = [path for path in SYSTEM if Path(path).exists()]
        mounts += [path for path in sorted(places) if not path.startswith("/usr")]
        self.options = [word for path in mounts for word in ("-v", f"{path}:{path}:ro")]
        for variable in ("PYTHONDONTWRITEBYTECODE=1", f"GPULAUNCH_STATE_DIR={state}"):
            self.options += ["-e", variable]
        self.table = ["-v", f"{state}:{state}"]
        self.program = [sys.executable, "-m", "gpulaunch"]

    def run(self, flags: Sequence[str], *words: str) -> subprocess.Popen[str]:
        """Run gpulaunch on the described DGX-1 in a container that shares the host's table."""
        inner = [*self.program, *DGX, *words]
        return subprocess.Popen(
            ["docker", "run", *flags, *self.options, *self.table, IMAGE, *inner],
            env=self.host.environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


def test_job_in_a_container(host: Host) -> None:
    """A launch in a container of a CI runner, and one on the host, cannot get the same GPU."""
    job = ("-n", "6", "--", "sh", "-c", f"{SHOW}; read line")
    with Inside(host).run(["-i"], *job) as process:
        taken = set(process.stdout.readline().strip().split(","))
        assert len(taken) == 6
        lease = host.lease()
        assert {str(index) for index in lease["gpus"]} == taken
        assert host.run("-n", "3", "--", "true").returncode == 75
        got = set(host.run("-n", "2", "--", "sh", "-c", SHOW).stdout.strip().split(","))
        assert got == {str(index) for index in range(8)} - taken
        process.communicate("\n")
    assert (process.returncode, host.launcher.records()) == (0, [])


def test_killed_container(host: Host) -> None:
    """A job in a container that is removed, launcher and all, leaves no lease alive."""
    job = ("-n", "all", "--", "sh", "-c", "echo ready; sleep 1000")
    with Inside(host).run(["--name", "job"], *job) as process:
        assert process.stdout.readline() == "ready\n"
        assert host.run("--", "true").returncode == 75
        host.do("rm", "--force", "job")
        process.communicate()
    assert host.run("-n", "all", "--", "true").returncode == 0
    assert host.launcher.records() == []


def test_launch_inside_a_launched_container(host: Host) -> None:
    """A launch in a container that gpulaunch launched takes GPUs from that container's lease."""
    inside = Inside(host)
    script = f"""
        run() {{ {" ".join(inside.program)} "$@"; }}
        run -n 2 --json --dry-run -- true > /tmp/two && cat /tmp/two
        run -n all -- sh -c '{SHOW}' >&2
        run -n 5 -- true
    """
    flags = ("--gpus", "4", *inside.options, *inside.table)
    done = host.run("-q", "docker", "run", *flags, IMAGE, "sh", "-c", script)
    own, refusal = done.stderr.splitlines()
    outer = set(own.split(","))
    assert len(outer) == 4
    assert {str(gpu["index"]) for gpu in json.loads(done.stdout)["gpus"]} < outer
    assert done.returncode == 2
    assert refusal.startswith("gpulaunch: error: 5 GPUs requested: lease ")
    assert host.launcher.records() == []
