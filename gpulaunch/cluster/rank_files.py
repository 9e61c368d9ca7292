"""A mapping in the forms that cluster engines read."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable

from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.mapping import RankMapping


def rankfile(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a rankfile of Open MPI 4.1: socket and core of each rank by their logical numbers.

    Source: mpirun(1) of Open MPI 4.1, "Rankfiles".

    Example of a line: rank 0=n1 slot=0:3
    """
    lines = []
    for rank, place in enumerate(mapping):
        node = cluster.nodes[place.node]
        for socket, cores in enumerate(node.sockets):
            if place.core in cores:
                slot = f"{socket}:{cores.index(place.core)}"
                lines.append(f"rank {rank}={node.name} slot={slot}\n")
    return "".join(lines)


def rankfile5(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a rankfile of Open MPI 5: the core of each rank by its logical number in the node.

    Source: "Rankfiles" in the documentation of PRRTE 3: all numbers are logical.

    Example of a line: rank 0=n1 slot=3
    """
    lines = []
    for rank, place in enumerate(mapping):
        node = cluster.nodes[place.node]
        slot = sum(node.sockets, ()).index(place.core)
        lines.append(f"rank {rank}={node.name} slot={slot}\n")
    return "".join(lines)


def hostfile(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a hostfile of Open MPI: the nodes that have ranks, each with as many slots."""
    counts = Counter(cluster.nodes[place.node].name for place in mapping)
    return "".join(f"{node} slots={count}\n" for node, count in counts.items())


def slurm_hosts(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a file for SLURM_HOSTFILE and --distribution=arbitrary: each rank's node.

    Source: srun(1), --distribution.
    """
    return "".join(f"{cluster.nodes[place.node].name}\n" for place in mapping)


ENGINE_FILES: dict[str, Callable[[Cluster, RankMapping], str]] = {
    "rankfile": rankfile,
    "rankfile5": rankfile5,
    "hostfile": hostfile,
    "slurm_hosts": slurm_hosts,
}
"""Name of a file in a directory -> function that makes its text."""
