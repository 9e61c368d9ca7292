"""Docker's command line, read and written, by the tables in docker_command.toml.

command/test_docker_client.py holds the same tables against the installed client.
"""

import random
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import command_lines
import pytest
from values import box, cases

from gpulaunch.containers.command import ContainerCommand, read_command
from gpulaunch.containers.container_launch import ContainerLaunch, started_command
from gpulaunch.containers.docker.answers import parse_container
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.docker.flags import DOCKER
from gpulaunch.containers.docker.gpu_flags import allowed_ways, asked_by_image, asked_gpus
from gpulaunch.containers.engine import Asked, Image, Info
from gpulaunch.containers.life import Container, Standing
from gpulaunch.containers.mps_client import check_sharing
from gpulaunch.containers.ways import NO_WAY, WAYS, Offer
from gpulaunch.errors import UsageError
from gpulaunch.files.toml import tomllib
from gpulaunch.leases.share import Client as MpsClient
from gpulaunch.leases.share import Objective, Share
from gpulaunch.machine.gpu import Gpu
from gpulaunch.profiles.demand import Demand

PUBLIC = command_lines.for_clients("docker", "nvidia-docker")


def named(rows: Iterable[tuple]) -> list:
    """Name each row by its first column, the sentence that it proves."""
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


CASES = tomllib.loads(Path(__file__).with_name("docker_command.toml").read_text())


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


@cases(CASES["containers_to_start"], "line", "flags", "operands")
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


@cases(CASES["compose_that_starts"], "line", "word", "operands")
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
    flag: values
    for flags, values in CASES["values_of_harmless_flags"].items()
    for flag in flags.split()
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
    launch = ContainerLaunch(Docker(), None, command, asked, way, "engine", None)
    return started_command(launch, leased, lease_id, share)


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
VISIBLE = f"-e NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-2 {LABELS}"
RUNTIME = f"--runtime nvidia {VISIBLE}"
GPUS = f"""--gpus '"device=GPU-0,GPU-2"' {LABELS}"""
NONE = f"-e NVIDIA_VISIBLE_DEVICES=void {LABELS}"
ADDED = {"cdi": CDI, "runtime": RUNTIME, "gpus": GPUS, NO_WAY: NONE}


@cases(CASES["gpus_written"], "line", "way", "want")
def test_gpus_are_written_after_the_users_flags(line: str, way: str, want: str) -> None:
    """What asks for GPUs is removed; what gives them stands between the user's flags and image."""
    got = written(line, gpus(0, 2), way, "L")
    assert got == want.format(**ADDED, visible=VISIBLE, labels=LABELS)


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


@cases(CASES["order_inside"], "line", "indices", "want")
@pytest.mark.parametrize("way", [*WAYS, NO_WAY])
def test_the_order_inside_counts_anew(way: str, line: str, indices: list[int], want: str) -> None:
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


@cases(CASES["shared_with_a_container"], "line", "directory", "want")
def test_what_a_container_that_shares_is_given(line: str, directory: str, want: str) -> None:
    """A sharing container gets GPUs in rank order, its bounds, and what it must share with MPS."""
    part = share("GPU-0", "GPU-2", directory=directory or None)
    argv = with_gpus(read(line), gpus(2, 0), "cdi", "L", None, part)
    given = len(read(line).argv) - 1
    got = argv[given + 6 : -3]
    label = "--label io.gpulaunch.share=40 --label io.gpulaunch.lease=L -e GPULAUNCH_LEASE=L"
    assert got == tuple(
        shlex.split(f"{SHARED} {BOUNDED} {want.format(pipe=PIPE, shm=SHM)} {label}")
    )


def refusal(
    line: str, *, user_id: int = 1000, image_user: str = "1000", security: Sequence[str] = ()
) -> str:
    """Return why a container cannot share; empty if it can."""
    image_user = None if image_user == "absent" else image_user
    try:
        check_sharing(read(line), "Docker Engine", user_id, 100, image_user, security)
    except UsageError as problem:
        return f"{problem.message} ({problem.hint})" if problem.hint else problem.message
    return ""


OWN_USER = "a container that shares GPUs has to run as who launches it, uid 1000 (add -u 1000:100)"
NO_MPS = "so its containers cannot share GPUs through MPS"
OWN_SHM = "a container that shares GPUs has the host's /dev/shm, where it meets its MPS daemon"


@cases(CASES["user_of_a_sharing_container"], "line", "around", "want")
def test_as_whom_a_container_that_shares_runs(line: str, around: dict[str, Any], want: str) -> None:
    """MPS serves one user, so a container has to run as its launcher, and no name is guessed at."""
    got = refusal(line, **around)
    assert got == want.format(own_user=OWN_USER)


@cases(CASES["engines_that_map_users"], "line", "security", "want")
def test_engines_that_map_users(line: str, security: list[str], want: str) -> None:
    """MPS knows its clients by their uid on the host, which must be the one in the container."""
    got = refusal(line, security=security)
    assert got == want.format(no_mps=NO_MPS)


@cases(CASES["shared_memory"], "line", "want")
def test_whose_shared_memory(line: str, want: str) -> None:
    """MPS daemon and clients meet in /dev/shm, so another namespace or tmpfs is refused."""
    got = refusal(line)
    assert got == want.format(own_shm=OWN_SHM)


@cases(CASES["runs_once"], "line", "want")
def test_only_what_runs_once_shares(line: str, want: str) -> None:
    """A share lasts while its container runs, so what starts later, or again, cannot have one."""
    got = refusal(line)
    assert got.startswith(want)
    assert bool(got) == bool(want)


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
    got = parse_container(described(status, policy=policy, **state)).holds
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
