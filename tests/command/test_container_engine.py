"""The interface to container engines; a made-up one stands in the registry, without others."""

import json
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from conftest import DGX, Launcher
from made_up_engine import BOX, Boxes
from values import lease

from gpulaunch.containers import held_leases
from gpulaunch.containers.engine import (
    ContainerLaunch,
    ForbiddenError,
    LateError,
    NoAnswerError,
)
from gpulaunch.containers.engines import ENGINES
from gpulaunch.containers.held_leases import Followed, Standing, standings_of
from gpulaunch.process import Process
from gpulaunch.records import replace


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> Iterator[Boxes]:
    """Put an engine in the registry, and no other there; return its client."""
    client = Boxes()
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    with patch.dict(ENGINES, {"boxer": lambda: client}, clear=True):
        yield client


@pytest.mark.parametrize("state", ["running", "exited"])
def test_its_standing_is_asked_of_it(boxes: Boxes, state: str) -> None:
    """A lease stays for as long as its container holds GPUs, as the engine's client tells."""
    box = replace(BOX, state=state)
    boxes.lists = [[box, replace(box, lease_id="other")]]
    got = standings_of([lease("L", 0, engine="boxer:1")])
    assert got == {"L": Standing(holds=state == "running", container=box, problem=None)}


def test_its_containers_are_followed_to_their_end(boxes: Boxes) -> None:
    """A lease's keeper sleeps until the engine's events and answers say the container is gone."""
    boxes.lists = [[BOX], [BOX], []]
    followed = Followed(ContainerLaunch(boxes, "boxer:1", "cdi"), "L")
    followed.wait(Process(pid=0, start_time=0), None, pytest.fail, pytest.fail)
    assert (boxes.lists, followed.has_ended()) == ([[]], True)


def test_a_restart_keeps_the_lease(boxes: Boxes) -> None:
    """After a stop the lease stays for a start to follow."""
    exited = [replace(BOX, state="exited")]
    boxes.lists = [[BOX], exited, exited, [BOX], exited, []]
    boxes.told = ["stop", "stop", "start"]
    followed = Followed(ContainerLaunch(boxes, "boxer:1", "cdi"), "L")
    followed.wait(Process(pid=0, start_time=0), None, pytest.fail, pytest.fail)
    assert (boxes.lists, len(boxes.told)) == ([[]], 1)


def test_what_is_removed_after_a_stop_is_not_waited_for(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start follows where there is no container any more, as after docker compose down."""
    monkeypatch.setattr(held_leases, "START_FOLLOWS_S", 1e9)
    exited = [replace(BOX, state="exited")]
    boxes.lists, boxes.told = [[BOX], exited, exited, []], ["stop"]
    followed = Followed(ContainerLaunch(boxes, "boxer:1", "cdi"), "L")
    followed.wait(Process(pid=0, start_time=0), None, pytest.fail, pytest.fail)
    assert boxes.lists == [[]]


def test_nobody_waits_for_an_engine_and_a_record_that_are_gone(boxes: Boxes) -> None:
    """While another engine answers, a keeper asks again only until its lease is removed."""
    removed = [True, False]
    followed = Followed(ContainerLaunch(boxes, "boxer:2", "cdi"), "L")
    followed.wait(Process(pid=0, start_time=0), None, pytest.fail, removed.pop)
    assert removed == []


@pytest.mark.usefixtures("boxes")
def test_doctor_looks_at_it(launcher: Launcher) -> None:
    """Doctor tells whether it answers and how GPUs get in."""
    done = launcher.run("doctor", *DGX, "--json")
    answers, ways = json.loads(done.stdout)["findings"][-2:]
    assert (answers["subject"], answers["state"]) == ("Box Engine", "ok")
    assert answers["text"] == "1.0 at box:1"
    assert ways["text"] == "by CDI devices nvidia.com/gpu=UUID"


@pytest.mark.parametrize(
    ("problem", "state", "text"),
    [
        (NoAnswerError("gone"), "warning", "none at box:1, so 'gpulaunch boxer run' will not work"),
        (ForbiddenError("not you"), "problem", "not you"),
        (LateError("late"), "problem", "late"),
    ],
)
def test_doctor_tells_why_it_does_not_answer(
    boxes: Boxes, launcher: Launcher, problem: Exception, state: str, text: str
) -> None:
    """Where no engine runs, launches without containers miss nothing; else something is wrong."""
    boxes.problem = problem
    done = launcher.run("doctor", *DGX, "--json")
    found = json.loads(done.stdout)["findings"][-1]
    assert (found["subject"], found["state"], found["text"]) == ("Box Engine", state, text)
