"""The interface to container engines: each is a module, a table of flags and a registry row.

A made-up engine stands in the registry, in place of the others; its program echoes.
"""

import json
import time
from collections.abc import Iterator

import pytest
from conftest import DGX, Launcher
from made_up_engine import BOX, BoxEngine, Boxes
from values import lease

from gpulaunch.containers.engines import ENGINES
from gpulaunch.containers.life import Standing
from gpulaunch.containers.standings import Followed, standings_of
from gpulaunch.process.identity import Process
from gpulaunch.records import replace

PROGRAM = '#!/bin/sh\necho "$@"\nls "$GPULAUNCH_STATE_DIR" | grep -c lease\nexit 5\n'
LABEL = "io.gpulaunch.gpus=GPU-dgx1-v100-0,GPU-dgx1-v100-3"
FORCED = ["-o", "container_gpus=runtime"]
SHARED = ["--share", "-o", "utilization=30,20", "--memory", "2G"]


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> Iterator[Boxes]:
    """Put an engine in the registry, and no other there; return its client."""
    client = Boxes()
    engine = BoxEngine(client)
    others = dict(ENGINES)
    ENGINES.clear()
    ENGINES["boxer"] = lambda: engine
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    boxer = launcher.state.parent / "boxer"
    boxer.write_text(PROGRAM)
    boxer.chmod(0o755)
    launcher.environment["PATH"] += f":{boxer.parent}"
    yield client
    ENGINES.clear()
    ENGINES.update(others)  # in their order, which counts


@pytest.mark.usefixtures("boxes")
@pytest.mark.parametrize(
    ("options", "flags"), [(["-n", "2"], []), ([], ["--accelerators", "2"])], ids=str
)
def test_its_command_line_gets_gpus_by_its_way(
    launcher: Launcher, options: list[str], flags: list[str]
) -> None:
    """Its flags end where its table says, and then comes what shows GPUs to its containers."""
    words = ["boxer", "run", *flags, "--quietly", "--colour", "red", "image", "-e"]
    done = launcher.run(*DGX, "--dry-run", "--json", *options, *words)
    ours = ["--accelerators", "cdi:0", "--accelerators", "cdi:3", "--label", LABEL]
    ours += ["-e", "GPULAUNCH_GPU_COUNT=2"]
    want = ["boxer", "run", "--quietly", "--colour", "red", *ours, "image", "-e"]
    assert json.loads(done.stdout)["argv"] == want


@pytest.mark.usefixtures("boxes")
def test_a_launch_goes_through_it(launcher: Launcher) -> None:
    """The launched program has the GPUs and the lease, and its status is the launch's."""
    done = launcher.run(*DGX, "boxer", "run", "image")
    line, leases = done.stdout.splitlines()
    words = line.split()
    assert (words[:3], words[-1]) == (["run", "--accelerators", "cdi:0"], "image")
    assert any(word.startswith("io.gpulaunch.lease=") for word in words)
    assert (leases, done.returncode, done.stderr) == ("1", 5, "")
    assert launcher.records() == []
    assert launcher.run(*DGX, "boxer", "ps").stdout == "ps\n0\n"


@pytest.mark.usefixtures("boxes")
@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["boxer", "run", "--gpus", "2", "image"], "boxer run: unknown flag --gpus"),
        (
            ["-n", "1", "boxer", "run", "--accelerators", "2", "i"],
            "-n 1 and boxer's --accelerators 2",
        ),
        ([*SHARED, "boxer", "create", "i"], "boxer create: only boxer run shares GPUs"),
        (["--dry-run", "boxer", "ps"], "'boxer ps' takes no GPUs here"),
        ([*FORCED, "boxer", "run", "i"], "-o container_gpus=runtime: boxer has no runtime nvidia"),
    ],
)
def test_it_is_called_by_its_name(launcher: Launcher, words: list[str], want: str) -> None:
    """What is wrong is told in its words, not in docker's."""
    assert launcher.run(*DGX, *words).stderr.startswith(f"gpulaunch: error: {want}")


# --------------------------------------------------------------------------------------- its leases


@pytest.mark.parametrize("state", ["running", "exited"])
def test_its_standing_is_asked_of_it(boxes: Boxes, state: str) -> None:
    """A lease stays for as long as its container holds GPUs, as the engine's client tells."""
    box = replace(BOX, state=state)
    boxes.lists = [[box, replace(box, lease_id="other")]]
    got = standings_of([lease("L", 0, engine="box-1")])
    assert got == {"L": Standing(holds=state == "running", containers=(box,), problem=None)}


def test_its_containers_are_followed_to_their_end(boxes: Boxes) -> None:
    """A lease's keeper sleeps until the engine's events and answers say the container is gone."""
    boxes.lists = [[BOX], [BOX], []]
    followed = Followed(boxes, "box-1", "L", None, time.time())
    followed.wait(Process(pid=0, start_time=0), None, pytest.fail, pytest.fail)
    assert (boxes.lists, followed.has_ended()) == ([[]], True)


def test_nobody_waits_for_an_engine_and_a_record_that_are_gone(boxes: Boxes) -> None:
    """While another engine answers, a keeper asks again only until its lease is removed."""
    removed = [True, False]
    followed = Followed(boxes, "box-2", "L", None, time.time())
    followed.wait(Process(pid=0, start_time=0), None, pytest.fail, removed.pop)
    assert removed == []


def test_doctor_looks_at_it(boxes: Boxes, launcher: Launcher) -> None:
    """Doctor tells whether it answers, how GPUs get in, and which containers have no lease."""
    boxes.lists = [[BOX]]
    done = launcher.run("doctor", *DGX, "--json")
    answers, ways, left = json.loads(done.stdout)["findings"][-3:]
    assert (answers["subject"], answers["state"]) == ("Box Engine", "ok")
    assert answers["text"] == "1.0 at box:1"
    assert ways["text"].startswith("by CDI devices nvidia.com/gpu=UUID; also offered: runtime")
    assert left["text"] == "container box has 1 GPU and no lease"
    assert left["hint"] == "'boxer stop box', then 'gpulaunch boxer start box'"
