"""`gpulaunch doctor` beside a Docker Engine, an MPS daemon and directories of other users."""

import os
import pwd
import shutil
from pathlib import Path

from conftest import DGX, Launcher
from engine import Engine, write_cdi_spec
from fake_mps import CONTROL, FakeMps
from test_doctor import bad, findings

pytest_plugins = ("fake_mps", "fake_nvml")


UUIDS = tuple(f"GPU-dgx1-v100-{index}" for index in range(8))


def test_ways_into_containers(launcher: Launcher, docker: Engine) -> None:
    """How GPUs get into containers is shown: by the engine, or by settings, which may fail."""
    without_podman = str(Path(launcher.script).parent)
    launcher.environment |= {"DOCKER_HOST": docker.host, "PATH": without_podman}
    version = docker.docker("version", "--format", "{{.Server.Version}}").stdout.strip()
    found = findings(launcher, *DGX)
    assert found["Docker Engine", "ok"] == f"{version} at {docker.socket}"
    assert (
        found["GPUs in containers", "ok"]
        == "dgx1-v100 is only described: its GPUs get into no container"
    )

    write_cdi_spec(docker.cdi, UUIDS)
    runtime = "runtime nvidia with NVIDIA_VISIBLE_DEVICES"
    way = findings(launcher, *DGX)["GPUs in containers", "ok"]
    assert way == "by CDI devices nvidia.com/gpu=UUID"
    launcher.environment["GPULAUNCH_CONTAINER_GPUS"] = "runtime"
    way = findings(launcher, *DGX)["GPUs in containers", "ok"]
    assert way == f"by {runtime}, as GPULAUNCH_CONTAINER_GPUS=runtime says"

    launcher.environment["GPULAUNCH_CONTAINER_GPUS"] = "gpus"
    if not shutil.which("nvidia-container-runtime-hook"):
        problem = findings(launcher, *DGX)["GPUs in containers", "problem"]
        assert problem.startswith("GPULAUNCH_CONTAINER_GPUS=gpus: this engine does not seem to ")


def test_what_can_be_shared(launcher: Launcher, dgx1_v100, fake_mps: FakeMps) -> None:
    """Doctor tells whose MPS daemon runs, which GPUs can be shared, and why not the others."""
    dgx1_v100.add("driver 550.54.15")
    fake_mps.start()
    (daemon,) = fake_mps.events("started")
    user = pwd.getpwuid(os.geteuid()).pw_name
    found = findings(launcher)["MPS", "ok"]
    assert found.startswith(f"{fake_mps.bin / CONTROL}; ")
    assert f"pid {daemon.pid}, {user}" in found
    assert findings(launcher)["sharing", "ok"] == "GPUs 0-7 can be shared with --share"
    dgx1_v100.change(3, cc="6.0")
    os.remove(
        f"{launcher.environment['XDG_RUNTIME_DIR']}/gpulaunch.topology.json"
    )  # a GPU's capability stays what it is
    why = "GPU 3 cannot be shared: compute capability 6.0: MPS bounds SMs and memory from 7.0 on"
    assert findings(launcher)["sharing", "ok"] == f"GPUs 0-2,4-7 can be shared with --share; {why}"
    dgx1_v100.drop("driver")
    dgx1_v100.add("driver 470.57")
    found = bad(launcher)["sharing", "warning"][0]
    assert found == (
        "no GPU can be shared: driver 470.57 does not tell whether its MPS works: "
        "550 is the first to"
    )
