"""The seam of container engines: a made-up one is this file and one row of the registry."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from conftest import DGX, Launcher

from gpulaunch.cli.main import run
from gpulaunch.containers.command import ContainerCommand, Flag, FlagTable, Grammar, read_command
from gpulaunch.containers.container_launch import PlainCommand
from gpulaunch.containers.engine import Asked, Info
from gpulaunch.containers.engines import ENGINES
from gpulaunch.containers.life import Container, Standing
from gpulaunch.containers.standings import Followed, client_of_lease, standings_of
from gpulaunch.containers.ways import Offer
from gpulaunch.doctor import Finding, diagnose
from gpulaunch.errors import FailedError, UsageError
from gpulaunch.launch.read_container import read_container_launch
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.identity import Process

NOTHING = FlagTable.of("", "")
BOXER = Grammar(
    program="boxer",
    global_flags=NOTHING,
    run_flags=FlagTable.of("--quietly", "--colour --accelerators -e --label"),
    start_flags=NOTHING,
    container_flags=NOTHING,
    compose_flags=NOTHING,
)
BOX = Container("b" * 64, "box", "running", False, False, "image", "L", ("GPU-0",))


class Happenings:
    """Events that are told at once, from a list."""

    def __init__(self, actions: list[str]) -> None:
        self._actions = actions
        self._fd = os.open("/dev/zero", os.O_RDONLY)  # always readable

    def fileno(self) -> int:
        return self._fd

    def actions(self, _wait_s: float) -> list[str]:
        told, self._actions = self._actions, []
        return told

    def all(self) -> list[str]:
        return self.actions(0)

    def close(self) -> None:
        os.close(self._fd)


class Boxes:
    """A client whose engine has one list of containers after the other; the last one stays.

    Attributes:
        lists: what it has, from now on.
        ended: the containers that it was told to end.
    """

    title = "Box Engine"
    address = "box:1"

    def __init__(self, *lists: list[Container]) -> None:
        self.lists = [*lists] or [[]]
        self.ended: list[Container] = []

    def exists(self) -> bool:
        return True

    def within(self, _seconds: float) -> "Boxes":
        return self

    def info(self) -> Info:
        return Info("box-1", "1.0")

    def info_later(self) -> Callable[[], Info]:
        return self.info

    def image_labels(self, _image: str) -> dict[str, str]:
        return {}

    def image_user(self, _image: str) -> str | None:
        return None

    def container(self, name: str) -> Container | None:
        return next((box for box in self.lists[0] if name in (box.id, box.name)), None)

    def containers_of(self, lease_id: str, container_id: str | None = None) -> list[Container]:
        assert container_id is None
        boxes = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return [box for box in boxes if box.lease_id == lease_id]

    def launched(self) -> list[Container]:
        return self.lists[0]

    def events(self, *_: object, **__: object) -> Happenings:
        return Happenings(["die", "destroy"])

    def pids(self, _container: Container) -> set[int]:
        return set()

    def end(self, container: Container, *_: object) -> None:
        self.ended.append(container)


class BoxEngine:
    """The made-up engine, whose GPUs are called accelerators."""

    title = "Box Engine"
    grammar = BOXER
    address_variable = "BOX_HOST"

    def __init__(self, client: Boxes | None = None) -> None:
        self.client = client or Boxes()

    def asked_gpus(
        self, command: ContainerCommand, _environment: Mapping[str, str]
    ) -> Asked | None:
        counts = command.values("--accelerators")
        return Asked(f"--accelerators {counts[-1]}", number=counts[-1]) if counts else None

    def is_gpu_flag(self, flag: Flag) -> bool:
        return flag.name == "--accelerators"

    def flags_for(
        self, _command: ContainerCommand, gpus: Sequence[Gpu], way: str, _asked: Asked | None
    ) -> list[str]:
        return [word for gpu in gpus for word in ("--accelerators", f"{way}:{gpu.index}")]

    def allowed_ways(self, _command: ContainerCommand) -> set[str]:
        return {"cdi"}

    def offer_of(self, _info: Info, gpus: tuple[Gpu, ...]) -> Offer:
        return Offer(frozenset(gpu.uuid for gpu in gpus), runtime=True, gpus=True)

    def client_of(self, _command: ContainerCommand, _environment: Mapping[str, str]) -> Boxes:
        return self.client

    def known_clients(self, _user_id: int) -> list[Boxes]:
        return [self.client]


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> Iterator[Boxes]:
    """The engine's client, with the engine in the registry, and no other there."""
    client = Boxes()
    engine = BoxEngine(client)
    for program in list(ENGINES):
        monkeypatch.delitem(ENGINES, program)
    monkeypatch.setitem(ENGINES, "boxer", lambda: engine)
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    return client


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The command line that a dry run says."""
    assert run([*DGX, "--dry-run", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)["argv"]


LABEL = "io.gpulaunch.gpus=GPU-dgx1-v100-0,GPU-dgx1-v100-3"
SHARED = ["--share", "--sm", "30", "--memory-bandwidth", "20", "--memory", "2G"]


@pytest.mark.usefixtures("boxes")
@pytest.mark.parametrize(
    ("options", "flags"),
    [
        pytest.param(["-n", "2"], [], id="by our option"),
        pytest.param([], ["--accelerators", "2"], id="by its own flag, which is replaced"),
    ],
)
def test_its_command_line_gets_gpus_by_its_way(
    capsys: pytest.CaptureFixture[str], options: list[str], flags: list[str]
) -> None:
    """Its flags end where its table says, and what lets its containers see their GPUs follows them."""
    got = planned(
        capsys, *options, "boxer", "run", *flags, "--quietly", "--colour", "red", "image", "-e"
    )
    ours = ["--accelerators", "cdi:0", "--accelerators", "cdi:3", "--label", LABEL]
    assert got == ["boxer", "run", "--quietly", "--colour", "red", *ours, "image", "-e"]


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
        (["boxer", "ps"], "'boxer ps' takes no GPUs here"),
    ],
)
def test_it_is_called_by_its_name(words: list[str], want: str) -> None:
    """What is wrong is told in its words, not in docker's."""
    with pytest.raises(UsageError, match=want):
        run([*DGX, "--dry-run", *words])


@pytest.mark.usefixtures("boxes")
def test_a_way_that_it_does_not_have_cannot_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting names a way that another engine has: that is refused, and not done otherwise."""
    monkeypatch.setenv("GPULAUNCH_CONTAINER_GPUS", "runtime")
    with pytest.raises(UsageError, match="boxer has no runtime nvidia"):
        run([*DGX, "--dry-run", "boxer", "run", "image"])


@pytest.mark.usefixtures("boxes")
def test_what_needs_no_gpus_is_its_own() -> None:
    """A command of it that starts nothing is run as it is."""
    command = read_command(["boxer", "ps"], BOXER)
    got = read_container_launch({}, BoxEngine(), command, name=None, warn=pytest.fail)
    assert got == PlainCommand(("boxer", "ps"))


PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from gpulaunch.containers import engines
from test_container_engine import BoxEngine
engines.ENGINES["boxer"] = BoxEngine
from gpulaunch.__main__ import main
main()
"""


def test_a_launch_goes_through_it(launcher: Launcher) -> None:
    """Its program runs with the GPUs and the lease, its exit status is the launch's, and the lease ends."""
    program = launcher.state.parent / "boxer"
    program.write_text('#!/bin/sh\necho "$@"\nls "$GPULAUNCH_STATE_DIR" | grep -c lease\nexit 5\n')
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, Path(__file__).parent, *DGX, "--", program, "run", "image"],
        env=launcher.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    line, leases = done.stdout.splitlines()
    words = line.split()
    assert (words[:3], words[-1]) == (["run", "--accelerators", "cdi:0"], "image")
    assert any(word.startswith("io.gpulaunch.lease=") for word in words)
    assert (leases, done.returncode, done.stderr) == ("1", 5, "")
    assert launcher.records() == []


# ---------------------------------------------------------------------------------------------- its leases


def lease(engine: str) -> Lease:
    """A lease of one of its containers."""
    process = Process(pid=1, start_time=1)
    return Lease(
        id="L",
        user_id=os.geteuid(),
        table=None,
        uuids=("GPU-0",),
        launcher=process,
        job=process,
        command=("boxer", "run", "image"),
        profile=None,
        assumed=(),
        name=None,
        started_at="2026-01-01T00:00:00Z",
        ancestors=(),
        boot_id="",
        engine=engine,
    )


@pytest.mark.parametrize("state", ["running", "exited"])
def test_its_standing_is_asked_of_it(boxes: Boxes, state: str) -> None:
    """A lease stays for as long as its container holds GPUs, as the engine's client tells."""
    box = BOX._replace(state=state)
    boxes.lists = [[box, box._replace(lease_id="other")]]
    got = standings_of([lease("box-1")])
    assert got == {"L": Standing(holds=state == "running", containers=(box,), problem=None)}


@pytest.mark.usefixtures("boxes")
def test_another_engines_lease_is_not_its_to_judge() -> None:
    """A lease on an engine that is not here stays."""
    got = standings_of([lease("box-2")])["L"]
    assert got == Standing(True, (), "its Box Engine does not run here")
    with pytest.raises(FailedError, match="lease L: its Box Engine does not run here"):
        client_of_lease(lease("box-2"))


def test_its_containers_are_followed_to_their_end(boxes: Boxes) -> None:
    """Who keeps a lease sleeps until the engine's events and answers say that the container is gone."""
    boxes.lists = [[BOX], [BOX], []]
    followed = Followed(boxes, "box-1", "L", None, time.time())
    followed.wait(Process(pid=0, start_time=0), None, pytest.fail)
    assert (boxes.lists, followed.has_ended()) == ([[]], True)


def test_its_containers_are_ended_by_it(boxes: Boxes) -> None:
    """What has run for too long is ended through the engine's client."""
    boxes.lists = [[BOX]]
    Followed(boxes, "box-1", "L", None, time.time()).end(1.0)
    assert boxes.ended == [BOX]


def test_doctor_looks_at_it(boxes: Boxes) -> None:
    """Doctor tells whether it answers, how GPUs get in, and which containers have no lease."""
    boxes.lists = [[BOX]]
    found = diagnose("dgx1-v100")
    assert found[-3:-1] == [
        Finding("Box Engine", "ok", "1.0 at box:1"),
        Finding(
            "GPUs in containers",
            "ok",
            "by CDI devices nvidia.com/gpu=UUID; also offered: runtime nvidia with "
            "NVIDIA_VISIBLE_DEVICES, --gpus with a device list",
        ),
    ]
    assert found[-1].text == "container box has 1 GPU and no lease"
    assert found[-1].hint == "'boxer stop box', then 'gpulaunch boxer start box'"
