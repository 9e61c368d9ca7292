"""`gpulaunch [OPTIONS] docker ...`: containers with GPUs of their own, or a command passed on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.containers.docker.line import read_line
from gpulaunch.errors import UsageError, printable
from gpulaunch.process.system import become

if TYPE_CHECKING:
    from gpulaunch.launch.options import Given


def main(given: "Given", argv: Sequence[str]) -> int:
    """Run a command line of docker's client; containers that it makes or starts get GPUs."""
    line = read_line(argv)
    if line.word:
        from gpulaunch.cli import docker_launch  # late: what is passed on needs nothing of it

        return docker_launch.main(given, line)
    if given.keys() & {"dry_run", "explain", "when"}:
        shown = printable(" ".join(argv[:3]))
        raise UsageError(f"'{shown}' takes no GPUs here, so there is nothing to decide")
    return become(line.argv)
