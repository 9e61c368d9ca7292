"""`gpulaunch logs`, `attach` and `wait`: the output, the terminal and the end of jobs of one's own.

They find a job in the history, by its name or an id, so its launcher may have ended.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from shutil import which

from gpulaunch.cli.arguments import Parser, add_job, whole_number
from gpulaunch.cli.output import report, say, warn
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, call_failed, printable
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.launch.past import (
    begin_of_last,
    connect,
    find_launch,
    follow,
    read_again,
    unknown_end,
    wait_for_end,
)

_PIECE_BYTES = 1 << 16
_MOST_LINES = 1_000_000_000


def logs(arguments: Sequence[str]) -> int:
    """Print what a detached job has printed; with --follow until it has ended."""
    options = logs_parser().parse_args(arguments)
    launch, name = find_launch(options.name), printable(options.name)
    if launch.log is None:
        raise UsageError(f"{name} is not detached: its output went where it was started")
    try:
        fd = os.open(launch.log, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise call_failed(launch.log, problem) from None
    at = 0 if options.lines is None else begin_of_last(fd, options.lines)
    if not options.follow:
        while piece := os.pread(fd, _PIECE_BYTES, at):
            at += len(piece)
            _write(piece)
        return 0
    for part in follow(launch, fd, at, warn):
        if not isinstance(part, PastLaunch):
            _write(part)
        elif part.exit_status is None:
            warn(unknown_end(part, name).message)
        else:
            say("info", f"{name} has ended with {part.exit_status}")
    return 0


def logs_parser() -> Parser:
    """Return the parser of the command line of `gpulaunch logs`."""
    parser = Parser("gpulaunch logs", "Print the output of a detached job (gpulaunch --detach).")
    add_job(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on as it prints more, until it has ended"
    )
    parser.add_argument(
        *("-n", "--lines", "--tail"),
        metavar="N",
        type=whole_number(_MOST_LINES, 0),
        help="only the last N lines (default: all)",
    )
    return parser


def _write(piece: bytes) -> None:
    try:
        while piece:
            piece = piece[os.write(1, piece) :]
    except OSError as problem:
        raise call_failed("cannot write to stdout", problem) from None


def attach(arguments: Sequence[str]) -> int:
    """Become a viewer of a job's terminal until it is left, or the job has ended."""
    text = attach_parser().parse_args(arguments).name
    launch, name = find_launch(text), printable(text)
    output = f"'gpulaunch logs -f {shlex.quote(name)}' shows its output" if launch.log else None
    if launch.exit_status is not None:
        raise UsageError(f"{name} has ended with {launch.exit_status}", output)
    if launch.terminal is None:
        raise UsageError(f"{name} has no terminal: -d --terminal gives a job one", output)
    end = connect(launch.terminal)
    if end is None:
        raise FailedError(f"{name}: the program that held its terminal is gone", output)
    end.close()
    if which("dtach") is None:
        raise FailedError("dtach is not installed")
    if not os.isatty(0):
        raise UsageError("attach: stdin is no terminal", output)
    say("info", rf"Ctrl-\ leaves {name} to itself")
    subprocess.run(["dtach", "-a", launch.terminal, "-r", "winch"], check=False)  # noqa: S603, S607
    exit_status = read_again(launch).exit_status
    if exit_status is not None:
        say("info", f"{name} has ended with {exit_status}")
    return 0


def attach_parser() -> Parser:
    """Return the parser of the command line of `gpulaunch attach`."""
    parser = Parser(
        "gpulaunch attach",
        r"Go to the terminal of a job that was started with -d --terminal; Ctrl-\ leaves it.",
    )
    add_job(parser)
    return parser


def wait(arguments: Sequence[str]) -> int:
    """Wait for launches; return the first exit status that is not 0."""
    options = wait_parser().parse_args(arguments)
    first = 0
    for name, launch in [(name, find_launch(name)) for name in options.name]:
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
    """Return the parser of the command line of `gpulaunch wait`."""
    parser = Parser(
        "gpulaunch wait",
        "Wait until jobs of yours have ended. The exit status is the job's; of several jobs "
        "the first that is not 0, in the order in which they are named; 125 if nobody knows it.",
    )
    add_job(parser, nargs="+")
    return parser
