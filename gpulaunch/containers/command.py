"""Docker's command line, read as docker reads it, so that the image and all that follows it stay untouched.

Docker's flags end at the first word that is none: the image. To find it one has to know which flags
take a value. The tables are the union over the docker clients 20.10 to 29.7 (docker/cli,
cli/command/container/opts.go and run.go, cli/flags/options.go); tests/test_docker_command.py holds
them against the installed client.
"""
# pure: decides on plain values

from collections.abc import Sequence
from typing import NamedTuple

from gpulaunch.errors import UsageError, printable


class FlagTable(NamedTuple):
    """The flags of one command.

    Attributes:
        switches: those that take a value only as --flag=value.
        valued: those that take one always, joined or as the next word.
    """

    switches: frozenset[str]
    valued: frozenset[str]


def _table(switches: str, valued: str) -> FlagTable:
    return FlagTable(frozenset(switches.split()), frozenset(valued.split()))


RUN_FLAGS = _table(
    """-d --detach --disable-content-trust --help --init -i --interactive --no-healthcheck --oom-kill-disable
    --privileged -P --publish-all -q --quiet --read-only --rm --sig-proxy -t --tty --use-api-socket""",
    """--add-host --annotation -a --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent
    --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime -c
    --cpu-shares --cpus --cpuset-cpus --cpuset-mems --detach-keys --device --device-cgroup-rule --device-read-bps
    --device-read-iops --device-write-bps --device-write-iops --dns --dns-opt --dns-option --dns-search --domainname
    --entrypoint -e --env --env-file --expose --gpus --group-add --health-cmd --health-interval --health-retries
    --health-start-interval --health-start-period --health-timeout -h --hostname --io-maxbandwidth --io-maxiops --ip
    --ip6 --ipc --isolation --kernel-memory -l --label --label-file --link --link-local-ip --log-driver --log-opt
    --mac-address -m --memory --memory-reservation --memory-swap --memory-swappiness --mount --name --net --net-alias
    --network --network-alias --oom-score-adj --pid --pids-limit --platform -p --publish --pull --restart --runtime
    --security-opt --shm-size --stop-signal --stop-timeout --storage-opt --sysctl --tmpfs --ulimit -u --user --userns
    --uts -v --volume --volume-driver --volumes-from -w --workdir""",
)

START_FLAGS = _table(
    "-a --attach -h --help -i --interactive",
    "--checkpoint --checkpoint-dir --detach-keys -s --signal -t --time --timeout",
)
"""Of docker start and docker restart together."""

GLOBAL_FLAGS = _table(
    "-D --debug -h --help --tls --tlsverify -v --version",
    "--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey",
)

_CONTAINER_FLAGS = _table("-h --help", "")

_COMPOSE_FLAGS = _table(
    "--all-resources --compatibility --dry-run --help --verbose --version -v",
    "--ansi --env-file -f --file --parallel --profile --progress --project-directory -p --project-name",
)

_LAUNCHING = frozenset({("run",), ("create",), ("container", "run"), ("container", "create")})
_STARTING = frozenset({("start",), ("restart",), ("container", "start"), ("container", "restart")})
_COMPOSE_STARTS = frozenset({"create", "restart", "run", "scale", "start", "up", "watch"})
_YES = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class Flag(NamedTuple):
    """One flag as it was given.

    Attributes:
        name: with its dashes, such as --gpus or -e.
        value: None if there is none.
        begin: index of its word.
        end: index after its last word.
    """

    name: str
    value: str | None
    begin: int
    end: int

    @property
    def is_on(self) -> bool:
        """Whether a switch is set; Go's strconv.ParseBool reads its value."""
        return self.value is None or self.value in _YES


class DockerCommand(NamedTuple):
    """A command line of docker.

    Attributes:
        argv: all of it.
        global_flags: before the subcommand.
        subcommand: such as ("run",) or ("container", "run"); one word for those that are of no
            concern here.
        flags: of the subcommand, if it is one that starts containers.
        flags_end: index after the last of them; before the -- that may end them.
        operands: what follows: image, command and arguments, or containers.
    """

    argv: tuple[str, ...]
    global_flags: tuple[Flag, ...]
    subcommand: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    flags_end: int = 0
    operands: tuple[str, ...] = ()

    @property
    def launches(self) -> bool:
        """Whether it makes a container that can run; else docker only prints something, or complains."""
        return self.subcommand in _LAUNCHING and bool(self.operands) and not self.says("--help")

    @property
    def makes_only(self) -> bool:
        """Whether the container is not started yet."""
        return self.subcommand[-1:] == ("create",)

    @property
    def starts(self) -> bool:
        """Whether it starts containers that are there."""
        return (
            self.subcommand in _STARTING and bool(self.operands) and not self.says("-h", "--help")
        )

    def says(self, *names: str) -> bool:
        """Whether a switch is on; the last one counts."""
        return next((flag.is_on for flag in reversed(self.flags) if flag.name in names), False)

    def values(self, *names: str) -> list[str]:
        """Values of a flag, in their order."""
        return [flag.value for flag in self.flags if flag.name in names and flag.value is not None]

    def global_value(self, *names: str) -> str | None:
        """Value of a flag before the subcommand; the last one counts."""
        return next(
            (flag.value for flag in reversed(self.global_flags) if flag.name in names), None
        )

    def without_secrets(self) -> tuple[str, ...]:
        """The command line as others may see it: the values of environment variables are left out."""
        shown = list(self.argv)
        for flag in self.flags:
            if flag.name in ("-e", "--env") and flag.value and "=" in flag.value:
                last = shown[flag.end - 1]
                shown[flag.end - 1] = (
                    f"{last.removesuffix(flag.value)}{flag.value.partition('=')[0]}=..."
                )
        return tuple(shown)


def read_command(argv: Sequence[str]) -> DockerCommand:
    """Read docker's command line.

    What docker itself would refuse, such as a value that is missing, is left for docker to refuse.

    Args:
        argv: from the word docker on.

    Raises:
        UsageError: a flag is unknown, so that nobody can tell where the image is; or compose is to
            start containers.
    """
    argv = tuple(argv)
    global_flags, _, words = _read_flags(argv, 1, GLOBAL_FLAGS, "docker")
    subcommand, begin = words[:1], len(argv) - len(words[1:])
    if subcommand == ("compose",):
        _refuse_compose(argv, begin)
    if subcommand == ("container",):
        _, end, words = _read_flags(argv, begin, _CONTAINER_FLAGS, "docker container")
        if argv[end : end + 1] == ("--",):  # docker prints help then
            return DockerCommand(argv, global_flags, subcommand)
        subcommand, begin = (*subcommand, *words[:1]), len(argv) - len(words[1:])
    if subcommand not in _LAUNCHING | _STARTING:
        return DockerCommand(argv, global_flags, subcommand)
    if subcommand in _LAUNCHING:
        flags, flags_end, operands = _read_flags(
            argv, begin, RUN_FLAGS, f"docker {' '.join(subcommand)}"
        )
    else:
        flags, flags_end, operands = _read_mixed(
            argv, begin, START_FLAGS, f"docker {' '.join(subcommand)}"
        )
    return DockerCommand(argv, global_flags, subcommand, flags, flags_end, operands)


def _read_flags(
    argv: tuple[str, ...], begin: int, table: FlagTable, command: str
) -> tuple[tuple[Flag, ...], int, tuple[str, ...]]:
    """Flags up to the first word that is none: they, the index after them, and the rest."""
    flags: list[Flag] = []
    at = begin
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return tuple(flags), at, argv[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        found = _read_word(argv, at, table, command)
        flags += found
        at = found[-1].end
    return tuple(flags), at, argv[at:]


def _read_mixed(
    argv: tuple[str, ...], begin: int, table: FlagTable, command: str
) -> tuple[tuple[Flag, ...], int, tuple[str, ...]]:
    """The same where flags may also stand among and after the operands."""
    flags: list[Flag] = []
    operands: list[str] = []
    rest = argv
    at = begin
    while at < len(rest):
        found, end, _ = _read_flags(rest, at, table, command)
        flags += found
        if rest[end : end + 1] == ("--",):
            operands += rest[end + 1 :]
            break
        operands += rest[end : end + 1]
        at = end + 1
    return tuple(flags), begin, tuple(operands)


def _read_word(argv: tuple[str, ...], at: int, table: FlagTable, command: str) -> list[Flag]:
    """The flags in one word, such as -itv, and the value in the next if the last one takes it from there."""
    word = argv[at]
    if not word.startswith("--"):
        return _read_letters(argv, at, table, command)
    name, equals, value = word.partition("=")
    # of a flag that is not known, too: there is no doubt where its value is, and docker will judge
    # it
    if equals:
        return [Flag(name, value, at, at + 1)]
    if name in table.switches:
        return [Flag(name, None, at, at + 1)]
    return [_with_next(argv, at, name, table, command)]


def _read_letters(argv: tuple[str, ...], at: int, table: FlagTable, command: str) -> list[Flag]:
    flags: list[Flag] = []
    word = argv[at]
    for i, letter in enumerate(word[1:], 1):
        name, rest = f"-{letter}", word[i + 1 :]
        if rest.startswith("=") and len(rest) > 1:
            return [*flags, Flag(name, rest[1:], at, at + 1)]
        if name not in table.switches:
            joined = Flag(name, rest, at, at + 1) if rest and name in table.valued else None
            return [*flags, joined or _with_next(argv, at, name, table, command)]
        flags.append(Flag(name, None, at, at + 1))
    return flags


def _with_next(argv: tuple[str, ...], at: int, name: str, table: FlagTable, command: str) -> Flag:
    if name not in table.valued:
        raise UsageError(f"{command}: unknown flag {printable(name)}", _hint(name, table))
    return Flag(name, argv[at + 1] if at + 1 < len(argv) else None, at, min(at + 2, len(argv)))


def _hint(name: str, table: FlagTable) -> str | None:
    from difflib import get_close_matches  # late: for mistakes only

    if not name.startswith("--"):
        return None
    near = get_close_matches(name, table.switches | table.valued, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}a flag that is new in docker is written {printable(name)}=VALUE"


def _refuse_compose(argv: tuple[str, ...], begin: int) -> None:
    _, _, words = _read_flags(argv, begin, _COMPOSE_FLAGS, "docker compose")
    if words and words[0] in _COMPOSE_STARTS:
        raise UsageError(
            f"'docker compose {words[0]}' is not built yet: no leases for its containers",
            "launch each container with 'gpulaunch docker run', or call docker without gpulaunch",
        )
