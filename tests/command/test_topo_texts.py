"""`gpulaunch topo --import` and `--gpu-model`, and launches on such descriptions."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import Launcher, complaint

from gpulaunch.files.toml import tomllib

GB200 = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    NV18    SYS     0-71    0,3-9,11-17             2
GPU1    NV18     X      NV18    NV18    SYS     0-71    0,3-9,11-17             10
GPU2    NV18    NV18     X      NV18    SYS     72-143  1,19-25,27-33           18
GPU3    NV18    NV18    NV18     X      SYS     72-143  1,19-25,27-33           26
"""
DRY = ("--dry-run", "--json", "--", "true")


def uniform(cell: str, cpus: list[str]) -> str:
    """Write a matrix of equal links without a NUMA column."""
    names = [f"GPU{i}" for i in range(len(cpus))]
    rows = ["\t".join(["", *names, "CPU Affinity"])]
    for name, own in zip(names, cpus, strict=True):
        rows.append("\t".join([name, *(" X " if other == name else cell for other in names), own]))
    return "\n".join(rows) + "\n"


def chosen(launcher: Launcher, *options: str) -> list[int]:
    done = launcher.run(*options, *DRY)
    return [gpu["index"] for gpu in json.loads(done.stdout)["gpus"]]


@pytest.mark.parametrize(
    ("text", "count", "want"),
    [
        (GB200, 2, [2, 3]),
        (uniform("NV6", ["0-23,48-71"] * 8 + ["24-47,72-95"] * 8), 8, list(range(8, 16))),
    ],
    ids=["GB200 tray", "DGX-2"],
)
def test_sockets_of_a_text(
    launcher: Launcher, tmp_path: Path, text: str, count: int, want: list[int]
) -> None:
    """Beside a busy GPU a job gets GPUs of the other socket, on Grace and on old texts too."""
    box = tmp_path / "box.txt"
    box.write_text(text)
    on_box = ("--topology", str(box))
    hold = ("--only", "0", "--", "sh", "-c", "echo held; read line")
    with launcher.start(*on_box, *hold, stdin=subprocess.PIPE) as job:
        job.stdout.readline()
        assert chosen(launcher, *on_box, "-n", str(count)) == want
        assert chosen(launcher, *on_box, "-n", str(count), "-o", "numa=strict") == want
        job.communicate("")


def test_bandwidth_of_hopper(launcher: Launcher, tmp_path: Path) -> None:
    """A text of 8 H100 admits what 8 H100 reach: their NVSwitch sums."""
    box = tmp_path / "h100.txt"
    box.write_text(uniform("NV18", ["0-47"] * 4 + ["48-95"] * 4))
    want = json.loads(launcher.run("--topology", "dgx-h100", "-n", "8", *DRY).stdout)["scores"]
    done = launcher.run("--topology", str(box), "-n", "8", "-o", "min_bandwidth=400", *DRY)
    scores = json.loads(done.stdout)["scores"]
    key = "effective_bandwidth_gb_per_s"
    assert (done.returncode, scores[key]) == (0, want[key])


def test_gpu_model(launcher: Launcher) -> None:
    """--gpu-model names the GPUs of a text that does not."""
    text = uniform("NV18", ["0-71", "72-143"])
    done = launcher.run("topo", "--import", "-", "--gpu-model", "B200", input=text)
    machine = tomllib.loads(done.stdout)
    assert machine["gpus"] == {"count": 2, "model": "NVIDIA B200", "compute_capability": "10.0"}
    assert machine["nvlink"]["version"] == 5


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--gpu-model", "B200"), "--gpu-model goes with --import"),
        (("--import", "-", "--gpu-model", ""), "--gpu-model has an empty value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_of_texts(launcher: Launcher, options: tuple[str, ...], line: str) -> None:
    """Options that do not go together are named."""
    done = launcher.run("topo", *options, input="")
    assert (done.returncode, done.stderr) == (2, complaint(line))
