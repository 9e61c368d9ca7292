"""`gpulaunch status`: print who has which GPUs, since when, doing what."""

import os
import pwd
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import ArgumentTypeError, Namespace, Parser, add_json, add_topology
from gpulaunch.cli.output import flush_stdout, print_json, warn
from gpulaunch.cli.status_reading import StatusReader
from gpulaunch.errors import UsageError, did_you_mean, quoted
from gpulaunch.files.duration import parse_duration
from gpulaunch.process.system import user_name
from gpulaunch.show import Document

if TYPE_CHECKING:
    from gpulaunch.show.terminal import Group

_LEAST_S = 0.1


def main(arguments: Sequence[str]) -> int:
    """Print the allocation table of one machine."""
    options = _parse(arguments)
    reader = StatusReader(options.topology, warn)
    only = user_name(os.geteuid()) if options.mine else options.user
    if options.watch is None:
        _print(reader, options, only)
        return 0
    from gpulaunch.cli.watch import can_draw, watch_by_interval, watch_in_place  # late: few look on

    if can_draw() and not (options.json or options.openmetrics):
        watch_in_place(
            reader.table, options.watch, lambda: make_view(reader, options, only), sys.stdout
        )
    else:
        watch_by_interval(options.watch, lambda: _print(reader, options, only))
    return 0


def _parse(arguments: Sequence[str]) -> Namespace:
    options = make_parser().parse_args(arguments)
    if options.json + options.openmetrics + options.gpus > 1:
        raise UsageError("--gpus, --json and --openmetrics do not go together")
    if options.mine and options.user:
        raise UsageError("--mine and --user do not go together")
    return options


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch status", "Who has which GPUs, since when, doing what.")
    parser.add_argument("--gpus", action="store_true", help="a row for each GPU")
    parser.add_argument("--mine", action="store_true", help="only your jobs")
    parser.add_argument("--user", metavar="NAME", type=user, help="only those of one user")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=interval,
        const=2.0,
        help="show it again at each change, and after this time (2)",
    )
    parser.add_argument(
        "--openmetrics",
        action="store_true",
        help="print metrics, such as for node_exporter's textfile collector",
    )
    add_topology(parser)
    add_json(parser)
    return parser


def user(text: str) -> str:
    """Return the name of a user, such as "alice"; "uid 1234" for one who has none here.

    Raises:
        ArgumentTypeError: there is no such user.
    """
    try:
        if not text.removeprefix("uid ").isdecimal():
            pwd.getpwnam(text)
    except (KeyError, ValueError):
        meant = did_you_mean(text, [one.pw_name for one in pwd.getpwall()])
        raise ArgumentTypeError(f"there is no user {quoted(text)}{meant}") from None
    return text


def interval(text: str) -> float:
    """Return the seconds between two readings.

    Raises:
        ArgumentTypeError: the text is no length of time.
    """
    try:
        plain = text.replace(".", "", 1).isdecimal()  # the help says SECONDS
        return max(_LEAST_S, parse_duration(f"{text}s" if plain else text))
    except UsageError as problem:
        raise ArgumentTypeError(problem.message) from None


def _read(reader: StatusReader, only: str | None) -> Document:
    document = reader.read()
    if only is None:
        return document
    from gpulaunch.show.status_cells import of_user

    return of_user(document, only)


def _print(reader: StatusReader, options: Namespace, only: str | None) -> None:
    """Read once, and print what the options ask for."""
    if options.json:
        print_json(_read(reader, only))
    elif options.openmetrics:
        from gpulaunch.show.openmetrics import openmetrics_text

        print(openmetrics_text(_read(reader, only)), end="")
    else:
        from gpulaunch.show.terminal import draw

        draw(make_view(reader, options, only), sys.stdout)
    flush_stdout()


def make_view(reader: StatusReader, options: Namespace, only: str | None) -> "Group":
    """Read once, and return the tables."""
    document, now = _read(reader, only), datetime.now(timezone.utc)
    if options.gpus:
        from gpulaunch.show.gpu_places import gpu_places
        from gpulaunch.show.gpu_table import gpus_view

        return gpus_view(document, gpu_places(reader.machine.topology), now, only)
    from gpulaunch.show.status_table import status_table

    return status_table(document, now)
