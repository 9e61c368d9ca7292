"""What somebody may have meant who wrote a word that is no command."""

import os
import shutil
from collections.abc import Sequence
from shlex import join

from gpulaunch.cli.commands import COMMANDS
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.nearest import nearest

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
        before: arguments before the --, as they were written.
        at: index of the word among them.
        rest: the -- and what comes after it, if there is any.
    """
    word = before[at]
    if word == "profiles":  # as earlier versions called it
        after = before[at + 1 :]
        rest = after if {"list", "show"} & {*after} else ["list", *after]
        line = printable(join(["gpulaunch", "profile", *rest]))
        return UsageError("unknown command 'profiles'", f"it is now: {line}")
    near = [_SYNONYMS[word]] if word in _SYNONYMS else nearest(word, COMMANDS, _ALIKE)
    meant = f": did you mean {' or '.join(near)}?" if near else ""
    command = [*before[at:], *rest]
    if " " in word and len(command) == 1:
        command = ["sh", "-c", word]
    elif word.endswith(".py") and os.path.isfile(word) and not os.access(word, os.X_OK):
        command = ["python3", *command]
    elif near and len(command) == 1 and not _is_program(word):
        return UsageError(f"unknown command {quoted(word)}{meant}")
    line = printable(join(["gpulaunch", *before[:at], "--", *command]))
    return UsageError(
        f"unknown command {quoted(word)}{meant}", f"to run a program, write -- before it: {line}"
    )


def _is_program(word: str) -> bool:
    return shutil.which(word) is not None or os.path.exists(word)
