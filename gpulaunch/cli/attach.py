"""`gpulaunch attach NAME`: go to the terminal of a detached job."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from shutil import which

from gpulaunch.cli.arguments import Parser, add_job
from gpulaunch.cli.output import say
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.launch.past import connect, find_launch, read_again


def main(arguments: Sequence[str]) -> int:
    """Become a viewer of a job's terminal until it is left, or the job has ended."""
    text = make_parser().parse_args(arguments).name
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


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch attach",
        r"Go to the terminal of a job that was started with -d --terminal; Ctrl-\ leaves it.",
    )
    add_job(parser)
    return parser
