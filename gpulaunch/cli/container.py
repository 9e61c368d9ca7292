"""`gpulaunch [OPTIONS] docker ...`: a container with GPUs of its own, or a command passed on."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.containers.command import ContainerCommand, read_command
from gpulaunch.errors import UsageError, printable
from gpulaunch.process.execute import become

if TYPE_CHECKING:
    from gpulaunch.containers.engine import ContainerEngine
    from gpulaunch.launch.options import Given


def main(given: "Given", engine: "ContainerEngine", argv: Sequence[str]) -> int:
    """Run a command of a container engine; those that make or start containers get GPUs.

    Args:
        given: gpulaunch's options, by name.
        engine: the engine whose client is called.
        argv: the client's command line.
    """
    command = read_command(argv, engine.grammar)
    if command.launches or command.starts or command.composes:
        return _launch(given, engine, command)
    return _pass_on(given, command, command.argv)


def _launch(given: "Given", engine: "ContainerEngine", command: ContainerCommand) -> int:
    # late: a command that is passed on needs nothing of a launch
    from gpulaunch.cli.launch import carry_out, tell_of
    from gpulaunch.launch.launch import Launch
    from gpulaunch.launch.options import Options

    options = Options(given, os.environ)
    if command.composes:
        from gpulaunch.launch.read_compose import read_compose_launch as read
    else:
        from gpulaunch.launch.read_container import read_container_launch as read

    launch = read(options, engine, command, name=options.name, warn=tell_of(options))
    if isinstance(launch, Launch):
        return carry_out(options, launch)
    return _pass_on(options.given, command, launch.argv, launch.hidden)


def _pass_on(
    given: "Given",
    command: ContainerCommand,
    argv: Sequence[str],
    hidden: Sequence[str] = (),
) -> int:
    """Become the engine's client, for a command that takes no GPUs."""
    if given.keys() & {"dry_run", "explain", "when"}:
        shown = printable(" ".join(command.argv[:3]))
        raise UsageError(f"'{shown}' takes no GPUs here, so there is nothing to decide")
    return become(argv, hidden)
