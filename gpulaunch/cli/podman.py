"""`gpulaunch [OPTIONS] podman ...`: a container with GPUs of its own, or a command passed on."""

import os
from collections.abc import Sequence

from gpulaunch.containers.container import HOST_VARIABLES
from gpulaunch.containers.podman import read_command
from gpulaunch.errors import UsageError, printable
from gpulaunch.launch.options import Given, Options
from gpulaunch.process.system import become


def main(given: Given, argv: Sequence[str]) -> int:
    """Run a command line of podman; those that make or start containers get GPUs."""
    command = read_command(argv)
    argv = command.argv
    hidden: Sequence[str] = ()
    if command.launches or command.starts:
        # late: a command that is passed on needs nothing of a launch
        from gpulaunch.cli.launch import carry_out, tell_of
        from gpulaunch.launch.launch import Launch
        from gpulaunch.launch.podman_run import read_podman_launch, run_podman

        options = Options(given, os.environ)
        read = read_podman_launch(options, command, tell_of(options))
        if isinstance(read, Launch):
            return carry_out(
                options, read, lambda launch, events: run_podman(options, command, launch, events)
            )
        if read != argv:
            argv, hidden = read, HOST_VARIABLES
    if given.keys() & {"dry_run", "explain", "when"}:
        shown = printable(" ".join(command.argv[:3]))
        raise UsageError(f"'{shown}' takes no GPUs here, so there is nothing to decide")
    return become(argv, hidden)
