"""`gpulaunch status`: print who has which GPUs, since when, doing what."""

import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import Namespace, Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.cli.status_reading import StatusReader
from gpulaunch.errors import UsageError
from gpulaunch.process.system import user_name
from gpulaunch.show import Document

if TYPE_CHECKING:
    from gpulaunch.show.terminal import Group


def main(arguments: Sequence[str]) -> int:
    """Print the allocation table of one machine."""
    options = _parse(arguments)
    reader = StatusReader(options.topology, warn)
    only = user_name(os.geteuid()) if options.mine else options.user
    if options.json:
        print_json(_read(reader, only))
    elif options.openmetrics:
        from gpulaunch.show.openmetrics import openmetrics_text

        print(openmetrics_text(_read(reader, only)), end="")
    else:
        from gpulaunch.show.terminal import draw

        draw(make_view(reader, options, only), sys.stdout)
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
    parser.add_argument("--user", metavar="NAME", help="only those of one user")
    parser.add_argument(
        "--openmetrics",
        action="store_true",
        help="print metrics, such as for node_exporter's textfile collector",
    )
    add_topology(parser)
    add_json(parser)
    return parser


def _read(reader: StatusReader, only: str | None) -> Document:
    document = reader.read()
    if only is None:
        return document
    from gpulaunch.show.status_cells import of_user

    return of_user(document, only)


def make_view(reader: StatusReader, options: Namespace, only: str | None) -> "Group":
    """Read once, and return the tables."""
    document, now = _read(reader, only), datetime.now(timezone.utc)
    if options.gpus:
        from gpulaunch.show.gpu_places import gpu_places
        from gpulaunch.show.gpu_table import gpus_view

        return gpus_view(document, gpu_places(reader.machine.topology), now, only)
    from gpulaunch.show.status_table import status_table

    return status_table(document, now)
