"""Every way of launching, over a stand-in for NVML: what only GPUs of this machine's own have.

Other tests launch on described machines, whose GPUs are not watched for idleness, faults or use.
Containers and clusters are in tests/host.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Launcher, until

pytest_plugins = ("fake_nvml",)

JOB = ("sh", "-c", 'echo "gpus $CUDA_VISIBLE_DEVICES"; exit 3')
PROGRAM = """
import sys, gpulaunch
with gpulaunch.allocate(2) as lease:
    print("gpus", ",".join(map(str, lease.gpus)))
    sys.exit(3)
"""
BATCH = f"[[job]]\nname = 'job'\ngpus = 2\ncommand = {json.dumps(JOB)}\n"


def attached(launcher: Launcher, _: Path) -> tuple[int, str]:
    done = launcher.run("-n", "2", "--", *JOB)
    return done.returncode, done.stdout


def detached(launcher: Launcher, home: Path) -> tuple[int, str]:
    done = launcher.run("-qd", "-n", "2", "--name", "job", "--", *JOB, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    return launcher.run("wait", "job").returncode, launcher.run("logs", "job").stdout


def batch(launcher: Launcher, home: Path) -> tuple[int, str]:
    (home / "jobs.toml").write_text(BATCH)
    done = launcher.run("batch", "-q", "jobs.toml", cwd=home)
    *_, line = (home / "jobs.toml.results.jsonl").read_text().splitlines()
    assert done.returncode == 1
    return json.loads(line)["exit_status"], done.stdout


def program(launcher: Launcher, _: Path) -> tuple[int, str]:
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        words, env=launcher.environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.usefixtures("dgx1_v100")
@pytest.mark.parametrize("way", [attached, detached, batch, program])
def test_on_gpus_that_nvml_tells_of(
    launcher: Launcher, tmp_path: Path, way: Callable[[Launcher, Path], tuple[int, str]]
) -> None:
    """However a job is launched on this machine's own GPUs, its status arrives, and all is free."""
    status, output = way(launcher, tmp_path)
    assert (status, "gpus 0,3\n" in output) == (3, True), output
    until(lambda: launcher.records() == [])  # a detached launch may just be about to end
