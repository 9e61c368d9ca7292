"""The 17 patterns and two clusters of magc-2016 VI, ranks numbered anew, and larger clusters."""

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random

from gpulaunch.cluster.catalog import load_cluster
from gpulaunch.cluster.cluster import Cluster, Node
from gpulaunch.cluster.mapping import MappingProblem
from gpulaunch.cluster.rank_traffic import RankTraffic, summed
from gpulaunch.cluster.traffic_shapes import shape_traffic
from gpulaunch.cluster.tree import Tree

CLUSTERS = ("magc-a", "magc-b")
"""Trees inside nodes, and all bandwidths, are assumed: the paper has none."""

SHAPES = {"2D": "2d", "3D": "3d", "COL": "col"}
WEIGHTED = {"2D": "2d:3", "3D": "3d:3", "COL": "col"}
PAIRS = {
    **{f"{cpu}-{gpu}": (SHAPES[cpu], SHAPES[gpu]) for cpu, gpu in product(SHAPES, SHAPES)},
    **{
        f"{cpu}-{gpu} weighted": (WEIGHTED[cpu], WEIGHTED[gpu])
        for cpu, gpu in product(WEIGHTED, WEIGHTED)
        if (cpu, gpu) != ("COL", "COL")
    },
}
"""Name CPU-GPU -> the shapes of both."""


def shuffled(traffic: RankTraffic, seed: int | None) -> RankTraffic:
    """Return the traffic with ranks numbered anew, alike for the same seed; None leaves them."""
    order = list(range(traffic.ranks))
    if seed is not None:
        Random(seed).shuffle(order)
    edges = ((order[a], order[b], weight) for a, b, weight in traffic.edges)
    return summed(traffic.ranks, edges)


def problem(
    cluster: Cluster, pair: str, ranks: int = 64, seed: int | None = None
) -> MappingProblem:
    """Make the problem of a pair of PAIRS."""
    cpu, gpu = (shape_traffic(shape, ranks) for shape in PAIRS[pair])
    assert cpu
    assert gpu
    return MappingProblem(cluster, shuffled(cpu, seed), shuffled(gpu, seed))


def problems(cluster: Cluster, shuffles: int, ranks: int = 64) -> Iterator[MappingProblem]:
    """Yield the problems of all pairs, in order and with ranks shuffled so many times."""
    for pair in PAIRS:
        for seed in (None, *range(shuffles)):
            yield problem(cluster, pair, ranks, seed)


def larger(fans: Sequence[int], gb_per_s: Sequence[float]) -> Cluster:
    """Make a cluster of B's nodes in a tree of switches, alike at each level.

    Args:
        fans: number of children of each vertex, from the top down; the last are nodes.
        gb_per_s: bandwidth of the links to them.
    """
    node = load_cluster("magc-b").nodes[0]
    parents, speeds, level = [-1], [0.0], [0]
    for fan, speed in zip(fans, gb_per_s, strict=True):
        above = [vertex for vertex in level for _ in range(fan)]
        level = list(range(len(parents), len(parents) + len(above)))
        parents += above
        speeds += [speed] * len(above)
    names = tuple(f"v{vertex}" for vertex in range(len(parents)))
    tree = Tree(tuple(parents), tuple(speeds), names, tuple(level))
    nodes = tuple(Node(names[leaf], node.topology, node.sockets) for leaf in level)
    return Cluster("larger", "made up", nodes, tree)
