"""The table of commands: a row gives a command's name, help and module.

Help, usage and dispatch come from here, and nothing else lists the commands. To add one, write
gpulaunch/cli/WORD.py with `main(arguments)`, which returns the exit status, and `make_parser()`,
and add its row. In a file of several commands these are `WORD(arguments)` and `WORD_parser()`.
In names of files and functions the two words of "cluster map" are one, cluster_map.
"""

import gc
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gpulaunch.cli.output import prepare_stdout
from gpulaunch.errors import UsageError
from gpulaunch.records import Record


class Command(Record):
    """One command.

    Attributes:
        arguments: the command's arguments in the help; "" if it has only options, WORD if it is
            the first of two words.
        summary: description in at most 60 characters; "" for one that only gpulaunch itself runs.
        runs_a_command: whether it takes a command of the user after `--`; its main gets that, or
            None, as a second argument.
        file: the file of gpulaunch.cli that it is in with others; WORD.py if empty.
    """

    word: str
    arguments: str
    summary: str
    runs_a_command: bool = False
    file: str = ""

    def run(self, *arguments: Any) -> int:  # noqa: ANN401
        """Run it with its arguments, and the user's command if it takes one."""
        return int(self._find("main", "")(*arguments))

    def make_parser(self) -> Any:  # noqa: ANN401
        """Return the parser of its command line."""
        return self._find("make_parser", "_parser")()

    def _find(self, alone: str, ending: str) -> Any:  # noqa: ANN401
        """Return a function of its module, by its name in a file of this command alone."""
        name = self.word.replace(" ", "_")
        module = import_module(f"gpulaunch.cli.{self.file or name}")
        return getattr(module, f"{name}{ending}" if self.file else alone)


GROUPS = {
    "jobs": (
        Command("batch", "FILE", "run a file of jobs, one launch after the other"),
        Command("free", "ID", "end a job or leave the queue, or --mine; also cancel"),
        Command("logs", "NAME", "the output of a detached job", file="logs"),
        Command("attach", "NAME", "go to the terminal of a detached job", file="logs"),
        Command("wait", "NAME", "sleep until jobs have ended, and end as they did", file="logs"),
        Command("reserve", "", "hold GPUs for a shell, a notebook, the steps of a CI job"),
    ),
    "what is there": (
        Command("status", "", "who has which GPUs, and who waits; also ps"),
        Command("top", "", "the same on a live screen, GPU by GPU"),
        Command("topo", "", "the link matrix"),
        Command("history", "", "what ran, on which GPUs, how long, and how it ended"),
        Command("doctor", "", "what works here, and how GPUs get into containers"),
    ),
    "knowing a job before it runs": (
        Command("profile", "WORD", "what is known about jobs: list, show, measure, scan"),
        Command("profile list", "", "the profiles that can be named", file="profile"),
        Command("profile show", "", "all that one profile says", file="profile"),
        Command(
            "profile measure",
            "",
            "run a job, and write what it uses into its profile",
            runs_a_command=True,
        ),
        Command("profile scan", "", "read a job's source, or a log of it, and run nothing"),
        Command("plan", "FILE", "which jobs of a queue to run together on a GPU"),
        Command("simulate", "", "replay a file of jobs on a described machine"),
    ),
    "the machine, and past one machine": (
        Command("setup", "", "make /run/gpulaunch, the table's place (as root)", file="setup"),
        Command("drain", "GPU", "take a GPU out of service, with a reason (as root)", file="setup"),
        Command("undrain", "GPU", "put a drained GPU into service again (as root)", file="setup"),
        Command("cluster", "WORD", "past one machine: which rank on which node, core and GPU"),
        Command(
            "cluster map",
            "",
            "which rank on which node, core and GPU of a described cluster",
            file="cluster",
        ),
        Command(
            "cluster run",
            "",
            "run a command's ranks where such a map puts them, in an allocation",
            runs_a_command=True,
            file="cluster",
        ),
        Command("cluster node", "", "", file="cluster"),
        Command("mcp", "", "let agents look and launch, by the Model Context Protocol"),
        Command("completion", "", "a script by which bash, zsh or fish completes words"),
        Command("help", "COMMAND", "this, or the help of a command"),
    ),
}
"""The commands in the groups of the help."""

COMMANDS: dict[str, Command] = {}
"""The commands of one word."""

TWO_WORDS: dict[str, Command] = {}
"""The commands of two words; the first of these is one of COMMANDS, too."""

for _group in GROUPS.values():
    for _row in _group:
        if " " in _row.word:
            TWO_WORDS[_row.word] = _row
        else:
            COMMANDS[_row.word] = _row

OTHER_NAMES = {"cancel": "free", "ps": "status"}
"""Words of other programs that are commands here, too."""


def run_command(words: Sequence[str], user_command: Sequence[str] | None) -> int:
    """Run one of our commands, by its word and its arguments.

    Args:
        user_command: the user's command after the --; None if there is no --.
    """
    command, arguments = COMMANDS[words[0]], words[1:]
    try:
        if command.arguments == "WORD":
            second = command.make_parser().parse_args(arguments[:1]).word
            command, arguments = TWO_WORDS[f"{command.word} {second}"], arguments[1:]
        if command.runs_a_command:
            return command.run(arguments, user_command)
        if user_command is not None:
            raise UsageError(f"'gpulaunch {command.word}' runs no command, but -- is given")
        prepare_stdout()
        gc.enable()  # unlike a launch, these commands compute
        return command.run(arguments)
    except SystemExit as end:  # argparse has printed its help
        return int(end.code or 0)
