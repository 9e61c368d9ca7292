"""argparse for every command line: no abbreviations, and errors are UsageError.

The parser of a launch is made of the table in launch/options.py; it stops at the first word.
"""

import argparse
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
)
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from gpulaunch.cli.output import prepare_stdout
from gpulaunch.errors import UsageError, did_you_mean, printable, quoted
from gpulaunch.launch.options import OPTIONS, RUNNING, SETTINGS, TYPED, Given, Option

__all__ = [  # besides what is defined here: this is the only door to argparse
    "SUPPRESS",
    "Action",
    "ArgumentParser",
    "BooleanOptionalAction",
    "Namespace",
]

_Value = TypeVar("_Value")

_AND = "\0"  # between the values of an option that was given several times: no argument has one
_PART = "--share:part"  # --share with a value, for argparse: nobody can mean it
_BY_O = {**SETTINGS, **TYPED}


class _LineFormatter(argparse.HelpFormatter):
    """A formatter that keeps lines, breaks those that are too long, and names a value once."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        lines = text.splitlines()
        return "\n".join(
            indent + line if len(line) <= width else fill(line, width, indent) for line in lines
        )

    def _format_action_invocation(self, action: Action) -> str:
        """Return "-n, --gpus N", as Python does from 3.13 on, and not "-n N, --gpus N"."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """An argparse parser that never abbreviates options and raises UsageError on a mistake."""

    def __init__(
        self,
        prog: str,
        description: str = "",
        usage: str | None = None,
        **more: Any,  # noqa: ANN401
    ) -> None:
        more |= {"allow_abbrev": False, "formatter_class": _LineFormatter}
        super().__init__(prog, usage, description, **more)
        self.color = False  # of Python 3.14: the text is the same for all versions

    def print_help(self, file: Any = None) -> None:  # noqa: ANN401
        """Print the help, to a reader that may end before it does."""
        prepare_stdout()
        super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError for the mistake that argparse has found."""
        message = message.removeprefix("argument ")
        kind, _, words = message.partition(": ")
        if kind == "unrecognized arguments" and words.startswith("--"):
            raise self.unknown_option(words.split()[0])
        if words == "expected one argument":
            action = self._option_string_actions[kind.partition("/")[0]]
            message = f"{kind} needs a value: {action.metavar or '|'.join(action.choices or ())}"
        if words.startswith("ignored explicit argument "):
            value = printable(words.partition("argument ")[2])
            message = f"{kind} takes no value, but {value} is given"
        raise UsageError(message, self._hint())

    def unknown_option(self, word: str) -> UsageError:
        """Return the mistake of an unknown option, with the nearest one or what to do instead."""
        flag = word.partition("=")[0]
        known = self._option_string_actions
        meant = did_you_mean(flag, known) if flag.startswith("--") else ""
        return UsageError(f"unknown option {printable(flag)}{meant}", self._hint())

    def _hint(self) -> str:
        return f"see '{self.prog} --help'"


class LaunchParser(Parser):
    """The parser of a launch's options and of those of commands that take them, up to a word."""

    def __init__(self, rows: Iterable[Option[Any]], prog: str = "gpulaunch", **more: Any) -> None:  # noqa: ANN401
        super().__init__(prog, add_help=False, **more)
        rows = list(rows)
        groups = add_rows(self, rows)
        taken = {flag for row in rows for flag in row.flags}
        groups.get(RUNNING, self).add_argument(
            *[flag for flag in ("-o", "--option") if flag not in taken],
            metavar="NAME=VALUE",
            action=_Setting,
            default=SUPPRESS,
            help="any setting, such as queue=fifo (see 'gpulaunch help settings')",
        )

    def unknown_option(self, word: str) -> UsageError:
        """Return the mistake of an unknown option; one that is a setting has another way."""
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        off = name.startswith("no_")
        row = _BY_O.get(name.removeprefix("no_"))
        if row and word.startswith("--") and (off or not row.flags):
            value = "false" if off else row.value.partition("|")[0] or "true"
            return UsageError(
                f"unknown option {printable(word.partition('=')[0])}",
                f"write -o {row.name}={value}",
            )
        return super().unknown_option(word if word.startswith("--") else word[:2])

    def _hint(self) -> str:
        return "see 'gpulaunch help launch'" if self.prog == "gpulaunch" else super()._hint()

    def read(self, arguments: Sequence[str]) -> tuple[Given, int | None]:
        """Read options up to the first word that is neither an option nor its value.

        Returns:
            What is given, and the index of that word; None if there is none.

        Raises:
            UsageError: an option is unknown, lacks its value, or has one that it does not take.
        """
        if not self._get_positional_actions():
            # In a group, since argparse asks a formatter, and so imports shutil, for others.
            self.add_argument_group().add_argument("words", nargs=argparse.REMAINDER, help=SUPPRESS)
        line, unknown = self.parse_known_args(with_parts(arguments))
        if unknown:
            raise self.unknown_option(unknown[0])
        given = vars(line)
        words = given.pop("words")
        return given, len(arguments) - len(words) if words else None


def add_rows(
    parser: argparse.ArgumentParser, rows: Iterable[Option[Any]], title: str | None = None
) -> dict[str, Any]:
    """Add options of the table; each is read as (flag, text) by its name.

    Args:
        title: one group for all; None for their own groups.

    Returns:
        The groups by their titles.
    """
    groups: dict[str, Any] = {}
    for row in rows:
        if not row.flags:
            continue
        group = row.group if title is None else title
        if group not in groups:
            groups[group] = parser.add_argument_group(group) if group else parser
        takes: dict[str, Any] = {"metavar": row.value} if row.value else {"nargs": 0}
        action = groups[group].add_argument(
            *row.flags,
            *filter(None, [row.no]),
            dest=row.name,
            action=_Written,
            default=SUPPRESS,
            help=row.text.replace("%", "%%"),
            **takes,
        )
        action.no, action.repeats = row.no, row.name == "after"
        if row.name == "share":
            groups[group].add_argument(
                _PART, dest="share", action=_Written, default=SUPPRESS, help=SUPPRESS
            )
    return groups


class _Written(Action):
    """Keep an option as (flag, text); its value is parsed where it is used."""

    no = ""
    repeats = False

    def __call__(self, _: object, given: Namespace, value: object, flag: str | None = None) -> None:
        flag = (flag or "").replace(_PART, "--share")
        text = value if isinstance(value, str) else "true"
        if flag == self.no:
            text = "false"
        if self.repeats and self.dest in given:
            text = f"{getattr(given, self.dest)[1]}{_AND}{text}"
        setattr(given, self.dest, (flag, text))


class _Setting(Action):
    """Keep the setting that `-o NAME=VALUE` gives."""

    def __call__(self, _: object, given: Namespace, value: object, flag: str | None = None) -> None:
        name, equals, text = str(value).partition("=")
        if not equals:
            raise UsageError(f"{flag} {printable(name)}: it is not NAME=VALUE")
        if name not in _BY_O:
            row = OPTIONS.get(name)
            if row and row.flags:
                raise UsageError(
                    f"{flag}: {quoted(name)} is an option, not a setting", f"write {row.flags[-1]}"
                )
            raise UsageError(
                f"{flag}: unknown setting {quoted(name)}{did_you_mean(name, _BY_O)}",
                "'gpulaunch help settings' lists them",
            )
        setattr(given, name, (flag, text))


def with_parts(arguments: Sequence[str]) -> list[str]:
    """Return as many words, in which a part of a GPU behind --share is the value of an option."""
    words = list(arguments)
    for n, word in enumerate(arguments):
        if word.startswith("--share="):
            words[n] = word.replace("--share", _PART, 1)
        elif word == "--share" and any(map(_is_part, arguments[n + 1 : n + 2])):
            words[n] = _PART
    return words


def _is_part(word: str) -> bool:
    """Return whether a word is a part of a GPU, such as 1/2, 0.5 or 50%: no command is."""
    return word[:1] in tuple("0123456789.") and set(word) <= set("0123456789./% ")


def add_topology(parser: "Parser | argparse._MutuallyExclusiveGroup") -> None:
    """Add the option that every command about a machine has."""
    parser.add_argument(
        "--topology", metavar="NAME|FILE", help="a described machine instead of this one"
    )


def add_job(parser: Parser, nargs: str | None = None) -> None:
    """Add the argument of commands about jobs in the history."""
    text = "the newest job of that name; or its id, or the first 4 characters of that or more"
    parser.add_argument("name", metavar="NAME|ID", nargs=nargs, help=text)


def add_json(parser: Parser) -> None:
    """Add the option that every command that prints data has."""
    parser.add_argument("--json", action="store_true", help="print a JSON document")


def whole_number(most: int, least: int = 1) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, for an option's `type`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise ArgumentTypeError(f"{quoted(text)} is no whole number from {least} to {most}")
        return int(text)

    return read


def value_by(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Return what reads a value by this function, and names the option in messages of mistakes."""

    def read(text: str) -> _Value:
        try:
            return parse(text)
        except UsageError as problem:
            hint = f": {problem.hint}" if problem.hint else ""
            raise ArgumentTypeError(f"{problem.message}{hint}") from None

    return read
