"""Podman's command line: which GPUs it asks for, what it becomes, and the installed podman's flags.

Nothing here starts a container.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import command_lines
import pytest
from conftest import DGX, Launcher
from toml_parser import tomllib

from gpulaunch.containers.container import Asked
from gpulaunch.containers.podman.client import parse_inspected
from gpulaunch.containers.podman.command import (
    GLOBAL,
    RUN,
    START,
    FlagTable,
    asked_gpus,
    read_command,
)

CASES = tomllib.loads(Path(__file__).with_name("podman_command.toml").read_text())


def read(line: str):
    """Read a command line that has no quotes."""
    return read_command(line.split())


@pytest.mark.parametrize(("flags", "fields"), CASES["asked_by_flags"])
def test_gpus_that_flags_ask_for(flags: str, fields: dict[str, Any]) -> None:
    """--gpus and --device name GPUs, and split at commas."""
    environment = {"NVIDIA_VISIBLE_DEVICES": "5", "NV_GPU": "7"}
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    want = Asked(**known) if known else None
    assert asked_gpus(read(f"podman run {flags} bb:1"), environment) == want


def test_public_lines() -> None:
    """What public command lines of podman ask for is read."""
    for line in command_lines.for_clients("podman"):
        asked = asked_gpus(read_command(line.words), line.environment)
        if asked is None:
            got: object = 1
        elif asked.of_other_maker:
            got = "other maker"
        else:
            got = asked.number or list(asked.devices)
        want = list(map(str, line.gpus)) if isinstance(line.gpus, list) else line.gpus
        assert got == want, line.source


@pytest.mark.parametrize(("line", "message"), CASES["refused"])
def test_refused(launcher: Launcher, line: str, message: str) -> None:
    """An engine elsewhere, --share, contradictions and containers without a name get no lease."""
    words = line.split()
    if words[0].startswith("CONTAINER_"):
        launcher.environment.update([words.pop(0).split("=")])
    done = launcher.run(*DGX, *words)
    first = done.stderr.partition("\n")[0]
    assert (done.returncode, done.stdout, first) == (2, "", f"gpulaunch: error: {message}")


@pytest.mark.parametrize(
    ("status", "made_by", "policy", "exit_status", "holds"), CASES["states_that_hold"]
)
def test_which_states_hold_gpus(
    status: str, made_by: str, policy: str, exit_status: int, holds: bool
) -> None:
    """Podman's states and policies say whether a container holds its GPUs."""
    state = {"Status": status, "Pid": 5, "ConmonPid": 4, "ExitCode": exit_status}
    made_with = {
        "Labels": None,
        "CreateCommand": ["podman", *made_by.split(), "--gpus", "2", "bb:1"],
    }
    found = parse_inspected(
        {
            "Id": "c" * 64,
            "Name": "x",
            "Created": "2026-11-23T07:34:47.279572591Z",
            "Image": "i" * 64,
            "RestartCount": 0,
            "HostConfig": {"RestartPolicy": {"Name": policy, "MaximumRetryCount": 0}},
            "Config": made_with,
            "State": {**state, "FinishedAt": "2026-11-23T07:35:00Z"},
        },
        now_s=1795419302.0,
    )
    assert (found.holds, found.watched) == (holds, {4, 5})
    assert found.given == ("2",)


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
    ("commands", "table"),
    [
        pytest.param([()], GLOBAL, id="podman"),
        pytest.param([("run",), ("create",)], RUN, id="run and create"),
        pytest.param([("start",), ("restart",)], START, id="start and restart"),
    ],
)
def test_flags_are_as_the_installed_podman_reads_them(
    commands: list[tuple[str, ...]], table: FlagTable
) -> None:
    """Each flag in podman's help is in the table; what help hides is as its parser takes it."""
    shown: dict[str, str] = {}
    for command in commands:
        shown |= help_flags(*command)
    assert len(shown) > 10
    switches, valued = table
    for flag in sorted(valued | switches | shown.keys()):
        got = "value" if flag in valued else "switch" if flag in switches else None
        if flag in shown:
            assert got == shown[flag], flag
        elif "run" in commands[0]:
            said = subprocess.run(
                ["podman", *commands[0], flag], capture_output=True, text=True, check=False
            ).stderr
            if "unknown" not in said:  # it is not a flag of another version
                assert ("flag needs an argument" in said) == (got == "value"), flag
