"""`sudo gpulaunch setup`: give the machine a state directory for good."""

from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser
from gpulaunch.cli.output import warn
from gpulaunch.launch.open_table import ended_containers
from gpulaunch.leases.setup import TMPFILES, set_up
from gpulaunch.leases.state_directory import SET_UP


def main(arguments: Sequence[str]) -> int:
    """Make the state directory, and say where."""
    Parser(
        "gpulaunch setup",
        f"Make {SET_UP}, the allocation table of all users, now and after every boot.",
    ).parse_args(arguments)
    set_up(warn, ended_containers)
    print(f"{SET_UP} holds the allocation table from now on; {TMPFILES} makes it at every boot")
    return 0
