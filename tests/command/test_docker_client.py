"""Docker's command line, held against the parser of the installed client.

The client talks to an engine that writes down what it is asked for and makes nothing, so these
tests need no engine.
"""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import SEARCHED, link_compose
from recording_engine import RecordingEngine
from test_docker_command import CASES, gpus, lines, read, with_gpus
from values import cases

from gpulaunch.containers.command import FlagTable
from gpulaunch.containers.docker.flags import DOCKER
from gpulaunch.containers.docker.gpu_flags import asked_gpus
from gpulaunch.containers.ways import NO_WAY, WAYS
from gpulaunch.errors import UsageError


class Client:
    """The installed docker client, and what it understands of a command line.

    Attributes:
        engine: the engine that makes nothing.
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

    def requests(self, *words: str, **environment: str) -> list[tuple[str, Any]]:
        """Return what the client asks of the engine: paths, and documents."""
        self.engine.requests.clear()
        self.says(*words, **environment)
        return [(path, json.loads(body) if body else None) for path, body in self.engine.requests]

    def creates(self, *words: str, **environment: str) -> dict[str, Any] | None:
        """Return the container that a command line makes, or None."""
        asked = self.requests(*words, **environment)
        return next((document for path, document in asked if "/containers/create" in path), None)

    def kind(self, *words: str) -> str | None:
        """Return what the last word is to the client's parser; None if it is unknown."""
        answer = self.says(*words)
        if "flag needs an argument" in answer:
            return "value"
        if re.search(r"unknown (shorthand )?flag", answer):
            return None
        assert re.search(r"requires at least 1 argument|Usage:|Docker version", answer), answer
        return "switch"

    def help_flags(self, *words: str) -> dict[str, str]:
        """Return the flags in the help of a command, and what each is."""
        text = self.says(*words, "--help")
        found = {}
        for short, long, value in _HELP_LINE.findall(text):
            found |= {flag: "value" if value else "switch" for flag in (short, long) if flag}
        assert text.count(" --") >= len([flag for flag in found if flag.startswith("--")]) > 0
        return found


_HELP_LINE = re.compile(r"^ {2}(?:(-\w), | {4})(--[\w-]+)(?: (\S+))?(?: {2,}.*)?$", re.MULTILINE)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield the client on PATH."""
    program = shutil.which("docker", path=SEARCHED)
    if not program:
        pytest.skip("no docker client is installed")
    directory = tmp_path_factory.mktemp("docker")
    link_compose(directory)
    client = Client(program, directory)
    yield client
    client.engine.close()


# ---------------------------------------------------------------------------------- the flag tables


def table_kind(table: FlagTable, flag: str) -> str | None:
    """Return what a table says of a flag."""
    return "switch" if flag in table.switches else "value" if flag in table.valued else None


CHANGING = {
    *("--annotation", "--health-start-interval", "-q", "--quiet", "--use-api-socket", "-s"),
    *("--signal", "--timeout", "--disable-content-trust", "--kernel-memory"),
}
"""Flags that came after docker 20.10, or may go."""


@pytest.mark.parametrize(
    ("commands", "table"),
    [
        ("|", DOCKER.global_flags),
        ("run|create", DOCKER.run_flags),
        ("start|restart", DOCKER.start_flags),
        ("compose", DOCKER.compose_flags),
        ("compose run", DOCKER.compose_run_flags),
        ("compose up|compose create|compose start|compose restart", DOCKER.compose_up_flags),
    ],
)
def test_the_table_is_as_the_client_reads_flags(
    client: Client, commands: str, table: FlagTable
) -> None:
    """Every flag in the installed client's help is a switch or takes a value as it shows.

    What help hides is to its parser what our table says, or unknown to this version.
    """
    of_compose = commands.startswith("compose")
    if of_compose and "docker compose" not in client.says("compose", "--help"):
        pytest.skip("not installed: docker compose")
    hidden = set() if of_compose else table.switches | table.valued
    for command in commands.split("|"):
        want = client.help_flags(*command.split())
        assert {flag: table_kind(table, flag) for flag in want} == want, command
        hidden -= want.keys()
    for flag in sorted(hidden):
        kinds = {client.kind(*command.split(), flag) for command in commands.split("|")} - {None}
        assert kinds == {table_kind(table, flag)} or (not kinds and flag in CHANGING), flag


# ------------------------------------------------------------------------------ images and services


@cases(CASES["flags_and_operands"], "line", "flags", "operands")
def test_the_client_finds_the_same_image(
    client: Client,
    line: str,
    flags: str,  # noqa: ARG001  of the row, what we read
    operands: str,
) -> None:
    """The client asks its engine for the image and command that the table says."""
    made = client.creates(*shlex.split(line.replace("SOCKET", client.engine.host)))
    got = made and (made["Image"], *(made["Cmd"] or ()))
    assert got == tuple(shlex.split(operands))


@cases(CASES["containers_to_start"], "line", "flags", "operands")
def test_the_client_starts_the_same_containers(
    client: Client,
    line: str,
    flags: str,  # noqa: ARG001  of the row, what we read
    operands: str,
) -> None:
    """The client asks its engine for the containers that the table says."""
    paths = [path for path, _ in client.requests(*shlex.split(line))]
    found = [re.search(r"/containers/([^/]+)/(start|restart|json)", path) for path in paths]
    assert [match.group(1) for match in found if match] == operands.split()


def test_nothing_is_made_or_started(client: Client) -> None:
    """A command line that launches nothing is read as such by us and by the client."""
    for line in CASES["launches_nothing"]:
        paths = [path for path, _ in client.requests(*shlex.split(line))]
        command = read(line)
        assert (command.launches, command.starts) == (False, False), line
        assert [path for path in paths if "create" in path or "start" in path] == [], line


def test_a_switch_is_on_as_docker_reads_it(client: Client) -> None:
    """A switch is on as its last mention before the image says, to us and to the client."""
    for flags in ("1", "t", "TRUE", "true --rm=F", "0", "False", "f --rm", "0 --name --rm"):
        line = f"run --rm={flags} img --rm"
        made = client.creates(*line.split())
        assert read(line).says("--rm") == (made and made["HostConfig"]["AutoRemove"]), line


def test_an_unknown_flag_is_refused_by_its_name(client: Client) -> None:
    """An unknown flag, which hides where the image is, is refused by name, as by the client."""
    for line, command, flag in CASES["unknown_flags"]:
        with pytest.raises(UsageError) as refused:
            read(line)
        assert refused.value.message == f"{command}: unknown flag {flag}"
        assert client.requests(*shlex.split(line)) == []


def test_any_command_line_is_read_as_the_client_reads_it(client: Client) -> None:
    """Of 40 generated command lines, hostile ones too, we read what the client reads."""
    for line in lines(1, 40):
        made = client.creates(*line.words, PATH="/bin")
        assert made, shlex.join(line.words)
        command = read(line.words)
        variables = [value.replace("PATH", "PATH=/bin") for value in command.values("-e", "--env")]
        labels = dict((*value.split("=", 1), "")[:2] for value in command.values("-l", "--label"))
        got = (*command.operands, variables, labels)
        want = (made["Image"], *(made["Cmd"] or ()), made["Env"] or [], made["Labels"])
        assert got == want, shlex.join(line.words)


# ------------------------------------------------------------------------------------- asked GPUs


GPUS_VALUES = [
    flags
    for flags, *_ in CASES["asked_by_flags"].values()
    if flags.startswith("--gpus")
    and not any(words in flags for words in ("none", "3,3", "driver=amd"))
]


def test_the_client_understands_gpus_alike(client: Client) -> None:
    """What the installed client asks of its engine for a --gpus, or the last, is what we read."""
    for flags in GPUS_VALUES:
        words = ["run", *shlex.split(flags), "img"]
        asked = asked_gpus(read(words), {})
        assert asked
        *_, request = client.creates(*words)["HostConfig"]["DeviceRequests"]
        ids = tuple(request["DeviceIDs"] or ())
        number = {-1: "all", 0: None}.get(request["Count"], str(request["Count"]))
        want = ("all", (), False) if ids == ("all",) else (number, ids, number is None and not ids)
        assert (asked.number, asked.devices, asked.nothing) == want, flags


def test_what_the_client_refuses_is_refused(client: Client) -> None:
    """A --gpus or a CDI name that the installed client cannot read takes no GPU."""
    for flag, value, why in CASES["refused_by_docker"]:
        said = client.says("run", flag, value, "img")
        assert why.format(value=json.dumps(value)) in said
        with pytest.raises(UsageError, match="^" + re.escape(f"{flag} {value}")):
            asked_gpus(read(["run", flag, value, "img"]), {})


def test_the_hint_about_quotes_can_be_pasted_into_a_shell(client: Client) -> None:
    """What the hint says to write for a device list without quotes of its own is what was meant."""
    with pytest.raises(UsageError) as refused:
        asked_gpus(read("run --gpus device=0,2,capabilities=utility img"), {})
    words = shlex.split(refused.value.hint.partition(": ")[2])
    asked = asked_gpus(read(["run", *words, "img"]), {})
    assert (asked.devices, asked.fields) == (("0", "2"), ("capabilities=utility",))
    (request,) = client.creates("run", *words, "img")["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["0", "2"]


# ------------------------------------------------------------------------------ the GPUs written in


def settled(made: dict[str, Any]) -> tuple[dict[str, str], dict[str, str], Any, Any, Any]:
    """Return a container's final variables and labels, how it gets GPUs, and all else about it."""
    variables = dict((*text.split("=", 1), "")[:2] for text in made.pop("Env") or ())
    host = made["HostConfig"]
    requests = [
        (request["Driver"], request["DeviceIDs"]) for request in host.pop("DeviceRequests") or ()
    ]
    return variables, made.pop("Labels"), requests, host.pop("Runtime", ""), made


def test_the_client_makes_the_same_container_with_these_gpus(client: Client) -> None:
    """Our command line makes the user's own container, but for the leased GPUs."""
    requests = {
        "cdi": [("cdi", ["nvidia.com/gpu=GPU-7", "nvidia.com/gpu=GPU-3"])],
        "gpus": [("", ["GPU-7", "GPU-3"])],
    }
    visible = {"cdi": "void", NO_WAY: "void", "runtime": "GPU-7,GPU-3"}
    for line in lines(11, 10, asking=True):
        theirs = client.creates(*line.without(), PATH="/bin")
        assert theirs, shlex.join(line.words)
        variables, labels, _, runtime, rest = settled(theirs)
        variables |= {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "1,0",
            "GPULAUNCH_LEASE": "L",
            "GPULAUNCH_GPU_COUNT": "2",
        }
        labels |= {"io.gpulaunch.gpus": "GPU-7,GPU-3", "io.gpulaunch.lease": "L"}
        for way in (*WAYS, NO_WAY):
            argv = with_gpus(read(line.words), gpus(7, 3), way)
            got = settled(client.creates(*argv[1:], PATH="/bin"))
            shown = {"NVIDIA_VISIBLE_DEVICES": visible[way]} if way in visible else {}
            named = "nvidia" if way == "runtime" else runtime
            want = (variables | shown, labels, requests.get(way, []), named, rest)
            assert got == want, shlex.join(argv)
