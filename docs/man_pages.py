"""The man pages, made from the parsers of all commands when a wheel is built (hatch_build.py).

`python docs/man_pages.py DIR` writes them into a folder, to look at.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpulaunch import __version__
from gpulaunch.cli.arguments import Action, Parser
from gpulaunch.cli.commands import COMMANDS
from gpulaunch.cli.completion_values import all_words
from gpulaunch.cli.grammar import all_parsers
from gpulaunch.launch.settings import SETTINGS, SYSTEM_CONFIG

_STATUSES = {
    "0": "Success.",
    "2": "Wrong usage, or something that can never be.",
    "125": "gpulaunch failed, or cannot tell.",
}
_JOB_STATUSES = {
    "the job's own": "128+n if signal n killed it.",
    "2": "Wrong usage, or something that can never be, such as 9 of 8 GPUs.",
    "75": "The GPUs are busy, or others wait for them, and --wait was not given.",
    "124": "It waited, or ran, longer than --wait-timeout or --time-limit.",
    "125": "gpulaunch or docker failed, or cannot tell.",
    "126": "The command cannot be executed.",
    "127": "The command is not found.",
}
_SPECIAL_STATUSES: Mapping[str, Mapping[str, str]] = {
    "": _JOB_STATUSES,
    "profile measure": _JOB_STATUSES,
    "cluster run": {"that of srun or mpirun": "Once it has started.", **_STATUSES},
    "doctor": {**_STATUSES, "1": "There is a problem."},
    "reserve": {
        **_STATUSES,
        "75": _JOB_STATUSES["75"],
        "124": "It waited longer than --wait-timeout.",
    },
    "wait": {
        "the job's own": "Of several jobs the first that is not 0.",
        "2": _STATUSES["2"],
        "125": "gpulaunch failed, or nobody knows how the job ended.",
    },
}
_FILES = {
    "~/.config/gpulaunch/config.toml": "Settings of the user.",
    SYSTEM_CONFIG: "Settings of the host.",
    "~/.config/gpulaunch/profiles, ~/.config/gpulaunch/machines": (
        "Profiles and described machines of the user, NAME.toml each."
    ),
    "/run/gpulaunch": (
        "The allocation table, made by 'gpulaunch setup'; without it, in /run/lock or /tmp."
    ),
    "~/.local/state/gpulaunch": "The history of launches, and the output of detached ones.",
}
_LAUNCH_EXAMPLES = (
    "gpulaunch -n 2 -- python train.py",
    "gpulaunch --wait -n 8 -- ./run.sh",
    "gpulaunch docker run -it IMAGE bash",
)


def man_pages() -> dict[str, str]:
    """Return the text of each page by the name of its file, such as "gpulaunch-status.1"."""
    parsers = all_parsers()
    return {
        f"{_page_name(command)}.1": "\n".join(_lines(command, parser, parsers)) + "\n"
        for command, parser in parsers.items()
    }


def _page_name(command: str) -> str:
    return "-".join(("gpulaunch", *command.split()))


def _lines(command: str, parser: Parser, commands: Iterable[str]) -> Iterator[str]:
    name = _page_name(command)
    yield f'.TH {_escaped(name.upper())} 1 "" "gpulaunch {__version__}" "User Commands"'
    yield from (".nh", ".ad l")
    yield from (".SH NAME", f"{_escaped(name)} \\- {_escaped(_summary(command, parser))}")
    yield from (".SH SYNOPSIS", *_synopsis(command, parser))
    yield from (".SH DESCRIPTION", *_paragraphs(parser.description or ""))
    yield from _options(command, parser)
    if not command:
        yield from (".SH COMMANDS", *_definitions(all_words()))
    yield ".SH EXIT STATUS"
    yield from _definitions(_SPECIAL_STATUSES.get(command, _STATUSES))
    if not command:
        variables = ", ".join(f"GPULAUNCH_{name.upper()}" for name in SETTINGS)
        yield from (".SH ENVIRONMENT", *_paragraphs(f"Settings, instead of options: {variables}."))
        yield from (".SH FILES", *_definitions(_FILES))
    yield from _notes(command, parser)
    others = [_page_name(one) for one in commands if one != command]
    yield ".SH SEE ALSO"
    yield from (f".BR {_escaped(one)} (1)," for one in others[:-1])
    yield f".BR {_escaped(others[-1])} (1)"


def _summary(command: str, parser: Parser) -> str:
    if command in COMMANDS:
        return COMMANDS[command].summary
    return re.split(r"[.:,] ", parser.description or "")[0].removesuffix(".")


def _synopsis(command: str, parser: Parser) -> Iterator[str]:
    """Yield the usage, or one made of the positional arguments."""
    words = [_positional(action) for action in parser.actions() if not action.option_strings]
    usage = parser.usage or " ".join(("gpulaunch", command, "[OPTIONS]", *words))
    yield ".nf"
    yield from (_escaped(line.strip()) for line in usage.splitlines())
    yield ".fi"


def _positional(action: Action) -> str:
    name = _metavar(action)
    shapes = {"*": f"[{name}...]", "+": f"{name}...", "?": f"[{name}]"}
    return shapes.get(str(action.nargs), name)


def _metavar(action: Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return f"{{{','.join(action.choices)}}}" if action.choices else action.dest


def _options(command: str, parser: Parser) -> Iterator[str]:
    yield ".SH OPTIONS"
    shown = parser.actions()
    for title, actions in parser.groups():
        if not command and actions:
            yield f".SS {_escaped(title)}"
        for action in actions:
            if action in shown:
                yield from (".TP", _option(action), _escaped(parser.help_of(action)))
    if parser.others:
        flags = ", ".join(flag for action in parser.others for flag in action.option_strings)
        yield from (".PP", _escaped(f"As in gpulaunch(1): {flags}."))


def _option(action: Action) -> str:
    """Return the flags in bold, and the value in italics."""
    if not action.option_strings:
        return f"\\fI{_escaped(_metavar(action))}\\fR"
    flags = ", ".join(f"\\fB{_escaped(flag)}\\fR" for flag in action.option_strings)
    if action.nargs == 0:
        return flags
    value = f"\\fI{_escaped(_metavar(action))}\\fR"
    return f"{flags} [{value}]" if action.nargs == "?" else f"{flags} {value}"


def _definitions(texts: Mapping[str, str]) -> Iterator[str]:
    for term, text in texts.items():
        yield from (".TP", f"\\fB{_escaped(term)}\\fR", _escaped(text))


def _notes(command: str, parser: Parser) -> Iterator[str]:
    """Yield the examples, and what stands at the end of the help."""
    row = COMMANDS.get(command)
    examples = _LAUNCH_EXAMPLES if not command else (row.example,) if row and row.example else ()
    if examples:
        yield from (".SH EXAMPLES", ".nf", *map(_escaped, examples), ".fi")
    if parser.epilog and not parser.epilog.startswith("example: "):
        yield from (".SH NOTES", ".nf", *map(_escaped, parser.epilog.splitlines()), ".fi")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a text, those that are indented as they are."""
    for line in text.splitlines():
        if not line:
            yield ".PP"
        elif line.startswith(" "):
            yield from (".RS", ".nf", _escaped(line.strip()), ".fi", ".RE")
        else:
            yield _escaped(line)


def _escaped(text: str) -> str:
    """Return a text in which nothing means anything to groff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    text = text.replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{text}" if text.startswith(".") else text


def main(directory: Path) -> None:
    """Write all pages."""
    for name, text in man_pages().items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
