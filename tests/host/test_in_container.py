"""Launches inside a container, whose file system is an overlay."""

import os

import pytest
from conftest import Launcher, complaint, in_container
from test_nvml import outcome

pytest_plugins = ("fake_nvml",)
pytestmark = pytest.mark.skipif(
    os.path.isdir("/run/gpulaunch"), reason="this machine has a state directory of its own"
)


def test_described_gpus_in_a_container(launcher: Launcher) -> None:
    """In a container, whose file system is an overlay, a described machine uses /dev/shm."""
    done = in_container(
        launcher, f"{launcher.script} --topology dgx1-v100 -- ls /dev/shm /run/lock"
    )
    lines = done.stdout.split()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in lines if not line.startswith("gpulaunch.lease.")] == [
        "/dev/shm:",
        "/run/lock:",
    ]
    assert lines.index("/run/lock:") == 2


def test_real_gpus_in_a_container(launcher, dgx1_v100):  # noqa: ARG001
    """In a container's own file system a launch on real GPUs is refused, with a hint to mount."""
    run = in_container(launcher, f"{launcher.script} -- echo ran")
    own = "/run/lock is this container's own: no other launcher of this machine sees it"
    assert outcome(run) == (
        125,
        "",
        complaint(
            own, 'mount the host\'s: docker run -v /run/lock:/run/lock, or set table = "private"'
        ),
    )
