"""`gpulaunch logs NAME`: print the output of a detached job, or follow it."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from shutil import which

from gpulaunch.cli.arguments import ArgumentTypeError, Parser, add_job
from gpulaunch.cli.output import report, say, warn
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, call_failed, printable
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.launch.follow_log import begin_of_last, connect, follow
from gpulaunch.launch.past_end import find_launch, read_again, unknown_end, wait_for_end


def logs(arguments: Sequence[str]) -> int:
    """Print what a detached job has printed."""
    options = logs_parser().parse_args(arguments)
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


def logs_parser() -> Parser:
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


def attach(arguments: Sequence[str]) -> int:
    """Become a viewer of a job's terminal until it is left, or the job has ended."""
    text = attach_parser().parse_args(arguments).name
    launch, name = find_launch(text), printable(text)
    logs = f"'gpulaunch logs -f {shlex.quote(name)}' follows its output"
    if launch.exit_status is not None:
        printed = f"'gpulaunch logs {shlex.quote(name)}' prints its output"
        raise UsageError(
            f"{name} has ended with {launch.exit_status}", printed if launch.log else None
        )
    if launch.terminal is None:
        how = "-d --terminal gives a job one" + ("" if which("dtach") else ", with dtach installed")
        raise UsageError(f"{name} has no terminal: {how}", logs if launch.log else None)
    end = connect(launch.terminal)
    if end is None:
        raise FailedError(f"{name}: the program that held its terminal is gone", logs)
    end.close()
    if which("dtach") is None:
        raise FailedError("dtach is not installed")
    if not os.isatty(0):
        raise UsageError("attach: stdin is no terminal", logs)
    say("info", rf"Ctrl-\ leaves {name} to itself")
    subprocess.run(["dtach", "-a", launch.terminal, "-r", "winch"], check=False)  # noqa: S603, S607
    launch = read_again(launch)
    if launch.exit_status is not None:
        say("info", f"{name} has ended with {launch.exit_status}")
    return 0


def attach_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch attach",
        r"Go to the terminal of a job that was started with -d --terminal; Ctrl-\ leaves it.",
    )
    add_job(parser)
    return parser


def wait(arguments: Sequence[str]) -> int:
    """Wait for launches; return the first exit status that is not 0."""
    options = wait_parser().parse_args(arguments)
    launches = [(name, find_launch(name)) for name in options.name]
    first = 0
    for name, launch in launches:
        try:
            ended = wait_for_end(launch, warn)
            if ended.exit_status is None:
                raise unknown_end(ended, printable(name))
            status = ended.exit_status
        except GpulaunchError as problem:  # the others are waited for all the same
            report(problem)
            status = problem.exit_status
        first = first or status
    return first


def wait_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch wait",
        "Wait until jobs of yours have ended. The exit status is the job's; of several jobs "
        "the first that is not 0, in the order in which they are named; 125 if nobody knows it.",
    )
    add_job(parser, nargs="+")
    return parser
