"""What docker's installed client asks its engine for, what that means, and what it becomes.

The client talks to an engine that writes down what it is asked for and makes nothing, so these
tests need no engine.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import SEARCHED, link_plugin
from made_up_engine import BOX
from recording_engine import RecordingEngine
from toml_parser import tomllib
from values import box, cases

from gpulaunch.containers.container import Image, container_labels, container_variables
from gpulaunch.containers.create import (
    Asked,
    asked_container,
    asked_gpus,
    check_sharing,
    with_gpus,
    with_mps,
)
from gpulaunch.containers.docker.client import DockerClient, _parse_names, parse_info
from gpulaunch.containers.docker.line import _OF_COMPOSE, _VALUED, read_line
from gpulaunch.containers.engine import NO_WAY, WAYS
from gpulaunch.containers.flags import without_secrets
from gpulaunch.errors import UsageError
from gpulaunch.leases import lease as mps
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import replace

CASES = tomllib.loads(Path(__file__).with_name("docker_requests.toml").read_text())
NOTHING = Image("", {}, {})
_HELP_LINE = re.compile(r"^ {2}(?:(-\w), | {4})(--[\w-]+)(?: (\S+))?(?: {2,}.*)?$", re.MULTILINE)


class Client:
    """The installed docker client, and what it asks of an engine that makes nothing.

    Attributes:
        engine: the engine.
    """

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self.engine = RecordingEngine(directory)
        self._environment = {
            "DOCKER_HOST": self.engine.host,
            "DOCKER_CONFIG": str(directory),
            "HOME": str(directory),
        }

    def says(self, *words: str, **environment: str) -> str:
        """Return everything that the client prints."""
        done = subprocess.run(
            [self._program, *words],
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def creates(self, *words: str, **environment: str) -> dict[str, Any]:
        """Return what the engine gets to make a container of a command line."""
        self.engine.requests.clear()
        said = self.says(*words, **environment)
        found = self.engine.documents("/containers/create")
        assert found, said
        return found[0]

    def valued_flags(self, *words: str) -> set[str]:
        """Return the flags that take a value, by the help of a command."""
        found = _HELP_LINE.findall(self.says(*words, "--help"))
        return {flag for short, long, value in found if value for flag in (short, long) if flag}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield the client on PATH."""
    program = shutil.which("docker", path=SEARCHED)
    if not program:
        pytest.skip("no docker client is installed")
    directory = tmp_path_factory.mktemp("docker")
    link_plugin(directory, "docker-compose")
    client = Client(program, directory)
    yield client
    client.engine.close()


# -------------------------------------------------------------------------------- the command line


@cases(CASES["lines"], "line", "word", "at_door")
def test_what_a_line_makes_or_starts(line: str, word: str, at_door: str) -> None:
    """The word is found among docker's own options; those that name an engine go."""
    found = read_line(line.split())
    assert (found.word, found.argv_at_door) == (word, tuple(at_door.split()))


def test_options_that_take_a_value(client: Client) -> None:
    """All options before a subcommand that take a value are known, of docker and of compose."""
    assert client.valued_flags() <= _VALUED
    if "docker compose" not in client.says("compose", "--help"):
        pytest.skip("not installed: docker compose")
    assert client.valued_flags("compose") <= _OF_COMPOSE


def test_values_of_variables_are_not_shown() -> None:
    """However they are given, others see the names of a container's variables alone."""
    line = "docker run -e A=1 -itec=1 --env B=2 --env=C=3 -e D img E=5"
    shown = "docker run -e A=... -itec=... --env B=... --env=C=... -e D img E=5"
    assert " ".join(without_secrets(line.split())) == shown


# ------------------------------------------------------------------------------ what is asked for


def asked(fields: dict[str, Any]) -> Asked | None:
    """Return what a row says that is asked for; without fields nothing is."""
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Asked(**{"text": "", **known}) if known else None


@cases(CASES["asked_by_flags"], "flags", "environment", "want")
def test_docker_flags_ask_for_gpus(
    client: Client, flags: str, environment: dict[str, str], want: dict[str, Any]
) -> None:
    """Each of docker's ways to ask for GPUs is read; of several, the one docker heeds counts."""
    document = client.creates("run", *shlex.split(flags), "img", **environment)
    nv_gpu = environment.get("NV_GPU", "")
    found = asked_gpus(document, asked_container(document, "docker run"), nv_gpu, NOTHING, None)
    assert (found and replace(found, text="")) == asked(want)


@cases(CASES["asked_by_the_image"], "line", "variables", "want")
def test_an_image_asks_for_gpus_as_under_nvidias_runtime(
    line: str, variables: dict[str, str], want: dict[str, Any]
) -> None:
    """An image counts only where NVIDIA's runtime reads it; one not here counts as saying all."""
    image = None if "missing" in variables else Image("", {}, variables)
    document = {"HostConfig": {"Runtime": "nvidia" if "--runtime" in line else ""}}
    container, alias = asked_container(document, "docker run"), read_line(line.split()).alias
    assert asked_gpus(document, container, "", image, alias) == asked(want)


@cases(CASES["contradictions"], "flags", "message")
def test_contradictions_are_refused(client: Client, flags: str, message: str) -> None:
    """Flags that contradict each other are refused."""
    document = client.creates("run", *shlex.split(flags), "img")
    with pytest.raises(UsageError) as refused:
        asked_gpus(document, asked_container(document, "docker run"), "", None, None)
    assert refused.value.message == message


# ------------------------------------------------------------------------------ the GPUs written in


@pytest.mark.parametrize("way", [*WAYS, NO_WAY])
def test_a_container_is_as_asked_for_but_for_its_gpus(client: Client, way: str) -> None:
    """GPUs, our labels and variables alone differ, whatever was asked for; other devices stay."""
    flags = "--gpus '2,\"capabilities=compute,utility\",options=a=b' --device nvidia.com/gpu=4 "
    flags += "--device vendor.com/net=eth0 -e NVIDIA_VISIBLE_DEVICES=all -e GPULAUNCH_LEASE=X "
    flags += "-l io.gpulaunch.lease=X -l own=1 -v /a:/b --ipc host -e A=1 -it -p 80:80"
    before = client.creates("create", *shlex.split(flags), "img", "-c", "x")
    after = with_gpus(before, ["GPU-7", "GPU-3"], way, "nvidia", {"GPULAUNCH_LEASE": "L"}, {})
    host = after["HostConfig"]
    other = {"Driver": "cdi", "DeviceIDs": ["vendor.com/net=eth0"]}
    requests = {
        "cdi": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-7", "nvidia.com/gpu=GPU-3"]}],
        "gpus": [
            {
                "Driver": "",
                "Count": 0,
                "DeviceIDs": ["GPU-7", "GPU-3"],
                "Capabilities": [["compute", "gpu", "utility"]],
                "Options": {"a": "b"},
            }
        ],
    }
    got = [
        {**one, "Capabilities": [sorted(some) for some in one["Capabilities"]]}
        if one.get("Capabilities")
        else {key: value for key, value in one.items() if value}
        for one in host["DeviceRequests"]
    ]
    assert sorted(got, key=str) == sorted([other, *requests.get(way, [])], key=str)
    ours = {
        "cdi": ["NVIDIA_VISIBLE_DEVICES=void"],
        NO_WAY: ["NVIDIA_VISIBLE_DEVICES=void"],
        "gpus": ["NVIDIA_VISIBLE_DEVICES=all"],
        "runtime": [
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            "NVIDIA_VISIBLE_DEVICES=GPU-7,GPU-3",
        ],
    }
    assert sorted(after["Env"]) == sorted([*ours[way], "GPULAUNCH_LEASE=L", "A=1"])
    assert host.get("Runtime") == ("nvidia" if way == "runtime" else None)
    changed = ("DeviceRequests", "Runtime")
    rest = {name: value for name, value in host.items() if name not in changed}
    assert rest == {
        name: value for name, value in before["HostConfig"].items() if name not in changed
    }
    same = set(before) - {"Env", "HostConfig"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


@cases(CASES["order_inside"], "line", "indices", "want")
def test_the_order_inside_counts_anew(
    client: Client, line: str, indices: list[int], want: str
) -> None:
    """Ranks out of PCI order are told by numbers by PCI address, never over the user's own."""
    container = asked_container(client.creates(*line.split()), "docker run")
    gpus = [box(16).gpus[index] for index in indices]
    got = container_variables(container.variables, gpus, "nvidia", "L")
    shown = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": want} if want else {}
    assert got == {**shown, "GPULAUNCH_LEASE": "L", "GPULAUNCH_GPU_COUNT": str(len(indices))}
    uuids = ",".join(f"GPU-{index}" for index in indices)
    assert container_labels(gpus, "L") == {"io.gpulaunch.gpus": uuids, "io.gpulaunch.lease": "L"}


def test_names() -> None:
    """A container has its own name, not the one that another's link gives it, or its id's start."""
    answer = [{"Id": "a" * 64, "Names": ["/web/db", "/own"]}, {"Id": "b" * 64, "Names": None}]
    assert _parse_names(answer) == {"a" * 64: "own", "b" * 64: "b" * 12}


def test_a_container_that_is_being_started_is_stopped(tmp_path: Path) -> None:
    """An engine that does not remove what was only made is asked to stop it instead."""
    engine = RecordingEngine(tmp_path)
    made = replace(BOX, state="created")
    engine.answers = {f"/containers/{made.id}/stop": {}}
    try:
        DockerClient(str(tmp_path / "docker.sock")).end(made, 0.0)
        assert [path for path, _ in engine.requests] == [f"/containers/{made.id}/stop?t=0"]
    finally:
        engine.close()


def test_versions_that_start_cdi_devices_again() -> None:
    """Docker starts containers with CDI devices again since 28.2."""
    for version, want in (("28.1.1", False), ("28.2.0-rc.1", True), ("29.0", True), ("?", False)):
        assert parse_info({"ID": "id", "ServerVersion": version}).cdi_returns == want


# ----------------------------------------------------------------------------- GPUs that are shared


NEEDS = {
    "own_user": "a container that shares GPUs has to run as who launches it, uid 1000 "
    "(add -u 1000:100)",
    "no_mps": "so its containers cannot share GPUs through MPS",
    "own_shm": "a container that shares GPUs has the host's /dev/shm, where it meets its MPS "
    "daemon",
    "no_return": "a container that shares GPUs cannot come back by itself, since its MPS daemon "
    "goes with its lease",
}


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        ("", ["/mps", "/dev/shm"]),
        ("--ipc host", ["/mps"]),
        ("-v /dev/shm:/dev/shm", ["/mps"]),
        ("-v /dev/shm:/dev/shm:ro,z", ["/mps", "/dev/shm"]),  # docker refuses it
        ("-v /dev/shm:/shm", ["/mps", "/dev/shm"]),
    ],
)
def test_where_a_client_meets_its_daemon(client: Client, flags: str, want: list[str]) -> None:
    """It sees the daemon's directory and the host's shared memory, each once."""
    document = client.creates("run", *flags.split(), "img")
    share = mps.Share(("GPU-0",), 50, False, mps.Client(Demand("job", 10.0, 5.0, 1 << 30)), "/mps")
    mounts = with_mps(document, share)["HostConfig"]["Mounts"]
    assert [mount["Target"] for mount in mounts] == want
    assert mounts == [{"Type": "bind", "Source": path, "Target": path} for path in want]


@cases(CASES["why_not_shared"], "line", "around", "want")
def test_which_containers_share(
    client: Client, line: str, around: dict[str, Any], want: str
) -> None:
    """Who shares has the launcher's uid on the host, the host's /dev/shm, and runs only once."""
    image_user = around.get("image_user", "1000")
    document, got = client.creates(*line.split()), ""
    try:
        check_sharing(
            document,
            asked_container(document, f"docker {line.split(maxsplit=1)[0]}"),
            around.get("user_id", 1000),
            100,
            None if image_user == "absent" else image_user,
            around.get("security", ()),
        )
    except UsageError as problem:
        got = f"{problem.message} ({problem.hint})" if problem.hint else problem.message
    assert got == want.format(**NEEDS)
