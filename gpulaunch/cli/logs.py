"""`gpulaunch logs NAME`: print the output of a detached job, or follow it."""

import os
from collections.abc import Sequence

from gpulaunch.cli.arguments import ArgumentTypeError, Parser, add_job
from gpulaunch.cli.output import say, warn
from gpulaunch.errors import UsageError, call_failed, printable
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.launch.past import begin_of_last, find_launch, follow, unknown_end


def main(arguments: Sequence[str]) -> int:
    """Print what a detached job has printed."""
    options = make_parser().parse_args(arguments)
    launch = find_launch(options.name)
    name = printable(options.name)
    fd = open_log(launch, name)
    at = 0 if options.lines is None else begin_of_last(fd, options.lines)
    if not options.follow:
        _print_from(fd, at)
        return 0
    for piece in follow(launch, fd, at, warn):
        if isinstance(piece, PastLaunch):
            _say_end(name, piece)
        else:
            _write(piece)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch logs", "Print the output of a detached job (gpulaunch --detach).")
    add_job(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on as it prints more, until it has ended"
    )
    parser.add_argument(
        *("-n", "--lines", "--tail"),
        metavar="N",
        type=_count,
        help="only the last N lines (default: all)",
    )
    return parser


def open_log(launch: PastLaunch, name: str) -> int:
    """Return a descriptor of the output of a detached launch.

    Args:
        launch: the launch.
        name: what the user calls it.

    Raises:
        UsageError: the launch was not detached.
        FailedError: the file cannot be opened.
    """
    if launch.log is None:
        raise UsageError(f"{name} is not detached: its output went where it was started")
    try:
        return os.open(launch.log, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise call_failed(launch.log, problem) from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{text!r} is no number of lines")
    return int(text)


def _print_from(fd: int, at: int) -> None:
    while piece := os.pread(fd, 1 << 16, at):
        at += len(piece)
        _write(piece)


def _write(piece: bytes) -> None:
    try:
        while piece:
            piece = piece[os.write(1, piece) :]
    except OSError as problem:
        raise call_failed("cannot write to stdout", problem) from None


def _say_end(name: str, launch: PastLaunch) -> None:
    if launch.exit_status is None:
        say("warning", unknown_end(launch, name).message)
    else:
        say("info", f"{name} has ended with {launch.exit_status}")
