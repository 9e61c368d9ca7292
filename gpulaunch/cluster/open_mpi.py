"""Open MPI's mpirun as the starter of ranks, on the nodes of a hostfile or of an allocation."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.starter import Start
from gpulaunch.records import Record

HERE = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine that every machine has."""


class Mpirun(Record):
    """mpirun of Open MPI 4.1 or 5.

    Attributes:
        program: the program with the user's options for it.
        hosts: names of the user's hosts; empty inside an allocation that mpirun knows.
    """

    program: tuple[str, ...]
    hosts: tuple[str, ...]

    def on_each_node(self, argv: Sequence[str], directory: str) -> Start:
        """Return a job of one rank for each node, in the order of the hosts.

        With a hostfile of the user's alone, mpirun would put the machine that it runs on first.
        """
        if self.hosts:
            return self.on_ranks(argv, self.hosts, directory)
        return Start((*self.program, "--map-by", "ppr:1:node", "--bind-to", "none", *argv))

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


def hosts_of(hostfile: str, own_name: str) -> tuple[str, ...]:
    """Return the hosts that a hostfile names, each once, in their order.

    Args:
        hostfile: its text.
        own_name: name of this machine, by which mpirun knows it where it is called localhost.
    """
    rows = [line.partition("#")[0].split() for line in hostfile.splitlines()]
    names = [words[0] for words in rows if words]
    return tuple(dict.fromkeys(own_name if name in HERE else name for name in names))
