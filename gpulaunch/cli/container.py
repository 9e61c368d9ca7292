"""`gpulaunch [OPTIONS] docker ...`: a container with GPUs of its own, or the command as it is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpulaunch.cli.launch import carry_out, tell_of
from gpulaunch.errors import UsageError, printable
from gpulaunch.launch.given import Given
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.read_container import read_container_launch
from gpulaunch.process.job import become

if TYPE_CHECKING:
    from gpulaunch.containers.engine import ContainerEngine


def main(given: Mapping[str, Given], engine: "ContainerEngine", argv: Sequence[str]) -> int:
    """Run a command of a container engine; those that make or start containers get GPUs.

    Args:
        given: gpulaunch's options, by name.
        engine: whose client is called.
        argv: the client's command line.
    """
    name = given["name"].text if "name" in given else None
    launch = read_container_launch(given, engine, argv, name=name, warn=tell_of(given))
    if isinstance(launch, Launch):
        return carry_out(given, launch)
    if given.keys() & {"dry_run", "explain"}:
        raise UsageError(
            f"'{printable(' '.join(argv[:3]))}' takes no GPUs here, so there is nothing to decide"
        )
    return become(launch.argv, launch.hidden)
