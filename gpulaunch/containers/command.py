"""The command line of a container engine, read as its own client reads it.

The flags end at the first other word: the image. To find it, one has to know which flags take a
value; the engine's Grammar says so. The image and all that follows it are left untouched.
"""
# pure: decides on plain values

from collections.abc import Sequence
from posixpath import basename

from gpulaunch.errors import FlagError, UsageError, nearest, printable
from gpulaunch.records import Record, replace


class FlagTable(Record):
    """The flags of one command.

    Attributes:
        switches: flags that take a value only as --flag=value.
        valued: flags that always take one, joined or as the next word.
    """

    switches: frozenset[str]
    valued: frozenset[str]

    @classmethod
    def of(cls, switches: str, valued: str) -> "FlagTable":
        """Make a table from words separated by blanks."""
        return cls(frozenset(switches.split()), frozenset(valued.split()))


class Grammar(Record):
    """The command line of an engine's client, as data.

    Its subcommands are docker's: run and create make containers, start and restart start them
    again, and each may follow the word container.

    Attributes:
        program: name of the client.
        global_flags: flags before the subcommand.
        run_flags: flags of run and create together.
        start_flags: flags of start and restart together.
        compose_flags: flags between the word compose and its subcommand.
        compose_up_flags: flags of compose up, create, start and restart together; None if compose
            is not built.
        compose_run_flags: flags of compose run, or None.
        unnamed: flags of start and restart that choose containers without naming them.
    """

    program: str
    global_flags: FlagTable
    run_flags: FlagTable
    start_flags: FlagTable
    compose_flags: FlagTable
    compose_up_flags: FlagTable | None = None
    compose_run_flags: FlagTable | None = None
    unnamed: frozenset[str] = frozenset()


_LAUNCHING = frozenset({("run",), ("create",), ("container", "run"), ("container", "create")})
_STARTING = frozenset({("start",), ("restart",), ("container", "start"), ("container", "restart")})
_COMPOSE_STARTS = frozenset({"create", "restart", "run", "start", "up"})
_COMPOSE_NOT_BUILT = {"scale": "up -d --scale", "watch": "up --watch"}
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


class ContainerCommand(Record):
    """A command line of an engine's client.

    Attributes:
        program: name of the client, such as docker.
        argv: the whole command line.
        global_flags: flags before the subcommand.
        subcommand: words such as ("run",) or ("container", "run"); one word for those that neither
            make nor start containers.
        flags: flags of the subcommand, if it makes or starts containers.
        flags_end: index after the last flag, and before the -- that may end them.
        operands: words after the flags: image, command and arguments, or containers.
        alias: name by which the client was called if it is not its own, such as nvidia-docker.
        compose_flags: flags between the word compose and its subcommand.
    """

    program: str
    argv: tuple[str, ...]
    global_flags: tuple[Flag, ...] = ()
    subcommand: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    flags_end: int = 0
    operands: tuple[str, ...] = ()
    alias: str | None = None
    compose_flags: tuple[Flag, ...] = ()

    @property
    def title(self) -> str:
        """The program and subcommand, for messages."""
        return " ".join((self.program, *self.subcommand))

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

    @property
    def composes(self) -> bool:
        """True if it makes or starts the containers of a project of several services."""
        tried = any(flag.name == "--dry-run" and flag.is_on for flag in self.compose_flags)
        asks = self.says("-h", "--help", "--dry-run")
        return (
            self.subcommand[:1] == ("compose",) and len(self.subcommand) > 1 and not (tried or asks)
        )

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

    def global_value(self, *names: str) -> str | None:
        """Return the value of a flag before the subcommand; the last one counts."""
        return next(
            (flag.value for flag in reversed(self.global_flags) if flag.name in names), None
        )

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


def read_command(argv: Sequence[str], grammar: Grammar) -> ContainerCommand:
    """Read the command line of an engine's client.

    Mistakes that the client itself refuses, such as a missing value, are left to it.

    Args:
        argv: the words from the client's name on. An alias, such as nvidia-docker, is replaced by
            the client's own name: what it would add to the command line is added here.
        grammar: the client's grammar.

    Raises:
        UsageError: a flag is unknown, so that the image or the services cannot be found; start is
            to start what it does not name; or what compose is to do is not built.
    """
    program, called = grammar.program, basename(argv[0])
    alias = None if called == program else called
    argv = (program, *argv[1:]) if alias else tuple(argv)
    global_flags, _, words = _read_flags(argv, 1, grammar.global_flags, program)
    subcommand, begin = words[:1], len(argv) - len(words[1:])
    command = ContainerCommand(program, argv, global_flags, subcommand, alias=alias)
    if subcommand == ("compose",):
        return _read_compose(command, begin, grammar)
    if subcommand == ("container",):
        # With a flag in between, such as --help, the client only prints something.
        command = replace(command, subcommand=argv[begin - 1 : begin + 1])
        begin += 1
    if command.subcommand in _LAUNCHING:
        read = _read_flags(argv, begin, grammar.run_flags, command.title)
    elif command.subcommand in _STARTING:
        read = _read_mixed(argv, begin, grammar.start_flags, command.title)
    else:
        return command
    flags, flags_end, operands = read
    unnamed = [flag.name for flag in flags if flag.name in grammar.unnamed]
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
        raise FlagError(
            f"{command}: unknown flag {printable(name)}", _suggest_flag(name, table, command)
        )
    return Flag(name, argv[at + 1] if at + 1 < len(argv) else None, at, min(at + 2, len(argv)))


def _suggest_flag(name: str, table: FlagTable, command: str) -> str | None:
    if not name.startswith("--"):
        return None
    near = nearest(name, sorted(table.switches | table.valued))
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    program = command.partition(" ")[0]
    return f"{meant}a flag that is new in {program} is written {printable(name)}=VALUE"


def _read_compose(command: ContainerCommand, begin: int, grammar: Grammar) -> ContainerCommand:
    """Read the rest of a compose command, if it makes or starts containers."""
    argv, program = command.argv, command.program
    flags, _, words = _read_flags(argv, begin, grammar.compose_flags, command.title)
    word = words[0] if words else ""
    up, run = grammar.compose_up_flags, grammar.compose_run_flags
    if up is None or run is None:
        if word in _COMPOSE_STARTS or word in _COMPOSE_NOT_BUILT:
            raise UsageError(
                f"'{program} compose {word}' is not built yet: no leases for its containers",
                f"launch each container with 'gpulaunch {program} run', "
                f"or call {program} without gpulaunch",
            )
        return command
    if word in _COMPOSE_NOT_BUILT:
        raise UsageError(
            f"'{program} compose {word}' is not built yet: no leases for its containers",
            f"'gpulaunch {program} compose {_COMPOSE_NOT_BUILT[word]}' leases them GPUs",
        )
    if word not in _COMPOSE_STARTS:
        return command
    command = replace(command, subcommand=("compose", word), compose_flags=flags)
    begin = len(argv) - len(words[1:])
    if word == "run":
        read = _read_flags(argv, begin, run, command.title)
    else:
        read = _read_mixed(argv, begin, up, command.title)
    return replace(command, flags=read[0], flags_end=read[1], operands=read[2])
