"""Docker's command line, read and written, by tables.

command/test_docker_client.py holds the same tables against the installed client.
"""

import random
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import command_lines
import pytest
from values import box

from gpulaunch.containers import container_launch
from gpulaunch.containers.command import ContainerCommand, read_command
from gpulaunch.containers.docker.answers import parse_container
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.docker.flags import DOCKER
from gpulaunch.containers.docker.gpu_flags import allowed_ways, asked_by_image, asked_gpus
from gpulaunch.containers.engine import Asked, Image, Info
from gpulaunch.containers.life import Container, Standing
from gpulaunch.containers.mps_client import SharingConditions, check_sharing
from gpulaunch.containers.ways import NO_WAY, WAYS, Offer
from gpulaunch.errors import UsageError
from gpulaunch.leases.share import Client as MpsClient
from gpulaunch.leases.share import Objective, Share
from gpulaunch.machine.gpu import Gpu
from gpulaunch.profiles.demand import Demand

PUBLIC = command_lines.for_clients("docker", "nvidia-docker")


def named(rows: Iterable[tuple]) -> list:
    """Name each row by its first column, the sentence that it proves."""
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


def read(line: str | Sequence[str]) -> ContainerCommand:
    """Read what follows the word docker; a string is split as a shell would."""
    return read_command(("docker", *(shlex.split(line) if isinstance(line, str) else line)), DOCKER)


# ---------------------------------------------------------------------------------- the flag tables


def test_no_flag_is_both_a_switch_and_valued() -> None:
    """A flag stands in one half of its table only."""
    got = [
        table.switches & table.valued
        for table in (DOCKER.run_flags, DOCKER.start_flags, DOCKER.global_flags)
    ]
    assert got == [set(), set(), set()]


# -------------------------------------------------------------------------------- finding the image

LINES = [
    ("an image alone", "run img", "", "img"),
    ("an image and its command", "run img sh -c 'a b'", "", "img sh -c 'a b'"),
    ("switches take no word", "run -d --rm --init img", "-d --rm --init", "img"),
    ("the word after a switch is the image", "run --rm false img", "--rm", "false img"),
    ("a cluster of switches", "create -it img", "-i -t", "img"),
    ("a cluster with detach", "run -dit img", "-d -i -t", "img"),
    (
        "a cluster whose last letter takes the next word",
        "create -itv X:/Y img",
        "-i -t -v=X:/Y",
        "img",
    ),
    (
        "a cluster whose last letter has its value joined",
        "create -itvX:/Y img",
        "-i -t -v=X:/Y",
        "img",
    ),
    (
        "a cluster whose last letter has its value after =",
        "create -itv=X:/Y img",
        "-i -t -v=X:/Y",
        "img",
    ),
    ("the letters of a joined value are no flags", "create -vid:/Pit img", "-v=id:/Pit", "img"),
    ("-e with the next word", "run -e K=V img", "-e=K=V", "img"),
    ("-eK=V", "run -eK=V img", "-e=K=V", "img"),
    ("-e=K=V", "run -e=K=V img", "-e=K=V", "img"),
    ("a value of two = signs", "run -e K==V --env=L==W img", "-e=K==V --env=L==W", "img"),
    ("a switch that is set to false", "run -d=false img", "-d=false", "img"),
    ("a switch within a cluster that is set", "create -it=false img", "-i -t=false", "img"),
    ("a long switch that is set", "run --init=0 --rm=T img", "--init=0 --rm=T", "img"),
    ("-h is the host's name", "run -h box img", "-h=box", "img"),
    ("-c is a share of CPUs", "run -c 512 img", "-c=512", "img"),
    ("-- ends the flags", "run -d -- img --gpus all", "-d", "img --gpus all"),
    ("-- after the image is the command's", "run img -- -x", "", "img -- -x"),
    ("a second -- is the command's", "run -- img -- x", "", "img -- x"),
    ("a value that is --", "run --name -- img", "--name=--", "img"),
    ("an empty value", "run --hostname= -w '' img", "--hostname= -w=", "img"),
    ("--name=--gpus", "run --name=--gpus img", "--name=--gpus", "img"),
    ("--name --gpus", "run --name --gpus img", "--name=--gpus", "img"),
    ("--name --gpus=all", "run --name --gpus=all img", "--name=--gpus=all", "img"),
    ("a variable called --gpus", "run -e --gpus=3 img", "-e=--gpus=3", "img"),
    ("a variable called -d", "run -e -d img", "-e=-d", "img"),
    ("a value that is a single dash", "run -u - img", "-u=-", "img"),
    ("an entry point called run", "run --entrypoint run img", "--entrypoint=run", "img"),
    ("an image called run", "run run", "", "run"),
    ("an image called run and a command called create", "run run create img", "", "run create img"),
    ("an image called docker", "run -d docker run img", "-d", "docker run img"),
    ("a command with --gpus all", "run img python --gpus all", "", "img python --gpus all"),
    ("a command of flags", "run img --gpus all -e A=B --help", "", "img --gpus all -e A=B --help"),
    ("an empty command", "run img ''", "", "img ''"),
    ("--help that is off", "run --help=false img", "--help=false", "img"),
    (
        "flags that help does not show",
        "create --net=none --dns-opt x img",
        "--net=none --dns-opt=x",
        "img",
    ),
    ("docker create", "create --name n img cmd", "--name=n", "img cmd"),
    ("docker container run", "container run -d img cmd", "-d", "img cmd"),
    ("docker container create", "container create -it img cmd", "-i -t", "img cmd"),
    ("docker container run of an image called run", "container run run", "", "run"),
    ("-H before the subcommand", "-H SOCKET run img", "", "img"),
    ("--host= before the subcommand", "--host=SOCKET run img", "", "img"),
    ("-c before the subcommand", "-c default run img", "", "img"),
    ("--context before the subcommand", "--context default run img", "", "img"),
    ("--config before the subcommand", "--config /nonexistent run img", "", "img"),
    ("a cluster before the subcommand", "-Dlerror run img", "", "img"),
    ("-D before the subcommand", "-D run -d img", "-d", "img"),
    ("--debug --tls=false before the subcommand", "--debug --tls=false create img", "", "img"),
    ("a global value that is called run", "--config run run img", "", "img"),
    ("--help before the subcommand changes nothing", "--help run img", "", "img"),
    ("-h before the subcommand changes nothing", "-h run img", "", "img"),
    ("--version before the subcommand changes nothing", "--version run img", "", "img"),
    ("-- before the subcommand", "-- run img", "", "img"),
    ("-- after global flags", "-D -- container run img", "", "img"),
    ("--help between container and run changes nothing", "container --help run img", "", "img"),
    ("--help=false between container and run", "container --help=false run -d img", "-d", "img"),
]


def flags_text(command: ContainerCommand) -> str:
    """Return flags as they were read, each with its value after =."""
    return " ".join(
        flag.name if flag.value is None else f"{flag.name}={flag.value}" for flag in command.flags
    )


@pytest.mark.parametrize(("line", "flags", "operands"), named(LINES))
def test_flags_end_where_docker_ends_them(line: str, flags: str, operands: str) -> None:
    """Flags are read with their values; what follows them is image and command, word for word."""
    command = read(line)
    got = (command.launches, flags_text(command), command.operands)
    assert got == (True, flags, tuple(shlex.split(operands)))


@pytest.mark.parametrize(
    ("line", "operands"),
    named(
        [
            ("a single dash is no flag", "run -i - img", ("-", "img")),
            ("nor is an empty word", "run '' img", ("", "img")),
            ("--tls and --tlsverify take no word", "--tls --tlsverify run img", ("img",)),
            ("--tlscacert takes one", "--tlscacert run run img", ("img",)),
            ("an unknown flag with = is passed on", "run --unknown=value img", ("img",)),
            ("even if its value looks like a flag", "run --unknown=--gpus img", ("img",)),
            ("an unknown letter with = too", "run -iZ=3 img", ("img",)),
            ("and one before the subcommand", "--unknown=value run img", ("img",)),
        ]
    ),
)
def test_what_docker_would_refuse_later_is_still_read(line: str, operands: tuple[str, ...]) -> None:
    """What docker refuses for reasons other than where its image is reads without an error."""
    got = read(line).operands
    assert got == operands


STARTS = [
    ("one", "start x", "", "x"),
    ("several", "start x y", "", "x y"),
    ("with container", "container start x", "", "x"),
    ("attached", "start -ai x", "-a -i", "x"),
    ("a value", "start --detach-keys ctrl-x x", "--detach-keys=ctrl-x", "x"),
    ("after --", "start x -- -a", "", "x -a"),
    ("restart", "restart x y", "", "x y"),
    ("restart with a flag among containers", "restart x -t 3 y", "-t=3", "x y"),
    ("restart with a joined value", "restart -t3 x", "-t=3", "x"),
    ("restart with a flag at the end", "container restart x --time 3", "--time=3", "x"),
    ("a container called -t, after --", "restart -- -t", "", "-t"),
    ("help that is off", "restart --help=false x", "--help=false", "x"),
]


@pytest.mark.parametrize(("line", "flags", "operands"), named(STARTS))
def test_containers_to_start_are_found_among_flags(line: str, flags: str, operands: str) -> None:
    """Flags of start and restart may stand anywhere among the containers."""
    command = read(line)
    got = (command.starts, command.launches, flags_text(command), " ".join(command.operands))
    assert got == (True, False, flags, operands)


@pytest.mark.parametrize(
    ("line", "want"),
    named(
        [
            ("-H", "-H a run img", "a"),
            ("--host=", "--host=a run img", "a"),
            ("-Ha", "-Ha run img", "a"),
            ("the last one counts", "-H a --host b run img", "b"),
            ("none", "run -h a img", None),
            ("not the subcommand's", "run --hostname a img -H b", None),
        ]
    ),
)
def test_a_global_flag_is_found_before_the_subcommand_only(line: str, want: str | None) -> None:
    """The engine's address comes from a flag before the subcommand, the last one."""
    got = read(line).global_value("-H", "--host")
    assert got == want


def test_public_lines_are_read() -> None:
    """The flags of public command lines are known, and the image is found wherever there is one."""
    got = [line.line for line in PUBLIC if not read_command(line.words, DOCKER).launches]
    assert got == ["nvidia-docker run -it --rm -v nvcr.io/nvidia/vllm:25.08-py3"]


def test_public_lines_differ() -> None:
    """No two public command lines differ in their images alone."""
    read_lines = [(line, read_command(line.words, DOCKER)) for line in PUBLIC]
    ways = Counter(
        (line.line.partition(" ")[0], *line.environment.items(), *line.words[: read.flags_end])
        for line, read in read_lines
    )
    got = [way for way, count in ways.items() if count > 1]
    assert got == []


# ---------------------------------------------------------------------------------- what is refused


def test_the_hint_about_an_unknown_flag_leads_on() -> None:
    """What the hint about an unknown flag says to write is read."""
    with pytest.raises(UsageError) as refused:
        read("run --new-in-docker-40 x img")
    assert refused.value.hint == "a flag that is new in docker is written --new-in-docker-40=VALUE"
    got = read("run --new-in-docker-40=x img").operands
    assert got == ("img",)


def test_an_unknown_flag_is_safe_to_print() -> None:
    """Control characters in an unknown flag reach no terminal."""
    with pytest.raises(UsageError) as refused:
        read(["run", "--\x1b[31m", "img"])
    assert refused.value.message == r"docker run: unknown flag --\x1b[31m"


@pytest.mark.parametrize(
    ("line", "word", "operands"),
    named(
        [
            ("up", "compose up", "up", ""),
            ("up with flags", "compose up -d --build web", "up", "web"),
            ("flags after services", "compose up web -d db -t 3", "up", "web db"),
            ("after a file", "compose -f a.yml --file=b.yml up", "up", ""),
            ("a project called ps", "compose -p ps run -w /x web up -d", "run", "web up -d"),
            ("after global flags", "-D -H x compose --verbose start", "start", ""),
            ("restart", "compose restart -t 3 web", "restart", "web"),
            ("create", "compose create --scale a=2", "create", ""),
        ]
    ),
)
def test_compose_commands_that_start_containers(line: str, word: str, operands: str) -> None:
    """What docker compose starts containers with is read with its services."""
    command = read(line)
    got = (command.composes, command.subcommand, command.operands)
    assert got == (True, ("compose", word), tuple(operands.split()))


@pytest.mark.parametrize("word", ["scale", "watch"])
def test_compose_starts_nothing_without_leases(word: str) -> None:
    """What starts containers and is not built is refused."""
    with pytest.raises(UsageError) as refused:
        read(["compose", word, "web=2"])
    assert (
        refused.value.message
        == f"'docker compose {word}' is not built yet: no leases for its containers"
    )


@pytest.mark.parametrize(
    "line",
    named(
        [
            ("ps", "compose ps"),
            ("a project called up", "compose -p up ps"),
            ("down", "compose -f a.yml down --volumes"),
            ("a service called up", "compose logs up"),
            ("alone", "compose"),
            ("help of up", "compose up --help"),
            ("a trial", "compose --dry-run create"),
            ("a trial by up's own flag", "compose up web --dry-run"),
        ]
    ),
)
def test_what_else_compose_does_is_dockers_own(line: str) -> None:
    """Docker compose passes as long as it starts nothing."""
    command = read(line)
    got = (command.argv[1:], command.launches, command.starts, command.composes)
    assert got == (tuple(shlex.split(line)), False, False, False)


# ---------------------------------------------------------------------------------- generated lines

HARMLESS = {
    **dict.fromkeys(("--add-host",), ("h:10.0.0.1",)),
    **dict.fromkeys(("-c", "--cpu-shares"), ("512",)),
    **dict.fromkeys(
        ("-e", "--env"), ("A=B=C", "--gpus=3", "-d", "--", "PATH", "A=--rm", "run=img")
    ),
    **dict.fromkeys(("-h", "--hostname", "--domainname"), ("box", "--gpus", "--device", "-", "")),
    **dict.fromkeys(("-l", "--label"), ("a=b", "--device=nvidia.com/gpu=0", "--gpus", "img")),
    **dict.fromkeys(
        ("-m", "--memory", "--memory-reservation", "--memory-swap", "--shm-size"), ("1g",)
    ),
    **dict.fromkeys(("-p", "--publish"), ("8080:80", "127.0.0.1:80:80/tcp")),
    **dict.fromkeys(("-u", "--user"), ("1000:1000", "-", "--rm")),
    **dict.fromkeys(("-v", "--volume"), ("/a:/b:ro", "name:/it", "--gpus:/x")),
    **dict.fromkeys(("-w", "--workdir"), ("/x", "--", "-it", "")),
    **dict.fromkeys(("--name",), ("n", "--gpus", "--", "run", "-d")),
    **dict.fromkeys(("--entrypoint",), ("run", "sh", "--gpus", "img")),
    **dict.fromkeys(("--health-cmd",), ("docker run img", "--gpus all")),
    **dict.fromkeys(("--health-interval", "--health-timeout", "--health-start-period"), ("3s",)),
    **dict.fromkeys(
        ("--cpu-period", "--cpu-quota", "--memory-swappiness", "--oom-score-adj"), ("50",)
    ),
    **dict.fromkeys(("--pids-limit", "--stop-timeout"), ("3", "-1")),
    **dict.fromkeys(("--device-read-bps", "--device-write-bps"), ("/dev/null:1mb",)),
    **dict.fromkeys(("--device-read-iops", "--device-write-iops"), ("/dev/null:100",)),
    **dict.fromkeys(("--dns",), ("10.0.0.1",)),
    **dict.fromkeys(("--dns-opt", "--dns-option", "--dns-search"), ("x",)),
    **dict.fromkeys(("--env-file", "--label-file"), ("/dev/null",)),
    "--ipc": ("none",),
    **dict.fromkeys(("--pid", "--uts", "--userns", "--cgroupns"), ("host",)),
    "--cap-add": ("ALL",),
    "--cap-drop": ("NET_RAW",),
    "--cgroup-parent": ("x", "--gpus"),
    "--cpus": ("1.5",),
    "--cpuset-cpus": ("0-1",),
    "--device": ("/dev/null", "/dev/null:/dev/x:r"),
    "--device-cgroup-rule": ("c 1:3 rwm",),
    "--expose": ("80",),
    "--group-add": ("video", "--gpus"),
    "--mac-address": ("92:d0:c6:0a:29:33",),
    "--mount": ("type=tmpfs,target=/x",),
    "--platform": ("linux/amd64",),
    "--pull": ("never",),
    "--restart": ("on-failure:3",),
    "--security-opt": ("no-new-privileges",),
    "--stop-signal": ("TERM",),
    "--sysctl": ("net.ipv4.ip_forward=1",),
    "--tmpfs": ("/x",),
    "--ulimit": ("memlock=-1",),
    "--volumes-from": ("other", "--gpus"),
}
SWITCHES = (
    "-i",
    "-P",
    "-t",
    "--init",
    "--interactive",
    "--oom-kill-disable",
    "--privileged",
    "--read-only",
    "--tty",
)
IMAGES = ("img", "run", "docker", "registry:5000/a/b:c", "create", "gpus")
TAILS = (
    "",
    "sh",
    "--gpus all",
    "-- x",
    "-it run img",
    "python t.py --device nvidia.com/gpu=1 -e A=B",
    "''",
    "docker run -d x",
)
ASKING = (
    ("--gpus", "all"),
    ("--gpus=2",),
    ("--gpus", '"device=0,2"'),
    ("--device", "nvidia.com/gpu=0"),
    ("--device=nvidia.com/gpu=all",),
)


class Line(NamedTuple):
    """A generated command line.

    Attributes:
        head: up to the subcommand, without the word docker.
        flags: each with its value; those that ask for GPUs are among ASKING.
        dashes: whether -- ends them.
        tail: image and command.
    """

    head: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    dashes: tuple[str, ...]
    tail: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return (
            *self.head,
            *(word for flag in self.flags for word in flag),
            *self.dashes,
            *self.tail,
        )

    def without(self, *added: str) -> tuple[str, ...]:
        """Return the words without those that ask for GPUs, and with others after the flags."""
        kept = [word for flag in self.flags if flag not in ASKING for word in flag]
        return (*self.head, *kept, *added, *self.dashes, *self.tail)


def lines(seed: int, count: int, *, asking: bool = False) -> list[Line]:
    """Draw command lines, always the same for a seed."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        head = dice.choice(
            [("run", "-d"), ("create",), ("container", "run", "-d"), ("container", "create")]
        )
        head = (
            *dice.choice(
                [(), (), ("-D",), ("--log-level", "error"), ("--config", "run"), ("-lerror",)]
            ),
            *head,
        )
        flags = [_flag(dice) for _ in range(dice.randrange(9))]
        if asking:
            flags += [dice.choice(ASKING) for _ in range(dice.randrange(3))]
            dice.shuffle(flags)
        tail = (dice.choice(IMAGES), *shlex.split(dice.choice(TAILS)))
        found.append(Line(head, tuple(flags), dice.choice([(), (), ("--",)]), tail))
    return found


def _flag(dice: random.Random) -> tuple[str, ...]:
    """Draw one flag in one of the forms that docker takes, or a cluster."""
    if dice.random() < 0.25:
        name = dice.choice(SWITCHES)
        return (name + dice.choice(["", "", "=false", "=T"]),)
    name = dice.choice(list(HARMLESS))
    value = dice.choice(HARMLESS[name])
    if name.startswith("--"):
        return dice.choice([(name, value), (f"{name}={value}",)])
    cluster = "-" + dice.choice(["", "i", "it", "tiP"]) + name[1]
    if value and not value.startswith("="):
        return dice.choice([(cluster, value), (f"{cluster}{value}",), (f"{cluster}={value}",)])
    return (cluster, value)


# -------------------------------------------------------------------------------- what is asked for

ONE_UUID = "GPU-00000000-1111-2222-3333-444444444444"

ASKED = [
    ("nothing", "", {}, None),
    ("a device that is no GPU", "--device /dev/fuse --device vendor.com/net=0", {}, None),
    ("a count", "--gpus 2", {}, Asked("--gpus 2", number="2")),
    ("a count after =", "--gpus=2", {}, Asked("--gpus 2", number="2")),
    ("a count by its key", "--gpus count=2", {}, Asked("--gpus count=2", number="2")),
    ("all", "--gpus all", {}, Asked("--gpus all", number="all")),
    ("all twice", "--gpus=all --gpus all", {}, Asked("--gpus all", number="all")),
    ("a count twice", "--gpus=2 --gpus 2", {}, Asked("--gpus 2", number="2")),
    ("0 after all", "--gpus all --gpus 0", {}, Asked("--gpus 0", nothing=True)),
    ("all after a list", "--gpus device=1 --gpus -1", {}, Asked("--gpus -1", number="all")),
    ("all by its key", "--gpus count=all", {}, Asked("--gpus count=all", number="all")),
    ("-1 is all", "--gpus -1", {}, Asked("--gpus -1", number="all")),
    ("0 is none", "--gpus 0", {}, Asked("--gpus 0", nothing=True)),
    ("0 by its key is none", "--gpus=count=0", {}, Asked("--gpus count=0", nothing=True)),
    ("one device", "--gpus device=0", {}, Asked("--gpus device=0", devices=("0",))),
    (
        "several devices in quotes of their own",
        """--gpus '"device=0,2"'""",
        {},
        Asked('--gpus "device=0,2"', devices=("0", "2")),
    ),
    (
        "several UUIDs",
        f"""--gpus '"device=GPU-1,{ONE_UUID}"'""",
        {},
        Asked(f'--gpus "device=GPU-1,{ONE_UUID}"', devices=("GPU-1", ONE_UUID)),
    ),
    (
        "a device said twice",
        """--gpus '"device=3,3"'""",
        {},
        Asked('--gpus "device=3,3"', devices=("3",)),
    ),
    ("all devices", "--gpus device=all", {}, Asked("--gpus device=all", number="all")),
    ("no device", "--gpus device=none", {}, Asked("--gpus device=none", nothing=True)),
    (
        "a device by its CDI name",
        "--gpus device=nvidia.com/gpu=1",
        {},
        Asked("--gpus device=nvidia.com/gpu=1", devices=("1",)),
    ),
    (
        "capabilities alone are one GPU",
        "--gpus capabilities=utility",
        {},
        Asked("--gpus capabilities=utility", number="1", fields=("capabilities=utility",)),
    ),
    (
        "driver, capabilities and options are kept in their order",
        """--gpus 'options=a=b,"capabilities=compute,utility",driver=nvidia,2'""",
        {},
        Asked(
            '--gpus options=a=b,"capabilities=compute,utility",driver=nvidia,2',
            number="2",
            fields=("options=a=b", "capabilities=compute,utility", "driver=nvidia"),
        ),
    ),
    (
        "with devices they are kept, too",
        """--gpus '"device=0,2",capabilities=utility'""",
        {},
        Asked(
            '--gpus "device=0,2",capabilities=utility',
            devices=("0", "2"),
            fields=("capabilities=utility",),
        ),
    ),
    (
        "an empty driver is any",
        "--gpus driver=,1",
        {},
        Asked("--gpus driver=,1", number="1", fields=("driver=",)),
    ),
    (
        "a CDI device",
        "--device nvidia.com/gpu=3",
        {},
        Asked("--device nvidia.com/gpu=3", devices=("3",)),
    ),
    (
        "several CDI devices",
        f"--device=nvidia.com/gpu=3 --device /dev/fuse --device nvidia.com/gpu={ONE_UUID}",
        {},
        Asked(
            f"--device nvidia.com/gpu=3 --device nvidia.com/gpu={ONE_UUID}", devices=("3", ONE_UUID)
        ),
    ),
    (
        "all CDI devices",
        "--device nvidia.com/gpu=all",
        {},
        Asked("--device nvidia.com/gpu=all", number="all"),
    ),
    (
        "a CDI device said twice",
        "--device nvidia.com/gpu=3 --device nvidia.com/gpu=3",
        {},
        Asked("--device nvidia.com/gpu=3 --device nvidia.com/gpu=3", devices=("3",)),
    ),
    (
        "the variable",
        "-e NVIDIA_VISIBLE_DEVICES=0,2",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=0,2", devices=("0", "2")),
    ),
    (
        "the variable by --env=",
        "--env=NVIDIA_VISIBLE_DEVICES=all",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=all", number="all"),
    ),
    (
        "the variable joined to a cluster",
        "-iteNVIDIA_VISIBLE_DEVICES=1",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=1", devices=("1",)),
    ),
    (
        "the variable from the environment",
        "-e NVIDIA_VISIBLE_DEVICES",
        {"NVIDIA_VISIBLE_DEVICES": "1"},
        Asked("NVIDIA_VISIBLE_DEVICES=1", devices=("1",)),
    ),
    ("the variable from an environment without it", "-e NVIDIA_VISIBLE_DEVICES", {}, None),
    (
        "the environment's own variable is not the container's",
        "",
        {"NVIDIA_VISIBLE_DEVICES": "1"},
        None,
    ),
    (
        "the last variable wins",
        "-e NVIDIA_VISIBLE_DEVICES=0 --env NVIDIA_VISIBLE_DEVICES=1",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=1", devices=("1",)),
    ),
    (
        "the last variable wins, from the environment too",
        "-e NVIDIA_VISIBLE_DEVICES=0 -e NVIDIA_VISIBLE_DEVICES",
        {"NVIDIA_VISIBLE_DEVICES": "2"},
        Asked("NVIDIA_VISIBLE_DEVICES=2", devices=("2",)),
    ),
    (
        "a variable of a longer name",
        "-e NVIDIA_VISIBLE_DEVICES_2=1 -e X_NVIDIA_VISIBLE_DEVICES=1",
        {},
        None,
    ),
    (
        "none",
        "-e NVIDIA_VISIBLE_DEVICES=none",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=none", nothing=True),
    ),
    (
        "void",
        "-e NVIDIA_VISIBLE_DEVICES=void",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=void", nothing=True),
    ),
    (
        "an empty variable",
        "-e NVIDIA_VISIBLE_DEVICES=",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=", nothing=True),
    ),
    (
        "CDI names in the variable",
        f"-e NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,nvidia.com/gpu={ONE_UUID}",
        {},
        Asked(
            f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,nvidia.com/gpu={ONE_UUID}",
            devices=("0", ONE_UUID),
        ),
    ),
    ("NV_GPU with commas", "", {"NV_GPU": "0,2"}, Asked("NV_GPU=0,2", devices=("0", "2"))),
    ("NV_GPU with spaces", "", {"NV_GPU": " 0  2 "}, Asked("NV_GPU= 0  2 ", devices=("0", "2"))),
    ("NV_GPU with both", "", {"NV_GPU": "0, 2"}, Asked("NV_GPU=0, 2", devices=("0", "2"))),
    ("NV_GPU that is all", "", {"NV_GPU": "all"}, Asked("NV_GPU=all", number="all")),
    ("an empty NV_GPU says nothing", "", {"NV_GPU": ""}, None),
    (
        "an -e before NV_GPU",
        "-e NVIDIA_VISIBLE_DEVICES=1",
        {"NV_GPU": "0"},
        Asked("NVIDIA_VISIBLE_DEVICES=1", devices=("1",)),
    ),
    ("--gpus before NV_GPU", "--gpus 1", {"NV_GPU": "0,1"}, Asked("--gpus 1", number="1")),
    (
        "--gpus before the variable, as in docker",
        "-e NVIDIA_VISIBLE_DEVICES=all --gpus device=1",
        {},
        Asked("--gpus device=1", devices=("1",)),
    ),
    (
        "CDI names of NVIDIA's runtime in the variable",
        "-e NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0,runtime.nvidia.com/gpu=1",
        {},
        Asked(
            "NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0,runtime.nvidia.com/gpu=1",
            devices=("0", "1"),
        ),
    ),
    (
        "all of NVIDIA's runtime in the variable",
        "-e NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=all",
        {},
        Asked("NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=all", number="all"),
    ),
    *(
        (f"GPUs of another maker: {flags}", flags, {}, Asked(flags, of_other_maker=True))
        for flags in (
            "--device /dev/kfd",
            "--device /dev/dri",
            "--device /dev/dri/renderD128:/dev/dri/renderD128",
            "--device /dev/neuron0",
            "--device amd.com/gpu=all",
            "--gpus driver=amd",
            "--gpus driver=amd,device=0",
        )
    ),
    ("graphics of an NVIDIA GPU", "--runtime nvidia --device /dev/dri", {}, None),
    (
        "an NVIDIA GPU and another",
        "--device /dev/dri --gpus 1",
        {},
        Asked("--gpus 1", number="1"),
    ),
    ("a name that looks like a flag", "--name --gpus=2", {}, None),
    ("a variable that looks like a flag", "-e --gpus=2 -l --device=nvidia.com/gpu=0", {}, None),
]


@pytest.mark.parametrize(("flags", "environment", "want"), named(ASKED))
def test_docker_flags_ask_for_gpus(
    flags: str, environment: Mapping[str, str], want: Asked | None
) -> None:
    """Each of docker's ways to ask for GPUs is read; of several, the one docker heeds counts."""
    got = asked_gpus(read(f"run {flags} img --gpus 7 -e NVIDIA_VISIBLE_DEVICES=7"), environment)
    assert got == want


@pytest.mark.parametrize(
    ("line", "variables", "want"),
    [
        ("docker run img", {"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        ("docker run --runtime runc img", {"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        (
            "docker run --runtime nvidia img",
            {"NVIDIA_VISIBLE_DEVICES": "all"},
            Asked("NVIDIA_VISIBLE_DEVICES=all of the image", number="all"),
        ),
        (
            "nvidia-docker run img",
            {"NVIDIA_VISIBLE_DEVICES": "all"},
            Asked("NVIDIA_VISIBLE_DEVICES=all of the image", number="all"),
        ),
        ("nvidia-docker run --runtime runc img", {"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        ("nvidia-docker run img", {}, None),
        ("nvidia-docker run img", None, Asked("nvidia-docker", number="all")),
        ("nvidia-docker run img", {"CUDA_VERSION": "8.0"}, Asked("nvidia-docker", number="all")),
        ("nvidia-docker run img", {"CUDA_VERSION": "12", "NVIDIA_REQUIRE_CUDA": "cuda>=12"}, None),
        (
            "nvidia-docker run img",
            {"NVIDIA_VISIBLE_DEVICES": "0,1"},
            Asked("NVIDIA_VISIBLE_DEVICES=0,1 of the image", devices=("0", "1")),
        ),
        (
            "nvidia-docker run img",
            {"NVIDIA_VISIBLE_DEVICES": "none"},
            Asked("NVIDIA_VISIBLE_DEVICES=none of the image", nothing=True),
        ),
    ],
)
def test_an_image_asks_for_gpus_as_under_nvidias_runtime(
    line: str, variables: Mapping[str, str] | None, want: Asked | None
) -> None:
    """An image counts only where NVIDIA's runtime reads it; one not here counts as saying all."""
    image = None if variables is None else Image("", {}, variables)
    assert asked_by_image(read_command(line.split(), DOCKER), image) == want


@pytest.mark.parametrize(
    ("flags", "message"),
    named(
        [
            (
                "a list without quotes",
                "--gpus device=0,2",
                "--gpus device=0,2: more than one count or device list",
            ),
            (
                "a count and devices",
                "--gpus 2,device=0",
                "--gpus 2,device=0: more than one count or device list",
            ),
            (
                "a count of two kinds",
                "--gpus count=2,2",
                "--gpus count=2,2: more than one count or device list",
            ),
            (
                "a negative count",
                "--gpus -2",
                "--gpus -2: '-2' is neither a number of GPUs nor 'all'",
            ),
            ("another digit", "--gpus ²", "--gpus ²: '²' is neither a number of GPUs nor 'all'"),
            (
                "two --gpus",
                "--gpus 1 --gpus device=1",
                "--gpus 1 and --gpus device=1 both ask for GPUs: say it once",
            ),
            (
                "--gpus and a CDI device",
                "--device nvidia.com/gpu=0 --gpus 1",
                "--gpus 1 and --device nvidia.com/gpu=0 both ask for GPUs: say it once",
            ),
        ]
    ),
)
def test_contradictions_and_what_the_engine_would_refuse(flags: str, message: str) -> None:
    """Flags that contradict each other, or that the engine would refuse, are refused at once."""
    with pytest.raises(UsageError) as refused:
        asked_gpus(read(f"run {flags} img"), {})
    assert refused.value.message == message


@pytest.mark.parametrize("value", ["1\n2", '"device=0"\n2', '"device=0,2"\r1'])
def test_a_line_break_in_gpus_is_no_crash(value: str) -> None:
    """A line break in the value of --gpus is refused like any other odd value."""
    with pytest.raises(UsageError):
        asked_gpus(read(["run", "--gpus", value, "img"]), {})


# ------------------------------------------------------------------------------ the GPUs written in


def gpus(*indices: int) -> tuple[Gpu, ...]:
    """Make GPUs in this order, called GPU-INDEX."""
    return tuple(Gpu(index=i, uuid=f"GPU-{i}", model="test", memory_bytes=1 << 34) for i in indices)


def with_gpus(
    command: ContainerCommand,
    leased: Sequence[Gpu],
    way: str,
    lease_id: str | None,
    asked: Asked | None,
    share: Share | None = None,
) -> tuple[str, ...]:
    """Return docker's command line with these GPUs in it."""
    return container_launch.with_gpus(
        Docker(), command, leased, way, lease_id=lease_id, asked=asked, share=share
    )


def written(line: str, leased: Sequence[Gpu], way: str, lease_id: str | None = None) -> str:
    """Return the command line with the GPUs in it, as typed, without the word docker."""
    command = read(line)
    argv = with_gpus(command, leased, way, lease_id, asked_gpus(command, {}))
    assert argv[0] == "docker"
    return shlex.join(argv[1:])


LABELS = (
    "--label io.gpulaunch.gpus=GPU-0,GPU-2 --label io.gpulaunch.lease=L -e GPULAUNCH_LEASE=L "
    "-e GPULAUNCH_GPU_COUNT=2"
)
CDI = (
    "--device nvidia.com/gpu=GPU-0 --device nvidia.com/gpu=GPU-2 -e NVIDIA_VISIBLE_DEVICES=void"
    f" {LABELS}"
)
RUNTIME = f"--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-2 {LABELS}"
GPUS = f"""--gpus '"device=GPU-0,GPU-2"' {LABELS}"""
NONE = f"-e NVIDIA_VISIBLE_DEVICES=void {LABELS}"
ADDED = {"cdi": CDI, "runtime": RUNTIME, "gpus": GPUS, NO_WAY: NONE}


@pytest.mark.parametrize(
    ("line", "way", "want"),
    named(
        [
            ("CDI", "run -d img cmd", "cdi", f"run -d {CDI} img cmd"),
            ("the runtime", "run -d img cmd", "runtime", f"run -d {RUNTIME} img cmd"),
            ("--gpus", "run -d img cmd", "gpus", f"run -d {GPUS} img cmd"),
            ("no way", "run -d img cmd", NO_WAY, f"run -d {NONE} img cmd"),
            ("without flags", "run img", "cdi", f"run {CDI} img"),
            ("before --", "run -d -- img -- x", "cdi", f"run -d {CDI} -- img -- x"),
            ("a count is replaced", "run --gpus 2 --rm img", "gpus", f"run --rm {GPUS} img"),
            ("so is a count after =", "run --rm --gpus=2 img", "cdi", f"run --rm {CDI} img"),
            (
                "so is all",
                "run --gpus all img --gpus all",
                "runtime",
                f"run {RUNTIME} img --gpus all",
            ),
            (
                "so are CDI devices, but no other device",
                "run --device nvidia.com/gpu=0 --device /dev/fuse --device=nvidia.com/gpu=1 img",
                "cdi",
                f"run --device /dev/fuse {CDI} img",
            ),
            (
                "a name is none",
                "run --name --gpus -e --gpus=3 img",
                "cdi",
                f"run --name --gpus -e --gpus=3 {CDI} img",
            ),
            (
                "a variable is overridden, since the last one counts",
                "run -e NVIDIA_VISIBLE_DEVICES=all img",
                "cdi",
                f"run -e NVIDIA_VISIBLE_DEVICES=all {CDI} img",
            ),
            (
                "the runtime is not said twice",
                "run --runtime nvidia img",
                "runtime",
                f"run --runtime nvidia {RUNTIME.removeprefix('--runtime nvidia ')} img",
            ),
            (
                "a lease and labels that a user made up are overridden",
                "run -e GPULAUNCH_LEASE=X -l io.gpulaunch.lease=X img",
                "cdi",
                f"run -e GPULAUNCH_LEASE=X -l io.gpulaunch.lease=X {CDI} img",
            ),
            (
                "capabilities and options go with --gpus",
                """run --gpus '2,"capabilities=compute,utility",options=a=b' img""",
                "gpus",
                (
                    """run --gpus '"device=GPU-0,GPU-2","capabilities=compute,utility","""
                    f""""options=a=b"' {LABELS} img"""
                ),
            ),
            (
                "capabilities go with the runtime as a variable",
                """run --gpus '2,"capabilities=compute,utility"' img""",
                "runtime",
                f"run {RUNTIME.replace(' --', ' -e NVIDIA_DRIVER_CAPABILITIES=compute,utility --', 1)} img",  # noqa: E501
            ),
            (
                "global flags stay",
                "-D --host x container run img",
                "cdi",
                f"-D --host x container run {CDI} img",
            ),
            ("docker create", "create --gpus 2 img", "cdi", f"create {CDI} img"),
            ("an image called run", "run run --gpus 2", "cdi", f"run {CDI} run --gpus 2"),
        ]
    ),
)
def test_gpus_are_written_after_the_users_flags(line: str, way: str, want: str) -> None:
    """What asks for GPUs is removed; what gives them stands between the user's flags and image."""
    got = written(line, gpus(0, 2), way, "L")
    assert got == want


@pytest.mark.parametrize(
    ("line", "want"),
    named(
        [
            ("nothing asked", "run -d img", "run -d -e NVIDIA_VISIBLE_DEVICES=void img"),
            ("--gpus 0", "run --gpus 0 -d img", "run -d -e NVIDIA_VISIBLE_DEVICES=void img"),
        ]
    ),
)
def test_a_container_without_gpus_sees_none(line: str, want: str) -> None:
    """A container that is to see no GPU gets no device, label or lease, whatever its image says."""
    got = [written(line, (), way) for way in (*WAYS, NO_WAY)]
    assert got == [want] * 4


def test_without_a_lease_none_is_named() -> None:
    """While there is no lease, a container's label names its GPUs alone."""
    got = written("run img", gpus(1), "cdi")
    want = (
        "--device nvidia.com/gpu=GPU-1 -e NVIDIA_VISIBLE_DEVICES=void "
        "--label io.gpulaunch.gpus=GPU-1 -e GPULAUNCH_GPU_COUNT=1"
    )
    assert got == f"run {want} img"


@pytest.mark.parametrize(
    ("line", "indices", "want"),
    named(
        [
            ("one GPU needs no order", "run img", (5,), None),
            ("nor do ascending ones", "run img", (1, 4, 6), None),
            ("two the other way round", "run img", (7, 3), "1,0"),
            ("never numbers of the host", "run img", (6, 2, 7, 4), "2,0,3,1"),
            (
                "after a variable of a longer name",
                "run -e CUDA_VISIBLE_DEVICES_X=1 img",
                (7, 3),
                "1,0",
            ),
            ("after a label of that name", "run -l CUDA_VISIBLE_DEVICES=1 img", (7, 3), "1,0"),
            (
                "a command's own words are no flags",
                "run img -e CUDA_VISIBLE_DEVICES=0",
                (7, 3),
                "1,0",
            ),
            ("not if the user sets it", "run -e CUDA_VISIBLE_DEVICES=0 img", (7, 3), None),
            (
                "not if the user sets it by --env=",
                "run --env=CUDA_VISIBLE_DEVICES=0 img",
                (7, 3),
                None,
            ),
            (
                "not if the user sets it in a cluster",
                "run -iteCUDA_VISIBLE_DEVICES=0 img",
                (7, 3),
                None,
            ),
            ("not if the user empties it", "run -e CUDA_VISIBLE_DEVICES= img", (7, 3), None),
        ]
    ),
)
@pytest.mark.parametrize("way", [*WAYS, NO_WAY])
def test_the_order_inside_counts_anew(
    way: str, line: str, indices: tuple[int, ...], want: str | None
) -> None:
    """Ranks out of PCI order are told by numbers by PCI address, never over the user's own."""
    command = read(line)
    given = len(command.argv) - len(command.operands)
    argv = with_gpus(command, gpus(*indices), way, "L", None)
    added = argv[given : -len(command.operands)]
    got = [word for word in added if "CUDA" in word]
    assert got == (["CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={want}"] if want else [])


def test_every_order_of_four_gpus_is_told_right() -> None:
    """In any order of any GPUs the numbers inside lead, by PCI address, to the rank order."""
    dice = random.Random(4)
    for _ in range(200):
        ranked = dice.sample(range(16), dice.randrange(1, 9))
        argv = with_gpus(read("run img"), gpus(*ranked), "cdi", "L", None)
        told = [word.partition("=")[2] for word in argv if word.startswith("CUDA_VISIBLE_DEVICES=")]
        inside = [int(number) for text in told for number in text.split(",")] or range(len(ranked))
        got = [sorted(ranked)[number] for number in inside]
        assert got == ranked


@pytest.mark.parametrize("way", [*WAYS, NO_WAY])
def test_all_else_stays_byte_for_byte(way: str) -> None:
    """In 300 generated command lines a way, all but what asked for GPUs stays, in its order."""
    for line in lines(7, 300, asking=True):
        got = with_gpus(read(line.words), gpus(0, 2), way, "L", None)
        want = ("docker", *line.without(*shlex.split(ADDED[way])))
        assert got == want, shlex.join(line.words)


@pytest.mark.parametrize(
    ("capabilities", "want"),
    named(
        [
            ("the driver's own", "compute,utility", ["NVIDIA_DRIVER_CAPABILITIES=compute,utility"]),
            (
                "gpu, which is docker's word, among them",
                "gpu,utility",
                ["NVIDIA_DRIVER_CAPABILITIES=utility"],
            ),
            ("gpu alone", "gpu", []),
        ]
    ),
)
def test_the_runtime_hears_of_the_drivers_capabilities_alone(
    capabilities: str, want: list[str]
) -> None:
    """Only capabilities of NVIDIA's driver reach the runtime, which would refuse all others."""
    command = read(["run", "--gpus", f'1,"capabilities={capabilities}"', "img"])
    argv = with_gpus(command, gpus(0), "runtime", None, asked_gpus(command, {}))
    got = [word for word in argv if word.startswith("NVIDIA_DRIVER_CAPABILITIES")]
    assert got == want


@pytest.mark.parametrize(
    ("line", "want"),
    named(
        [
            ("no runtime", "run img", {"cdi", "runtime", "gpus"}),
            ("NVIDIA's", "run --runtime nvidia img", {"cdi", "runtime", "gpus"}),
            ("another one", "run --runtime=runc img", {"cdi", "gpus"}),
            (
                "the last one counts",
                "run --runtime runc --runtime nvidia img",
                {"cdi", "runtime", "gpus"},
            ),
            ("one that is the command's", "run img --runtime runc", {"cdi", "runtime", "gpus"}),
        ]
    ),
)
def test_a_runtime_that_is_named_closes_a_way(line: str, want: set[str]) -> None:
    """A command line that names another runtime does not get NVIDIA's."""
    got = allowed_ways(read(line))
    assert got == want


@pytest.mark.parametrize(
    ("offer", "want"),
    named(
        [
            (
                "all ways",
                Offer(frozenset({"GPU-0", "GPU-1", "GPU-2"}), True, True),
                ["cdi", "runtime", "gpus"],
            ),
            (
                "CDI without one of the GPUs",
                Offer(frozenset({"GPU-0"}), True, True),
                ["runtime", "gpus"],
            ),
            ("--gpus alone", Offer(frozenset(), False, True), ["gpus"]),
            ("nothing", Offer(frozenset(), False, False), []),
        ]
    ),
)
def test_the_preferred_way_is_first(offer: Offer, want: list[str]) -> None:
    """CDI before the runtime before --gpus, and CDI only if it knows every GPU."""
    got = offer.ways(["GPU-0", "GPU-1"])
    assert got == want


@pytest.mark.parametrize(
    ("cdi_returns", "restarts", "want"),
    [
        (True, True, ["cdi", "runtime", "gpus"]),
        (False, False, ["cdi", "runtime", "gpus"]),
        (False, True, ["runtime", "gpus", "cdi"]),
    ],
)
def test_cdi_is_last_where_it_does_not_return(
    cdi_returns: bool, restarts: bool, want: list[str]
) -> None:
    """A restart policy matters only on engines that cannot start CDI devices again."""
    offer = Offer(frozenset({"GPU-0"}), runtime=True, gpus=True, cdi_returns=cdi_returns)
    assert offer.ways(["GPU-0"], restarts=restarts) == want


@pytest.mark.parametrize(
    ("version", "want"),
    [
        ("26.1.5+dfsg1", False),
        ("28.1.1", False),
        ("28.2.0-rc.1", True),
        ("29.0", True),
        ("?", False),
    ],
)
def test_versions_that_start_cdi_devices_again(version: str, want: bool) -> None:
    """Docker starts containers with CDI devices again since 28.2."""
    assert Docker().offer_of(Info("id", version), box()).cdi_returns == want


# ----------------------------------------------------------------------------- GPUs that are shared


def share(*uuids: str, percentage: int = 40, directory: str | None = "/tmp/g/1") -> Share:
    """Make a share of GPUs, with 3 GiB of each."""
    demand = Demand("job", 10.0, 5.0, 3 << 30)
    return Share(uuids, percentage, False, MpsClient(demand, Objective(), {}), directory)


SHARED = (
    "-e CUDA_DEVICE_ORDER=PCI_BUS_ID -e CUDA_VISIBLE_DEVICES=GPU-2,GPU-0 "
    "--label io.gpulaunch.gpus=GPU-2,GPU-0"
)
BOUNDED = (
    "-e CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40 "
    "-e CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-0=3072M,GPU-2=3072M"
)
PIPE = "-e CUDA_MPS_PIPE_DIRECTORY=/tmp/g/1 --mount type=bind,source=/tmp/g/1,target=/tmp/g/1"
SHM = "--mount type=bind,source=/dev/shm,target=/dev/shm"


@pytest.mark.parametrize(
    ("line", "directory", "want"),
    named(
        [
            ("daemon and shared memory", "run img", "/tmp/g/1", f"{PIPE} {SHM}"),
            (
                "shared memory comes with the host's namespace",
                "run --ipc=host img",
                "/tmp/g/1",
                PIPE,
            ),
            ("the last --ipc counts", "run --ipc host --ipc= img", "/tmp/g/1", f"{PIPE} {SHM}"),
            ("not a second time", "run -v /dev/shm:/dev/shm img", "/tmp/g/1", PIPE),
            (
                "nor by another name",
                "run --mount type=bind,src=/dev/shm,dst=/dev/shm/ img",
                "/tmp/g/1",
                PIPE,
            ),
            (
                "what is in it is not all of it",
                "run -v /x:/dev/shm/x img",
                "/tmp/g/1",
                f"{PIPE} {SHM}",
            ),
            ("a machine without a daemon", "run img", None, ""),
            (
                "a directory that the client would split",
                "run img",
                '/a,"b',
                """-e 'CUDA_MPS_PIPE_DIRECTORY=/a,"b' """
                """--mount 'type=bind,"source=/a,""b","target=/a,""b"' """ + SHM,
            ),
        ]
    ),
)
def test_what_a_container_that_shares_is_given(line: str, directory: str | None, want: str) -> None:
    """A sharing container gets GPUs in rank order, its bounds, and what it must share with MPS."""
    argv = with_gpus(
        read(line), gpus(2, 0), "cdi", "L", None, share("GPU-0", "GPU-2", directory=directory)
    )
    given = len(read(line).argv) - 1
    got = argv[given + 6 : -3]
    label = "--label io.gpulaunch.share=40 --label io.gpulaunch.lease=L -e GPULAUNCH_LEASE=L"
    assert got == tuple(shlex.split(f"{SHARED} {BOUNDED} {want} {label}"))


def refusal(
    line: str, *, user_id: int = 1000, image_user: str | None = "1000", security: Sequence[str] = ()
) -> str:
    """Return why a container cannot share; empty if it can."""
    try:
        check_sharing(
            read(line), SharingConditions("Docker Engine", user_id, 100, image_user, security)
        )
    except UsageError as problem:
        return f"{problem.message} ({problem.hint})" if problem.hint else problem.message
    return ""


OWN_USER = "a container that shares GPUs has to run as who launches it, uid 1000 (add -u 1000:100)"
NO_MPS = "so its containers cannot share GPUs through MPS"
OWN_SHM = "a container that shares GPUs has the host's /dev/shm, where it meets its MPS daemon"


@pytest.mark.parametrize(
    ("line", "around", "want"),
    named(
        [
            ("the image's user", "run img", {}, ""),
            ("with a group", "run img", {"image_user": "1000:5"}, ""),
            ("root, for root", "run img", {"image_user": "", "user_id": 0}, ""),
            ("root by name, for root", "run -u root:wheel img", {"user_id": 0}, ""),
            (
                "root, for others",
                "run img",
                {"image_user": ""},
                f"image img runs as uid 0: {OWN_USER}",
            ),
            ("a group alone is root's", "run -u :5 img", {}, f"-u :5 runs as uid 0: {OWN_USER}"),
            (
                "another user",
                "run img",
                {"image_user": "7"},
                f"image img runs as uid 7: {OWN_USER}",
            ),
            ("the flag counts more", "run -u 1000 img", {"image_user": "7"}, ""),
            ("the last flag counts", "run -u 7 --user=1000:7 img", {}, ""),
            ("an empty flag is none", "run --user= img", {}, ""),
            (
                "the flag is wrong",
                "run -u1001:1000 img",
                {},
                f"-u 1001:1000 runs as uid 1001: {OWN_USER}",
            ),
            (
                "a name",
                "run -u bob img",
                {},
                f"-u bob: who bob is, only the container can tell: {OWN_USER}",
            ),
            (
                "an image's name",
                "run img",
                {"image_user": "bob:x"},
                f"image img: who bob is, only the container can tell: {OWN_USER}",
            ),
            (
                "an image that is not here",
                "run img",
                {"image_user": None},
                f"image img is not here yet, so nobody can tell as whom it runs: {OWN_USER}",
            ),
            ("nor need it be, with a flag", "run -u 1000 img", {"image_user": None}, ""),
        ]
    ),
)
def test_as_whom_a_container_that_shares_runs(line: str, around: dict[str, Any], want: str) -> None:
    """MPS serves one user, so a container has to run as its launcher, and no name is guessed at."""
    got = refusal(line, **around)
    assert got == want


@pytest.mark.parametrize(
    ("line", "security", "want"),
    named(
        [
            ("the usual security", "run img", ("seccomp", "apparmor", "cgroupns"), ""),
            (
                "other users by the engine",
                "run img",
                ("seccomp", "userns"),
                (
                    f"the Docker Engine maps the users of containers to others, {NO_MPS} "
                    "(add --userns=host)"
                ),
            ),
            ("unless this container's are not", "run --userns host img", ("userns",), ""),
            (
                "an engine without root",
                "run --userns=host img",
                ("rootless",),
                f"the Docker Engine is rootless, {NO_MPS}",
            ),
        ]
    ),
)
def test_engines_that_map_users(line: str, security: tuple[str, ...], want: str) -> None:
    """MPS knows its clients by their uid on the host, which must be the one in the container."""
    got = refusal(line, security=security)
    assert got == want


@pytest.mark.parametrize(
    ("line", "want"),
    named(
        [
            ("the host's namespace", "run --ipc=host img", ""),
            ("one of its own", "run --ipc private img", f"--ipc private: {OWN_SHM}"),
            ("one for others, too", "run --ipc=shareable img", f"--ipc shareable: {OWN_SHM}"),
            ("another container's", "run --ipc=container:x img", f"--ipc container:x: {OWN_SHM}"),
            ("none", "run --ipc=none img", f"--ipc none: {OWN_SHM}"),
            ("the last one counts", "run --ipc=private --ipc=host img", ""),
            (
                "a tmpfs of its own",
                "run --tmpfs /dev/shm:size=1g img",
                f"--tmpfs /dev/shm:size=1g: {OWN_SHM}",
            ),
            ("a tmpfs elsewhere", "run --tmpfs /tmp --tmpfs /dev/shm/x img", ""),
            ("a volume of its own", "run -v /dev/shm img", f"-v /dev/shm: {OWN_SHM}"),
            ("a volume with a name", "run -v shm:/dev/shm/ img", f"-v shm:/dev/shm/: {OWN_SHM}"),
            (
                "another directory",
                "run --volume=/x:/dev//shm:rw img",
                f"--volume /x:/dev//shm:rw: {OWN_SHM}",
            ),
            (
                "the host's, not to be written",
                "run -v /dev/shm:/dev/shm:z,ro img",
                f"-v /dev/shm:/dev/shm:z,ro: {OWN_SHM}",
            ),
            ("the host's", "run -v /dev/shm:/dev/shm:rslave img", ""),
            ("the host's elsewhere", "run -v /dev/shm:/shm:ro img", ""),
            (
                "a mount of a tmpfs",
                "run --mount type=tmpfs,destination=/dev/shm img",
                f"--mount type=tmpfs,destination=/dev/shm: {OWN_SHM}",
            ),
            (
                "a mount not to be written",
                "run --mount type=bind,source=/dev/shm,target=/dev/shm,readonly img",
                f"--mount type=bind,source=/dev/shm,target=/dev/shm,readonly: {OWN_SHM}",
            ),
            (
                "a mount",
                "run --mount type=bind,source=/dev/shm,target=/dev/shm,readonly=false img",
                "",
            ),
            ("a size", "run --shm-size=1g img", ""),
            ("a root that is not written", "run --read-only img", ""),
            ("a command's own words are no flags", "run img --ipc=none --tmpfs /dev/shm", ""),
        ]
    ),
)
def test_whose_shared_memory(line: str, want: str) -> None:
    """MPS daemon and clients meet in /dev/shm, so whatever would put another there is refused."""
    got = refusal(line)
    assert got == want


@pytest.mark.parametrize(
    ("line", "want"),
    named(
        [
            ("its daemon", "run -e CUDA_MPS_PIPE_DIRECTORY=/x img", "CUDA_MPS_PIPE_DIRECTORY"),
            (
                "its daemon, from here",
                "run --env CUDA_MPS_PIPE_DIRECTORY img",
                "CUDA_MPS_PIPE_DIRECTORY",
            ),
            (
                "its SMs",
                "run -eCUDA_MPS_ACTIVE_THREAD_PERCENTAGE=9 img",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            ),
            (
                "its memory",
                "run -e CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G img",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            ),
            ("what else MPS knows", "run -e CUDA_MPS_CLIENT_PRIORITY=1 img", ""),
            ("a longer name", "run -e CUDA_MPS_PIPE_DIRECTORY_X=1 img", ""),
        ]
    ),
)
def test_what_gpulaunch_sets(line: str, want: str) -> None:
    """Setting by hand what sharing sets is refused, with the options that say what is wanted."""
    got = refusal(line)
    text = f"-e {want}: gpulaunch sets that for a container that shares GPUs"
    assert got == (f"{text} (--share=PART and --memory say what it is to have)" if want else "")


@pytest.mark.parametrize(
    ("line", "want"),
    named(
        [
            ("docker container run", "container run img", ""),
            ("none", "run --restart no img", ""),
            ("the last one counts", "run --restart always --restart= img", ""),
            ("always", "run --restart always img", "--restart always: "),
            ("after failures", "run --restart=on-failure:3 img", "--restart on-failure:3: "),
            ("docker create", "create img", "docker create: only docker run shares GPUs"),
            (
                "docker container start",
                "container start x",
                "docker container start: only docker run shares GPUs",
            ),
        ]
    ),
)
def test_only_what_runs_once_shares(line: str, want: str) -> None:
    """A share lasts while its container runs, so what starts later, or again, cannot have one."""
    got = refusal(line)
    assert got.startswith(want)
    assert bool(got) == bool(want)


# ------------------------------------------------------------------------------- how long they hold


def described(status: str, *, policy: str | None = "no", **state: Any) -> dict[str, Any]:
    """Make what an engine says of a container."""
    return {
        "Id": "c" * 64,
        "Name": "/job",
        "Image": "sha256:i",
        "State": {"Status": status, "ExitCode": 0, "Error": "", **state},
        "HostConfig": {"RestartPolicy": {"Name": policy, "MaximumRetryCount": 0}},
        "Config": {"Labels": {"io.gpulaunch.lease": "L", "io.gpulaunch.gpus": "GPU-0,GPU-2"}},
    }


@pytest.mark.parametrize(
    ("document", "want"),
    named(
        [
            ("one that runs", described("running"), True),
            ("one that is paused", described("paused"), True),
            ("one that restarts", described("restarting", ExitCode=1, policy="always"), True),
            ("one that was made and not started yet", described("created"), True),
            (
                "one that could not start",
                described("created", ExitCode=127, Error="not found"),
                False,
            ),
            (
                "one that could not start, by its status alone",
                described("created", ExitCode=128),
                False,
            ),
            (
                "one that could not start, by its error alone",
                described("created", Error="no such device"),
                False,
            ),
            (
                "one that could not start, which no policy tries again",
                described("created", ExitCode=128, policy="always"),
                False,
            ),
            (
                "one that runs, whatever it says of an error",
                described("running", Error="once"),
                True,
            ),
            ("one that ended", described("exited"), False),
            ("one that failed", described("exited", ExitCode=1), False),
            ("one that was killed", described("exited", ExitCode=137), False),
            ("one that ended and always comes back", described("exited", policy="always"), True),
            (
                "one that comes back with the engine",
                described("exited", policy="unless-stopped"),
                True,
            ),
            (
                "one that failed and is tried again",
                described("exited", ExitCode=1, policy="on-failure"),
                True,
            ),
            ("an empty policy is none", described("exited", policy=""), False),
            ("no policy is none", described("exited", policy=None), False),
            ("one that is being removed", described("removing"), False),
            (
                "one that is being removed does not come back",
                described("removing", policy="always"),
                False,
            ),
            ("one that is dead", described("dead"), False),
            ("one that is dead does not come back", described("dead", policy="always"), False),
        ]
    ),
)
def test_when_a_container_holds_its_gpus(document: dict[str, Any], want: bool) -> None:
    """A container holds its GPUs while it runs, is made to be started, or may restart by itself."""
    got = parse_container(document).holds
    assert got == want


@pytest.mark.parametrize(
    ("change", "want"),
    named(
        [
            ("its labels", {}, ("L", ("GPU-0", "GPU-2"))),
            ("no labels", {"Config": {"Labels": None}}, (None, ())),
            ("no such labels", {"Config": {"Labels": {"a": "b"}}}, (None, ())),
            ("no labels at all", {"Config": {}}, (None, ())),
            (
                "an empty list of GPUs",
                {"Config": {"Labels": {"io.gpulaunch.gpus": ""}}},
                (None, ()),
            ),
            ("one GPU", {"Config": {"Labels": {"io.gpulaunch.gpus": "GPU-1"}}}, (None, ("GPU-1",))),
        ]
    ),
)
def test_a_containers_labels_say_whose_it_is(change: dict[str, Any], want: tuple) -> None:
    """Lease and GPUs of a container are what its labels say; without them it has none."""
    container = parse_container(described("running") | change)
    got = (container.lease_id, container.uuids)
    assert got == want


def test_a_container_is_read_whole() -> None:
    """What an engine says of a container becomes a plain value."""
    got = parse_container(described("exited", ExitCode=1, policy="always"))
    want = Container(
        id="c" * 64,
        name="job",
        state="exited",
        has_failed=True,
        restarts=True,
        image_id="sha256:i",
        lease_id="L",
        uuids=("GPU-0", "GPU-2"),
    )
    assert got == want


def test_an_engine_that_leaves_out_the_policy_has_none() -> None:
    """A container without a restart policy does not come back."""
    got = parse_container(described("exited") | {"HostConfig": {"RestartPolicy": None}}).restarts
    assert not got


@pytest.mark.parametrize(
    ("states", "want"),
    named(
        [
            ("none", (), None),
            ("the one that holds", ("exited", "running", "paused"), 1),
            ("else the first", ("exited", "dead"), 0),
        ]
    ),
)
def test_the_keeper_of_a_lease(states: tuple[str, ...], want: int | None) -> None:
    """The keeper of a lease is the container that holds it, or else one that did."""
    containers = tuple(
        parse_container(described(state) | {"Id": str(i)}) for i, state in enumerate(states)
    )
    keeper = Standing(holds=True, containers=containers, problem=None).keeper
    got = keeper and int(keeper.id)
    assert got == want


# ------------------------------------------------------------------------------ read, written, read


def test_what_was_written_reads_as_it_was_meant() -> None:
    """Our own command lines, read again, have the same image and command and the leased GPUs."""
    for way in ("cdi", "gpus"):
        for line in lines(13, 100, asking=True):
            command = read(line.words)
            again = read_command(with_gpus(command, gpus(7, 3), way, "L", None), DOCKER)
            asked = asked_gpus(again, {})
            got = (again.operands, again.subcommand, asked and asked.devices)
            assert got == (command.operands, command.subcommand, ("GPU-7", "GPU-3")), shlex.join(
                line.words
            )
