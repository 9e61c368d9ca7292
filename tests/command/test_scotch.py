"""The mapping policies that ask Scotch, in a process of its own."""

import os
import sys
from collections import Counter

import pytest
from hypothesis import given
from mapping_problems import (
    CLUSTERS,
    check_places,
    larger,
    maximum,
    problem,
    problems,
    random_traffic,
    small_problems,
)
from values import box

from gpulaunch.cluster import scotch, scotch_mapping
from gpulaunch.cluster.catalog import load_cluster
from gpulaunch.cluster.cluster import Cluster, Node
from gpulaunch.cluster.mapping import MappingProblem
from gpulaunch.cluster.policies import MAPPING_POLICIES
from gpulaunch.cluster.rank_traffic import RankTraffic
from gpulaunch.cluster.scotch import is_installed
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FailedError, UsageError
from gpulaunch.files.extras import install_hint

needs_scotch = pytest.mark.skipif(not is_installed(), reason="Scotch is not installed")
BY_SCOTCH = ("magc_scotch", "scotch")
WITH_SCOTCH = ("auto", *BY_SCOTCH)


@needs_scotch
@pytest.mark.parametrize("policy", WITH_SCOTCH)
@given(case=small_problems())
def test_each_rank_has_its_own_core_and_gpu(policy: str, case: MappingProblem) -> None:
    """Every policy gives each rank a core and a GPU of its own on one node, within its slots."""
    check_places(case, MAPPING_POLICIES[policy](case))


@needs_scotch
@pytest.mark.parametrize("policy", WITH_SCOTCH)
def test_fewer_ranks_than_slots_take_few_nodes(policy: str) -> None:
    """Nine ranks take two of four nodes of 8 GPUs under every policy."""
    cluster = larger((4,), (4.0,))
    case = MappingProblem(cluster, random_traffic(9, 20, 1), random_traffic(9, 20, 2))
    assert len({place.node for place in MAPPING_POLICIES[policy](case)}) == 2


@needs_scotch
@pytest.mark.parametrize("policy", WITH_SCOTCH)
def test_a_policy_maps_alike_each_time(policy: str) -> None:
    """The same problem with the same seed has the same mapping, also between other ones."""
    case = problem(load_cluster("magc-b"), "2D-3D", seed=3)
    first = MAPPING_POLICIES[policy](case)
    MAPPING_POLICIES[policy](problem(load_cluster("magc-a"), "COL-2D"))
    assert MAPPING_POLICIES[policy](case) == first


@needs_scotch
def test_heuristic_and_scotch_reach_the_same_congestion() -> None:
    """On cluster A, MAGC's heuristic and Scotch have the same worst link (Figure 4)."""
    for case in problems(load_cluster("magc-a"), 0):
        assert maximum("magc", case) == pytest.approx(maximum("magc_scotch", case))


@needs_scotch
@pytest.mark.parametrize("name", CLUSTERS)
def test_multisect_is_as_good_as_scotch(name: str) -> None:
    """64 ranks, 17 patterns: the worst link is never above 1.1 times Scotch's, mostly below."""
    cases = list(problems(load_cluster(name), 1))
    ratios = [
        maximum("multisect", case) / min(maximum(other, case) for other in BY_SCOTCH)
        for case in cases
    ]
    assert max(ratios) <= 1.1
    assert sum(ratio <= 1 + 1e-9 for ratio in ratios) >= 0.95 * len(cases)


@needs_scotch
def test_scotch_maps_many_ranks_alike_each_time() -> None:
    """Scotch runs without threads, whose order would decide about 4,096 ranks."""
    case = problem(larger((8, 8, 8), (64.0, 16.0, 4.0)), "2D-2D", 4096)
    first, *others = (MAPPING_POLICIES["magc_scotch"](case) for _ in range(3))
    assert others == [first, first]


@needs_scotch
def test_auto_takes_the_better_one() -> None:
    """With Scotch, auto has the least congestion of it and multisect."""
    case = problem(larger((8, 8), (16.0, 4.0)), "2D-3D", 512, seed=1)
    assert maximum("magc_scotch", case) < maximum("multisect", case)
    known = ("multisect", *BY_SCOTCH)
    assert maximum("auto", case) == min(maximum(name, case) for name in known)


@needs_scotch
def test_a_crash_of_scotch_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Scotch ends its process, auto maps by multisect, and Scotch's policies fail."""
    monkeypatch.setattr(scotch_mapping, "map_by_scotch", lambda *_: os.kill(os.getpid(), 9))
    case = problem(load_cluster("magc-b"), "2D-2D")
    with pytest.raises(FailedError) as failed:
        MAPPING_POLICIES["scotch"](case)
    assert failed.value.message == "Scotch: no mapping of 64 ranks, it ended by signal 9"
    assert MAPPING_POLICIES["auto"](case) == MAPPING_POLICIES["multisect"](case)


@needs_scotch
@pytest.mark.parametrize("ranks", [7, 10])
def test_what_crashed_scotch_is_kept_from_it(ranks: int) -> None:
    """A level of single children, or fewer ranks than leaves, is no division by zero."""
    tree = Tree(
        (-1, 0, 0, 1, 2, *[3] * 5, *[4] * 5),
        (0.0, *[1.0] * 4, *[10.0] * 10),
        tuple("abcdefghijklmno"),
        tuple(range(5, 15)),
    )
    edges = ((0, 1, 3.0), (0, 5, 4.0), (0, 6, 14.0), (1, 3, 10.0), (1, 4, 12.0), (1, 5, 8.0))
    traffic = RankTraffic(ranks, (*edges, (2, 3, 4.0)))
    cluster = Cluster(
        "c",
        "made up",
        tuple(Node(f"n{i}", box(1), ((0,),)) for i in range(10)),
        tree,
    )
    mapping = MAPPING_POLICIES["scotch"](MappingProblem(cluster, traffic, traffic))
    assert len(set(mapping)) == ranks


def test_without_scotch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its policies say that Scotch is not found, and how to install it; auto is multisect."""
    monkeypatch.setattr(scotch, "_SYSTEM", ())
    monkeypatch.setattr(sys, "path", [])
    scotch._load.cache_clear()
    case = problem(load_cluster("magc-b"), "2D-2D")
    try:
        with pytest.raises(UsageError) as refused:
            MAPPING_POLICIES["magc_scotch"](case)
        mapped = MAPPING_POLICIES["auto"](case)
    finally:
        scotch._load.cache_clear()
    assert refused.value.message == (
        "Scotch not found: neither pyscotch nor the system's libscotch can be loaded"
    )
    assert refused.value.hint == install_hint("scotch")
    assert mapped == MAPPING_POLICIES["multisect"](case)


@needs_scotch
def test_scotch_keeps_to_an_uneven_tree() -> None:
    """Nodes of 4, 2, 1 and 1 slots below an uneven tree get so many ranks, a chain in pieces."""
    tree = Tree((-1, 0, 1, 1, 0, 0), (0.0, 8.0, 4.0, 4.0, 4.0, 2.0), tuple("abcdef"), (2, 3, 4, 5))
    chain = [(rank, rank + 1, 1.0) for rank in range(7)]
    assert Counter(scotch.map_by_scotch(8, chain, tree, [4, 2, 1, 1])) == {0: 4, 1: 2, 2: 1, 3: 1}
