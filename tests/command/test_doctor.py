"""gpulaunch doctor: what works here, what does not, and what to do about it."""

import json
import os
import pwd
import shutil
from pathlib import Path

import pytest
from conftest import DGX, Launcher
from engine import Engine, write_cdi_spec
from fake_mps import CONTROL, FakeMps

pytest_plugins = ("fake_mps", "fake_nvml")

NO_WAY = "dgx1-v100 is only described: its GPUs get into no container"
UUIDS = tuple(f"GPU-dgx1-v100-{index}" for index in range(8))


def findings(launcher: Launcher, *options: str) -> dict[tuple[str, str], str]:
    """What was found, by part and state; the exit status says whether one is a problem."""
    done = launcher.run("doctor", *options, "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == (1 if any(finding["state"] == "problem" for finding in found) else 0)
    return {(finding["subject"], finding["state"]): finding["text"] for finding in found}


@pytest.mark.usefixtures("no_driver")
def test_no_gpus(launcher: Launcher) -> None:
    """Without a driver that is a problem, with the hint that a launch would give, and the rest is looked at."""
    found = findings(launcher)
    assert (
        found["GPUs", "problem"] == "no NVML library (libnvidia-ml.so.1) found, so no NVIDIA driver"
    )
    assert found["state directory", "ok"].startswith(f"{launcher.state}, of ")
    assert (
        "without GPUs, try a described machine: --topology dgx1-v100"
        in launcher.run("doctor").stdout
    )


def test_described_machine_without_docker(launcher: Launcher) -> None:
    """A described machine needs no driver, and no Docker Engine is no problem."""
    launcher.environment["DOCKER_HOST"] = "unix:///no/such.sock"
    assert findings(launcher, *DGX) == {
        ("GPUs", "ok"): "dgx1-v100: 8 GPUs (Tesla V100-SXM2-16GB), described",
        ("sharing", "ok"): "GPUs 0-7 can be shared with --share",
        ("state directory", "ok"): f"{launcher.state}, of root: 0 leases, 0 waiting"
        if os.geteuid() == 0
        else f"{launcher.state}, of {Path(launcher.state).owner()}: 0 leases, 0 waiting",
        (
            "Docker Engine",
            "warning",
        ): "none at /no/such.sock, so 'gpulaunch docker run' will not work",
    }


def test_state_directory_of_somebody_else(launcher: Launcher) -> None:
    """A table whose owner could remove anybody's lease is a problem."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a directory away")
    os.chown(launcher.state, 65534, -1)
    found = findings(launcher, *DGX)
    assert found["state directory", "problem"].endswith(
        "belongs to nobody, who can remove any lease in it"
    )


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
    assert done.stderr.startswith(
        f"gpulaunch: error: {config}:1: unknown setting 'container_gpu': known are "
    )


def test_ways_into_containers(launcher: Launcher, docker: Engine) -> None:
    """How GPUs get into containers is shown: as the engine offers, or as the settings force it, which may not work."""
    launcher.environment |= {"DOCKER_HOST": docker.host}
    version = docker.docker("version", "--format", "{{.Server.Version}}").stdout.strip()
    found = findings(launcher, *DGX)
    assert (found["Docker Engine", "ok"], found["GPUs in containers", "ok"]) == (
        f"{version} at {docker.socket}",
        NO_WAY,
    )

    write_cdi_spec(docker.cdi, UUIDS)
    runtime = "runtime nvidia with NVIDIA_VISIBLE_DEVICES"
    found = findings(launcher, *DGX)
    assert (
        found["GPUs in containers", "ok"]
        == f"by CDI devices nvidia.com/gpu=UUID; also offered: {runtime}"
    )

    launcher.environment["GPULAUNCH_CONTAINER_GPUS"] = "runtime"
    found = findings(launcher, *DGX)
    assert found["GPUs in containers", "ok"].startswith(
        f"by {runtime}, as GPULAUNCH_CONTAINER_GPUS=runtime says"
    )

    launcher.environment["GPULAUNCH_CONTAINER_GPUS"] = "gpus"
    if not shutil.which("nvidia-container-runtime-hook"):
        found = findings(launcher, *DGX)
        assert found["GPUs in containers", "problem"].startswith(
            "GPULAUNCH_CONTAINER_GPUS=gpus: this engine does not seem to offer --gpus with a device list, but CDI"
        )


# What NVML tells, and what it does not


def bad(launcher: Launcher) -> dict[tuple[str, str], tuple[str, str]]:
    """Findings that are not ok, with what to do about them."""
    found = json.loads(launcher.run("doctor", "--json").stdout)["findings"]
    return {(f["subject"], f["state"]): (f["text"], f["hint"]) for f in found if f["state"] != "ok"}


@pytest.mark.usefixtures("dgx1_v100")
def test_driver_and_links(launcher: Launcher) -> None:
    """Of a healthy machine the driver, the GPUs and their NVLinks are found."""
    launcher.environment["DOCKER_HOST"] = "unix:///no/such.sock"
    found = findings(launcher)
    assert found["driver", "ok"] == "550.54.15"
    assert found["GPUs", "ok"] == f"{os.uname().nodename}: 8 GPUs (Tesla V100-SXM2-16GB), by NVML"
    assert found["NVLink", "ok"] == "every link is up"
    assert {part for part, state in found if state != "ok"} == {"Docker Engine", "MPS"}


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("nvmlDeviceGetCpuAffinity", "Function Not Found"),
        ("nvmlDeviceGetTopologyCommonAncestor", "Not Supported"),
        ("nvmlDeviceGetP2PStatus", "Insufficient Permissions"),
        ("nvmlDeviceGetName", "Not Supported"),
    ],
)
def test_what_was_not_told(launcher: Launcher, dgx1_v100, function: str, why: str) -> None:
    """A call that is missing, unsupported or forbidden is a warning that says of which GPUs, and what follows."""
    code = {"Not Supported": 3, "Insufficient Permissions": 4, "Function Not Found": 13}[why]
    dgx1_v100.answer(function, code, gpu=2)
    dgx1_v100.answer(function, code, gpu=3)
    want = f"{function} tells nothing of GPU 2-3: {why}"
    assert bad(launcher)["NVML", "warning"] == (
        want,
        "what it would tell is taken for unknown; a newer driver may know it",
    )


def test_cards_without_nvlink(launcher: Launcher, dgx1_v100) -> None:
    """That cards have no NVLinks, and cannot be split, is nothing to complain of."""
    dgx1_v100.drop("nvlink ")
    assert {part for part, _ in bad(launcher)} <= {"MPS", "Docker Engine"}


def test_links_that_are_down(launcher: Launcher, dgx1_v100) -> None:
    """NVLinks that are down are named."""
    dgx1_v100.drop("nvlink 3 1 ")
    dgx1_v100.add("nvlink 3 1 state=0")
    text, hint = bad(launcher)["NVLink", "warning"]
    assert text == "GPU 3: link 1 down"
    assert hint.startswith("'nvidia-smi nvlink -s -i 3'")


@pytest.mark.parametrize(
    ("model", "state"),
    [("Tesla V100-SXM2-16GB", "warning"), ("NVIDIA A100 80GB PCIe", "ok")],
    ids=["board", "cards"],
)
def test_no_link_is_up(launcher: Launcher, dgx1_v100, model: str, state: str) -> None:
    """Where every link is down, cards that are made for a board with NVLink want their fabric manager."""
    dgx1_v100.drop("nvlink ")
    dgx1_v100.add(*(f"nvlink {gpu} {link} state=0" for gpu in range(8) for link in range(6)))
    for gpu in range(8):
        dgx1_v100.change(gpu, name=model)
    assert findings(launcher)["NVLink", state] == "no link is up"


def test_card_without_a_link_that_is_up(launcher: Launcher, dgx1_v100) -> None:
    """A card that has lost all its links is named."""
    dgx1_v100.drop("nvlink 3 ")
    dgx1_v100.add(*(f"nvlink 3 {link} state=0" for link in range(6)))
    assert bad(launcher)["NVLink", "warning"][0] == "GPU 3: links 0, 1, 2, 3, 4, 5 down"


def test_mps_that_runs(launcher: Launcher, dgx1_v100, fake_mps: FakeMps) -> None:
    """A control daemon of MPS that runs is named, with whose it is."""
    dgx1_v100.add("driver 550.54.15")
    program = fake_mps.bin / CONTROL
    assert findings(launcher)["MPS", "ok"].startswith(f"{program}; ")
    fake_mps.start()
    (daemon,) = fake_mps.events("started")
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert f"pid {daemon.pid}, {user}" in findings(launcher)["MPS", "ok"]


def test_what_can_be_shared(launcher: Launcher, dgx1_v100, fake_mps: FakeMps) -> None:  # noqa: ARG001
    """It is told which GPUs can be shared, and of the others why not."""
    dgx1_v100.add("driver 550.54.15")
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
    assert (
        found
        == "no GPU can be shared: driver 470.57 does not tell whether its MPS works: 550 is the first to"
    )


def test_lost_gpu(launcher: Launcher, dgx1_v100) -> None:
    """A GPU that fell off the bus is a problem."""
    dgx1_v100.answer("nvmlDeviceGetUUID", 15, gpu=5)
    assert bad(launcher)["GPUs", "problem"][0] == "GPU 5 is left out: GPU is lost"
    assert launcher.run("doctor").returncode == 1


def test_mig(launcher: Launcher, dgx1_v100) -> None:
    """MIG instances are listed, and a card that has none is a warning."""
    dgx1_v100.change(0, mig=1)
    dgx1_v100.change(1, mig=1)
    dgx1_v100.add("gpu 1002 uuid=MIG-a name=A100_MIG_1g.10gb memory_mib=9728")
    assert findings(launcher)["MIG", "ok"] == "1 instance: 0:2 1g.10gb"
    assert bad(launcher)["GPUs", "warning"][0] == "GPU 1 is in MIG mode and has no instance"


@pytest.mark.usefixtures("dgx1_v100")
def test_every_fault_has_something_to_do(launcher: Launcher) -> None:
    """Whatever is not ok comes with one thing to do about it."""
    launcher.environment |= {"DOCKER_HOST": "unix:///no/such.sock", "GPULAUNCH_STATE_DIR": "/proc"}
    assert [hint for _, hint in bad(launcher).values() if not hint] == []
    assert len(bad(launcher)) >= 2
