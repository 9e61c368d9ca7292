"""MIG: the instance that a job gets, sizes by name, and cards without any instance."""

import json
import os
from typing import TYPE_CHECKING

import pytest
from conftest import Launcher, complaint

if TYPE_CHECKING:
    from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

SHOW_GPUS = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")

A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "cc": "8.0", "gen": 4, "width": 16}
MEMORY_MIB = {"1g.10gb": 9728, "1g.10gb+me": 9728, "1g.20gb": 19968, "2g.20gb": 19968}


def card(nvml: "FakeNvml", *profiles: str) -> None:
    """Describe one card with these instances, numbered from 0."""
    model = A100["name"].replace(" ", "_")
    lines = []
    for i, profile in enumerate(profiles):
        memory_mib = MEMORY_MIB.get(profile, 40192)
        name = f"{model}_MIG_{profile}"
        lines.append(f"gpu {1000 + i} uuid=MIG-{i} name={name} memory_mib={memory_mib}")
    nvml.describe([A100 | {"uuid": "GPU-a", "mig": 1}], lines)


def granted(launcher: Launcher, *options: str) -> str:
    done = launcher.run(*options, "--", *SHOW_GPUS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# Which instance


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ((), "MIG-2"),
        (("--only", "0", "--memory", "15GiB"), "MIG-3"),
        (("--only", "0", "--memory", "20GiB"), "MIG-0"),
        (("--only", "0:0"), "MIG-0"),
        (("--only", "0", "--exclude", "0:2"), "MIG-4"),
    ],
)
def test_smallest_instance(
    launcher: Launcher, nvml: "FakeNvml", options: tuple[str, ...], want: str
) -> None:
    """A job gets the smallest instance that will do: by memory, then slices, plain ones first."""
    card(nvml, "3g.40gb", "2g.20gb", "1g.10gb", "1g.20gb", "1g.10gb+me")
    assert granted(launcher, *options) == want


def test_smallest_free_instance(launcher: Launcher, nvml: "FakeNvml") -> None:
    """When the smallest instances are taken, the next larger one is granted."""
    card(nvml, "3g.40gb", "2g.20gb", "1g.10gb")
    nvml.add(f"process 1002 {os.getpid()} 300")
    assert granted(launcher, "--only", "0") == "MIG-1"


# Sizes by name


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1G.10GB", {"0:1", "0:2"}),
        ("1g.10gb+me", {"0:2"}),
        ("1c.2g.20gb", {"0:4"}),
        ("A100 1g.10gb", {"0:1", "0:2"}),
        ("MIG", {"0:0", "0:1", "0:2", "0:3", "0:4"}),
        ("H100 1g.10gb", set()),
        ("g.10gb", {"0:1", "0:2"}),
    ],
)
def test_gpu_model(launcher: Launcher, nvml: "FakeNvml", text: str, want: set[str]) -> None:
    """A profile means slices and memory, with extras if it names them; other text is text."""
    card(nvml, "3g.40gb", "1g.10gb", "1g.10gb+me", "2g.20gb")
    nvml.add("gpu 1004 uuid=MIG-4 name=NVIDIA_A100-SXM4-80GB_MIG_1c.2g.20gb memory_mib=19968")
    names = {"0:0", "0:1", "0:2", "0:3", "0:4"}
    got = set()
    for name in names:
        options = ("--only", name, "--gpu-model", text, "--dry-run", "--json")
        done = launcher.run(*options, "--", "true")
        if json.loads(done.stdout)["decision"] == "grant":
            got.add(name)
    assert got == want


@pytest.mark.parametrize(
    ("slices", "memory_mib", "want"), [(1, 9728, "1g.10gb"), (7, 81152, "7g.80gb")]
)
def test_name_by_slices_and_memory(
    launcher: Launcher, nvml: "FakeNvml", slices: int, memory_mib: int, want: str
) -> None:
    """Where the product name does not end in a profile, slices and memory make NVIDIA's name."""
    instance = f"gpu 1000 uuid=MIG-0 name=A100 slices={slices} memory_mib={memory_mib}"
    nvml.describe([A100 | {"uuid": "GPU-a", "mig": 1}], [instance])
    assert granted(launcher, "--gpu-model", want) == "MIG-0"


# Cards without instances


def empty(nvml: "FakeNvml", count: int) -> None:
    nvml.describe([A100 | {"uuid": f"GPU-{i}", "mig": 1} for i in range(count)], [])


@pytest.mark.parametrize("command", [("topo",), ("status",), ("--", "true")])
def test_only_empty_cards(launcher: Launcher, nvml: "FakeNvml", command: tuple[str, ...]) -> None:
    """Cards in MIG mode without instances are named once, with the commands that help."""
    count, named = 8, "0,1,2,3,4,5,6,7"
    said = "GPUs 0-7 are in MIG mode and have no instance"
    empty(nvml, count)
    done = launcher.run(*command)
    make = f"'sudo nvidia-smi mig -i {named} -cgi SIZE -C' makes instances"
    end = f"'sudo nvidia-smi -i {named} -mig 0' ends MIG mode"
    hint = f"{make}, of a SIZE that 'nvidia-smi mig -lgip' lists; {end}"
    want = complaint(f"NVML lists no GPU in service; {said}", hint)
    assert (done.returncode, done.stdout, done.stderr) == (125, "", want)


def test_some_empty_cards(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Beside cards that work, doctor has one warning for all cards without instances."""
    empty(nvml, 3)
    nvml.change(0, mig=0)
    found = json.loads(launcher.run("doctor", "--json").stdout)["findings"]
    texts = [one["text"] for one in found if "MIG mode" in one["text"]]
    assert texts == ["GPUs 1-2 are in MIG mode and have no instance"]
