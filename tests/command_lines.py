"""Public command lines that start containers with GPUs, read from command_lines.toml."""

import shlex
from pathlib import Path
from typing import NamedTuple

from toml_parser import tomllib

_FILE = Path(__file__).with_suffix(".toml")


class CommandLine(NamedTuple):
    """One line of the file.

    Attributes:
        line: the line as typed.
        source: where it was found.
        gpus: the GPUs that it asks for; the file's head says how.
        environment: the variables that are set before the client's name.
        words: the words from the client's name on, split as a shell does.
        client: the client's name; docker compose is a client of its own.
    """

    line: str
    source: str
    gpus: int | str | list[int | str]
    environment: dict[str, str]
    words: list[str]
    client: str


def _read(line: str, source: str, gpus: int | str | list[int | str]) -> CommandLine:
    words = shlex.split(line)
    begin = next(i for i, word in enumerate(words) if word != "sudo" and "=" not in word)
    environment = dict(word.split("=", 1) for word in words[:begin] if "=" in word)
    words = words[begin:]
    client = "docker compose" if words[1] == "compose" else words[0]
    return CommandLine(line, source, gpus, environment, words, client)


ALL = [_read(**entry) for entry in tomllib.loads(_FILE.read_text())["lines"]]


def for_clients(*clients: str) -> list[CommandLine]:
    """Return the lines for some clients."""
    return [line for line in ALL if line.client in clients]
