"""Docker's command line, read and written, by the tables in docker_command.toml.

command/test_docker_client.py holds some of the tables against the installed client, too.
"""

import random
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from values import box, cases

from gpulaunch.containers.command import ContainerCommand, read_command
from gpulaunch.containers.container_launch import ContainerLaunch, started_command
from gpulaunch.containers.docker.answers import parse_container
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.docker.flags import DOCKER
from gpulaunch.containers.docker.gpu_flags import asked_by_image, asked_gpus
from gpulaunch.containers.engine import Asked, Image, Info
from gpulaunch.containers.mps_client import check_sharing
from gpulaunch.containers.ways import NO_WAY, WAYS
from gpulaunch.errors import UsageError
from gpulaunch.files.toml import tomllib
from gpulaunch.leases.share import Share
from gpulaunch.machine.gpu import Gpu

CASES = tomllib.loads(Path(__file__).with_name("docker_command.toml").read_text())


def read(line: str | Sequence[str]) -> ContainerCommand:
    """Read what follows the word docker; a string is split as a shell would."""
    return read_command(("docker", *(shlex.split(line) if isinstance(line, str) else line)), DOCKER)


# ------------------------------------------------------------------------------ images and services


def flags_text(command: ContainerCommand) -> str:
    """Return flags as they were read, each with its value after =."""
    return " ".join(
        flag.name if flag.value is None else f"{flag.name}={flag.value}" for flag in command.flags
    )


@cases(CASES["flags_and_operands"], "line", "flags", "operands")
def test_flags_end_where_docker_ends_them(line: str, flags: str, operands: str) -> None:
    """Flags are read with their values; what follows them is image and command, word for word."""
    command = read(line)
    got = (command.launches, flags_text(command), command.operands)
    assert got == (True, flags, tuple(shlex.split(operands)))


@cases(CASES["containers_to_start"], "line", "flags", "operands")
def test_containers_to_start_are_found_among_flags(line: str, flags: str, operands: str) -> None:
    """Flags of start and restart may stand anywhere among the containers."""
    command = read(line)
    got = (command.starts, command.launches, flags_text(command), " ".join(command.operands))
    assert got == (True, False, flags, operands)


def test_an_unknown_flag_is_shown_safely_and_may_be_written_with_its_value() -> None:
    """Control characters in an unknown flag reach no terminal, and what the hint says is read."""
    with pytest.raises(UsageError) as refused:
        read(["run", "--\x1b[31m", "img"])
    assert refused.value.message == r"docker run: unknown flag --\x1b[31m"
    with pytest.raises(UsageError) as refused:
        read("run --new-in-docker-40 x img")
    assert refused.value.hint == "a flag that is new in docker is written --new-in-docker-40=VALUE"
    assert read("run --new-in-docker-40=x img").operands == ("img",)


@cases(CASES["compose_that_starts"], "line", "word", "operands")
def test_compose_commands_that_start_containers(line: str, word: str, operands: str) -> None:
    """What docker compose starts containers with is read with its services."""
    command = read(line)
    got = (command.composes, command.subcommand, command.operands)
    assert got == (True, ("compose", word), tuple(operands.split()))


@cases(CASES["compose_that_starts_nothing"], "line")
def test_what_else_compose_does_is_dockers_own(line: str) -> None:
    """Docker compose passes as long as it starts nothing."""
    command = read(line)
    got = (command.argv[1:], command.launches, command.starts, command.composes)
    assert got == (tuple(shlex.split(line)), False, False, False)


# ---------------------------------------------------------------------------------- generated lines

HARMLESS = {
    flag: values
    for flags, values in CASES["values_of_harmless_flags"].items()
    for flag in flags.split()
}
PARTS = CASES["parts_of_generated_lines"]
ASKING = (("--gpus=2",), ("--gpus", '"device=0,2"'), ("--device", "nvidia.com/gpu=0"))


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
        flags = [word for flag in self.flags for word in flag]
        return (*self.head, *flags, *self.dashes, *self.tail)

    def without(self, *added: str) -> tuple[str, ...]:
        """Return the words without those that ask for GPUs, and with others after the flags."""
        kept = [word for flag in self.flags if flag not in ASKING for word in flag]
        return (*self.head, *kept, *added, *self.dashes, *self.tail)


def lines(seed: int, count: int, *, asking: bool = False) -> list[Line]:
    """Draw command lines, always the same for a seed."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        head = f"{dice.choice(PARTS['before'])} {dice.choice(PARTS['subcommands'])}".split()
        flags = [_flag(dice) for _ in range(dice.randrange(9))]
        if asking:
            flags += dice.sample(ASKING, dice.randrange(2))
            dice.shuffle(flags)
        tail = (dice.choice(PARTS["images"]), *shlex.split(dice.choice(PARTS["tails"])))
        found.append(Line(tuple(head), tuple(flags), dice.choice([(), (), ("--",)]), tail))
    return found


def _flag(dice: random.Random) -> tuple[str, ...]:
    """Draw one flag in one of the forms that docker takes, or a cluster."""
    if dice.random() < 0.25:
        name = dice.choice(PARTS["switches"])
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


@cases(CASES["asked_by_flags"], "flags", "environment", "want")
def test_docker_flags_ask_for_gpus(
    flags: str, environment: dict[str, str], want: dict[str, Any]
) -> None:
    """Each of docker's ways to ask for GPUs is read; of several, the one docker heeds counts."""
    got = asked_gpus(read(f"run {flags} img --gpus 7 -e NVIDIA_VISIBLE_DEVICES=7"), environment)
    assert got == asked(want)


def asked(fields: dict[str, Any]) -> Asked | None:
    """Return what a row says that is asked for; without fields nothing is."""
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Asked(**known) if known else None


@cases(CASES["asked_by_the_image"], "line", "variables", "want")
def test_an_image_asks_for_gpus_as_under_nvidias_runtime(
    line: str, variables: dict[str, str], want: dict[str, Any]
) -> None:
    """An image counts only where NVIDIA's runtime reads it; one not here counts as saying all."""
    image = None if "missing" in variables else Image("", {}, variables)
    assert asked_by_image(read_command(line.split(), DOCKER), image) == asked(want)


@cases(CASES["contradictions"], "flags", "message")
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

_GPUS = box(16).gpus


def gpus(*indices: int) -> tuple[Gpu, ...]:
    """Return GPUs in this order, called GPU-INDEX."""
    return tuple(_GPUS[index] for index in indices)


def with_gpus(
    command: ContainerCommand,
    leased: Sequence[Gpu],
    way: str,
    lease_id: str | None = "L",
    share: Share | None = None,
) -> tuple[str, ...]:
    """Return docker's command line with these GPUs in it."""
    asked = asked_gpus(command, {})
    launch = ContainerLaunch(Docker(), None, command, asked, way, "engine", None)
    return started_command(launch, leased, lease_id, share)


LABELS = (
    "--label io.gpulaunch.gpus=GPU-0,GPU-2 --label io.gpulaunch.lease=L -e GPULAUNCH_LEASE=L "
    "-e GPULAUNCH_GPU_COUNT=2"
)
VOID = "-e NVIDIA_VISIBLE_DEVICES=void"
ADDED = {
    "cdi": f"--device nvidia.com/gpu=GPU-0 --device nvidia.com/gpu=GPU-2 {VOID} {LABELS}",
    "runtime": f"--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-2 {LABELS}",
    "gpus": f"""--gpus '"device=GPU-0,GPU-2"' {LABELS}""",
    NO_WAY: f"{VOID} {LABELS}",
}


@cases(CASES["gpus_written"], "line", "way", "want")
def test_gpus_are_written_after_the_users_flags(line: str, way: str, want: str) -> None:
    """What asks for GPUs is removed; what gives them stands between the user's flags and image."""
    got = with_gpus(read(line), gpus(0, 2), way)
    assert shlex.join(got) == f"docker {want.format(**ADDED, labels=LABELS)}"


@cases(CASES["order_inside"], "line", "indices", "want")
def test_the_order_inside_counts_anew(line: str, indices: list[int], want: str) -> None:
    """Ranks out of PCI order are told by numbers by PCI address, never over the user's own."""
    command = read(line)
    given = len(command.argv) - len(command.operands)
    added = with_gpus(command, gpus(*indices), "gpus")[given : -len(command.operands)]
    got = [word for word in added if "CUDA" in word]
    assert got == (["CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={want}"] if want else [])


@pytest.mark.parametrize("way", [*WAYS, NO_WAY])
def test_all_else_stays_byte_for_byte(way: str) -> None:
    """In 300 generated command lines a way, all but what asked for GPUs stays, in its order."""
    for line in lines(7, 300, asking=True):
        got = with_gpus(read(line.words), gpus(0, 2), way)
        want = ("docker", *line.without(*shlex.split(ADDED[way])))
        assert got == want, shlex.join(line.words)


def test_versions_that_start_cdi_devices_again() -> None:
    """Docker starts containers with CDI devices again since 28.2."""
    for version, want in (("28.1.1", False), ("28.2.0-rc.1", True), ("29.0", True), ("?", False)):
        assert Docker().offer_of(Info("id", version), box()).cdi_returns == want


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


@cases(CASES["why_not_shared"], "line", "around", "want")
def test_which_containers_share(line: str, around: dict[str, Any], want: str) -> None:
    """Who shares has the launcher's uid on the host, the host's /dev/shm, and runs only once."""
    image_user = around.get("image_user", "1000")
    got = ""
    try:
        check_sharing(
            read(line),
            "Docker Engine",
            around.get("user_id", 1000),
            100,
            None if image_user == "absent" else image_user,
            around.get("security", ()),
        )
    except UsageError as problem:
        got = f"{problem.message} ({problem.hint})" if problem.hint else problem.message
    assert got == want.format(**NEEDS)


# ------------------------------------------------------------------------------- how long they hold


def described(status: str, *, policy: str = "no", **state: Any) -> dict[str, Any]:
    """Make what an engine says of a container."""
    return {
        "Id": "c" * 64,
        "Name": "/job",
        "Image": "sha256:i",
        "State": {"Status": status, "ExitCode": 0, "Error": "", **state},
        "HostConfig": {"RestartPolicy": {"Name": policy, "MaximumRetryCount": 0}},
        "Config": {"Labels": {"io.gpulaunch.lease": "L", "io.gpulaunch.gpus": "GPU-0,GPU-2"}},
    }


@cases(CASES["containers_that_hold"], "status", "policy", "state", "want")
def test_when_a_container_holds_its_gpus(
    status: str, policy: str, state: dict[str, Any], want: bool
) -> None:
    """A container holds its GPUs while it runs, is made to be started, or may restart by itself."""
    assert parse_container(described(status, policy=policy, **state)).holds == want
