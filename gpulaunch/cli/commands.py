"""The table of commands: a row gives a command's name, help and module.

Help, usage and dispatch come from here, and nothing else lists the commands. To add one, write
gpulaunch/cli/WORD.py with `main(arguments)`, which returns the exit status, and `make_parser()`,
and add its row. In a file of several commands these are `WORD(arguments)` and `WORD_parser()`.
"""

from importlib import import_module
from typing import Any

from gpulaunch.records import Record


class Command(Record):
    """One command.

    Attributes:
        word: the word after `gpulaunch`.
        arguments: the command's arguments in the help; "" if it has only options.
        summary: description in at most 60 characters.
        runs_a_command: whether it takes a command of the user after `--`; its main gets that, or
            None, as a second argument.
        file: the file of gpulaunch.cli that it is in with others; WORD.py if empty.
        example: line that shows its use, at the end of its --help; "" for none.
    """

    word: str
    arguments: str
    summary: str
    runs_a_command: bool = False
    file: str = ""
    example: str = ""

    @property
    def module(self) -> Any:  # noqa: ANN401
        """The module that it is in."""
        return import_module(f"gpulaunch.cli.{self.file or self.word}")

    def run(self, *arguments: Any) -> int:  # noqa: ANN401
        """Run it with its arguments, and the user's command if it takes one."""
        main = getattr(self.module, self.word if self.file else "main")
        return int(main(*arguments))

    def make_parser(self) -> Any:  # noqa: ANN401
        """Return the parser of its command line."""
        make = getattr(self.module, f"{self.word}_parser" if self.file else "make_parser")
        return make()


_ROWS = (
    Command("status", "", "who has which GPUs, and who waits; also ps"),
    Command("top", "", "the same on a live screen, GPU by GPU"),
    Command("history", "", "what ran, on which GPUs, how long, and how it ended"),
    Command("topo", "", "the link matrix", example="gpulaunch topo --topology dgx1-v100"),
    Command(
        "profile",
        "WORD",
        "what is known about jobs: list, show, measure, scan",
        runs_a_command=True,
    ),
    Command(
        "free",
        "ID",
        "end a job or leave the queue, or --mine; also cancel",
        example="gpulaunch free 4f1c",
    ),
    Command(
        "reserve",
        "",
        "hold GPUs for a shell, a notebook, the steps of a CI job",
        example="gpulaunch reserve -n 2 --for 2h",
    ),
    Command(
        "logs",
        "NAME",
        "the output of a detached job",
        file="logs",
        example="gpulaunch logs -f exp7",
    ),
    Command("attach", "NAME", "go to the terminal of a detached job", file="logs"),
    Command("wait", "NAME", "sleep until jobs have ended, and end as they did", file="logs"),
    Command(
        "drain",
        "GPU",
        "take a GPU out of service, with a reason (as root)",
        file="setup",
        example="gpulaunch drain 3 --reason 'fan is loud'",
    ),
    Command(
        "undrain",
        "GPU",
        "put a drained GPU into service again (as root)",
        file="setup",
        example="gpulaunch undrain 3",
    ),
    Command("plan", "FILE", "which jobs of a queue to run together on a GPU"),
    Command(
        "batch",
        "FILE",
        "run a file of jobs, one launch after the other",
        example="gpulaunch batch jobs.toml",
    ),
    Command(
        "simulate",
        "",
        "replay a file of jobs on a described machine",
        example="gpulaunch simulate --topology dgx1-v100 --jobs jobs.toml",
    ),
    Command(
        "cluster",
        "WORD",
        "past one machine: which rank on which node, core and GPU",
        runs_a_command=True,
    ),
    Command("doctor", "", "what works here, and how GPUs get into containers"),
    Command("mcp", "", "let agents look and launch, by the Model Context Protocol"),
    Command("setup", "", "make /run/gpulaunch, the table's place (as root)", file="setup"),
    Command("completion", "", "a script by which bash, zsh or fish completes words"),
    Command("help", "COMMAND", "this, or the help of a command", example="gpulaunch help launch"),
)

COMMANDS = {command.word: command for command in _ROWS}

OTHER_NAMES = {"cancel": "free", "ps": "status"}
"""Words of other programs that are commands here, too."""
