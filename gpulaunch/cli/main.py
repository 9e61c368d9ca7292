"""Grammar: options, then `--` and a command, or one word out of our commands, docker and podman."""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from gpulaunch import __version__
from gpulaunch.cli import launch
from gpulaunch.cli.options import print_help, read_line
from gpulaunch.cli.output import end_quietly_when_nobody_reads, report
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, printable
from gpulaunch.host.process import end_by

COMMANDS = ("status", "topo", "profiles")
CONTAINER_ENGINES = ("docker", "podman")


def main() -> None:
    """Entry point of the script: run the command line and exit with its status."""
    try:
        status = run(sys.argv[1:])
    except GpulaunchError as problem:
        report(problem)
        status = problem.exit_status
    except OSError as problem:  # no room for a process, no descriptors left: the system's trouble, not a bug of ours
        report(FailedError(str(problem)))
        status = FailedError.exit_status
    except KeyboardInterrupt:
        end_by(signal.SIGINT)
        status = 128 + signal.SIGINT
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(status)  # nothing is left to tidy up, and the interpreter would take its time over it


def run(argv: Sequence[str]) -> int:
    """Run one command line.

    Args:
        argv: without the program's name.

    Returns:
        The exit status.

    Raises:
        GpulaunchError: what cannot be done, and the exit status that goes with it.
    """
    divider = argv.index("--") if "--" in argv else len(argv)
    before, command = argv[:divider], argv[divider + 1 :]
    given, at = read_line(before)
    if at is not None and before[at] == "run":
        before = [*before[:at], *before[at + 1 :]]
        given, at = read_line(before)
    if at is not None:
        return _run_word(before, at, has_command=divider < len(argv))
    if "help" in given:
        print_help()
        return 0
    if "version" in given:
        print(f"gpulaunch {__version__}")
        return 0
    if not command:
        raise UsageError("no command given", "gpulaunch [OPTIONS] -- COMMAND [ARG...], or gpulaunch --help")
    if os.path.basename(command[0]) in CONTAINER_ENGINES:
        raise _no_containers(os.path.basename(command[0]))
    return launch.main(given, command)


def _run_word(before: Sequence[str], at: int, *, has_command: bool) -> int:
    """Run one of our commands; the arguments around its word are its own."""
    word = before[at]
    if word in CONTAINER_ENGINES:
        raise _no_containers(word)
    if word not in COMMANDS:
        shown = " ".join(["gpulaunch", *map(printable, before[:at]), "--", printable(word)])
        raise UsageError(f"unknown command {printable(word)!r}", f"to run a program, write -- before it: {shown}")
    if has_command:
        raise UsageError(f"'gpulaunch {word}' runs no command, but -- is given")
    end_quietly_when_nobody_reads()
    gc.enable()  # unlike a launch, these compute
    module = importlib.import_module(f"gpulaunch.cli.{word}")
    return int(module.main([*before[:at], *before[at + 1 :]]))


def _no_containers(engine: str) -> FailedError:
    return FailedError(f"launching with {engine} is not built yet", "docker run --gpus still works, without leases")
