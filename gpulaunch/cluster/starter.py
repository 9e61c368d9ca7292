"""The interface of the programs that start ranks on the nodes of an allocation."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.records import Record
from gpulaunch.typing import Protocol


class Start(Record):
    """A program to turn into.

    Attributes:
        argv: its command line.
        variables: environment variables to set.
        without: environment variables to leave out.
        files: texts to write before, by path.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str] = {}
    without: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


class Starter(Protocol):
    """A program such as srun or mpirun, with the options that the user gave it."""

    def on_each_node(self, argv: Sequence[str], directory: str) -> Start:
        """Return how to run a command once on every node of the allocation.

        Its tasks are numbered in the order of the nodes.

        Args:
            argv: the command.
            directory: directory for the files that it needs.
        """

    def on_ranks(self, argv: Sequence[str], hosts: Sequence[str], directory: str) -> Start:
        """Return how to run a command once for each rank.

        Args:
            argv: the command.
            hosts: names of the nodes of the ranks, by rank.
            directory: directory for the files that it needs.
        """
