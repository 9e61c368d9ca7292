"""`gpulaunch topo --import`, `--gpu-model` and `--nccl-xml`, and launches on such descriptions."""

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from conftest import DGX, Launcher, complaint

from gpulaunch.files.toml_parser import tomllib

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


def test_nccl_xml(launcher: Launcher, tmp_path: Path) -> None:
    """--nccl-xml writes NCCL's file of a machine, which --topology reads."""
    file = tmp_path / "system.xml"
    assert launcher.run("topo", *DGX, "--nccl-xml", str(file)).returncode == 0
    shown = [
        json.loads(launcher.run("topo", *machine, "--json").stdout)["links"]
        for machine in (DGX, ("--topology", str(file)))
    ]
    kept = [[(link["a"], link["b"], link["nvlink_count"]) for link in links] for links in shown]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("visible", ["1,3", "lease", "lease alone"])
def test_nccl_xml_of_what_is_visible(launcher: Launcher, visible: str) -> None:
    """Inside a lease, or with CUDA_VISIBLE_DEVICES, the file has those GPUs alone."""
    topo = ("topo", "--nccl-xml", "-")
    if visible.startswith("lease"):
        hide = ("env", "-u", "CUDA_VISIBLE_DEVICES") if visible == "lease alone" else ()
        lease = (*DGX, "--only", "1,3", "-n", "2", "--", *hide)
        done = launcher.run(*lease, launcher.script, *topo)
    else:
        environment = {"CUDA_VISIBLE_DEVICES": visible}
        done = launcher.run(*topo, *DGX, env=launcher.environment | environment)
    system = ET.fromstring(done.stdout)
    assert [gpu.get("dev") for gpu in system.iter("gpu")] == ["0", "1"]
    assert {pci.get("busid") for pci in system.iter("pci") if pci.find("gpu") is not None} == {
        "ffa0:01:00.0",
        "ffa0:03:00.0",
    }


def test_nothing_visible(launcher: Launcher) -> None:
    """Where no GPU is visible there is no file."""
    environment = launcher.environment | {"CUDA_VISIBLE_DEVICES": "-1"}
    done = launcher.run("topo", "--nccl-xml", "-", *DGX, env=environment)
    assert (done.returncode, done.stderr) == (
        2,
        complaint("no GPU of dgx1-v100 is visible here"),
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--gpu-model", "B200"), "--gpu-model goes with --import"),
        (("--import", "-", "--gpu-model", ""), "--gpu-model has an empty value"),
        (("--nccl-xml", ""), "--nccl-xml has an empty value"),
        (("--nccl-xml", "a", "--json"), "--json and --nccl-xml are given: one of them is enough"),
        (("--nccl-xml", "a", "-o", "b"), "--nccl-xml and -o are given: one of them is enough"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_of_texts(launcher: Launcher, options: tuple[str, ...], line: str) -> None:
    """Options that do not go together are named."""
    done = launcher.run("topo", *options, input="")
    assert (done.returncode, done.stderr) == (2, complaint(line))
