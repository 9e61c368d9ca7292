"""`gpulaunch help [COMMAND]`, the short help, and what a word may have meant that is no command."""

import os
import shutil
from collections.abc import Sequence
from shlex import join
from typing import Any

from gpulaunch.cli.arguments import SUPPRESS, LaunchParser, Parser, add_rows
from gpulaunch.cli.commands import COMMANDS, GROUPS, OTHER_NAMES, TWO_WORDS, run_command
from gpulaunch.errors import UsageError, did_you_mean, nearest, printable, quoted
from gpulaunch.launch.options import OPTIONS, SETTINGS, TYPED

_USED_MOST = "gpus profile wait time_limit memory only name share topology dry_run"

WORDS_WITHOUT_ROWS = {
    "run": "run a command; the word may be left out",
    "docker": "and podman: run, create, start and compose up get GPUs",
}
"""Summaries of words that have no row in the table of commands; jobs, like the first of those."""

_EXAMPLES = """\
examples:
  gpulaunch -n 2 -- python train.py      the two GPUs with the best links
  gpulaunch --wait -n 8 -- ./run.sh      all eight, when they are free
  gpulaunch docker run -it IMAGE bash    a container with one GPU
"""

_MORE = """\
all options: gpulaunch help launch     a command: gpulaunch help COMMAND
settings, for files and the environment: gpulaunch help settings"""

_EPILOG = "Options may also be set by GPULAUNCH_* variables and in ~/.config/gpulaunch/config.toml."
_USAGE = (
    "gpulaunch [OPTIONS] -- COMMAND [ARG...]\n"
    "       gpulaunch [OPTIONS] docker run [FLAGS] IMAGE [COMMAND] [ARG...]\n"
    "       gpulaunch COMMAND [OPTIONS]"
)
_ABOUT = "Pick the GPUs whose links suit the job, hold them, run it on them, free them."

_SETTINGS_HEAD = """\
What may be set, from the first of these that says it:
  -o NAME=VALUE on the command line; some have an option of their own, too
  GPULAUNCH_NAME in the environment
  name = "value" in ~/.config/gpulaunch/config.toml, then /etc/gpulaunch/config.toml"""


def main(arguments: Sequence[str]) -> int:
    """Print the help of a command, of launches, of the settings, or the short one."""
    options = make_parser().parse_args(arguments)
    given = (options.command, options.word)
    words = [OTHER_NAMES.get(word, word) for word in given if word is not None]
    if not words:
        print_help()
    elif words[0] in ("launch", "podman", *WORDS_WITHOUT_ROWS):
        make_launch_parser().print_help()
    elif words == ["settings"]:
        _print_settings()
    elif words[0] in COMMANDS:
        return run_command([*words, "--help"], None)
    else:
        topics = ("launch", "settings", "podman", *WORDS_WITHOUT_ROWS, *COMMANDS)
        meant = did_you_mean(words[0], topics)
        raise UsageError(f"unknown command {quoted(words[0])}{meant}", "see 'gpulaunch --help'")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch help", "Print the help of a command.")
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs="?",
        help="a command; launch: all options of a launch; settings: their names",
    )
    parser.add_argument(
        "word", metavar="WORD", nargs="?", help="one of a command's words, such as cluster map"
    )
    return parser


def make_launch_parser() -> LaunchParser:
    """Return the parser of a launch, with its help."""
    usage = "\n".join(_USAGE.splitlines()[:2])
    return LaunchParser(OPTIONS.values(), description=_ABOUT, usage=usage, epilog=_EPILOG)


def word_parser(first: str, description: str) -> Parser:
    """Return the parser that reads the second word of a command, which has a parser of its own."""
    summaries = {}
    for command in TWO_WORDS.values():
        before, second = command.word.split()
        if before == first and command.summary:
            summaries[second] = command.summary
    column = max(6, *(len(word) + 1 for word in summaries))
    lines = [f"  {word:{column}} {text}" for word, text in summaries.items()]
    epilog = "\n".join(["words, each with a --help of its own:", *lines])
    prog = f"gpulaunch {first}"
    parser = Parser(prog, description, f"{prog} WORD [OPTIONS]", epilog=epilog)

    def known(word: str) -> str:
        if f"{first} {word}" not in TWO_WORDS:
            message = f"unknown word {quoted(word)} after {first}{did_you_mean(word, summaries)}"
            raise UsageError(message, f"see '{prog} --help'")
        return word

    parser.add_argument("word", metavar="WORD", type=known, help="one of the words below")
    return parser


def print_help() -> None:
    """Print the usage, all commands, the options that are used most, and examples."""
    parser = Parser("gpulaunch", _ABOUT, _USAGE, add_help=False, epilog=f"{_EXAMPLES}\n{_MORE}")
    entries = dict(WORDS_WITHOUT_ROWS)
    for title, commands in GROUPS.items():
        group = parser.add_argument_group(title)
        for command in commands:
            if " " not in command.word:
                entries[f"{command.word} {command.arguments}".rstrip()] = command.summary
        for shown, summary in entries.items():
            group.add_argument(shown, help=summary)
        entries = {}
    add_rows(parser, [OPTIONS[name] for name in _USED_MOST.split()], "options that are used most")
    parser.print_help()


def _print_settings() -> None:
    parser = Parser("gpulaunch help settings", _SETTINGS_HEAD, SUPPRESS, add_help=False)
    groups: dict[str, Any] = {}
    for name, row in (*SETTINGS.items(), *TYPED.items()):
        title = row.group if row.is_setting else "only with -o"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = f"{row.value or 'true|false'}: {row.text}"
        groups[title].add_argument(name, help=text.replace("%", "%%"))
    parser.print_help()


_MEANT = {
    "status": "jobs list ls nvidia-smi queue smi squeue who",
    "free": "del delete end kill release remove rm scancel stop unlock",
    "reserve": "alloc allocate book hold interactive salloc",
    "run": "exec execute launch sbatch srun start submit",
    "doctor": "check debug diagnose test",
    "help": "commands info man usage",
    "help settings": "conf config configuration settings",
    "profile list": "models workloads",
    "setup": "init install",
    "simulate": "sim",
    "topo": "machine nvlink topology",
    "--version": "version",
}
"""Words of other programs, by what they are called here."""

_SYNONYMS = {word: name for name, words in _MEANT.items() for word in words.split()}
_ALIKE = 0.7  # less would take train.py for drain


def unknown_command(before: Sequence[str], at: int, rest: Sequence[str]) -> UsageError:
    """Return the error about a first word that is no command.

    Args:
        rest: the -- and what comes after it, if there is any.
    """
    word = before[at]
    near = [_SYNONYMS[word]] if word in _SYNONYMS else nearest(word, COMMANDS, _ALIKE)
    meant = f": did you mean {' or '.join(near)}?" if near else ""
    command = [*before[at:], *rest]
    if " " in word and len(command) == 1:
        command = ["sh", "-c", word]
    elif word.endswith(".py") and os.path.isfile(word) and not os.access(word, os.X_OK):
        command = ["python3", *command]
    elif near and len(command) == 1 and not (shutil.which(word) or os.path.exists(word)):
        return UsageError(f"unknown command {quoted(word)}{meant}")
    line = printable(join(["gpulaunch", *before[:at], "--", *command]))
    return UsageError(
        f"unknown command {quoted(word)}{meant}", f"to run a program, write -- before it: {line}"
    )
