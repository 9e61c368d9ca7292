"""On NVIDIA GPUs only: gpulaunch's NVML readings agree with nvidia-smi's, and the main job runs.

Run: python -m pytest tests/gpu
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Launcher

pytestmark = pytest.mark.skipif(
    not shutil.which("nvidia-smi"), reason="needs an NVIDIA GPU and nvidia-smi"
)


def queried(*fields: str) -> list[list[str]]:
    """Return what nvidia-smi says of each GPU."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split(", ") for line in output.splitlines()]


def test_gpus_are_those_of_nvidia_smi(launcher: Launcher) -> None:
    """`topo --json` lists the GPUs of nvidia-smi, with their indices, UUIDs, names and memory."""
    document = json.loads(launcher.run("topo", "--json").stdout)
    got = [
        [str(g["index"]), g["uuid"], g["model"], str(g["memory_bytes"] >> 20)]
        for g in document["gpus"]
    ]
    assert got == queried("index", "uuid", "name", "memory.total")


def test_links_are_those_of_nvidia_smi(launcher: Launcher) -> None:
    """`topo --json` joins every two GPUs as nvidia-smi topo -m does."""
    text = subprocess.run(
        ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True
    ).stdout
    by_text = ("topo", "--topology", "/dev/stdin", "--json")
    told = json.loads(launcher.run(*by_text, input=text).stdout)["links"]
    found = json.loads(launcher.run("topo", "--json").stdout)["links"]
    assert [(x["path"], x["nvlink_count"]) for x in found] == [
        (x["path"], x["nvlink_count"]) for x in told
    ]


def test_doctor_knows_the_driver(launcher: Launcher) -> None:
    """`doctor` names the driver that nvidia-smi names, and every call that it does not answer."""
    found = json.loads(launcher.run("doctor", "--json").stdout)["findings"]
    assert [f["text"] for f in found if f["subject"] == "driver"] == queried("driver_version")[0]


def test_measure(launcher: Launcher, tmp_path: Path) -> None:
    """`topo --measure` measures real links, and -o bandwidth_model=measured goes by them."""
    if len(queried("index")) < 2:
        pytest.skip("needs two GPUs")
    done = launcher.run("topo", "--measure", "-o", str(tmp_path / "machine.toml"), "--json")
    assert done.returncode == 0, done.stderr
    assert all(entry["all_reduce_gb_per_s"] > 0 for entry in json.loads(done.stdout)["measured"])


def test_the_main_job_gets_a_gpu(launcher: Launcher) -> None:
    """A launch of one GPU names one that nvidia-smi lists, and holds it for the job alone."""
    done = launcher.run(
        "-n", "1", "--uuid", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; gpulaunch status --json"
    )
    uuid, _, rest = done.stdout.partition("\n")
    assert (done.returncode, [uuid] in queried("uuid")) == (0, True)
    assert [gpu["uuid"] for gpu in json.loads(rest)["gpus"] if gpu["state"] == "leased"] == [uuid]
    assert launcher.records() == []
