"""argparse for our commands: no abbreviations, and errors are UsageError."""

import argparse
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace

from gpulaunch.errors import UsageError
from gpulaunch.typing import NoReturn

__all__ = [
    "ArgumentTypeError",
    "BooleanOptionalAction",
    "Namespace",
    "Parser",
    "add_json",
    "add_topology",
]


class _LineFormatter(argparse.HelpFormatter):
    """A formatter that keeps lines as they are, and breaks those that are too long."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        lines = text.splitlines()
        return "\n".join(
            indent + line if len(line) <= width else fill(line, width, indent) for line in lines
        )


class Parser(argparse.ArgumentParser):
    """An argparse parser that never abbreviates options and raises UsageError on a mistake."""

    def __init__(
        self,
        prog: str,
        description: str,
        usage: str | None = None,
        *,
        add_help: bool = True,
        epilog: str | None = None,
    ) -> None:
        shape = _LineFormatter if epilog else argparse.HelpFormatter
        super().__init__(
            prog=prog,
            description=description,
            usage=usage,
            allow_abbrev=False,
            add_help=add_help,
            epilog=epilog,
            formatter_class=shape,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the mistake that argparse has found.

        Raises:
            UsageError: always.
        """
        raise UsageError(message.replace("argument ", "", 1), f"see '{self.prog} --help'")


def add_topology(parser: Parser) -> None:
    """Add the option that every command about a machine has."""
    parser.add_argument(
        "--topology", metavar="NAME|FILE", help="a described machine instead of this one"
    )


def add_json(parser: Parser) -> None:
    """Add the option that every command that prints data has."""
    parser.add_argument("--json", action="store_true", help="print a JSON document")
