"""Plain lines as jobs: a command for sh in each, as xargs and simple_gpu_scheduler have them."""
# pure: decides on plain values

import re
from collections.abc import Iterator

_OTHER_FORMATS = (".toml", ".json", ".jsonl", ".csv")
_NAMES = r"""([\w.-]|"[^"]*"|'[^']*')+"""
_TOML = re.compile(
    rf"\[\s*{_NAMES}\s*\]\s*(#.*)?|\[\[\s*{_NAMES}\s*\]\]\s*(#.*)?"
    rf"|(job|profile)\s*=\s*[\[{{].*|profile\.{_NAMES}\s*=.*"
)
_JSON = re.compile(r'\{\s*["}]')
_COLUMNS = re.compile(r"gpus,.*|\d+(,[^,]*){5}")
_LONGEST_TITLE = 40


def are_commands(path: str, text: str) -> bool:
    """Return whether a file of jobs has plain lines of commands.

    It has not if its name ends as TOML, JSON or CSV do, nor if its first line is one of those: a
    table's header, an object of JSON, six columns.

    Args:
        path: its path.
        text: its content.
    """
    first = next((line for _, line in command_lines(text)), "")
    return not (
        path.endswith(_OTHER_FORMATS)
        or _TOML.fullmatch(first)
        or _JSON.match(first)
        or _COLUMNS.fullmatch(first)
    )


def command_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with a command, and their numbers: not blank ones, nor those from # on."""
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def title_of(line: str) -> str:
    """Return a command's line as a message shows it: its beginning."""
    return line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1]}…"
