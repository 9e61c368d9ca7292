"""Names of jobs that got none from their user, and names of their files."""
# pure: decides on plain values

from collections.abc import Collection, Sequence
from posixpath import basename

_LONGEST_STEM = 20
_LONGEST_FILE = 60
_SCRIPTS = (".py", ".sh")


def chosen_name(command: Sequence[str], taken: Collection[str | None]) -> str:
    """Return a name such as train-1 for `python train.py`: the smallest number that is not taken.

    Args:
        command: argv of the job.
        taken: names that others have.
    """
    script = next((word for word in command if word.endswith(_SCRIPTS)), None)
    program = basename(command[0])
    if script:
        stem = basename(script)[:-3]
    elif program.startswith("python") and "-m" in command[1:-1]:
        stem = command[command.index("-m") + 1].rpartition(".")[2]
    else:
        stem = program
    stem = file_name(stem)[:_LONGEST_STEM].strip("-.") or "job"
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def file_name(name: str) -> str:
    """Return a name with a _ for each character that might do harm in a path, and not too long."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.+=@") else "_" for c in name)
    return f"_{safe[1:]}"[:_LONGEST_FILE] if safe.startswith(".") else safe[:_LONGEST_FILE]
