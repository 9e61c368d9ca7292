"""Open MPI's mpirun as the starter of ranks, on the nodes of a hostfile or of an allocation."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.starter import Start
from gpulaunch.records import Record


class Mpirun(Record):
    """mpirun of Open MPI 4.1 or 5.

    Attributes:
        program: the program with the user's options for it.
        hostfile: path of the user's hostfile; None inside an allocation that mpirun knows.
    """

    program: tuple[str, ...]
    hostfile: str | None

    def on_each_node(self, argv: Sequence[str]) -> Start:
        """Return a job of one rank for each node, in the order of the hostfile."""
        hosts = ("--hostfile", self.hostfile) if self.hostfile else ()
        return Start((*self.program, *hosts, "--map-by", "ppr:1:node", "--bind-to", "none", *argv))

    def on_ranks(self, argv: Sequence[str], hosts: Sequence[str], directory: str) -> Start:
        """Return a job whose ranks run where a file of hosts says, one line for each rank.

        Each rank binds itself to its core. A rankfile would name cores by Open MPI's own count,
        which is not the kernel's, and 4.1 binds to them whatever else is said.

        Source: mpirun(1), --map-by seq; tried with 4.1.4 and 5.0.11.
        """
        path = f"{directory}/hosts"
        options = ("--hostfile", path, "-np", str(len(hosts)), "--map-by", "seq")
        return Start(
            (*self.program, *options, "--bind-to", "none", *argv),
            files={path: "".join(f"{host}\n" for host in hosts)},
        )
