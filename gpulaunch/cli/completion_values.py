"""What completes each argument of the command line, from the parsers of all commands."""

from collections.abc import Iterable

from gpulaunch.cli.arguments import Action
from gpulaunch.cli.cluster import WORDS as CLUSTER_WORDS
from gpulaunch.cli.commands import COMMANDS, OTHER_NAMES
from gpulaunch.cli.grammar import all_parsers
from gpulaunch.cli.help import WORDS_WITHOUT_ROWS
from gpulaunch.cli.profile import WORDS as PROFILE_WORDS
from gpulaunch.cluster.policies import MAPPING_POLICIES
from gpulaunch.cluster.traffic import SHAPES
from gpulaunch.decide.placement.effective import BANDWIDTH_MODELS
from gpulaunch.decide.placement.policies import POLICIES
from gpulaunch.leases.share import OBJECTIVES
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import Record
from gpulaunch.simulate.time_model import MODELS

ENGINES = ("docker", "podman", "nvidia-docker")
"""Words after which the command line is that of a container engine."""

_WORDS: dict[str, Iterable[str]] = {
    "--policy": POLICIES,
    "cluster map --policy": MAPPING_POLICIES,
    "cluster run --policy": MAPPING_POLICIES,
    "--pattern": PATTERNS,
    "--cpu-pattern": SHAPES,
    "--gpu-pattern": SHAPES,
    "--bandwidth-model": BANDWIDTH_MODELS,
    "--objective": OBJECTIVES,
    "--time-model": MODELS,
    "help COMMAND": ("launch", "settings", *COMMANDS, *WORDS_WITHOUT_ROWS),
    "help WORD": (*CLUSTER_WORDS, *PROFILE_WORDS),
}
"""Words by the option, or the metavar of a positional, perhaps after those of the command."""

_NAMES = {
    "--after": "jobs",
    "--apart-from": "jobs",
    "--cluster": "clusters",
    "--pair": "profiles",
    "--profile": "profiles",
    "--share-with": "profiles",
    "--topology": "machines",
    "ID|NAME": "leases",
    "NAME|ID": "jobs",
    "PROFILE": "profiles",
}
"""Kinds of names that `gpulaunch completion --names` prints, likewise."""

_SHELL = {
    "--user": "users",
    "COMMAND": "commands",
    "DIR": "directories",
    "FILE": "files",
    "PATH": "files",
    "PROFILE": "files",
}
"""What the shell itself completes, by the option or by a part of the metavar."""


_NEEDS_NONE = ("--share",)
"""Options that need no value, though a parser gives them one."""


class Value(Record):
    """What completes a value; nothing does if all fields are empty.

    Attributes:
        words: words that it may be.
        names: kind of names that it may be, which are asked for when they are needed.
        shell: "files", "directories", "commands" or "users".
        is_list: whether it is a list with commas.
    """

    words: tuple[str, ...] = ()
    names: str = ""
    shell: str = ""
    is_list: bool = False


class Argument(Record):
    """An option or a positional argument of a command.

    Attributes:
        flags: spellings of an option, the short one first; empty for a positional argument.
        metavar: name of its value in the help.
        help: its text in the help.
        value: its value; None for an option that needs none.
        repeats: whether it may be given several times.
    """

    flags: tuple[str, ...]
    metavar: str
    help: str
    value: Value | None
    repeats: bool


def all_arguments() -> dict[str, list[Argument]]:
    """Return the arguments of each command by its words; "" is a launch."""
    found = {}
    for command, parser in all_parsers().items():
        found[command] = [
            _argument(command, action, parser.help_of(action)) for action in parser.actions()
        ]
    first = Value(words=tuple(all_words()))
    found[""].append(Argument((), "COMMAND", "", first, repeats=False))
    return found


def all_words() -> dict[str, str]:
    """Return the words that may come after `gpulaunch`, with their summaries."""
    words = {word: row.summary for word, row in COMMANDS.items()} | WORDS_WITHOUT_ROWS
    return words | {name: words[word] for name, word in OTHER_NAMES.items()}


def _argument(command: str, action: Action, text: str) -> Argument:
    flags = tuple(action.option_strings)
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    needs_value = not flags or (action.nargs not in (0, "?") and flags[-1] not in _NEEDS_NONE)
    value = (
        _value(command, flags[-1] if flags else metavar, metavar, action) if needs_value else None
    )
    repeats = action.nargs in ("*", "+") or flags == ("--after",)
    return Argument(flags, metavar, text, value, repeats)


def _value(command: str, key: str, metavar: str, action: Action) -> Value:
    parts = metavar.removesuffix(",...").split("|")
    literal = tuple(part for part in parts if part.isalpha() and part.islower())
    known = _WORDS.get(f"{command} {key}") or _WORDS.get(key) or literal
    words = tuple(word.replace("_", "-") for word in action.choices or known)
    shells = [_SHELL[part] for part in (key, *parts) if part in _SHELL]
    names = _NAMES.get(key, "")
    return Value(
        words=words,
        names=names,
        shell="" if metavar == "COMMAND" and words else next(iter(shells), ""),
        is_list=metavar.endswith(",...") and bool(words or names),
    )
