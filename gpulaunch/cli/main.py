"""The grammar: options, then `--` and a command, or one word out of our commands and engines."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import gpulaunch
from gpulaunch.cli.commands import COMMANDS, OTHER_NAMES, run_command
from gpulaunch.cli.output import flush_stdout, name_stdout, prepare_stdout, report
from gpulaunch.containers.engines import module_of, runs_containers
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, call_failed

if TYPE_CHECKING:
    from gpulaunch.launch.options import Given


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        name_stdout()
        status = run(sys.argv[1:])
        flush_stdout()
    except GpulaunchError as problem:
        report(problem)
        status = problem.exit_status
    except MemoryError:
        report(FailedError("out of memory"))
        status = FailedError.exit_status
    except ImportError:
        raise
    except Exception as problem:  # noqa: BLE001  a fault of ours: with its traceback
        _report_fault(problem)
        status = FailedError.exit_status
    os._exit(status)  # nothing is left to tidy up, and the interpreter would take its time


def _report_fault(problem: Exception) -> None:
    """Report what was not foreseen: a failed system call by its reason, others by a traceback."""
    if not isinstance(problem, OSError):
        from traceback import print_exception

        print_exception(problem)
        return
    named = isinstance(problem.filename, str | bytes)  # a descriptor's number says nothing
    what = os.fsdecode(problem.filename) if named else "a system call failed"
    report(call_failed(what, problem))


def run(argv: Sequence[str]) -> int:
    """Run one command line, without the program's name; return the exit status.

    Raises:
        GpulaunchError: the request failed; the error has the exit status.
    """
    divider = argv.index("--") if "--" in argv else len(argv)
    before, command = [*argv[:divider]], argv[divider + 1 :]
    given, at = _read_options(before)
    if at is not None and before[at] == "run":
        before = [*before[:at], *before[at + 1 :]]
        given, at = _read_options(before)
    if at is not None and runs_containers(os.path.basename(before[at])):
        if given.keys() & {"help", "version"}:
            raise UsageError(f"--help and --version stand alone, but {before[at]} is given")
        return _run_engine(given, [*before[at:], *argv[divider:]])
    if at is not None:
        before[at] = OTHER_NAMES.get(before[at], before[at])
        if before[at] not in COMMANDS:
            from gpulaunch.cli.help import unknown_command  # late: for mistakes only
            from gpulaunch.launch.handed_over import refuse_sudo

            at += divider - len(before)  # `run`, if it is there, stands before the word
            refuse_sudo(argv[at:divider])  # for which -- alone does not do
            raise unknown_command(argv[:divider], at, argv[divider:])
        words = [before[at], *before[:at], *before[at + 1 :]]  # all options belong to the word
        return run_command(words, command if divider < len(argv) else None)
    if not command or given.keys() & {"help", "version", "dry_run", "when"}:
        prepare_stdout()
    if not argv or given.keys() & {"help", "version"}:
        return _tell(given)
    if not command and not given.keys() & {"dry_run", "explain", "when"}:
        raise UsageError(
            "no command given", "gpulaunch [OPTIONS] -- COMMAND [ARG...], or gpulaunch --help"
        )
    if command and runs_containers(os.path.basename(command[0])):
        return _run_engine(given, command)
    return int(importlib.import_module("gpulaunch.cli.launch").main(given, command))


def _read_options(before: Sequence[str]) -> "tuple[Given, int | None]":
    """Return the options before the first word, and the index of that; None if there is none."""
    if before and not before[0].startswith("-"):
        return {}, 0
    from gpulaunch.cli.arguments import LaunchParser  # late: `docker ps` does without argparse
    from gpulaunch.launch.options import OPTIONS

    return LaunchParser(OPTIONS.values()).read(before)


def _tell(given: "Given") -> int:
    if "version" in given and "help" not in given:
        print(f"gpulaunch {gpulaunch.__version__}")
    else:
        from gpulaunch.cli.help import print_help  # late: a launch does without

        print_help()
    return 0


def _run_engine(given: "Given", command: Sequence[str]) -> int:
    if given.keys() & {"dry_run", "when"}:
        prepare_stdout()
    return int(importlib.import_module(module_of(command[0])).main(given, command))
