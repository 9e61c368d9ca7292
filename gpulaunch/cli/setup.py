"""`gpulaunch setup`: a state directory for good, as root; or a program called nvidia-docker."""

import os
import shutil
import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser
from gpulaunch.cli.output import warn
from gpulaunch.errors import FailedError, UsageError, call_failed
from gpulaunch.history.line import COMMON
from gpulaunch.launch.open_table import TMPFILES, set_up
from gpulaunch.leases.directory import SET_UP

_NVIDIA_DOCKER = "nvidia-docker"


def main(arguments: Sequence[str]) -> int:
    """Make the state directory, and say where; or make the link."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.history and options.nvidia_docker:
        parser.error("--history and --nvidia-docker are two calls")
    if options.history:
        from gpulaunch.history.line import set_up_history  # late: not for the table

        set_up_history()
        print(f"{COMMON} holds the history of all users' launches from now on")
        return 0
    if options.nvidia_docker:
        print(_link(sys.argv[0]))
        return 0
    set_up(warn)
    print(f"{SET_UP} holds the allocation table from now on; {TMPFILES} makes it at every boot")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch setup",
        f"Make {SET_UP}, the allocation table of all users, now and after every boot.",
    )
    parser.add_argument(
        "--nvidia-docker",
        action="store_true",
        help="only make a program nvidia-docker beside gpulaunch: its containers get leases (needs "
        "no root where you may write)",
    )
    parser.add_argument(
        "--history",
        action="store_true",
        help=f"only make {COMMON}, where all users' launches get their lines of the history, so "
        "that 'gpulaunch history --everyone' shows them (as root)",
    )
    return parser


def _link(program: str) -> str:
    """Make the link nvidia-docker beside a program; return what to print.

    Raises:
        FailedError: there is another program of that name, or the link cannot be made.
    """
    if os.path.basename(program) != "gpulaunch":
        raise UsageError(
            f"--nvidia-docker makes a link to the program gpulaunch, but this is {program}"
        )
    link = os.path.join(os.path.dirname(os.path.abspath(program)), _NVIDIA_DOCKER)
    if not os.path.lexists(link):
        try:
            os.symlink(os.path.basename(program), link)
        except OSError as problem:
            raise call_failed(link, problem) from None
    elif not os.path.islink(link) or os.path.realpath(link) != os.path.realpath(program):
        raise FailedError(
            f"{link} is there already, and is not gpulaunch's",
            "remove it, or have an earlier directory of PATH with gpulaunch in it",
        )
    found = shutil.which(_NVIDIA_DOCKER)
    if found != link:
        warn(f"PATH finds {found or 'no nvidia-docker'}, not {link}")
    return f"{link} is gpulaunch now: 'nvidia-docker run' leases the GPUs of its container"
