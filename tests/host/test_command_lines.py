"""Public command lines with GPUs, by the client alone and by gpulaunch.

Both make the same container but for its GPUs, which are those that the line asks for. The engine
writes down what it is to make, and makes nothing, so neither images nor an engine are needed.
"""

import itertools
import json
import os
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import command_lines
import pytest
from command_lines import CommandLine
from conftest import DGX, Launcher, held
from engine import SEARCHED, link_plugin
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
APP = {"Id": f"sha256:{'0' * 64}", "Config": {"Env": ["PATH=/bin"], "Labels": {}}}
ANSWERS = {
    "/containers/json": [],
    "/images/app:1/json": APP,
    "/info": INFO,
    "/networks": [],
    "/networks/create": {"Id": "network"},
    "/version": {"Version": "28.5.2"},
    "/volumes/create": {"Name": "volume"},
}
OUR_VARIABLES = ("NVIDIA_VISIBLE_DEVICES=", "GPULAUNCH_LEASE=", "GPULAUNCH_GPU_COUNT=")
COMPOSES_LABELS = {
    f"com.docker.compose.{name}" for name in ("config-hash", "project.config_files", "slug")
}
"""Labels that change with a service's GPUs, or by chance."""


class Session:
    """A home with a terminal as standard input, where a client finds the recording engine.

    Attributes:
        folder: where clients are called.
    """

    def __init__(self, home: Path, launcher: Launcher) -> None:
        self.engine = RecordingEngine(home)
        self.engine.answers = dict(ANSWERS)
        link_plugin(home, "docker-compose")
        self.home = self.folder = home
        self.launcher = launcher
        self.launcher.environment["PATH"] += f":{SEARCHED}"
        self.terminal, self.stdin = os.openpty()  # clients refuse -it without one
        (home / "env.txt").write_text("JULIA_NUM_THREADS=4\n")

    def close(self) -> None:
        self.engine.close()
        os.close(self.terminal)
        os.close(self.stdin)

    def start(
        self, words: Sequence[str], environment: Mapping[str, str]
    ) -> "subprocess.Popen[str]":
        """Start a command of docker's client, or of gpulaunch."""
        self.engine.requests.clear()
        own = {"DOCKER_HOST": self.engine.host, "DOCKER_CONFIG": str(self.home)}
        options = {"env": {**self.launcher.environment, **environment, **own}}
        options |= {"cwd": self.folder, "stdin": self.stdin}
        if words[0] == "gpulaunch":
            return self.launcher.start(*words[1:], **options)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, **pipes, **options)


class Made(NamedTuple):
    """What a command line makes.

    Attributes:
        container: the container, without orders of no effect; none if the client complains.
        rest: the same without its GPUs, the names of its lease, and what compose computes of them.
        gpus: its GPUs: indices, and in the line's own words what is no UUID.
        complaint: what the client printed on standard error if there is no container.
    """

    container: dict[str, Any]
    rest: dict[str, Any]
    gpus: list[int | str]
    complaint: str


def made_by(session: Session, words: Sequence[str], environment: Mapping[str, str]) -> Made:
    """Run a command, and return what it asks the engine to make."""
    return made(session, session.start(words, environment))


def made(session: Session, process: "subprocess.Popen[str]") -> Made:
    """Return what a command has asked the engine to make when it has ended."""
    complaint = process.communicate()[1]
    containers = session.engine.documents("/containers/create")
    if not containers:
        assert process.returncode > 0
        return Made({}, {}, [], complaint)
    (container,) = containers
    slug = container["Labels"].get("com.docker.compose.slug")
    if slug:  # a random part of names
        container = json.loads(json.dumps(container).replace(slug[:12], "slug"))
    host = container["HostConfig"]
    host["Binds"] = sorted(host["Binds"] or [])  # the client itself shuffles these and Env
    variables = container["Env"] or []
    container["Env"] = sorted(variables)
    labels = container["Labels"]
    ours = {name for name in labels if name.startswith("io.gpulaunch.")} | COMPOSES_LABELS
    rest = {
        **container,
        "Env": [text for text in sorted(variables) if not text.startswith(OUR_VARIABLES)],
        "Labels": {name: text for name, text in labels.items() if name not in ours},
        "HostConfig": {**host, "DeviceRequests": None},
    }
    return Made(container, rest, _gpus(host, variables), "")


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


def _news(line: CommandLine) -> set[str]:
    """Return what a line may be chosen for: its flags, and how it asks for GPUs."""
    if line.client == "docker compose":
        return {word for word in line.words if word.startswith("-")}
    flags = {word.partition("=")[0] for word in line.words if word.startswith("-")}
    return {*flags, f"{line.client} {line.gpus} {'--gpus' in flags} {'--runtime' in flags}"}


def _few(*clients: str) -> list[CommandLine]:
    """Return few lines for some clients that have all flags and ways to ask for GPUs."""
    lines = command_lines.for_clients(*clients)
    wanted = set[str]().union(*map(_news, lines))
    chosen = []
    while wanted:
        chosen.append(max(lines, key=lambda line: len(_news(line) & wanted)))
        wanted -= _news(chosen[-1])
    return chosen


@pytest.fixture
def session(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[Session]:
    """Yield a session whose engine has the GPUs of dgx1-v100."""
    if not shutil.which("docker", path=SEARCHED):
        pytest.skip("no docker client is installed")
    with closing(Session(tmp_path_factory.mktemp("records"), launcher)) as session:
        yield session


@pytest.mark.parametrize("line", _few("docker", "nvidia-docker"), ids=lambda line: line.source)
def test_line(session: Session, line: CommandLine) -> None:
    """A line with gpulaunch before it makes the same container, with the GPUs that it asks for."""
    alone = made_by(session, ["docker", *line.words[1:]], line.environment)
    if alone.container:
        name = urllib.parse.quote(alone.container["Image"], safe=":@")
        says = APP if line.gpus in (1, "other maker") else SAYS_ALL
        session.engine.answers[f"/images/{name}/json"] = says
    # Beside a lease of GPU 6 the first choice is not GPU 0, which most lines name.
    names_gpus = isinstance(line.gpus, list)
    with held(session.launcher, *DGX, "--only", "6") if names_gpus else nullcontext():
        ours = made_by(session, ["gpulaunch", *DGX, *line.words], line.environment)
    match line.gpus:
        case "refused":
            assert (ours.container, ours.complaint > "") == ({}, True)
        case "other maker":
            assert (ours.complaint, ours.container) == ("", alone.container)
        case gpus:
            want = {"all": [*range(8)], "none": []}.get(str(gpus), gpus)
            got = len(ours.gpus) if isinstance(want, int) else ours.gpus
            assert (ours.complaint, ours.rest, got) == ("", alone.rest, want)


SERVICE = {
    "image": "app:1",
    "env_file": "service.env",
    "environment": ["OF_PROJECT=${OF_PROJECT-}", "PRICE=1$$", "HOME"],
    "volumes": ["./data:/data:ro", "kept:/kept"],
    "ports": ["8000:80"],
    "shm_size": "1g",
    "ipc": "host",
    "command": ["serve", "--port", "80"],
}


def write_project(line: CommandLine, folder: Path) -> None:
    """Write the files that a line of docker compose is about, the last one with the GPUs."""
    said: dict[str, list[str]] = {}
    for word, after in itertools.pairwise(line.words):
        said.setdefault({"--file": "-f"}.get(word, word), []).append(after)
    files = [folder / name for name in said.get("-f", ["docker-compose.yml"])]
    for path in (*files, *(folder / name for name in said.get("--env-file", []))):
        path.parent.mkdir(exist_ok=True)
        path.write_text("OF_PROJECT=5\n")
    (files[0].parent / "service.env").write_text("OF_SERVICE=a$$b\n")
    name = "train" if "train" in line.words else "app"
    count = line.gpus if line.gpus in (1, "all") else 2
    reserved = {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
    deploy = {"deploy": {"resources": {"reservations": {"devices": [reserved]}}}}
    service = {**SERVICE, "profiles": said.get("--profile", [])}
    services = {name: service, "off": {"image": "off:1", "profiles": ["off"]}}
    if files[1:]:
        files[-1].write_text(json.dumps({"services": {name: deploy}}))
    else:
        service |= deploy
    files[0].write_text(json.dumps({"services": services, "volumes": {"kept": {}}}))


def test_lines_of_compose(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A line of docker compose with gpulaunch before it makes the same container, with its GPUs."""
    begun = []
    with ExitStack() as stack:
        for line in _few("docker compose"):
            home = tmp_path_factory.mktemp("records")
            session = stack.enter_context(closing(Session(home, Launcher(home))))
            session.folder = home / "parent" / "project"
            session.folder.mkdir(parents=True)
            write_project(line, session.folder)
            alone = made_by(session, line.words, {})
            if not alone.container:
                pytest.skip(f"docker compose does not run here: {alone.complaint}")
            beside = session.engine.documents("s/create")[:-1]  # a network and a volume
            process = session.start(["gpulaunch", *DGX, *line.words], {})
            begun.append((line, session, alone, beside, process))
        # Each waits for seconds, as this engine tells of no events.
        for line, session, alone, beside, process in begun:
            ours = made(session, process)
            assert (ours.complaint, ours.rest) == ("", alone.rest), line.source
            assert session.engine.documents("s/create")[:-1] == beside
            asked = {"1": 1, "all": 8}.get(str(line.gpus), 2)
            assert (alone.gpus[0], len(ours.gpus)) == ("-1" if asked == 8 else f"{asked}", asked)
