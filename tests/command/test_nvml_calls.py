"""What NVML is asked, and how often; and that all commands agree about a GPU that is lost."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import Launcher

from gpulaunch.machine.catalog import load_described_machine

if TYPE_CHECKING:
    from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

LEFT_OUT = "gpulaunch: warning: GPU 3 is left out: GPU is lost"
FUNCTION_NOT_FOUND, GPU_IS_LOST = 13, 15
FIELDS, LINK_STATE = "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState"
HANDLE, UUID, MIG = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"


def asked(launcher: Launcher) -> Counter[str]:
    """Return how often each function is called for `topo`."""
    calls = Path(launcher.state, "calls")
    launcher.environment["FAKE_NVML_CALLS"] = str(calls)
    launcher.run("topo")
    found = Counter(line.split()[0] for line in calls.read_text().splitlines())
    calls.unlink()
    return found


@pytest.mark.usefixtures("hgx_h100")
def test_one_call_for_the_nvlinks_of_a_card(launcher: Launcher) -> None:
    """Of eight H100 all states, speeds and counts of links are read in eight calls.

    On a known machine a GPU costs three calls: its handle, its UUID, whether it is split.
    """
    found = asked(launcher)
    assert found[FIELDS] == 8
    assert {name: n for name, n in found.items() if "NvLink" in name} == {
        "nvmlDeviceGetNvLinkRemoteDeviceType": 8 * 18
    }
    often = {name: n for name, n in asked(launcher).items() if n >= 8}
    assert often == {HANDLE: 8, UUID: 8, MIG: 8}


def test_older_cards_and_drivers(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A V100 is asked for the state of the six links that it tells of, and none beyond.

    Cards that tell that they have no NVLink are asked about none. Where no field is told, the links
    are found one by one.
    """
    nvml.tell_of(load_described_machine("a100-pcie-4gpu")[0])
    nvml.drop("nvlink ")
    assert [n for name, n in asked(launcher).items() if "NvLink" in name] == []
    nvml.tell_of(load_described_machine("dgx1-v100")[0])
    found = asked(launcher)
    assert (found[FIELDS], found[LINK_STATE]) == (8, 8 * 6)
    nvml.tell_of(load_described_machine("dgx-h100")[0])
    nvml.answer(FIELDS, FUNCTION_NOT_FOUND)
    links = json.loads(launcher.run("topo", "--json").stdout)["links"]
    assert {(link["nvlink_count"], link["bandwidth_gb_per_s"]) for link in links} == {(18, 450.0)}


# A GPU that is lost


def answers(launcher: Launcher, command: str) -> tuple[int, list[str]]:
    """Return how many GPUs a command knows, and what it says of the others."""
    done = launcher.run(command, "--json", env=launcher.environment | {"PATH": ""})
    found = json.loads(done.stdout)
    if command != "doctor":
        return len(found["gpus"]), done.stderr.splitlines()
    texts = [one["text"] for one in found["findings"] if one["subject"] == "GPUs"]
    (count,) = (int(gpus[1]) for text in texts if (gpus := re.search(r": (\d+) GPUs \(", text)))
    return count, [f"gpulaunch: warning: {text}" for text in texts if "left out" in text]


ASKED = (
    *(HANDLE, UUID, MIG, "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetName"),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeMode"),
    *("nvmlDeviceGetPciInfo_v3", FIELDS, "nvmlDeviceGetCudaComputeCapability"),
)
"""Every function that a lost GPU fails in, with those that may still answer."""


@pytest.mark.parametrize(
    ("kept", "commands"),
    [
        ((), ("topo", "status", "doctor")),
        ((HANDLE,), ("topo", "status")),
        ((HANDLE, UUID, "nvmlDeviceGetHandleByUUID"), ("status", "topo")),
    ],
    ids=["all calls fail", "handle answers", "both handles answer"],
)
def test_lost_behind_the_cache(
    launcher: Launcher, hgx_h100: "FakeNvml", kept: tuple[str, ...], commands: tuple[str, ...]
) -> None:
    """A GPU that is lost after it was remembered is left out by all commands, in the same words.

    If it answers again, it is there again.
    """
    assert answers(launcher, "topo") == (8, [])
    for function in set(ASKED) - set(kept):
        hgx_h100.answer(function, GPU_IS_LOST, gpu=3)
    for command in (*commands, commands[0]):
        assert answers(launcher, command) == (7, [LEFT_OUT])
    hgx_h100.drop("error ")
    assert answers(launcher, "status") == (8, [])


def test_all_lost_behind_the_cache(launcher: Launcher, hgx_h100: "FakeNvml") -> None:
    """A lease on a GPU that is lost since is shown with the beginning of its UUID.

    When all GPUs are lost that were remembered, no command shows one.
    """
    hold = ("--only", "3", "--", "sh", "-c", "echo held; read line")
    with launcher.start(*hold, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "held\n"
        hgx_h100.answer(MIG, GPU_IS_LOST, gpu=3)
        shown = launcher.run("status")
        holder.communicate("")
    (row,) = (line for line in shown.stdout.splitlines() if "echo held" in line)
    assert (shown.stderr, row.split()[3]) == (f"{LEFT_OUT}\n", "GPU-h100-3")
    hgx_h100.answer(MIG, GPU_IS_LOST)
    for command in ("topo", "status"):
        done = launcher.run(command)
        assert (done.returncode, done.stdout) == (125, "")
        assert "NVML lists no GPU in service; GPU 0 is left out: GPU is lost; " in done.stderr
