"""gpulaunch doctor: what works here, what does not, and what to do about it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import DGX, Launcher
from engine import Engine, write_cdi_spec

NO_WAY = "dgx1-v100 is only described: its GPUs get into no container"
UUIDS = tuple(f"GPU-dgx1-v100-{index}" for index in range(8))


def findings(launcher: Launcher, *options: str) -> dict[tuple[str, str], str]:
    """What was found, by part and state; the exit status says whether one is a problem."""
    done = launcher.run("doctor", *options, "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == (125 if any(finding["state"] == "problem" for finding in found) else 0)
    return {(finding["subject"], finding["state"]): finding["text"] for finding in found}


@pytest.mark.usefixtures("no_driver")
def test_no_gpus(launcher: Launcher) -> None:
    """Without a driver that is a problem, with the hint that a launch would give, and the rest is looked at."""
    found = findings(launcher)
    assert found["GPUs", "problem"] == "no NVML library (libnvidia-ml.so.1) found, so no NVIDIA driver"
    assert found["state directory", "ok"].startswith(f"{launcher.state}, of ")
    assert "without GPUs, try a described machine: --topology dgx1-v100" in launcher.run("doctor").stdout


def test_described_machine_without_docker(launcher: Launcher) -> None:
    """A described machine needs no driver, and no Docker Engine is no problem."""
    launcher.environment["DOCKER_HOST"] = "unix:///no/such.sock"
    assert findings(launcher, *DGX) == {
        ("GPUs", "ok"): "dgx1-v100: 8 GPUs (Tesla V100-SXM2-16GB), described",
        ("state directory", "ok"): f"{launcher.state}, of root: 0 leases, 0 waiting"
        if os.geteuid() == 0
        else f"{launcher.state}, of {Path(launcher.state).owner()}: 0 leases, 0 waiting",
        ("Docker Engine", "note"): "none at /no/such.sock, so 'gpulaunch docker run' will not work",
    }


def test_state_directory_of_somebody_else(launcher: Launcher) -> None:
    """A table whose owner could remove anybody's lease is a problem."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a directory away")
    os.chown(launcher.state, 65534, -1)
    found = findings(launcher, *DGX)
    assert found["state directory", "problem"].endswith("belongs to nobody, who can remove any lease in it")


def test_damaged_table(launcher: Launcher) -> None:
    """A state directory that is none is a problem, and doctor goes on."""
    launcher.environment["GPULAUNCH_STATE_DIR"] = "/proc"
    found = findings(launcher, *DGX)
    assert ("state directory", "problem") in found
    assert ("GPUs", "ok") in found


def test_wrong_settings(launcher: Launcher) -> None:
    """A mistake in the settings is told as everywhere."""
    config = Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text('container_gpu = "cdi"\n')
    done = launcher.run("doctor", *DGX)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gpulaunch: error: {config}:1: unknown setting 'container_gpu': known are ")


def test_ways_into_containers(launcher: Launcher, docker: Engine) -> None:
    """How GPUs get into containers is shown: as the engine offers, or as the settings force it, which may not work."""
    launcher.environment |= {"DOCKER_HOST": docker.host}
    version = docker.docker("version", "--format", "{{.Server.Version}}").stdout.strip()
    found = findings(launcher, *DGX)
    assert (found["Docker Engine", "ok"], found["GPUs in containers", "note"]) == (
        f"{version} at {docker.socket}",
        NO_WAY,
    )

    write_cdi_spec(docker.cdi, UUIDS)
    runtime = "runtime nvidia with NVIDIA_VISIBLE_DEVICES"
    found = findings(launcher, *DGX)
    assert found["GPUs in containers", "ok"] == f"by CDI devices nvidia.com/gpu=UUID; also offered: {runtime}"

    launcher.environment["GPULAUNCH_CONTAINER_GPUS"] = "runtime"
    found = findings(launcher, *DGX)
    assert found["GPUs in containers", "ok"].startswith(f"by {runtime}, as GPULAUNCH_CONTAINER_GPUS=runtime says")

    launcher.environment["GPULAUNCH_CONTAINER_GPUS"] = "gpus"
    if not shutil.which("nvidia-container-runtime-hook"):
        found = findings(launcher, *DGX)
        assert found["GPUs in containers", "problem"].startswith(
            "GPULAUNCH_CONTAINER_GPUS=gpus: this engine does not seem to offer --gpus with a device list, but CDI"
        )
