"""`gpulaunch profile`: measure a job, or read its source or logs, for its profile."""

import os
import re
import shlex
from collections.abc import Sequence

from gpulaunch.cli.output import prepare_stdout, say
from gpulaunch.cli.profile_options import (
    MEASURING,
    MODES,
    READING,
    launch_words,
    make_parser,
    sharing,
)
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.launch.options import Given

__all__ = ["main", "make_parser"]

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?|pypy\d*|torchrun|accelerate|deepspeed")


def main(arguments: Sequence[str], command: Sequence[str] | None) -> int:
    """Measure a job, or read its source, a log or a profiler's file.

    Args:
        arguments: arguments before the --.
        command: argv of the job; None if there is no --.
    """
    given, at = make_parser(whole=True).read(arguments)
    if "help" in given:
        prepare_stdout()
        make_parser().print_help()
        return 0
    if at is not None:
        raise UsageError(
            f"unknown word {quoted(arguments[at])}", "write -- before the job's command"
        )
    # Late, with NVML's package: make_parser() does without, as when a wheel is built.
    from gpulaunch.cli import profile_measuring, profile_reading

    mode = _find_mode(given)
    if mode in READING:
        if command is not None:
            raise UsageError(f"{given[mode][0]} runs no command, but -- is given")
        idle = [
            flag
            for name, (flag, _) in given.items()
            if name not in (mode, "output", "name", "json", "quiet")
        ]
        if idle:
            raise UsageError(f"{given[mode][0]} runs nothing, so {idle[0]} has no effect")
        wanted = profile_reading.target_of(given) if given.keys() & {"output", "name"} else None
        return profile_reading.main(mode, given, wanted)
    if not command:
        raise UsageError(
            "no command given", "gpulaunch profile [OPTIONS] -o FILE -- COMMAND [ARG...]"
        )
    script = _find_script(command)
    if script and not given.keys() & {"output", "name", *MEASURING}:
        return _propose(given, script, command)
    return profile_measuring.measure_job(mode, given, command)


def _find_script(command: Sequence[str]) -> str | None:
    """Return the Python file that a command runs; None if it is not known to run one."""
    for at, word in enumerate(command):
        if at and not any(_PYTHON.fullmatch(os.path.basename(one)) for one in command[:at]):
            continue
        if word.endswith(".py") and os.path.isfile(word):
            return word
    return None


def _propose(given: Given, script: str, command: Sequence[str]) -> int:
    """Scan the script that a command would run, and say how to make a profile of it."""
    from gpulaunch.cli import profile_reading

    status = profile_reading.main("scan", {**given, "scan": ("--scan", script)}, None)
    if "quiet" not in given:
        path = shlex.quote(f"{os.path.basename(script).removesuffix('.py')}.toml")
        keep_it = f"gpulaunch profile --scan {shlex.quote(script)} -o {path}"
        refused = {"json", "topology", *sharing(given)}
        kept = {name: value for name, value in given.items() if name not in refused}
        options = "".join(f"{shlex.quote(word)} " for word in launch_words(kept))
        measure_it = f"gpulaunch profile {options}-o {path} -- {shlex.join(command)}"
        say("info", printable(f"nothing was run; to keep this: {keep_it}"))
        say("info", printable(f"to measure the job: {measure_it}"))
    return status


def _find_mode(given: Given) -> str:
    """Return the mode that is asked for; "use" if none is."""
    modes = [name for name in MODES if name in given]
    if len(modes) > 1:
        shown = " and ".join(given[name][0] for name in modes)
        raise UsageError(
            f"{shown}: one at a time", "each of them changes its own part of the same -o FILE"
        )
    return modes[0] if modes else "use"
