"""argparse for our commands: no abbreviations, and errors are UsageError."""

import argparse
from argparse import SUPPRESS, Action, ArgumentTypeError, BooleanOptionalAction, Namespace

from gpulaunch.cli.commands import COMMANDS
from gpulaunch.errors import UsageError, printable
from gpulaunch.typing import NoReturn

__all__ = [
    "SUPPRESS",
    "Action",
    "ArgumentTypeError",
    "BooleanOptionalAction",
    "Namespace",
    "Parser",
    "add_job",
    "add_json",
    "add_topology",
]


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
    """An argparse parser that never abbreviates options and raises UsageError on a mistake.

    Attributes:
        others: arguments that the command takes, too, and that its help leaves to another one's.
        ways: what to do instead of an option that other commands or tools have, by the option.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        usage: str | None = None,
        *,
        add_help: bool = True,
        epilog: str | None = None,
    ) -> None:
        row = COMMANDS.get(prog.removeprefix("gpulaunch "))
        if row and row.example and not epilog:
            epilog = f"example: {row.example}"
        super().__init__(
            prog=prog,
            description=description,
            usage=usage,
            allow_abbrev=False,
            add_help=add_help,
            epilog=epilog,
            formatter_class=_LineFormatter,
        )
        self.others: list[Action] = []
        self.ways: dict[str, str] = {}

    def actions(self) -> list[Action]:
        """Return all arguments that the command takes, but hidden ones."""
        found = [*self._actions, *self.others]
        return [action for action in found if action.help != SUPPRESS]

    def groups(self) -> list[tuple[str, list[Action]]]:
        """Return the titles of the groups in the help, and what is in each."""
        return [(group.title or "", group._group_actions) for group in self._action_groups]  # noqa: SLF001

    def help_of(self, action: Action) -> str:
        """Return the text of an argument in the help."""
        return (action.help or "") % {"default": action.default, "prog": self.prog}

    def error(self, message: str) -> NoReturn:
        """Raise the mistake that argparse has found.

        Raises:
            UsageError: always.
        """
        message, hint = message.replace("argument ", "", 1), f"see '{self.prog} --help'"
        kind, _, words = message.partition(": ")
        if kind == "unrecognized arguments" and words.startswith("--"):
            from gpulaunch.files.nearest import did_you_mean  # late: for mistakes only

            flag = words.split()[0].partition("=")[0]
            message = f"unknown option {printable(flag)}"
            message += did_you_mean(flag, self._option_string_actions)
            hint = self.ways.get(flag, hint)
        elif words.startswith("ignored explicit argument "):
            option, value = kind.partition("/")[0], printable(words.partition("argument ")[2])
            message = f"{option} takes no value, but {value} is given"
        raise UsageError(message, hint)


def add_topology(parser: Parser) -> None:
    """Add the option that every command about a machine has."""
    parser.add_argument(
        "--topology", metavar="NAME|FILE", help="a described machine instead of this one"
    )


def add_job(parser: Parser, nargs: str | None = None) -> None:
    """Add the argument of commands about jobs in the history."""
    text = "the newest job of that name; or its id, or the first 4 characters of that or more"
    parser.add_argument("name", metavar="NAME|ID", nargs=nargs, help=text)
    parser.ways = {
        "--topology": "leave it out: the history knows where the job runs",
        "--timeout": "timeout 10m gpulaunch wait NAME ends with 124 then",
    }


def add_json(parser: Parser) -> None:
    """Add the option that every command that prints data has."""
    parser.add_argument("--json", action="store_true", help="print a JSON document")
