"""A mapping in the forms that cluster engines read."""
# pure: decides on plain values

from collections.abc import Callable

from gpulaunch.cluster.cluster import Cluster, Node
from gpulaunch.cluster.mapping import RankMapping
from gpulaunch.errors import UsageError
from gpulaunch.typing import Any


def rank_map(cluster: Cluster, policy: str, mapping: RankMapping) -> dict[str, Any]:
    """Return the document that a launch reads for its rank's core and GPU."""
    ranks = [
        {
            "rank": rank,
            "node": cluster.nodes[place.node].name,
            "core": place.core,
            "gpu": place.gpu,
        }
        for rank, place in enumerate(mapping)
    ]
    return {"cluster": cluster.name, "policy": policy, "ranks": ranks}


def rankfile(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a rankfile of Open MPI 4.1: socket and core of each rank by their logical numbers.

    Source: mpirun(1) of Open MPI 4.1, "Rankfiles".

    Example of a line: rank 0=n1 slot=0:3
    """
    lines = []
    for rank, place in enumerate(mapping):
        node = cluster.nodes[place.node]
        socket, core = _socket_and_core(node, place.core)
        lines.append(f"rank {rank}={node.name} slot={socket}:{core}")
    return _text(lines)


def rankfile5(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a rankfile of Open MPI 5: the core of each rank by its logical number in the node.

    Source: "Rankfiles" in the documentation of PRRTE 3: all numbers are logical.

    Example of a line: rank 0=n1 slot=3
    """
    lines = []
    for rank, place in enumerate(mapping):
        node = cluster.nodes[place.node]
        lines.append(f"rank {rank}={node.name} slot={sum(node.sockets, ()).index(place.core)}")
    return _text(lines)


def _socket_and_core(node: Node, core: int) -> tuple[int, int]:
    """Return the number of a core's socket, and its own number there."""
    return next(
        (number, cores.index(core)) for number, cores in enumerate(node.sockets) if core in cores
    )


def hostfile(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a hostfile of Open MPI: the nodes that have ranks, each with as many slots."""
    ranks = ranks_of_nodes(cluster, mapping)
    return _text([f"{node} slots={len(found)}" for node, found in ranks.items()])


def slurm_hosts(cluster: Cluster, mapping: RankMapping) -> str:
    """Return a file for SLURM_HOSTFILE and --distribution=arbitrary: each rank's node.

    Source: srun(1), --distribution.
    """
    return _text([cluster.nodes[place.node].name for place in mapping])


def map_cpu(cluster: Cluster, mapping: RankMapping) -> str:
    """Return for each node the list that --cpu-bind=map_cpu: takes there.

    srun has one list for all nodes of a step: where they differ, each rank has to bind itself.

    Source: srun(1), --cpu-bind.

    Example of a line: n1 0,12,1
    """
    ranks = ranks_of_nodes(cluster, mapping)
    return _text(
        [
            f"{node} {','.join(str(mapping[rank].core) for rank in found)}"
            for node, found in ranks.items()
        ]
    )


def torchrun(cluster: Cluster, mapping: RankMapping) -> str:
    """Return the nodes in the order of --node-rank, each with its CUDA_VISIBLE_DEVICES.

    torchrun numbers ranks node by node, and its local rank is the position of the GPU.

    Raises:
        UsageError: the ranks of a node are not consecutive, or the nodes have different numbers.

    Example of a line: node_rank=0 n1 CUDA_VISIBLE_DEVICES=2,3,0,1
    """
    ranks = ranks_of_nodes(cluster, mapping)
    size = len(next(iter(ranks.values())))
    lines = []
    for number, (node, found) in enumerate(ranks.items()):
        wanted = list(range(number * size, (number + 1) * size))
        if found != wanted:
            shown = ",".join(map(str, found[:8])) + "…" * (len(found) > 8)
            raise UsageError(
                f"torchrun numbers ranks node by node, {size} on each: {node} has {shown}",
                "start the ranks with srun or mpirun, or map with --policy default",
            )
        gpus = ",".join(str(mapping[rank].gpu) for rank in found)
        lines.append(f"node_rank={number} {node} CUDA_VISIBLE_DEVICES={gpus}")
    return _text(lines)


def ranks_of_nodes(cluster: Cluster, mapping: RankMapping) -> dict[str, list[int]]:
    """Return the ranks of each node that has any, in the order of their first ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, place in enumerate(mapping):
        ranks.setdefault(cluster.nodes[place.node].name, []).append(rank)
    return ranks


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


ENGINE_FILES: dict[str, tuple[str, Callable[[Cluster, RankMapping], str]]] = {
    "rankfile": ("rankfile", rankfile),
    "rankfile5": ("rankfile5", rankfile5),
    "hostfile": ("hostfile", hostfile),
    "slurm": ("slurm_hosts", slurm_hosts),
    "map-cpu": ("map_cpu", map_cpu),
    "torchrun": ("torchrun", torchrun),
}
"""Format -> name of its file in a directory, and function that makes its text."""
