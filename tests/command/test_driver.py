"""Support for another maker's GPUs takes one module and one entry in the registry."""

import json
import sys
from pathlib import Path

import made_up_driver
import pytest
from conftest import Launcher, held

from gpulaunch.containers.create import Asked, asked_container, asked_gpus, with_gpus
from gpulaunch.machine.driver import DRIVERS

COMMAND = """#!{python}
import sys

sys.path.insert(0, {tests!r})
from made_up_driver import ENTRY

from gpulaunch.machine.driver import DRIVERS

shipped = dict(DRIVERS)
DRIVERS.clear()  # the made-up one first, should this machine have GPUs
DRIVERS.update(made_up=ENTRY, **shipped)

from gpulaunch.__main__ import main

main()
"""
VARIABLES = ("TEST_VISIBLE_DEVICES", "CUDA_", "NVIDIA_")


@pytest.fixture
def made_up(launcher: Launcher, tmp_path: Path) -> Launcher:
    """Return the gpulaunch command with a made-up driver in its registry."""
    script = tmp_path / "gpulaunch"
    script.write_text(
        COMMAND.format(python=sys.executable, tests=str(Path(__file__).parent.parent))
    )
    script.chmod(0o755)
    launcher.script = str(script)
    launcher.environment["MADE_UP_READINGS"] = str(tmp_path / "readings")
    return launcher


def told(launcher: Launcher, *options: str) -> list[str]:
    """Return the variables that tell a job its GPUs."""
    done = launcher.run(*options, "--", "env")
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(line for line in done.stdout.splitlines() if line.startswith(VARIABLES))


def status(launcher: Launcher) -> dict:
    return json.loads(launcher.run("status", "--json").stdout)


def test_job_is_told_by_its_drivers_variable(made_up: Launcher) -> None:
    """A job gets the driver's variable, and none that is another driver's.

    That variable restricts a launch as CUDA_VISIBLE_DEVICES does with NVIDIA's. What the driver has
    read is remembered while it gives the same fingerprint.
    """
    assert told(made_up, "-n", "2") == ["TEST_VISIBLE_DEVICES=0,1"]
    assert told(made_up, "-n", "2", "--uuid") == ["TEST_VISIBLE_DEVICES=TEST-0,TEST-1"]
    made_up.environment |= {"TEST_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert told(made_up) == ["CUDA_VISIBLE_DEVICES=0", "TEST_VISIBLE_DEVICES=1"]
    assert Path(made_up.environment["MADE_UP_READINGS"]).read_text() == "read\n"


def test_leases_and_use_by_others(made_up: Launcher) -> None:
    """A job's lease bars others from its GPUs, and so does use of which the driver tells."""
    made_up.environment["CUDA_VISIBLE_DEVICES"] = "of-no-concern"
    with held(made_up, "-n", "1", "--only", "TEST-1"):
        seen = status(made_up)
        refused = made_up.run("-n", "2", "--", "true")
    assert [gpu["state"] for gpu in seen["gpus"]] == ["free", "leased"]
    assert (seen["topology"], seen["leases"][0]["gpus"]) == ("made-up-host", [1])
    error = "gpulaunch: error: 2 GPUs requested: 1 of 2 is free, 1 is leased"
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (75, error)
    made_up.environment["MADE_UP_BUSY"] = "0"
    assert told(made_up)[1:] == ["TEST_VISIBLE_DEVICES=1"]
    used = [(gpu["state"], gpu["outside"]) for gpu in status(made_up)["gpus"]]
    assert used == [("outside", "a game"), ("free", None)]


OF_OTHERS = ("state directory", "containers", "Docker Engine")


def test_doctor(made_up: Launcher) -> None:
    """The doctor shows GPUs, version and findings of the driver, and nothing about NVML or MPS.

    GPUs that have no CUDA MPS are not shared, and a job that asks for that is told why.
    """
    made_up.environment["PATH"] = ""  # without Podman and its answers
    findings = json.loads(made_up.run("doctor", "--json").stdout)["findings"]
    of_driver = [one for one in findings if one["subject"] not in OF_OTHERS]
    assert [(one["subject"], one["state"], one["text"]) for one in of_driver] == [
        ("GPUs", "ok", "made-up-host: 2 GPUs (Made-up One), by imagination"),
        ("driver", "ok", "1.0"),
        ("fans", "warning", "they are loud"),
        ("health", "ok", "2 GPUs: nothing wrong, as far as the driver tells"),
    ]
    demand = ("-o", "utilization=20,10", "--memory", "1GiB")
    done = made_up.run("--share", *demand, "--dry-run", "--", "true")
    warning = "gpulaunch: warning: not shared: GPUs of the driver made_up have no CUDA MPS\n"
    assert (done.returncode, done.stderr) == (0, warning)


def test_described_machine_names_its_driver(made_up: Launcher, tmp_path: Path) -> None:
    """`topo -o` names the driver in the description, and a launch on that has its variable.

    A description that names none has NVIDIA's, and one that names an unknown driver is refused.
    """
    path = tmp_path / "box.toml"
    assert made_up.run("topo", "-o", str(path)).returncode == 0
    assert 'driver = "made_up"\n' in path.read_text()
    assert told(made_up, "--topology", str(path), "-n", "2") == ["TEST_VISIBLE_DEVICES=0,1"]
    assert told(made_up, "--topology", "dgx1-v100", "-n", "2") == [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES=0,3",
        "NVIDIA_VISIBLE_DEVICES=GPU-dgx1-v100-0,GPU-dgx1-v100-3",
    ]
    path.write_text(path.read_text().replace('"made_up"', '"other"'))
    done = made_up.run("topo", "--topology", str(path))
    assert done.returncode == 2
    assert ": driver: 'other' is none of made_up, nvidia\n" in done.stderr


def test_containers_name_them_by_the_drivers_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for the driver's CDI devices is understood, and what a container gets are such."""
    monkeypatch.setitem(DRIVERS, "made_up", made_up_driver.ENTRY)
    cdi = {"Driver": "cdi", "DeviceIDs": ["example.com/gpu=1"]}
    document = {"HostConfig": {"DeviceRequests": [cdi]}}
    asked = asked_gpus(document, asked_container(document, "docker run"), "", None, None)
    assert asked == Asked("device request 1", devices=("1",))
    got = with_gpus(document, ["TEST-1"], "cdi", "made_up", {}, {})
    assert got["HostConfig"]["DeviceRequests"] == [{**cdi, "DeviceIDs": ["example.com/gpu=TEST-1"]}]
