"""The two clusters of magc-2016 VI, its 17 patterns, and larger ones like them.

The paper gives nodes, GPUs, cores and QDR InfiniBand at one switch. Trees inside nodes and all
bandwidths are assumed.
"""

from collections.abc import Iterator
from itertools import combinations, product
from random import Random

from gpulaunch.cluster.cluster import Cluster, Node
from gpulaunch.cluster.mapping import MappingProblem
from gpulaunch.cluster.rank_traffic import RankTraffic
from gpulaunch.cluster.tree import Tree
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import _grid_edges, dimensions

QDR_GB_PER_S = 4.0
"""40 Gbit/s with 8 bits in 10."""


def pcie_node(name: str, gpus: int, *, generation: int, sizes: dict[str, int], cores: int) -> Node:
    """Make a node of two sockets.

    Args:
        name: its name.
        gpus: how many GPUs it has.
        generation: of PCIe.
        sizes: GPUs that meet at each path type, from near to far; the rest meets over SYS.
        cores: of each socket.
    """
    found = tuple(
        Gpu(i, f"GPU-{name}-{i}", "Tesla", 12 << 30, pcie_generation=generation, pcie_width=16)
        for i in range(gpus)
    )

    def path(a: int, b: int) -> Wire:
        return Wire(next((p for p, size in sizes.items() if a // size == b // size), "SYS"))

    topology = Topology(name, found, wired(found, path), "assumed")
    return Node(name, topology, (tuple(range(cores)), tuple(range(cores, 2 * cores))))


def network_tree(fans: list[int], gb_per_s: list[float]) -> Tree:
    """Make a tree of switches; each level has one fan-out and one bandwidth, from the top down."""
    parents, speeds, names, level = [-1], [0.0], ["top"], [0]
    for depth, (fan, speed) in enumerate(zip(fans, gb_per_s, strict=True)):
        below = []
        for parent in level:
            for _ in range(fan):
                below.append(len(parents))
                kind = "n" if depth == len(fans) - 1 else f"switch{depth}."
                names.append(f"{kind}{len(below) - 1}")
                parents.append(parent)
                speeds.append(speed)
        level = below
    return Tree(tuple(parents), tuple(speeds), tuple(names), tuple(level))


def like_nodes(name: str, node: Node, network: Tree) -> Cluster:
    """Make a cluster of nodes that are all alike."""
    nodes = tuple(Node(f"n{i}", node.topology, node.sockets) for i in range(len(network.leaves)))
    return Cluster(name, "magc-2016 VI; trees and bandwidths assumed", nodes, network)


def cluster_a() -> Cluster:
    """Make 4 nodes of 16 K80 GPUs, two on each card, two cards at a switch, and 2 x 12 cores."""
    node = pcie_node("A", 16, generation=3, sizes={"PIX": 2, "PXB": 4, "NODE": 8}, cores=12)
    return like_nodes("A", node, network_tree([4], [QDR_GB_PER_S]))


def cluster_b() -> Cluster:
    """Make 8 nodes of 8 K20, two at a switch, and 2 x 10 cores."""
    node = pcie_node("B", 8, generation=2, sizes={"PIX": 2, "NODE": 4}, cores=10)
    return like_nodes("B", node, network_tree([8], [QDR_GB_PER_S]))


def many_nodes(fans: list[int], gb_per_s: list[float]) -> Cluster:
    """Make a cluster of B's nodes in a tree of switches."""
    return like_nodes("many", cluster_b().nodes[0], network_tree(fans, gb_per_s))


def stencil(ranks: int, axes: int, first: float = 1.0) -> RankTraffic:
    """Make a 5- or 7-point stencil without wrap-around; `first` weighs the first dimension."""
    sizes = dimensions(ranks, axes)
    stride = ranks // sizes[0]
    return RankTraffic(
        ranks,
        tuple(
            sorted((a, b, first if b - a == stride else 1.0) for a, b in _grid_edges(ranks, axes))
        ),
    )


def column(ranks: int) -> RankTraffic:
    """Make an all-to-all within each line along the first dimension of a 3D grid."""
    stride = ranks // dimensions(ranks, 3)[0]
    lines = (range(start, ranks, stride) for start in range(stride))
    return RankTraffic(
        ranks, tuple(sorted((a, b, 1.0) for line in lines for a, b in combinations(line, 2)))
    )


def pairs(ranks: int = 64) -> Iterator[tuple[str, RankTraffic, RankTraffic]]:
    """Yield the nine pairs of CPU and GPU traffic by name, and the eight that have weights."""
    for first, suffix in ((1.0, ""), (3.0, "-W")):
        known = {
            "2D": stencil(ranks, 2, first),
            "3D": stencil(ranks, 3, first),
            "COL": column(ranks),
        }
        for cpu, gpu in product(known, known):
            if not suffix or (cpu, gpu) != ("COL", "COL"):
                yield f"{cpu}-{gpu}{suffix}", known[cpu], known[gpu]


def shuffled(traffic: RankTraffic, seed: int | None) -> RankTraffic:
    """Return the traffic with ranks numbered anew; the same seed gives the same numbers."""
    if seed is None:
        return traffic
    order = list(range(traffic.ranks))
    Random(seed).shuffle(order)
    return RankTraffic(
        traffic.ranks,
        tuple(sorted((*sorted((order[a], order[b])), weight) for a, b, weight in traffic.edges)),
    )


def problems(cluster: Cluster, seeds: int, ranks: int = 64) -> Iterator[tuple[str, MappingProblem]]:
    """Yield every pair in order and, `seeds` times, with shuffled ranks."""
    for name, cpu, gpu in pairs(ranks):
        for seed in (None, *range(seeds)):
            label = f"{name} {'in order' if seed is None else seed}"
            yield label, MappingProblem(cluster, shuffled(cpu, seed), shuffled(gpu, seed))
