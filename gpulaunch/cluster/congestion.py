"""The load of links under a mapping (magc-2016 V-B)."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.rank_traffic import RankTraffic
from gpulaunch.cluster.tree import Tree


def loads(tree: Tree, traffic: RankTraffic, slots: Sequence[int]) -> list[float]:
    """Return the traffic over the link from each vertex of a tree to its parent.

    Args:
        tree: the tree.
        traffic: what ranks exchange.
        slots: position in `tree.leaves` of each rank; several ranks may be in one.
    """
    ascends = [0.0] * len(tree.parents)  # what leaves each vertex upward, or enters from above
    depths = tree.depths()
    for a, b, weight in traffic.edges:
        one, other = tree.leaves[slots[a]], tree.leaves[slots[b]]
        while one != other:
            if depths[one] < depths[other]:
                one, other = other, one
            ascends[one] += weight
            one = tree.parents[one]
    return ascends
