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
from agent import Agent, talk
from conftest import Launcher, until

pytest_plugins = ("fake_nvml",)

JOB = ("sh", "-c", 'echo "gpus $CUDA_VISIBLE_DEVICES"; exit 3')
TESTS = """
import os, pytest

@pytest.mark.gpus(2)
def test_it(gpus):
    print("gpus", os.environ["CUDA_VISIBLE_DEVICES"])
"""
CONFTEST = "def pytest_sessionfinish(session): session.exitstatus = 3"
PROGRAM = """
import sys, gpulaunch
with gpulaunch.allocate(2) as lease:
    print("gpus", ",".join(map(str, lease.gpus)))
    sys.exit(3)
"""
BATCH = f"[[job]]\nname = 'job'\ngpus = 2\ncommand = {json.dumps(JOB)}\n"


def python(launcher: Launcher, home: Path, *words: str) -> tuple[int, str]:
    """Return status and output of a Python program."""
    done = subprocess.run(
        [sys.executable, *words],
        env=launcher.environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout


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


def program(launcher: Launcher, home: Path) -> tuple[int, str]:
    return python(launcher, home, "-c", PROGRAM)


def agent(launcher: Launcher, _: Path) -> tuple[int, str]:
    found = []

    async def speak(agent: Agent) -> None:
        await agent.call("launch", command=list(JOB), gpus=2, name="job")
        ended = await agent.call("logs", job="job", wait_s=60)
        found.append((ended["launch"]["exit_status"], ended["text"]))

    talk(launcher, speak)
    return found[0]


def pytest_plugin(launcher: Launcher, home: Path) -> tuple[int, str]:
    (home / "test_it.py").write_text(TESTS)
    (home / "conftest.py").write_text(CONFTEST)
    return python(launcher, home, "-m", "pytest", "-qs", "-p", "no:cacheprovider", "test_it.py")


@pytest.mark.usefixtures("dgx1_v100")
@pytest.mark.parametrize("way", [attached, detached, batch, program, agent, pytest_plugin])
def test_on_gpus_that_nvml_tells_of(
    launcher: Launcher, tmp_path: Path, way: Callable[[Launcher, Path], tuple[int, str]]
) -> None:
    """However a job is launched on this machine's own GPUs, its status arrives, and all is free."""
    status, output = way(launcher, tmp_path)
    assert (status, "gpus 0,3\n" in output) == (3, True), output
    until(lambda: launcher.records() == [])  # a detached launch may just be about to end
