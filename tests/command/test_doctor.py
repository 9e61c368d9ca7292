"""gpulaunch doctor: what works here, what does not, and what to do about it."""

import json
import os
from pathlib import Path

import pytest
from conftest import DGX, Launcher

pytest_plugins = ("fake_nvml",)


@pytest.fixture(autouse=True)
def _no_podman(launcher: Launcher) -> None:
    """Leave out Podman, whose answer takes longer than all else."""
    launcher.environment["PATH"] = str(Path(launcher.script).parent)


def findings(launcher: Launcher, *options: str) -> dict[tuple[str, str], str]:
    """Return what was found, by part and state; check that the exit status tells of problems."""
    done = launcher.run("doctor", *options, "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == (1 if any(finding["state"] == "problem" for finding in found) else 0)
    return {(one["subject"], one["state"]): one["text"] for one in found}


def test_described_machine_without_docker(launcher: Launcher) -> None:
    """A described machine needs no driver, and no Docker Engine is no problem."""
    launcher.environment["DOCKER_HOST"] = "unix:///no/such.sock"
    missing = "none at /no/such.sock, so 'gpulaunch docker run' will not work"
    owner = Path(launcher.state).owner()
    assert findings(launcher, *DGX) == {
        ("GPUs", "ok"): "dgx1-v100: 8 GPUs (Tesla V100-SXM2-16GB), described",
        ("sharing", "ok"): "GPUs 0-7 can be shared with --share",
        ("state directory", "ok"): f"{launcher.state}, of {owner}: 0 leases, 0 waiting",
        ("Docker Engine", "warning"): missing,
    }


@pytest.mark.usefixtures("no_driver")
def test_what_is_wrong(launcher: Launcher) -> None:
    """A missing driver, a directory that is no table, and a variable nobody reads, each with help.

    The rest is looked at still.
    """
    found = findings(launcher)
    problem = "no NVML library (libnvidia-ml.so.1) found, so no NVIDIA driver"
    assert found["GPUs", "problem"] == problem
    assert found["state directory", "ok"].startswith(f"{launcher.state}, of ")
    hint = "without GPUs, try a described machine: --topology dgx1-v100"
    assert hint in launcher.run("doctor").stdout
    launcher.environment |= {"GPULAUNCH_WAITS": "1", "GPULAUNCH_EVENT": "x", "GPULAUNCH_WAIT": "1"}
    launcher.environment |= {"GPULAUNCH_STATE_DIR": "/proc"}
    found = findings(launcher, *DGX)
    assert ("state directory", "problem") in found
    assert found["settings", "warning"] == (
        "GPULAUNCH_WAITS is no setting: did you mean GPULAUNCH_WAIT?"
    )
    assert ("GPUs", "ok") in found
    without = {part for (part, _), (_, hint) in bad(launcher).items() if not hint}
    assert without == {"settings"} | ({"state directory"} if os.geteuid() else set())


# What NVML tells, and what it does not


def bad(launcher: Launcher) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the findings that are not ok, with what to do about them."""
    found = json.loads(launcher.run("doctor", "--json").stdout)["findings"]
    bad = [finding for finding in found if finding["state"] != "ok"]
    return {(f["subject"], f["state"]): (f["text"], f["hint"]) for f in bad}


@pytest.mark.usefixtures("dgx1_v100")
def test_driver_and_links(launcher: Launcher) -> None:
    """Of a healthy machine the driver, the GPUs and their NVLinks are found."""
    launcher.environment["DOCKER_HOST"] = "unix:///no/such.sock"
    found = findings(launcher)
    assert found["driver", "ok"] == "550.54.15"
    assert found["GPUs", "ok"] == f"{os.uname().nodename}: 8 GPUs (Tesla V100-SXM2-16GB), by NVML"
    assert found["NVLink", "ok"] == "every link is up"
    assert {part for part, state in found if state != "ok"} == {"Docker Engine", "MPS"}


def test_no_link_is_up(launcher: Launcher, dgx1_v100) -> None:
    """Links that are down are health; if all are, cards made for a board want a fabric manager.

    That cards have no NVLinks is no problem.
    """
    dgx1_v100.drop("nvlink 3 1 ")
    dgx1_v100.add("nvlink 3 1 state=0")
    assert bad(launcher)["health", "warning"] == ("GPU 3: NVLink 1 down", None)
    dgx1_v100.drop("nvlink ")
    assert {part for part, _ in bad(launcher)} <= {"MPS", "Docker Engine"}
    dgx1_v100.add(*(f"nvlink {gpu} {link} state=0" for gpu in range(8) for link in range(6)))
    assert findings(launcher)["NVLink", "warning"] == "no link is up"
    for gpu in range(8):
        dgx1_v100.change(gpu, name="NVIDIA A100 80GB PCIe")
    assert findings(launcher)["NVLink", "ok"] == "no link is up"


def test_mig(launcher: Launcher, dgx1_v100) -> None:
    """MIG instances are listed, and a card that has none is a warning."""
    dgx1_v100.change(0, mig=1)
    dgx1_v100.change(1, mig=1)
    dgx1_v100.add("gpu 1002 uuid=MIG-a name=A100_MIG_1g.10gb memory_mib=9728")
    assert findings(launcher)["MIG", "ok"] == "1 instance: 0:2 1g.10gb"
    assert bad(launcher)["GPUs", "warning"][0] == "GPU 1 is in MIG mode and has no instance"
