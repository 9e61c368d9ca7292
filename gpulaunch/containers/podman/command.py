"""Podman's command line, read as podman reads it.

The flags end at the first other word: the image. To find it, one has to know which flags take a
value. The image and all that follows it are left untouched.
"""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.containers.podman.flags import GLOBAL, RUN, START, UNNAMED, FlagTable
from gpulaunch.errors import FlagError, UsageError, nearest, printable
from gpulaunch.records import Record, replace

PROGRAM = "podman"
_LAUNCHING = frozenset({("run",), ("create",), ("container", "run"), ("container", "create")})
_STARTING = frozenset({("start",), ("restart",), ("container", "start"), ("container", "restart")})
_COMPOSE_STARTS = frozenset({"create", "restart", "run", "start", "up", "scale", "watch"})
_YES = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class Flag(Record):
    """One flag as it was given.

    Attributes:
        name: name with its dashes, such as --gpus or -e.
        value: value of the flag; None without one.
        begin: index of the flag's word.
        end: index after its last word.
    """

    name: str
    value: str | None
    begin: int
    end: int

    @property
    def is_on(self) -> bool:
        """True if a switch is set; its value is read as by Go's strconv.ParseBool."""
        return self.value is None or self.value in _YES


class PodmanCommand(Record):
    """A command line of podman.

    Attributes:
        argv: the whole command line.
        global_flags: flags before the subcommand.
        subcommand: words such as ("run",) or ("container", "run"); one word for those that neither
            make nor start containers.
        flags: flags of the subcommand, if it makes or starts containers.
        flags_end: index after the last flag, and before the -- that may end them.
        operands: words after the flags: image, command and arguments, or containers.
    """

    argv: tuple[str, ...]
    global_flags: tuple[Flag, ...] = ()
    subcommand: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    flags_end: int = 0
    operands: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The program and subcommand, for messages."""
        return " ".join((PROGRAM, *self.subcommand))

    @property
    def launches(self) -> bool:
        """True if it makes a container that can run; otherwise the client only prints something."""
        return self.subcommand in _LAUNCHING and bool(self.operands) and not self.says("--help")

    @property
    def makes_only(self) -> bool:
        """True if it makes a container without starting it."""
        return self.subcommand[-1:] == ("create",)

    @property
    def starts(self) -> bool:
        """True if it starts containers that exist already."""
        return (
            self.subcommand in _STARTING and bool(self.operands) and not self.says("-h", "--help")
        )

    @property
    def is_attached(self) -> bool:
        """True if the client stays until the container that it starts has ended."""
        if self.starts:
            return self.says("-a", "--attach", "-i", "--interactive")
        return not (self.makes_only or self.says("-d", "--detach"))

    @property
    def passes_signals(self) -> bool:
        """True if the client passes the signals that it gets on to the container."""
        refused = any(flag.name == "--sig-proxy" and not flag.is_on for flag in self.flags)
        return self.is_attached and not refused and not self.says("-t", "--tty")

    def says(self, *names: str) -> bool:
        """Return whether a switch is on; the last one counts."""
        return next((flag.is_on for flag in reversed(self.flags) if flag.name in names), False)

    def values(self, *names: str) -> list[str]:
        """Return the values of a flag, in order."""
        return [flag.value for flag in self.flags if flag.name in names and flag.value is not None]

    @property
    def restart_policy(self) -> str | None:
        """The policy by which the engine starts the container again; None for none."""
        policies = self.values("--restart")
        return policies[-1] if policies and policies[-1] not in ("", "no") else None

    def without_secrets(self) -> tuple[str, ...]:
        """Return the command line without the values of -e, for others to see."""
        shown = list(self.argv)
        for flag in self.flags:
            if flag.name in ("-e", "--env") and flag.value and "=" in flag.value:
                last = shown[flag.end - 1]
                shown[flag.end - 1] = (
                    f"{last.removesuffix(flag.value)}{flag.value.partition('=')[0]}=..."
                )
        return tuple(shown)


def read_command(argv: Sequence[str]) -> PodmanCommand:
    """Read a command line of podman.

    Mistakes that podman itself refuses, such as a missing value, are left to it.

    Args:
        argv: the words from the client's name on.

    Raises:
        UsageError: a flag is unknown, so that the image cannot be found; start is to start what it
            does not name; or what compose is to do is not built.
    """
    argv = tuple(argv)
    global_flags, _, words = _read_flags(argv, 1, GLOBAL, PROGRAM)
    subcommand, begin = words[:1], len(argv) - len(words[1:])
    if subcommand == ("compose",) and _COMPOSE_STARTS & {*words}:
        raise UsageError(
            "'podman compose' is not built: no leases for its containers",
            "launch each container with 'gpulaunch podman run', or call podman without gpulaunch",
        )
    command = PodmanCommand(argv, global_flags, subcommand)
    if subcommand == ("container",):
        # With a flag in between, such as --help, the client only prints something.
        command = replace(command, subcommand=argv[begin - 1 : begin + 1])
        begin += 1
    if command.subcommand in _LAUNCHING:
        read = _read_flags(argv, begin, RUN, command.title)
    elif command.subcommand in _STARTING:
        read = _read_mixed(argv, begin, START, command.title)
    else:
        return command
    flags, flags_end, operands = read
    unnamed = [flag.name for flag in flags if flag.name in UNNAMED]
    if command.subcommand in _STARTING and unnamed:
        raise UsageError(
            f"{command.title} {unnamed[0]}: which containers that starts, gpulaunch does not know",
            f"name them: gpulaunch {command.title} CONTAINER",
        )
    return replace(command, flags=flags, flags_end=flags_end, operands=operands)


def _read_flags(
    argv: tuple[str, ...], begin: int, table: FlagTable, command: str
) -> tuple[tuple[Flag, ...], int, tuple[str, ...]]:
    """Return the flags up to the first other word, the index after them, and the rest."""
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
    """Read flags as _read_flags does, but also among and after the operands."""
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
    """Return the flags in one word, such as -itv; the last one may take the next word as value."""
    word = argv[at]
    if not word.startswith("--"):
        return _read_letters(argv, at, table, command)
    name, equals, value = word.partition("=")
    # Also for an unknown flag: its value is certain, and the client judges the flag.
    if equals:
        return [Flag(name, value, at, at + 1)]
    if name in table.switches:
        return [Flag(name, None, at, at + 1)]
    return [_take_next_word(argv, at, name, table, command)]


def _read_letters(argv: tuple[str, ...], at: int, table: FlagTable, command: str) -> list[Flag]:
    flags: list[Flag] = []
    word = argv[at]
    for i, letter in enumerate(word[1:], 1):
        name, rest = f"-{letter}", word[i + 1 :]
        if rest.startswith("=") and len(rest) > 1:
            return [*flags, Flag(name, rest[1:], at, at + 1)]
        if name not in table.switches:
            joined = Flag(name, rest, at, at + 1) if rest and name in table.valued else None
            return [*flags, joined or _take_next_word(argv, at, name, table, command)]
        flags.append(Flag(name, None, at, at + 1))
    return flags


def _take_next_word(
    argv: tuple[str, ...], at: int, name: str, table: FlagTable, command: str
) -> Flag:
    if name not in table.valued:
        raise FlagError(f"{command}: unknown flag {printable(name)}", _suggest_flag(name, table))
    return Flag(name, argv[at + 1] if at + 1 < len(argv) else None, at, min(at + 2, len(argv)))


def _suggest_flag(name: str, table: FlagTable) -> str | None:
    if not name.startswith("--"):
        return None
    near = nearest(name, sorted(table.switches | table.valued))
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{meant}a flag that is new in {PROGRAM} is written {printable(name)}=VALUE"
