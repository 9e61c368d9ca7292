"""Podman's command line: which GPUs it asks for, what it becomes, and the installed podman's flags.

Nothing here starts a container.
"""

import re
import shutil
import subprocess

import command_lines
import pytest
from conftest import DGX, Launcher

from gpulaunch.containers.command import FlagTable, read_command
from gpulaunch.containers.engine import Asked
from gpulaunch.containers.podman.answers import parse_inspected
from gpulaunch.containers.podman.flags import PODMAN
from gpulaunch.containers.podman.gpu_flags import asked_gpus
from gpulaunch.errors import UsageError


def read(line: str):
    """Read a command line that has no quotes."""
    return read_command(line.split(), PODMAN)


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        ("podman run --rootfs -d /srv/root ls", "/srv/root ls"),
        ("podman run --pod new:x --replace bb:1", "bb:1"),
        ("podman run --tls-verify bb:1", "bb:1"),
        ("podman run --log-level debug bb:1", "bb:1"),
        ("podman --root /x container run bb:1 -d", "bb:1 -d"),
    ],
)
def test_the_image_is_the_first_word_that_is_no_flag(line: str, operands: str) -> None:
    """The image and what follows it is found behind podman's flags."""
    command = read(line)
    assert (command.launches, command.operands) == (True, tuple(operands.split()))


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ("", None),
        ("--gpus all", Asked("--gpus all", number="all")),
        ("--gpus 2", Asked("--gpus 2", devices=("2",))),
        ("--gpus 0,GPU-x --gpus=3", Asked("--gpus 0,GPU-x --gpus 3", devices=("0", "GPU-x", "3"))),
        ("--gpus none", Asked("--gpus none", nothing=True)),
        (
            "--device nvidia.com/gpu=1,nvidia.com/gpu=2 --device /dev/fuse",
            Asked("--device nvidia.com/gpu=1,nvidia.com/gpu=2", devices=("1", "2")),
        ),
        ("-e NVIDIA_VISIBLE_DEVICES", Asked("NVIDIA_VISIBLE_DEVICES=5", devices=("5",))),
    ],
)
def test_gpus_that_flags_ask_for(flags: str, asked: Asked | None) -> None:
    """--gpus and --device name GPUs, and split at commas."""
    environment = {"NVIDIA_VISIBLE_DEVICES": "5", "NV_GPU": "7"}
    assert asked_gpus(read(f"podman run {flags} bb:1"), environment) == asked


def test_public_lines() -> None:
    """What public command lines of podman ask for is read."""
    for line in command_lines.for_clients("podman"):
        asked = asked_gpus(read_command(line.words, PODMAN), line.environment)
        if asked is None:
            got: object = 1
        elif asked.of_other_maker:
            got = "other maker"
        else:
            got = asked.number or list(asked.devices)
        want = list(map(str, line.gpus)) if isinstance(line.gpus, list) else line.gpus
        assert got == want, line.source


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gpus all --device nvidia.com/gpu=0", " both ask for GPUs: say it once"),
        ("--device /dev/fuse,nvidia.com/gpu=0", ": give the GPUs a --device of their own"),
    ],
)
def test_flags_that_cannot_be(flags: str, message: str) -> None:
    """Flags that contradict each other, or that cannot be taken apart, are errors."""
    with pytest.raises(UsageError) as caught:
        asked_gpus(read(f"podman run {flags} bb:1"), {})
    assert caught.value.message == f"{flags}{message}"


REMOTE = "podman would ask a service, whose GPUs may not be this machine's"
UNNAMED = "which containers that starts, gpulaunch does not know"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("podman --remote run x", f"--remote: {REMOTE}"),
        ("podman --url=ssh://me@host/x run x", f"--url ssh://me@host/x: {REMOTE}"),
        ("podman -c farm start x", f"-c farm: {REMOTE}"),
        ("CONTAINER_HOST=tcp://host:1 podman run x", f"CONTAINER_HOST=tcp://host:1: {REMOTE}"),
        ("CONTAINER_CONNECTION=farm podman run x", f"CONTAINER_CONNECTION=farm: {REMOTE}"),
        ("--share=1/2 podman run x", "podman's containers do not share GPUs yet"),
        ("podman start --latest", f"podman start --latest: {UNNAMED}"),
        ("podman start -lai", f"podman start -l: {UNNAMED}"),
        ("podman restart --all", f"podman restart --all: {UNNAMED}"),
    ],
)
def test_refused(launcher: Launcher, line: str, message: str) -> None:
    """An engine elsewhere, --share, and containers without a name get no lease."""
    words = line.split()
    if words[0].startswith("CONTAINER_"):
        launcher.environment.update([words.pop(0).split("=")])
    done = launcher.run(*DGX, *words)
    first = done.stderr.partition("\n")[0]
    assert (done.returncode, done.stdout, first) == (2, "", f"gpulaunch: error: {message}")


@pytest.mark.parametrize(
    ("status", "made_by", "policy", "exit_status", "holds"),
    [
        ("configured", "create", "", 0, True),
        ("created", "create", "", 0, True),
        pytest.param("created", "run", "", 0, False, id="run has failed"),
        ("stopping", "run", "", 0, True),
        ("stopped", "run", "", 0, False),
        ("exited", "run", "", 1, False),
        ("exited", "run", "always", 0, True),
        ("exited", "run", "on-failure", 0, False),
        ("removing", "run", "always", 0, False),
        pytest.param("unknown", "run", "", 0, True, id="a state of tomorrow"),
    ],
)
def test_which_states_hold_gpus(
    status: str, made_by: str, policy: str, exit_status: int, holds: bool
) -> None:
    """Podman's states and policies say whether a container holds its GPUs."""
    state = {"Status": status, "Pid": 5, "ConmonPid": 4, "ExitCode": exit_status}
    made_with = {"Labels": None, "CreateCommand": ["podman", made_by, "--gpus", "2", "bb:1"]}
    found = parse_inspected(
        {
            "Id": "c" * 64,
            "Name": "x",
            "Created": "2026-11-23T07:34:47.279572591Z",
            "Image": "i" * 64,
            "RestartCount": 0,
            "HostConfig": {"RestartPolicy": {"Name": policy, "MaximumRetryCount": 0}},
            "Config": made_with,
            "State": {**state, "FinishedAt": "x"},
        }
    )
    assert (found.container.holds, found.pids) == (holds, {4, 5})
    assert (found.container.given, found.container.sees_all) == (("2",), False)


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
        pytest.param([()], PODMAN.global_flags, id="podman"),
        pytest.param([("run",), ("create",)], PODMAN.run_flags, id="run and create"),
        pytest.param([("start",), ("restart",)], PODMAN.start_flags, id="start and restart"),
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
    for flag in sorted(table.valued | table.switches | shown.keys()):
        got = "value" if flag in table.valued else "switch" if flag in table.switches else None
        if flag in shown:
            assert got == shown[flag], flag
        elif "run" in commands[0]:
            said = subprocess.run(
                ["podman", *commands[0], flag], capture_output=True, text=True, check=False
            ).stderr
            if "unknown" not in said:  # it is not a flag of another version
                assert ("flag needs an argument" in said) == (got == "value"), flag
