"""Docker's command line, held against the parser of the installed client.

The client talks to an engine that writes down what it is asked for and makes nothing, so these
tests need no engine.
"""

import json
import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engine import SEARCHED, link_compose
from recording_engine import RecordingEngine
from test_docker_command import (
    CASES,
    gpus,
    lines,
    named,
    read,
    share,
    with_gpus,
)
from values import cases

from gpulaunch.containers.command import FlagTable
from gpulaunch.containers.docker.flags import DOCKER
from gpulaunch.containers.docker.gpu_flags import asked_gpus
from gpulaunch.containers.ways import NO_WAY, WAYS
from gpulaunch.errors import UsageError


class Client:
    """The installed docker client, and what it understands of a command line.

    Attributes:
        host: where the engine that makes nothing listens.
    """

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._kind_of = cache(lambda *words: _kind(self.says(*words)))
        self._engine = RecordingEngine(directory)
        self.host = self._engine.host
        self._environment = {
            "DOCKER_HOST": self.host,
            "DOCKER_CONFIG": str(directory),
            "HOME": str(directory),
        }

    def close(self) -> None:
        self._engine.close()

    def says(self, *words: str, **environment: str) -> str:
        """Return everything that the client prints."""
        done = subprocess.run(
            [self._program, *words],
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
            check=False,
        )
        return done.stdout

    def requests(self, *words: str, **environment: str) -> list[tuple[str, Any]]:
        """Return what the client asks of the engine: paths, and documents."""
        self._engine.requests.clear()
        self.says(*words, **environment)
        return [(path, json.loads(body) if body else None) for path, body in self._engine.requests]

    def creates(self, *words: str, **environment: str) -> dict[str, Any] | None:
        """Return the container that a command line makes, or None."""
        asked = self.requests(*words, **environment)
        return next((document for path, document in asked if "/containers/create" in path), None)

    def kinds(self, subcommand: Sequence[str], flags: Iterable[str]) -> dict[str, str]:
        """Return, for the flags that the client's parser knows, "switch" or "value"."""
        flags = list(flags)
        with ThreadPoolExecutor(4) as pool:
            kinds = pool.map(lambda flag: self._kind_of(*subcommand, flag), flags)
            return {flag: kind for flag, kind in zip(flags, kinds, strict=True) if kind}


def _kind(answer: str) -> str | None:
    """Return the kind of flag that the client's answer tells of; None if it is unknown."""
    if "flag needs an argument" in answer:
        return "value"
    if re.search(r"unknown (shorthand )?flag", answer):
        return None
    assert re.search(r"requires at least 1 argument|Usage:|Docker version", answer), answer
    return "switch"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield the client on PATH."""
    program = shutil.which("docker", path=SEARCHED)
    if not program:
        pytest.skip("no docker client is installed")
    directory = tmp_path_factory.mktemp("docker")
    link_compose(directory)
    client = Client(program, directory)
    try:
        yield client
    finally:
        client.close()


COMMANDS = [
    ("docker run", ("run",), DOCKER.run_flags),
    ("docker create", ("create",), DOCKER.run_flags),
    ("docker container run", ("container", "run"), DOCKER.run_flags),
    ("docker container create", ("container", "create"), DOCKER.run_flags),
    ("docker start", ("start",), DOCKER.start_flags),
    ("docker restart", ("restart",), DOCKER.start_flags),
    ("docker container start", ("container", "start"), DOCKER.start_flags),
    ("docker container restart", ("container", "restart"), DOCKER.start_flags),
    ("docker", (), DOCKER.global_flags),
]

COMPOSE_COMMANDS = [
    ("docker compose", (), DOCKER.compose_flags),
    ("docker compose run", ("run",), DOCKER.compose_run_flags),
    *(
        (f"docker compose {word}", (word,), DOCKER.compose_up_flags)
        for word in ("up", "create", "start", "restart")
    ),
]

CHANGING = {
    "--annotation",
    "--health-start-interval",
    "-q",
    "--quiet",
    "--use-api-socket",
    "-s",
    "--signal",
    "--timeout",
}

CHANGING |= {"--disable-content-trust", "--kernel-memory"}
"""Flags that came after docker 20.10, or may go."""

_HELP_LINE = re.compile(r"^ {2}(?:(-\w), | {4})(--[\w-]+)(?: (\S+))?(?: {2,}.*)?$", re.MULTILINE)


def table_kinds(table: FlagTable, flags: Iterable[str]) -> dict[str, str | None]:
    """Return, for each flag, what a table says of it: "switch", "value" or None."""
    return {
        flag: "switch" if flag in table.switches else "value" if flag in table.valued else None
        for flag in flags
    }


@pytest.mark.parametrize(("subcommand", "table"), named(COMMANDS))
def test_every_flag_in_the_clients_help_is_known_with_and_without_value_as_it_says(
    client: Client, subcommand: tuple[str, ...], table: FlagTable
) -> None:
    """Every flag in the installed client's help is a switch or takes a value as it shows."""
    text = client.says(*subcommand, "--help")
    want = {
        flag: "value" if kind else "switch"
        for short, long, kind in _HELP_LINE.findall(text)
        for flag in (short, long)
        if flag
    }
    got = table_kinds(table, want)
    assert text.count(" --") >= len([flag for flag in want if flag.startswith("--")]) > 1
    assert got == want


@pytest.mark.parametrize(("subcommand", "table"), named(COMPOSE_COMMANDS))
def test_every_flag_in_composes_help_is_known(
    client: Client, subcommand: tuple[str, ...], table: FlagTable
) -> None:
    """Every flag in the help of the installed docker compose is in the table, and of its kind."""
    text = client.says("compose", *subcommand, "--help")
    if "docker compose" not in text:
        pytest.skip("not installed: docker compose")
    want = {
        flag: "value" if kind else "switch"
        for short, long, kind in _HELP_LINE.findall(text)
        for flag in (short, long)
        if flag
    }
    assert "--dry-run" in want
    assert table_kinds(table, want) == want


@pytest.mark.parametrize(
    ("subcommand", "table"), named([row for row in COMMANDS if row[1][:1] != ("container",)])
)
def test_the_clients_parser_takes_each_flag_of_the_table_and_each_letter_as_the_table_does(
    client: Client, subcommand: tuple[str, ...], table: FlagTable
) -> None:
    """Every flag or letter that the client's own parser knows is to it what our table says."""
    letters = {f"-{letter}" for letter in string.ascii_letters + string.digits}
    want = client.kinds(subcommand, sorted(table.switches | table.valued | letters))
    got = table_kinds(table, want)
    assert got == want


@pytest.mark.parametrize(
    ("subcommands", "table"),
    named(
        [
            ("run and create", (("run",), ("create",)), DOCKER.run_flags),
            ("start and restart", (("start",), ("restart",)), DOCKER.start_flags),
            ("before the subcommand", ((),), DOCKER.global_flags),
        ]
    ),
)
def test_the_table_invents_no_flag(
    client: Client, subcommands: tuple[tuple[str, ...], ...], table: FlagTable
) -> None:
    """The client knows each flag of our table, except for those that not every version has."""
    known = {
        flag
        for subcommand in subcommands
        for flag in client.kinds(subcommand, table.switches | table.valued)
    }
    got = (table.switches | table.valued) - known - CHANGING
    assert got == set()


@cases(CASES["flags_and_operands"], "line", "flags", "operands")
def test_the_client_finds_the_same_image(
    client: Client,
    line: str,
    flags: str,  # noqa: ARG001  of the row, what we read
    operands: str,
) -> None:
    """The client asks its engine for the image and command that the table says."""
    made = client.creates(*shlex.split(line.replace("SOCKET", client.host)))
    got = made and (made["Image"], *(made["Cmd"] or ()))
    assert got == tuple(shlex.split(operands))


@pytest.mark.parametrize(
    "line",
    named(
        [
            ("no words", ""),
            ("no image", "run"),
            ("flags without an image", "run -d --rm"),
            ("nothing after --", "run --"),
            ("help", "run --help img"),
            ("help after other flags", "run -d --help img"),
            ("help that is on at last", "run --help=false --help img"),
            ("a value that is missing", "run --gpus"),
            ("a letter's value that is missing", "run -dv"),
            ("a name that takes the image", "run --name img"),
            ("another command", "ps -a"),
            ("another command with flags that run does not have", "ps --no-trunc -n 3"),
            ("exec of a command called run", "exec box run img"),
            ("another command of container", "container ls"),
            ("container alone", "container"),
            ("another case", "RUN img"),
            ("the version", "--version"),
            ("help that ends with --", "container -- run img"),
        ]
    ),
)
def test_no_container_is_made(client: Client, line: str) -> None:
    """A command line that makes no container launches nothing, as for the installed client."""
    got = (read(line).launches, client.creates(*shlex.split(line)))
    assert got == (False, None)


@cases(CASES["containers_to_start"], "line", "flags", "operands")
def test_the_client_starts_the_same_containers(
    client: Client,
    line: str,
    flags: str,  # noqa: ARG001  of the row, what we read
    operands: str,
) -> None:
    """The client asks its engine for the containers that the table says."""
    paths = [path for path, _ in client.requests(*shlex.split(line))]
    got = [
        found.group(1)
        for path in paths
        if (found := re.search(r"/containers/([^/]+)/(start|restart|json)", path))
    ]
    assert got == operands.split()


@pytest.mark.parametrize(
    "line",
    named(
        [
            ("none named", "start"),
            ("only flags", "restart -t 3"),
            ("help", "start --help x"),
            ("help after a container", "start x --help"),
            ("help by its old letter", "start -h x"),
            ("another command", "stop x"),
        ]
    ),
)
def test_nothing_is_started(client: Client, line: str) -> None:
    """A command line that starts no container is read as such by us and by the client."""
    started = [path for path, _ in client.requests(*shlex.split(line)) if "start" in path]
    got = (read(line).starts, started)
    assert got == (False, [])


@pytest.mark.parametrize(
    ("line", "want"),
    named(
        [
            ("--rm", "run --rm img", True),
            *(
                (f"--rm={yes}", f"run --rm={yes} img", True)
                for yes in ("1", "t", "T", "true", "True", "TRUE")
            ),
            *(
                (f"--rm={no}", f"run --rm={no} img", False)
                for no in ("0", "f", "F", "false", "False", "FALSE")
            ),
            ("the last one counts", "run --rm --rm=false img", False),
            ("and may be on", "run --rm=false --rm img", True),
            ("none", "run img", False),
            ("as a value", "run --name --rm img", False),
            ("after the image", "run img --rm", False),
        ]
    ),
)
def test_a_switch_is_on_as_docker_reads_it(client: Client, line: str, want: bool) -> None:
    """A switch is on as its last mention before the image says, to us and to the client."""
    made = client.creates(*shlex.split(line))
    got = (read(line).says("--rm"), made and made["HostConfig"]["AutoRemove"])
    assert got == (want, want)


@pytest.mark.parametrize(
    ("line", "command", "flag"),
    named(
        [
            ("long", "run --nosuch img", "docker run", "--nosuch"),
            ("long, before a known one", "run --nosuch --rm img", "docker run", "--nosuch"),
            ("a beginning of a known one", "run --detac img", "docker run", "--detac"),
            ("a known one in capitals", "run --RM img", "docker run", "--RM"),
            ("short", "run -Z img", "docker run", "-Z"),
            ("in a cluster", "run -itZ img", "docker run", "-Z"),
            ("at the start of a cluster", "run -Zit img", "docker run", "-Z"),
            ("an = that sets nothing", "run -d= img", "docker run", "-="),
            ("three dashes", "run ---rm img", "docker run", "---rm"),
            ("a global one after the subcommand", "run --debug img", "docker run", "--debug"),
            ("of create", "create --nosuch img", "docker create", "--nosuch"),
            ("of container run", "container run -Z img", "docker container run", "-Z"),
            ("of start, after a container", "start x --nosuch", "docker start", "--nosuch"),
            ("of restart", "restart -Z x", "docker restart", "-Z"),
            ("before the subcommand", "--nosuch run img", "docker", "--nosuch"),
            ("in a cluster before the subcommand", "-DZ run img", "docker", "-Z"),
        ]
    ),
)
def test_an_unknown_flag_is_refused_by_its_name(
    client: Client, line: str, command: str, flag: str
) -> None:
    """An unknown flag, which hides where the image is, is refused by name, as by the client."""
    with pytest.raises(UsageError) as refused:
        read(line)
    got = (refused.value.message, client.requests(*shlex.split(line)))
    assert got == (f"{command}: unknown flag {flag}", [])


@pytest.mark.parametrize("seed", range(6))
def test_any_command_line_is_read_as_the_client_reads_it(client: Client, seed: int) -> None:
    """Of 30 generated command lines a seed, hostile ones too, we read what the client reads."""
    for line in lines(seed, 30):
        made = client.creates(*line.words, PATH="/bin")
        assert made, shlex.join(line.words)
        command = read(line.words)
        variables = [value.replace("PATH", "PATH=/bin") for value in command.values("-e", "--env")]
        labels = dict((*value.split("=", 1), "")[:2] for value in command.values("-l", "--label"))
        got = (*command.operands, variables, labels)
        want = (made["Image"], *(made["Cmd"] or ()), made["Env"] or [], made["Labels"])
        assert got == want, shlex.join(line.words)


GPUS_VALUES = [
    flags
    for flags, *_ in CASES["asked_by_flags"].values()
    if flags.startswith("--gpus")
    and not any(words in flags for words in ("none", "3,3", "driver=amd"))
]


@pytest.mark.parametrize("flags", GPUS_VALUES)
def test_the_client_understands_gpus_alike(client: Client, flags: str) -> None:
    """What the installed client asks of its engine for a --gpus, or the last, is what we read."""
    words = ["run", *shlex.split(flags), "img"]
    asked = asked_gpus(read(words), {})
    assert asked
    got = (asked.number, asked.devices, asked.nothing)
    *_, request = client.creates(*words)["HostConfig"]["DeviceRequests"]
    ids = tuple(name.removeprefix("nvidia.com/gpu=") for name in request["DeviceIDs"] or ())
    number = {-1: "all", 0: None}.get(request["Count"], str(request["Count"]))
    want = ("all", (), False) if ids == ("all",) else (number, ids, number is None and not ids)
    assert got == want


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "1.5",
        "count=x",
        "count=",
        "device",
        "2,2",
        "all,all",
        "count=2,count=2",
        "device=0,device=1",
        "driver=nvidia,driver=nvidia",
        "colour=red",
        "all, capabilities=utility",
        'device="0,2"',
        '"device=0,2"x',
        '"device=0,2',
    ],
)
def test_a_gpus_that_the_client_refuses_is_refused(client: Client, value: str) -> None:
    """A --gpus that the installed client cannot read takes no GPU."""
    assert f"invalid argument {json.dumps(value)} for " in client.says(
        "run", "--gpus", value, "img"
    )
    with pytest.raises(UsageError, match="^" + re.escape(f"--gpus {value}")):
        asked_gpus(read(["run", "--gpus", value, "img"]), {})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nvidia.com/gpu=0,1", id="a list"),
        pytest.param("nvidia.com/gpu=", id="no name"),
    ],
)
def test_a_device_that_the_client_refuses_is_refused(client: Client, name: str) -> None:
    """A CDI name that is none, so that the client takes it for a path, takes no GPU."""
    assert "is not an absolute path" in client.says("run", "--device", name, "img")
    with pytest.raises(UsageError):
        asked_gpus(read(["run", "--device", name, "img"]), {})


@pytest.mark.parametrize(
    ("value", "want"),
    named(
        [
            ("indices", "device=0,2", (("0", "2"), ())),
            ("three of them", "device=0,2,3", (("0", "2", "3"), ())),
            ("UUIDs", "device=GPU-a,GPU-b", (("GPU-a", "GPU-b"), ())),
            ("quotes in the wrong place", 'device="0,2"', (("0", "2"), ())),
            (
                "more after the devices",
                "device=0,2,capabilities=utility",
                (("0", "2"), ("capabilities=utility",)),
            ),
        ]
    ),
)
def test_the_hint_about_quotes_can_be_pasted_into_a_shell(
    client: Client, value: str, want: tuple
) -> None:
    """What the hint says to write for a device list without quotes of its own is what was meant."""
    with pytest.raises(UsageError) as refused:
        asked_gpus(read(["run", "--gpus", value, "img"]), {})
    assert refused.value.hint
    words = shlex.split(refused.value.hint.partition(": ")[2])
    asked = asked_gpus(read(["run", *words, "img"]), {})
    assert asked
    got = (asked.devices, asked.fields)
    assert got == want
    (request,) = client.creates("run", *words, "img")["HostConfig"]["DeviceRequests"]
    assert tuple(request["DeviceIDs"]) == want[0]


def settled(made: dict[str, Any]) -> tuple[dict[str, str], dict[str, str], Any, Any, Any]:
    """Return a container's final variables and labels, how it gets GPUs, and all else about it."""
    variables = dict((*text.split("=", 1), "")[:2] for text in made.pop("Env") or ())
    return (
        variables,
        made.pop("Labels"),
        made["HostConfig"].pop("DeviceRequests"),
        made["HostConfig"].pop("Runtime", ""),
        made,
    )


@pytest.mark.parametrize("way", [*WAYS, NO_WAY])
def test_the_client_makes_the_same_container_with_these_gpus(client: Client, way: str) -> None:
    """Our command line makes the user's own container, but for the leased GPUs."""
    requests = {
        "cdi": ("cdi", ["nvidia.com/gpu=GPU-7", "nvidia.com/gpu=GPU-3"]),
        "gpus": ("", ["GPU-7", "GPU-3"]),
    }
    visible = {"cdi": "void", NO_WAY: "void", "runtime": "GPU-7,GPU-3"}
    for line in lines(11, 20, asking=True):
        ours = client.creates(
            *with_gpus(read(line.words), gpus(7, 3), way, "L", None)[1:], PATH="/bin"
        )
        theirs = client.creates(*line.without(), PATH="/bin")
        assert ours, shlex.join(line.words)
        assert theirs, shlex.join(line.words)
        variables, labels, devices, runtime, rest = settled(ours)
        got_devices = [(request["Driver"], request["DeviceIDs"]) for request in devices or ()]
        got = (variables, labels, got_devices, runtime, rest)
        variables, labels, _, runtime, rest = settled(theirs)
        variables |= {"NVIDIA_VISIBLE_DEVICES": visible[way]} if way in visible else {}
        variables |= {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "1,0",
            "GPULAUNCH_LEASE": "L",
            "GPULAUNCH_GPU_COUNT": "2",
        }
        labels |= {"io.gpulaunch.gpus": "GPU-7,GPU-3", "io.gpulaunch.lease": "L"}
        want_devices = [requests[way]] if way in requests else []
        want = (variables, labels, want_devices, "nvidia" if way == "runtime" else runtime, rest)
        assert got == want, shlex.join(line.words)


@pytest.mark.parametrize("way", [*WAYS, NO_WAY])
@pytest.mark.parametrize(
    "line",
    named(
        [
            ("nothing said", "run img"),
            ("all by the user", "run -e NVIDIA_VISIBLE_DEVICES=all img"),
            ("all from the environment", "run -e NVIDIA_VISIBLE_DEVICES img"),
            ("all of them asked", "run --gpus all img"),
        ]
    ),
)
def test_no_image_is_left_to_see_all_gpus(client: Client, way: str, line: str) -> None:
    """Whatever an image or the user says, the container's variable is the leased GPUs, or void."""
    argv = with_gpus(read(line), gpus(3), way, "L", None)
    made = client.creates(*argv[1:], NVIDIA_VISIBLE_DEVICES="all")
    assert made
    variables, _, devices, _, _ = settled(made)
    if way == "gpus":  # then the engine itself sets the variable, after all others
        assert [request["DeviceIDs"] for request in devices] == [["GPU-3"]]
    else:
        assert variables["NVIDIA_VISIBLE_DEVICES"] == ("GPU-3" if way == "runtime" else "void")


@pytest.mark.parametrize(
    "value",
    [
        "2,driver=nvidia",
        '2,"capabilities=compute,utility"',
        "2,options=a=b",
        '2,"options=a=b,c=d"',
        '2,"options=""a=1,b"",c=d"',
    ],
)
def test_the_other_fields_of_gpus_reach_the_engine(client: Client, value: str) -> None:
    """A --gpus keeps driver, capabilities and options when its count has become devices."""
    command = read(["run", "--gpus", value, "img"])
    argv = with_gpus(command, gpus(0, 2), "gpus", None, asked_gpus(command, {}))
    made = [client.creates(*words[1:]) for words in (argv, command.argv)]
    got, want = (document and document["HostConfig"]["DeviceRequests"][0] for document in made)
    assert got == want | {"Count": 0, "DeviceIDs": ["GPU-0", "GPU-2"]}


def test_the_client_mounts_the_daemons_directory(client: Client) -> None:
    """The client mounts directory and /dev/shm under their own names, as they are."""
    directory = "/tmp/a b:c"
    argv = with_gpus(
        read("run img"), gpus(0), NO_WAY, "L", None, share("GPU-0", directory=directory)
    )
    made = client.creates(*argv[1:])
    assert made
    got = [
        (mount["Type"], mount["Source"], mount["Target"]) for mount in made["HostConfig"]["Mounts"]
    ]
    assert got == [("bind", directory, directory), ("bind", "/dev/shm", "/dev/shm")]
    assert not any(mount.get("ReadOnly") for mount in made["HostConfig"]["Mounts"])
