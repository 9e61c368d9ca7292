"""Podman's command line: which GPUs it asks for, what it becomes, and the installed podman's flags.

Nothing here starts a container.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence

import command_lines
import pytest
from command_lines import CommandLine
from conftest import DGX, Launcher, complaint

from gpulaunch.containers.command import FlagTable, read_command
from gpulaunch.containers.engine import Asked
from gpulaunch.containers.podman.answers import parse_inspected
from gpulaunch.containers.podman.flags import PODMAN
from gpulaunch.containers.podman.gpu_flags import asked_gpus
from gpulaunch.errors import UsageError

needs_podman = pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed")


def read(line: str):
    """Read a command line that has no quotes."""
    return read_command(line.split(), PODMAN)


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        pytest.param("podman run -it --rm bb:1 sh", ("bb:1", "sh"), id="letters"),
        pytest.param("podman run --rootfs -d /srv/root ls", ("/srv/root", "ls"), id="no image"),
        pytest.param("podman run --pod new:x --replace bb:1", ("bb:1",), id="podman's own flags"),
        pytest.param("podman run --tls-verify bb:1", ("bb:1",), id="an optional value"),
        pytest.param("podman run --log-level debug bb:1", ("bb:1",), id="a global flag, late"),
        pytest.param("podman --root /x container run bb:1 -d", ("bb:1", "-d"), id="container run"),
    ],
)
def test_the_image_is_the_first_word_that_is_no_flag(line: str, operands: tuple[str, ...]) -> None:
    """The image and what follows it is found behind podman's flags."""
    command = read(line)
    assert (command.launches, command.operands) == (True, operands)


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ("", None),
        ("--gpus all", Asked("--gpus all", number="all")),
        ("--gpus 2", Asked("--gpus 2", devices=("2",))),
        ("--gpus 0,GPU-x", Asked("--gpus 0,GPU-x", devices=("0", "GPU-x"))),
        ("--gpus 0 --gpus=3", Asked("--gpus 0 --gpus 3", devices=("0", "3"))),
        ("--gpus none", Asked("--gpus none", nothing=True)),
        (
            "--device nvidia.com/gpu=1,nvidia.com/gpu=2 --device /dev/fuse",
            Asked("--device nvidia.com/gpu=1,nvidia.com/gpu=2", devices=("1", "2")),
        ),
        (
            "-e NVIDIA_VISIBLE_DEVICES=1",
            Asked("NVIDIA_VISIBLE_DEVICES=1", devices=("1",)),
        ),
        ("-e NVIDIA_VISIBLE_DEVICES", Asked("NVIDIA_VISIBLE_DEVICES=5", devices=("5",))),
    ],
)
def test_gpus_that_flags_ask_for(flags: str, asked: Asked | None) -> None:
    """--gpus and --device name GPUs, and split at commas."""
    environment = {"NVIDIA_VISIBLE_DEVICES": "5", "NV_GPU": "7"}
    assert asked_gpus(read(f"podman run {flags} bb:1"), environment) == asked


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--gpus all --device nvidia.com/gpu=0",
            "--gpus all --device nvidia.com/gpu=0 both ask for GPUs: say it once",
        ),
        (
            "--device /dev/fuse,nvidia.com/gpu=0",
            "--device /dev/fuse,nvidia.com/gpu=0: give the GPUs a --device of their own",
        ),
    ],
)
def test_flags_that_cannot_be(flags: str, message: str) -> None:
    """Flags that contradict each other, or that cannot be taken apart, are errors."""
    with pytest.raises(UsageError) as caught:
        asked_gpus(read(f"podman run {flags} bb:1"), {})
    assert caught.value.message == message


REMOTE = "podman would ask a service, whose GPUs may not be this machine's"


@pytest.mark.parametrize(
    ("words", "variables", "origin"),
    [
        (("--remote", "run", "x"), {}, "--remote"),
        (("-r", "create", "x"), {}, "-r"),
        (("--url=ssh://me@host/x", "run", "x"), {}, "--url ssh://me@host/x"),
        (("-c", "farm", "start", "x"), {}, "-c farm"),
        (("run", "x"), {"CONTAINER_HOST": "tcp://host:1"}, "CONTAINER_HOST=tcp://host:1"),
        (("run", "x"), {"CONTAINER_CONNECTION": "farm"}, "CONTAINER_CONNECTION=farm"),
    ],
)
def test_an_engine_elsewhere_is_refused(
    launcher: Launcher, words: tuple[str, ...], variables: dict[str, str], origin: str
) -> None:
    """What podman would have a service do gets no lease of this machine's GPUs."""
    launcher.environment |= variables
    done = launcher.run(*DGX, "podman", *words)
    hint = "run 'gpulaunch podman' on the machine of the containers, without it"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == complaint(f"{origin}: {REMOTE}", hint)


@pytest.mark.parametrize("words", [("start", "--latest"), ("restart", "--all"), ("start", "-lai")])
def test_containers_without_names_are_refused(launcher: Launcher, words: tuple[str, ...]) -> None:
    """Podman start and restart have to name their containers."""
    done = launcher.run(*DGX, "podman", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0].endswith(
        "which containers that starts, gpulaunch does not know"
    )


CONTAINER = {
    "Id": "c" * 64,
    "Name": "x",
    "Created": "2026-11-23T07:34:47.279572591Z",
    "Image": "i" * 64,
    "RestartCount": 0,
    "HostConfig": {"RestartPolicy": {"Name": "", "MaximumRetryCount": 0}},
    "Config": {"Labels": None, "CreateCommand": ["podman", "run", "bb:1"]},
    "State": {"Status": "running", "Pid": 5, "ConmonPid": 4, "ExitCode": 0, "FinishedAt": "x"},
}


@pytest.mark.parametrize(
    ("status", "made_by", "policy", "exit_status", "holds"),
    [
        ("configured", "create", "", 0, True),
        ("created", "create", "", 0, True),
        pytest.param("created", "run", "", 0, False, id="run has failed"),
        ("running", "run", "", 0, True),
        ("stopping", "run", "", 0, True),
        ("paused", "run", "", 0, True),
        ("exited", "run", "", 1, False),
        ("exited", "run", "always", 0, True),
        ("exited", "run", "on-failure", 1, True),
        ("exited", "run", "on-failure", 0, False),
        ("removing", "run", "always", 0, False),
        pytest.param("unknown", "run", "", 0, True, id="a state of tomorrow"),
    ],
)
def test_which_states_hold_gpus(
    status: str, made_by: str, policy: str, exit_status: int, holds: bool
) -> None:
    """Podman's states and policies say whether a container holds its GPUs."""
    document = json.loads(json.dumps(CONTAINER))
    document["State"] |= {"Status": status, "ExitCode": exit_status}
    document["HostConfig"]["RestartPolicy"]["Name"] = policy
    document["Config"]["CreateCommand"][1] = made_by
    found = parse_inspected(document)
    assert (found.container.holds, found.pids) == (holds, {4, 5})


def help_flags(*subcommand: str) -> dict[str, bool]:
    """Return the flags in podman's help, and whether they take a value."""
    done = subprocess.run(
        ["podman", *subcommand, "--help"], capture_output=True, text=True, check=True
    )
    found = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r" +(?:(-\w), )?(--[\w-]+)( \S+)?(?:  .*| *)", line)
        if match:
            letter, name, value = match.groups()
            found |= {one: bool(value) for one in (letter, name) if one}
    return found


@needs_podman
@pytest.mark.parametrize(
    ("subcommands", "table"),
    [
        pytest.param([()], PODMAN.global_flags, id="podman"),
        pytest.param([("run",), ("create",)], PODMAN.run_flags, id="run and create"),
        pytest.param([("start",), ("restart",)], PODMAN.start_flags, id="start and restart"),
    ],
)
def test_flags_of_the_installed_podman_are_known(
    subcommands: Sequence[tuple[str, ...]], table: FlagTable
) -> None:
    """Each flag in podman's help is in the table, among those with a value or those without."""
    found: dict[str, bool] = {}
    for subcommand in subcommands:
        found |= help_flags(*subcommand)
    assert len(found) > 10
    assert {flag for flag, valued in found.items() if valued} - table.valued == set()
    assert {flag for flag, valued in found.items() if not valued} - table.switches == set()


@needs_podman
@pytest.mark.parametrize("flag", sorted(PODMAN.run_flags.valued | PODMAN.run_flags.switches))
def test_flags_of_the_table_are_as_the_installed_podman_reads_them(flag: str) -> None:
    """Podman misses the value of each flag in the table that takes one, and of no other."""
    done = subprocess.run(["podman", "run", flag], capture_output=True, text=True, check=False)
    if "unknown flag" in done.stderr or "unknown shorthand flag" in done.stderr:
        return  # a flag of another version
    assert ("flag needs an argument" in done.stderr) == (flag in PODMAN.run_flags.valued)


@pytest.mark.parametrize("line", command_lines.for_clients("podman"), ids=lambda line: line.source)
def test_public_lines(line: CommandLine) -> None:
    """What public command lines of podman ask for is read."""
    asked = asked_gpus(read_command(line.words, PODMAN), line.environment)
    if asked is None:
        got: object = 1
    elif asked.of_other_maker:
        got = "other maker"
    else:
        got = asked.number or list(asked.devices)
    want = list(map(str, line.gpus)) if isinstance(line.gpus, list) else line.gpus
    assert got == want
