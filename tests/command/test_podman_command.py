"""Podman's command line: which GPUs it asks for, what it becomes, and the installed podman's flags.

Nothing here starts a container.
"""

import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import command_lines
import pytest
from conftest import DGX, Launcher
from toml_parser import tomllib

from gpulaunch.containers.container import Container
from gpulaunch.containers.create import Asked, asked_container, asked_gpus
from gpulaunch.containers.podman import (
    GLOBAL,
    RUN,
    START,
    PodmanCommand,
    parse_inspected,
    read_command,
    request_of,
    with_gpus,
)
from gpulaunch.records import replace

CASES = tomllib.loads(Path(__file__).with_name("podman_command.toml").read_text())


def read(line: str):
    """Read a command line that has no quotes."""
    return read_command(line.split())


def asked(command: PodmanCommand, environment: dict[str, str]) -> Asked | None:
    """Return the GPUs that a run command asks for."""
    request = request_of(command, environment)
    return asked_gpus(request, asked_container(request, "podman run"), "", None, None)


@pytest.mark.parametrize(("flags", "fields"), CASES["asked_by_flags"])
def test_gpus_that_flags_ask_for(flags: str, fields: dict[str, Any]) -> None:
    """--gpus and --device name GPUs, and split at commas."""
    environment = {"NVIDIA_VISIBLE_DEVICES": "5", "NV_GPU": "7", "HABANA_VISIBLE_DEVICES": "0"}
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    found = asked(read(f"podman run {flags} bb:1"), environment)
    assert (found and replace(found, text="")) == (Asked("", **known) if known else None)


def test_public_lines() -> None:
    """What public command lines of podman ask for is read."""
    for line in command_lines.for_clients("podman"):
        found = asked(read_command(line.words), line.environment)
        if found is None:
            got: object = 1
        elif found.of_other_maker:
            got = "other maker"
        else:
            got = found.number or list(found.devices)
        want = list(map(str, line.gpus)) if isinstance(line.gpus, list) else line.gpus
        assert got == want, line.source


def test_variables_without_a_value() -> None:
    """They are copied, but for the GPUs' own, which podman does not see."""
    environment = {"A": "1", "CUDA_VISIBLE_DEVICES": "5"}
    command = read("podman run -e A -e CUDA_VISIBLE_DEVICES -e B -e C=2 x")
    assert request_of(command, environment)["Env"] == ["A=1", "C=2"]


def test_devices_beside_gpus_stay() -> None:
    """What is no GPU is kept, also where one flag names both."""
    command = read("podman run --device /dev/fuse,nvidia.com/gpu=0 --device /dev/kvm x sh")
    got = with_gpus(command, ["GPU-1"], "nvidia", {}, {})
    devices = "--device /dev/kvm --device /dev/fuse --device nvidia.com/gpu=GPU-1"
    want = f"podman run {devices} -e NVIDIA_VISIBLE_DEVICES=void x sh"
    assert " ".join(got) == want


@pytest.mark.parametrize(("line", "message"), CASES["refused"])
def test_refused(launcher: Launcher, line: str, message: str) -> None:
    """An engine elsewhere, --share, contradictions and containers without a name get no lease."""
    words = line.split()
    if words[0].startswith("CONTAINER_"):
        launcher.environment.update([words.pop(0).split("=")])
    done = launcher.run(*DGX, *words)
    first = done.stderr.partition("\n")[0]
    assert (done.returncode, done.stdout, first) == (2, "", f"gpulaunch: error: {message}")


def inspected(command: Sequence[str] | None, **more: Any) -> Container:
    """Return how a container is read that a command line made, or something else than one."""
    state = {"Status": "running", "Pid": 5, "ConmonPid": 4, "ExitCode": 0}
    document = {
        "Id": "c" * 64,
        "Name": "x",
        "Created": "2026-11-23T07:34:47.279572591Z",
        "Image": "i" * 64,
        "RestartCount": 0,
        "HostConfig": {"RestartPolicy": {"Name": more.pop("policy", ""), "MaximumRetryCount": 0}},
        "Config": {
            "CreateCommand": command,
            "Env": ["NVIDIA_VISIBLE_DEVICES=3"],
            "Labels": {"io.gpulaunch.lease": "L", "io.gpulaunch.later": "true"},
        },
        "State": {**state, "FinishedAt": "2026-11-23T07:35:00Z", **more},
    }
    return parse_inspected(document, now_s=1795419302.0)


@pytest.mark.parametrize(("status", "policy", "exit_status", "holds"), CASES["states_that_hold"])
def test_which_states_hold_gpus(status: str, policy: str, exit_status: int, holds: bool) -> None:
    """Podman's states and policies say whether a container holds its GPUs."""
    found = inspected(["podman", "run", "x"], Status=status, policy=policy, ExitCode=exit_status)
    assert (found.holds, found.watched) == (holds, {4, 5})


def test_what_made_a_container() -> None:
    """Its command line says which GPUs it was given, and whose lease; without one, nothing does."""
    made = ["podman", "run", "--gpus", "2", "--label", "io.gpulaunch.lease=L", "bb:1"]
    of_image = ["podman", "run", "--device", "nvidia.com/gpu=all", "bb:1"]  # by podman commit
    both = ["podman", "run", "--gpus", "0", "--device", "nvidia.com/gpu=1", "bb:1"]
    by_variable = ["podman", "run", "-e", "NVIDIA_VISIBLE_DEVICES", "bb:1"]
    for command, given, lease_id in (
        (made, ("2",), "L"),
        (of_image, ("all",), None),
        (both, ("1", "0"), None),
        (by_variable, ("3",), None),
        (None, (), None),
    ):
        found = inspected(command)
        assert (found.given, found.lease_id, found.is_for_later) == (given, lease_id, False)
    later = [*made[:-1], "--label=io.gpulaunch.later=true", "bb:1"]
    assert inspected(later).is_for_later is True


def help_flags(*command: str) -> dict[str, str]:
    """Return the flags in podman's help, each with what it is."""
    text = subprocess.run(
        ["podman", *command, "--help"], capture_output=True, text=True, check=True
    ).stdout
    lines = re.findall(r"(?m)^ +(?:(-\w), )?(--[\w-]+)( \S+)?(?:  .*| *)$", text)
    return {
        flag: "value" if value else "switch"
        for letter, name, value in lines
        for flag in (letter, name)
        if flag
    }


@pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed")
@pytest.mark.parametrize(
    ("commands", "switches"),
    [
        pytest.param([()], GLOBAL, id="podman"),
        pytest.param([("run",), ("create",)], RUN, id="run and create"),
        pytest.param([("start",), ("restart",)], START, id="start and restart"),
    ],
)
def test_flags_are_as_the_installed_podman_reads_them(
    commands: list[tuple[str, ...]], switches: Collection[str]
) -> None:
    """Of the flags in podman's help those without a value are known, and no others are."""
    shown: dict[str, str] = {}
    for command in commands:
        shown |= help_flags(*command)
    assert len(shown) > 10
    assert {flag for flag in shown if shown[flag] == "switch"} - switches == set()
    assert {flag for flag in shown if shown[flag] == "value"} & switches == set()


@pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed")
@pytest.mark.parametrize("flag", ["--dns-opt", "--gpus", "--kernel-memory", "--net"])
def test_flags_that_help_hides(flag: str) -> None:
    """They take values, as whatever is not known here."""
    done = subprocess.run(["podman", "run", flag], capture_output=True, text=True, check=False)
    assert ("flag needs an argument" in done.stderr, flag in RUN) == (True, False)


def test_what_is_not_known_is_left_to_podman(tmp_path: Path, launcher: Launcher) -> None:
    """A flag that nobody knows is taken for one with a value; podman gets it as it is."""
    command = read("podman run --new x --gpus 2 bb:1 python --gpus 3")
    assert (command.operands, command.values("--gpus")) == (
        ("bb:1", "python", "--gpus", "3"),
        ["2"],
    )
    (tmp_path / "podman").write_text('#!/bin/sh\necho "$*"; exit 125\n')
    (tmp_path / "podman").chmod(0o755)
    launcher.environment["PATH"] = f"{tmp_path}:{launcher.environment['PATH']}"
    done = launcher.run(*DGX, "podman", "run", "--detatch", "bb:1")
    assert (done.returncode, done.stdout) == (125, "run --detatch bb:1\n")
