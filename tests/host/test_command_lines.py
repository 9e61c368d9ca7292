"""Public command lines with GPUs, by the client alone and by gpulaunch.

Both make the same container but for its GPUs, which are those that the line asks for. The engine
writes down what it is to make, and makes nothing, so neither images nor an engine are needed.
"""

import os
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import command_lines
import pytest
from command_lines import CommandLine
from conftest import DGX, Launcher, held
from engine import SEARCHED
from recording_engine import RecordingEngine

UUIDS = [f"GPU-dgx1-v100-{index}" for index in range(8)]
KIND = "nvidia.com/gpu="
INFO = {
    "ID": "writes-down",
    "ServerVersion": "28.5.2",
    "Runtimes": {"runc": {}, "nvidia": {}},
    "DiscoveredDevices": [{"Source": "cdi", "ID": f"{KIND}{uuid}"} for uuid in UUIDS],
}
SAYS_ALL = {"Config": {"Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"], "Labels": {}}}
OUR_VARIABLES = ("NVIDIA_VISIBLE_DEVICES=", "GPULAUNCH_LEASE=")


class Session:
    """A home with a terminal as standard input, where a client finds the recording engine."""

    def __init__(self, home: Path) -> None:
        self.engine = RecordingEngine(home)
        self.home = home
        self.terminal, self.stdin = os.openpty()  # clients refuse -it without one
        (home / "env.txt").write_text("JULIA_NUM_THREADS=4\n")

    def close(self) -> None:
        self.engine.close()
        os.close(self.terminal)
        os.close(self.stdin)

    def run(
        self, words: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        self.engine.requests.clear()
        return subprocess.run(
            words,
            env={**environment, "DOCKER_HOST": self.engine.host, "DOCKER_CONFIG": str(self.home)},
            cwd=self.home,
            stdin=self.stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


class Made(NamedTuple):
    """What a command line makes.

    Attributes:
        image: the container's image; None if there is no container.
        container: the container, without orders of no effect.
        rest: the same without its GPUs, and without the names of its lease.
        gpus: its GPUs: indices, and in the line's own words what is no UUID.
        complaint: what the client printed on standard error if there is no container.
    """

    image: str | None
    container: dict[str, Any]
    rest: dict[str, Any]
    gpus: list[int | str]
    complaint: str


def made_by_docker(session: Session, words: Sequence[str], environment: Mapping[str, str]) -> Made:
    """Run a command of docker's client, and return what it asks the engine to make."""
    done = session.run(words, environment)
    containers = session.engine.documents("/containers/create")
    if not containers:
        assert done.returncode > 0
        return Made(None, {}, {}, [], done.stderr)
    (container,) = containers
    host = container["HostConfig"]
    host["Binds"] = sorted(host["Binds"] or [])  # the client itself shuffles these and Env
    variables = container["Env"] or []
    container["Env"] = sorted(variables)
    labels = container["Labels"].items()
    rest = {
        **container,
        "Env": [text for text in sorted(variables) if not text.startswith(OUR_VARIABLES)],
        "Labels": {name: text for name, text in labels if not name.startswith("io.gpulaunch.")},
        "HostConfig": {**host, "DeviceRequests": None},
    }
    return Made(container["Image"], container, rest, _gpus(host, variables), "")


def _gpus(host: Mapping[str, Any], variables: Sequence[str]) -> list[int | str]:
    """Return the GPUs of a container; of several assignments to a variable the last one counts."""
    names = []
    for request in host["DeviceRequests"] or []:
        names += request["DeviceIDs"] or [f"{request['Count']}"]
    values = [text for text in variables if text.startswith("NVIDIA_VISIBLE_DEVICES=")]
    visible = values[-1].partition("=")[2] if values else "as the image says"
    names += [visible] if visible != "void" else []
    uuids = [name.removeprefix(KIND) for name in names]
    return sorted((UUIDS.index(uuid) if uuid in UUIDS else uuid for uuid in uuids), key=str)


MADE_BY: dict[str, tuple[str, Callable[[Session, Sequence[str], Mapping[str, str]], Made]]] = {
    "docker": ("docker", made_by_docker),
    "nvidia-docker": ("docker", made_by_docker),
}
"""The clients that are compared: the program without gpulaunch, and what runs a command."""


def names_no_gpus(line: CommandLine) -> bool:
    """Return whether a line leaves its GPUs to the image."""
    words = ("--gpus", "NVIDIA_VISIBLE_DEVICES=", "nvidia.com/gpu=", "NV_GPU=")
    return not any(word in line.line for word in words)


def cases() -> Iterator[Any]:
    """Yield the lines for the clients that are compared, as parameters of a test."""
    for number, line in enumerate(command_lines.for_clients(*MADE_BY), 1):
        yield pytest.param(line, id=f"{number} {line.source}")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a session whose engine has the GPUs of dgx1-v100."""
    if not shutil.which("docker", path=SEARCHED):
        pytest.skip("no docker client is installed")
    session = Session(tmp_path_factory.mktemp("records"))
    try:
        yield session
    finally:
        session.close()


@pytest.mark.parametrize("line", list(cases()))
def test_line(session: Session, launcher: Launcher, line: CommandLine) -> None:
    """A line with gpulaunch before it makes the same container, with the GPUs that it asks for."""
    program, make = MADE_BY[line.client]
    environment = launcher.environment | line.environment
    environment["PATH"] += f":{SEARCHED}"
    session.engine.answers = {"/info": INFO, "/containers/json": []}
    alone = make(session, [program, *line.words[1:]], environment)
    if alone.image and line.gpus not in (1, "other maker"):
        name = urllib.parse.quote(alone.image, safe=":@")
        session.engine.answers[f"/images/{name}/json"] = SAYS_ALL
    # Beside a lease of GPU 6 the first choice is not GPU 0, which most lines name.
    beside = held(launcher, *DGX, "--only", "6") if isinstance(line.gpus, list) else nullcontext()
    with beside:
        ours = make(session, [launcher.script, *DGX, *line.words], environment)
    match line.gpus:
        case "refused":
            assert (ours.image, ours.complaint > "") == (None, True)
        case "other maker":
            assert (ours.complaint, ours.container) == ("", alone.container)
        case gpus:
            want = {"all": [*range(8)], "none": []}.get(str(gpus), gpus)
            got = len(ours.gpus) if isinstance(want, int) else ours.gpus
            assert (ours.complaint, ours.rest, got) == ("", alone.rest, want)
