"""The mapping of ranks to nodes, cores and GPUs: trees, what judges a mapping, and the policies."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from mapping_problems import (
    CLUSTERS,
    PAIRS,
    check_places,
    larger,
    maximum,
    problem,
    random_traffic,
    small_problems,
    switch,
)
from rivals import map_by_strategy_1, map_by_strategy_2
from values import box, cards, machine, wired_up, wiring

from gpulaunch.lab.cluster.cluster import Cluster, Node, Tree, cpu_tree, gpu_tree
from gpulaunch.lab.cluster.cluster_file import load_cluster
from gpulaunch.lab.cluster.mapping import MappingProblem, judge, nodes_in_use
from gpulaunch.lab.cluster.policies import MAPPING_POLICIES, bisect, map_greedily, to_nodes
from gpulaunch.lab.cluster.traffic import RankTraffic, rows_of, scaled, summed

ALONE = Tree((-1,), (0.0,), ("n",), (0,))
"""The network of a single node."""


# Trees


def test_cores_are_below_sockets() -> None:
    """The CPU tree has a leaf for each core, in the order of sockets, with the node's figures."""
    node = Node("n", box(2), ((4, 5), (0,)))
    assert cpu_tree(node) == Tree(
        (-1, 0, 1, 1, 0, 4),
        (0.0, 16.0, 10.0, 10.0, 16.0, 10.0),
        ("n", "n socket 0", "n core 4", "n core 5", "n socket 1", "n core 0"),
        (2, 3, 5),
    )


def test_gpus_are_below_the_levels_of_their_wiring() -> None:
    """A level's link has the bandwidth of the fastest PCIe path out of it."""
    tree = gpu_tree(load_cluster("magc-b").nodes[0])
    assert tree.parents == (-1, 0, 1, 2, 2, 1, 5, 5, 0, 8, 9, 9, 8, 12, 12)
    assert tree.gb_per_s[1:5] == (3.0, 4.92, 6.0, 6.0)  # SYS, NODE and PIX of generation 2
    assert [tree.names[leaf] for leaf in tree.leaves] == [f"b1 GPU {i}" for i in range(8)]
    assert tree.names[1:3] == ("b1 socket of GPUs 0-3", "b1 switch of GPUs 0-1")


def test_nvlinks_in_the_tree_of_gpus() -> None:
    """A bridged pair has a vertex of its own, where PCIe makes no difference.

    With an NVSwitch every GPU is right below the node, at the bandwidth of its NVLinks. The link
    above GPUs carries what all NVLinks out of them do.
    """
    bridged = wired_up(
        cards(4, nvlink_version=3), lambda a, b: wiring("PHB", 2 * ((a, b) in ((0, 1), (2, 3))))
    )
    tree = gpu_tree(Node("n", bridged, ((0,),)))
    assert tree.parents == (-1, 0, 1, 1, 0, 4, 4)
    assert tree.names[1] == "n NVLinks of GPUs 0-1"
    assert tree.gb_per_s == (0.0, 10.0, 50.0, 50.0, 10.0, 50.0, 50.0)
    tree = gpu_tree(Node("n", machine("dgx-h100"), ((0,),)))
    assert (tree.parents, set(tree.gb_per_s[1:])) == ((-1, *[0] * 8), {450.0})
    tree = gpu_tree(Node("n", machine("dgx1-v100"), ((0,),)))
    assert [tree.gb_per_s[leaf] for leaf in tree.leaves] == [150.0] * 8  # 6 NVLinks of 25 GB/s
    assert tree.gb_per_s[1] == 150.0  # 6 of them lead to the other socket


# What judges a mapping


def test_the_load_of_each_link() -> None:
    """The network carries all traffic between nodes, trees inside nodes their own on its way."""
    cpu = RankTraffic(4, ((0, 1, 2.0), (0, 2, 6.0)))
    gpu = RankTraffic(4, ((1, 3, 5.0),))
    nodes = tuple(Node(f"n{i}", box(2), ((0, 1),)) for i in range(2))
    case = MappingProblem(Cluster("small", "made up", nodes, switch(2.0, 2.0)), cpu, gpu)
    got = judge(case, MAPPING_POLICIES["default"](case))
    assert {(link.tree, link.name): link.load for link in got.links} == {
        ("network", "n0"): 11.0,
        ("network", "n1"): 11.0,
        ("CPU", "n0 socket 0"): 6.0,
        ("CPU", "n0 core 0"): 8.0,
        ("CPU", "n0 core 1"): 2.0,
        ("CPU", "n1 socket 0"): 6.0,
        ("CPU", "n1 core 0"): 6.0,
        ("CPU", "n1 core 1"): 0.0,
        ("GPU", "n0 GPU 0"): 0.0,
        ("GPU", "n0 GPU 1"): 5.0,
        ("GPU", "n1 GPU 0"): 0.0,
        ("GPU", "n1 GPU 1"): 5.0,
    }
    assert (got.maximum, got.between_nodes) == (5.5, 11.0)
    assert got.worst.name == "n0"
    depths = {(link.tree, link.depth) for link in got.links}
    assert depths == {("network", 1), ("CPU", 2), ("CPU", 3), ("GPU", 2)}


# Algorithm 1 of MAGC

TWO_SOCKETS = Tree(
    (-1, 0, 0, 1, 2, 1, 2),
    (0.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0),
    ("n", "s0", "s1", "c0", "c1", "c2", "c3"),
    (3, 4, 5, 6),  # leaves of both sockets by turns
)


def test_algorithm_1_by_hand() -> None:
    """Ranks 0-1-2-3 in a chain of 4, 1, 4: first the least mean traffic, then the heaviest bonds.

    Deltas are -4, -2.5, -2.5, -4: rank 1 comes first, to the first leaf. Then 4, -3, -4: rank 0;
    beside rank 1 the worst link has 4/4, in the other socket 4/2. Then -3, -4: rank 2, to the other
    socket, since no leaf is left beside, and last rank 3.

    Of leaves with the same worst link, the one that adds the least congestion is taken.
    """
    chain = RankTraffic(4, ((0, 1, 4.0), (1, 2, 1.0), (2, 3, 4.0)))
    got = map_greedily(rows_of(chain), range(4), TWO_SOCKETS)
    assert got == {1: 0, 0: 2, 2: 1, 3: 3}
    assert list(got) == [1, 0, 2, 3]
    fast = Tree(TWO_SOCKETS.parents, (0.0, 99.0, 99.0, *[4.0] * 4), TWO_SOCKETS.names, (3, 4, 5, 6))
    got = map_greedily(rows_of(RankTraffic(2, ((0, 1, 8.0),))), range(2), fast)
    assert got == {0: 0, 1: 2}  # leaf 1 would be as good, but for the sockets' links


# Which nodes


def used(network: Tree, slots: list[int], ranks: int) -> list[int]:
    """Return the slots in use of each node of a network."""
    nodes = tuple(Node(f"n{i}", box(n), (tuple(range(n)),)) for i, n in enumerate(slots))
    silent = RankTraffic(ranks, ())
    return nodes_in_use(MappingProblem(Cluster("c", "made up", nodes, network), silent, silent))


def test_nodes_are_few_and_near_each_other() -> None:
    """Fewest nodes are the largest ones; of them, those below one switch, and not the larger one.

    16 ranks on nodes of 4 take the switch with four, not nodes of both.
    """
    assert used(switch(1.0, 1.0, 1.0), [2, 1, 4], 4) == [0, 0, 4]
    assert used(switch(1.0, 1.0, 1.0), [2, 1, 4], 5) == [2, 0, 4]
    network = Tree(
        (-1, 0, 0, 0, *[1] * 3, *[2] * 5, *[3] * 4),
        (0.0, *[9.0] * 15),
        tuple(map(str, range(16))),
        tuple(range(4, 16)),
    )
    slots = [4] * 12
    assert used(network, slots, 16) == [0] * 8 + [4] * 4
    assert used(network, slots, 17) == [0] * 3 + [4] * 5 + [0] * 4
    assert used(network, slots, 24) == [0] * 3 + [4] * 6 + [0] * 3


# Policies


@pytest.mark.parametrize("policy", MAPPING_POLICIES)
@given(case=small_problems())
def test_each_rank_has_its_own_core_and_gpu(policy: str, case: MappingProblem) -> None:
    """Every policy gives each rank a core and a GPU of its own on one node, within its slots."""
    check_places(case, MAPPING_POLICIES[policy](case))


def test_the_unit_of_traffic_does_not_matter() -> None:
    """Traffic in bytes or in any other unit has the same mapping."""
    cluster = Cluster("one", "made up", (load_cluster("magc-a").nodes[0],), ALONE)
    case = problem(cluster, "2D-3D weighted", 16, seed=2)
    for unit in (1e-9, 1e18 / 3):
        cpu, gpu = (scaled(traffic, 1 / unit) for traffic in (case.cpu, case.gpu))
        other = MappingProblem(case.cluster, cpu, gpu)
        assert MAPPING_POLICIES["multisect"](other) == MAPPING_POLICIES["multisect"](case)


def test_network_of_several_levels() -> None:
    """Ring traffic on nodes below two levels of switches crosses each of them twice."""
    cluster = larger((2, 2, 2), (32.0, 16.0, 4.0))
    order = list(range(64))
    random.Random(3).shuffle(order)
    ring = summed(64, [(a, b, 1.0) for a, b in pairwise([*order, order[0]])])
    case = MappingProblem(cluster, ring, RankTraffic(64, ()))
    links = judge(case, MAPPING_POLICIES["multisect"](case)).links
    assert [link.load for link in links if link.tree == "network"] == [2.0] * 14


def test_a_chain_is_as_slow_as_its_slowest_link() -> None:
    """Links one after the other, above ranks that nothing divides, count as the slowest of them."""
    traffic = random_traffic(6, 12, 2)
    parents, names = (-1, 0, 0, 0, 1, 2, 3), tuple("abcdefg")
    chains = Tree(parents, (0.0, 4.0, 4.0, 4.0, 1.0, 4.0, 4.0), names, (4, 5, 6))
    got = [to_nodes(traffic, tree, [2, 2, 2]) for tree in (chains, switch(1.0, 4.0, 4.0))]
    assert got[0] == got[1] != to_nodes(traffic, switch(4.0, 4.0, 4.0), [2, 2, 2])


# What the paper says

WORST = {
    "magc-a": (4, 8, 4, 8, 8, 4, 4, 4, 0.351, 8, 12, 4, 12, 8, 4, 4, 4),
    "magc-b": (5, 8.5, 4, 8.5, 6, 5, 4, 5, 0.814, 7, 11, 4, 11, 10, 5, 4, 5.334),
}
"""The congestion of the worst link for each of PAIRS, as both policies had it on 27 Nov 2026."""


@pytest.mark.parametrize("policy", ["magc", "multisect"])
@pytest.mark.parametrize("name", CLUSTERS)
def test_no_map_is_worse_than_it_was(name: str, policy: str) -> None:
    """The worst link is at most as congested as recorded, less than by default (Figure 4)."""
    for pair, most in zip(PAIRS, WORST[name], strict=True):
        case = problem(load_cluster(name), pair)
        assert maximum(policy, case) <= most, pair
        assert most < maximum("default", case)


def test_strategies_without_gpu_traffic_lose() -> None:
    """On cluster A, strategies 1 and 2 lose to MAGC on 3D-2D and on weighted COL-2D (VI-A.2)."""
    for pair in ("3D-2D", "COL-2D weighted"):
        case = problem(load_cluster("magc-a"), pair)
        for strategy in (map_by_strategy_1, map_by_strategy_2):
            assert judge(case, strategy(case)).maximum >= 1.5 * maximum("magc", case), pair


# Bisection


def test_a_grid_is_cut_across() -> None:
    """A shuffled grid of 8 x 4 is cut where it is 4 wide, at any size of a part that allows it.

    A shuffled chain of 520 ranks is cut at one place.
    """
    grid = [(4 * r + c, 4 * r + c + 1) for r in range(8) for c in range(3)]
    grid += [(4 * r + c, 4 * r + 4 + c) for r in range(7) for c in range(4)]
    chain = list(pairwise(range(520)))
    for pairs, ranks, seed, sizes, cut in (
        (grid, 32, 1, (4, 12, 16, 28), 4.0),
        (chain, 520, 520, (260,), 1.0),
    ):
        order = list(range(ranks))
        random.Random(seed).shuffle(order)
        rows = rows_of(summed(ranks, [(order[a], order[b], 1.0) for a, b in pairs]))
        for size in sizes:
            found, sides = bisect(rows, size, 8)
            assert (sides.count(0), found) == (size, cut)


def test_ranks_are_mapped_to_cores_of_both_sockets() -> None:
    """Fewer ranks than cores are shared out among sockets, in proportion to their cores."""
    node = Node("n", box(8), (tuple(range(12)), tuple(range(12, 16))))
    cluster = Cluster("c", "made up", (node,), ALONE)
    case = MappingProblem(cluster, random_traffic(7, 14, 1), RankTraffic(7, ()))
    mapping = MAPPING_POLICIES["multisect"](case)
    assert Counter(place.core >= 12 for place in mapping) == {False: 5, True: 2}
