"""Podman's command line, read as podman reads it.

The flags end at the first other word: the image. To find it, one has to know which flags take a
value. The image and all that follows it are left untouched.
"""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.containers.flags import Flag, read_flags
from gpulaunch.containers.podman.flags import GLOBAL, RUN, START, UNNAMED, FlagTable
from gpulaunch.errors import FlagError, UsageError, nearest, printable
from gpulaunch.records import Record, replace

PROGRAM = "podman"
_LAUNCHING = frozenset({("run",), ("create",), ("container", "run"), ("container", "create")})
_STARTING = frozenset({("start",), ("restart",), ("container", "start"), ("container", "restart")})
_COMPOSE_STARTS = frozenset({"create", "restart", "run", "start", "up", "scale", "watch"})


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
    global_flags, begin = _read_flags(argv, 1, GLOBAL, PROGRAM)
    subcommand = argv[begin : begin + 1]
    if subcommand == ("compose",) and _COMPOSE_STARTS & {*argv[begin:]}:
        raise UsageError(
            "'podman compose' is not built: no leases for its containers",
            "launch each container with 'gpulaunch podman run', or call podman without gpulaunch",
        )
    begin += 1
    if subcommand == ("container",):
        more, begin = _read_flags(argv, begin, GLOBAL, PROGRAM)
        if not any(flag.name in ("-h", "--help") for flag in more):
            subcommand += argv[begin : begin + 1]
            begin += 1
        global_flags += more
    command = PodmanCommand(argv, global_flags, subcommand)
    if subcommand in _LAUNCHING:
        flags, at = _read_flags(argv, begin, RUN, command.title)
        operands = argv[at + 1 :] if argv[at : at + 1] == ("--",) else argv[at:]
        return replace(command, flags=flags, flags_end=at, operands=operands)
    if subcommand not in _STARTING:
        return command
    flags, at, operands = (), begin, ()
    while at < len(argv):  # its flags may come among the containers, and after them
        more, at = _read_flags(argv, at, START, command.title)
        flags += more
        if argv[at : at + 1] == ("--",):
            operands += argv[at + 1 :]
            break
        operands += argv[at : at + 1]
        at += 1
    if unnamed := [flag.name for flag in flags if flag.name in UNNAMED]:
        raise UsageError(
            f"{command.title} {unnamed[0]}: which containers that starts, gpulaunch does not know",
            f"name them: gpulaunch {command.title} CONTAINER",
        )
    return replace(command, flags=flags, flags_end=begin, operands=operands)


def _read_flags(
    argv: tuple[str, ...], at: int, table: FlagTable, command: str
) -> tuple[tuple[Flag, ...], int]:
    """Return the flags up to the first other word, and the index after them."""
    flags = tuple(read_flags(argv, at, table.valued))
    known = table.valued | table.switches
    for flag in flags:
        # Of a joined value one can be certain, and podman judges the flag.
        if flag.name not in known and flag.value is None:
            raise FlagError(
                f"{command}: unknown flag {printable(flag.name)}", _suggest_flag(flag.name, known)
            )
    return flags, flags[-1].end if flags else at


def _suggest_flag(name: str, known: frozenset[str]) -> str | None:
    if not name.startswith("--"):
        return None
    near = nearest(name, sorted(known))
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{meant}a flag that is new in {PROGRAM} is written {printable(name)}=VALUE"
