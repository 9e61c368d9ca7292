"""Problems of mapping: the 17 patterns and two clusters of magc-2016 VI, larger and small ones."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from random import Random

from hypothesis import strategies as st
from values import box

from gpulaunch.lab.cluster.cluster import Cluster, Node, Tree
from gpulaunch.lab.cluster.cluster_file import load_cluster
from gpulaunch.lab.cluster.mapping import MappingProblem, RankMapping, judge
from gpulaunch.lab.cluster.policies import MAPPING_POLICIES
from gpulaunch.lab.cluster.traffic import RankTraffic, shape_traffic, summed

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


def switch(*gb_per_s: float) -> Tree:
    """Make nodes at one switch, by the bandwidth of their links."""
    count = len(gb_per_s)
    names = ("switch", *(f"n{i}" for i in range(count)))
    return Tree((-1, *[0] * count), (0.0, *gb_per_s), names, tuple(range(1, count + 1)))


def random_traffic(ranks: int, edges: int, seed: int) -> RankTraffic:
    """Draw pairs that exchange 1 to 9."""
    rng = Random(seed)
    pairs = rng.sample(list(combinations(range(ranks), 2)), edges)
    return summed(ranks, [(a, b, float(rng.randint(1, 9))) for a, b in pairs])


def maximum(policy: str, case: MappingProblem) -> float:
    """Return the congestion of the worst link under a policy's mapping."""
    return judge(case, MAPPING_POLICIES[policy](case)).maximum


@st.composite
def small_problems(draw: st.DrawFn) -> MappingProblem:
    """Draw ranks with any traffic on nodes that differ, at one switch or two."""
    slots = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    nodes = tuple(
        Node(f"n{i}", box(count), tuple(map(tuple, filter(None, (range(count), range(90, 91))))))
        for i, count in enumerate(slots)
    )
    ranks = draw(st.integers(1, sum(slots)))
    edge = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1), st.integers(1, 9))

    def traffic() -> RankTraffic:
        drawn = draw(st.lists(edge, max_size=12))
        return summed(ranks, [(a, b, float(weight)) for a, b, weight in drawn if a != b])

    network = switch(*[1.0] * len(slots))
    if draw(st.booleans()):
        parents = (-1, 0, 0, *(1 + i % 2 for i in range(len(slots))))
        leaves = tuple(range(3, 3 + len(slots)))
        names = tuple(map(str, range(len(parents))))
        network = Tree(parents, (0.0, *[1.0] * (len(parents) - 1)), names, leaves)
    return MappingProblem(Cluster("c", "drawn", nodes, network), traffic(), traffic())


def check_places(case: MappingProblem, mapping: RankMapping) -> None:
    """Check that each rank has a core and a GPU of its own, within the slots of its node."""
    nodes = case.cluster.nodes
    assert len(mapping) == case.cpu.ranks
    assert len({(place.node, place.core) for place in mapping}) == len(mapping)
    assert len({(place.node, place.gpu) for place in mapping}) == len(mapping)
    for place in mapping:
        assert place.core in sum(nodes[place.node].sockets, ())
        assert place.gpu in [gpu.index for gpu in nodes[place.node].topology.gpus]
    for node, count in Counter(place.node for place in mapping).items():
        assert count <= nodes[node].slots
