"""The union of several communication patterns of one program (mapa-sc21 3.1)."""
# pure: decides on plain values

from collections.abc import Iterable
from functools import cache

from gpulaunch.profiles.pattern import PATTERNS

_RANKS = range(2, 17)
"""Numbers of ranks for which one pattern must contain another.

The range is ours: the sizes of one machine.
"""


def union(names: Iterable[str]) -> str:
    """Return the smallest named pattern that contains all edges of these, for any number of ranks.

    If no smaller one does, it is all_to_all, which is also assumed for an unknown job.

    Args:
        names: names of built-in patterns; no name, or only "none", gives "none".

    Source: mapa-sc21 3.1: the graphs of all NCCL calls of a program are combined.

    Example:
        >>> union(["ring", "tree"])
        'ring+tree'
        >>> union(["chain", "ring"])
        'ring'
    """
    return _smallest(frozenset(names))


@cache
def _smallest(names: frozenset[str]) -> str:
    """Return the pattern with the fewest edges that contains all of these."""
    if len(names) == 1:
        return next(iter(names))
    return min(
        (name for name in PATTERNS if all(_contains(name, part) for part in names)),
        key=_count_edges,
    )


@cache
def _contains(whole: str, part: str) -> bool:
    """Return whether a pattern contains all edges of another, for each number of ranks."""
    return all(
        set(PATTERNS[part].edges(ranks)) <= set(PATTERNS[whole].edges(ranks)) for ranks in _RANKS
    )


def _count_edges(name: str) -> int:
    """Count a pattern's edges over all numbers of ranks."""
    return sum(len(PATTERNS[name].edges(ranks)) for ranks in _RANKS)
