"""`gpulaunch [OPTIONS] docker ...`: a container with GPUs of its own, or docker as it is."""

from collections.abc import Mapping, Sequence

from gpulaunch.cli.launch import carry_out, tell_of
from gpulaunch.containers.command import read_command
from gpulaunch.containers.docker.flags import DOCKER
from gpulaunch.errors import UsageError, printable
from gpulaunch.launch.given import Given
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.read_container import read_container_launch
from gpulaunch.process.job import become


def main(given: Mapping[str, Given], argv: Sequence[str]) -> int:
    """Run a docker command; those that make or start containers get GPUs.

    Args:
        given: gpulaunch's options, by name.
        argv: docker's command line.
    """
    command = read_command(argv, DOCKER)
    name = given["name"].text if "name" in given else None
    launch = read_container_launch(given, command, name=name, warn=tell_of(given))
    if isinstance(launch, Launch):
        return carry_out(given, launch)
    if given.keys() & {"dry_run", "explain"}:
        raise UsageError(
            f"'{printable(' '.join(argv[:3]))}' takes no GPUs here, so there is nothing to decide"
        )
    return become(launch.argv, launch.hidden)
