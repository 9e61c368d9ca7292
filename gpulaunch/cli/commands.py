"""The table of commands: a row gives a command's name, help and module.

Help, usage and dispatch come from here, and nothing else lists the commands. To add one, write
gpulaunch/cli/WORD.py with `main(arguments)`, which returns the exit status, and add its row.
"""

from gpulaunch.records import Record


class Command(Record):
    """One command.

    Attributes:
        word: the word after `gpulaunch`.
        arguments: the command's arguments in the help; "" if it has only options.
        summary: description in at most 60 characters.
        runs_a_command: whether it takes a command of the user after `--`; its main gets that, or
            None, as a second argument.
        module: the module with main; gpulaunch.cli.WORD if empty.
    """

    word: str
    arguments: str
    summary: str
    runs_a_command: bool = False
    module: str = ""


_ROWS = (
    Command("status", "", "who has which GPUs, and who waits"),
    Command("history", "", "what ran, on which GPUs, how long, and how it ended"),
    Command("topo", "", "the link matrix"),
    Command("profiles", "", "what is known about jobs before they run"),
    Command(
        "profile", "", "measure a job, or read its source, for its profile", runs_a_command=True
    ),
    Command("free", "ID", "end a lease or leave the queue, by id or name, or --mine"),
    Command("drain", "GPU", "take a GPU out of service, with a reason (as root)"),
    Command("undrain", "GPU", "put a drained GPU into service again (as root)"),
    Command("plan", "FILE", "which jobs of a queue to run together on a GPU"),
    Command("batch", "FILE", "run a file of jobs, one launch after the other"),
    Command("simulate", "", "replay a file of jobs on a described machine"),
    Command(
        "cluster",
        "WORD",
        "past one machine: which rank on which node, core and GPU",
        runs_a_command=True,
    ),
    Command("doctor", "", "what works here, and how GPUs get into containers"),
    Command("setup", "", "make /run/gpulaunch, the table's place (as root)"),
)

COMMANDS = {command.word: command for command in _ROWS}
