"""Grammar: options, then `--` and a command, or one word out of our commands, docker and podman."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from gpulaunch.cli import launch
from gpulaunch.cli.output import end_quietly_when_nobody_reads, report
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, printable
from gpulaunch.host.process import end_by

COMMANDS = {"status": "who has what", "topo": "the GPUs and their links", "profiles": "what is known about jobs"}
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
    options, command = list(argv[:divider]), argv[divider + 1 :]
    at = launch.first_word(options)
    if at is not None and options[at] == "run":
        del options[at]
        at = launch.first_word(options)
    if at is None:
        if divider < len(argv) and command and os.path.basename(command[0]) not in CONTAINER_ENGINES:
            return launch.main(options, command)
        if divider < len(argv) and command:
            at = 0
            options = [os.path.basename(command[0])]
        else:
            launch.parse(options)  # it may be --help, --version or an error
            raise UsageError("no command given", "gpulaunch [OPTIONS] -- COMMAND [ARG...], or gpulaunch --help")
    word = options[at]
    if word in CONTAINER_ENGINES:
        raise FailedError(f"launching with {word} is not built yet", "docker run --gpus still works, without leases")
    if word not in COMMANDS:
        raise UsageError(
            f"unknown command {printable(word)!r}",
            f"to run a program, write -- before it: gpulaunch {' '.join(map(printable, options[:at]))}"
            f"{' ' if at else ''}-- {printable(word)}",
        )
    if divider < len(argv):
        raise UsageError(f"'gpulaunch {word}' runs no command, but -- is given")
    end_quietly_when_nobody_reads()
    module = importlib.import_module(f"gpulaunch.cli.{word}")
    return int(module.main(options[:at] + options[at + 1 :]))
