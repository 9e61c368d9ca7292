"""One pattern for a program that communicates in several ways: the union of their graphs (mapa-sc21 3.1)."""
# pure: decides on plain values

from collections.abc import Iterable
from functools import cache

from gpulaunch.profiles.pattern import PATTERNS

_RANKS = range(2, 17)
"""Numbers of ranks on which one pattern must hold another. Ours: a machine's."""


def union(names: Iterable[str]) -> str:
    """The smallest named pattern that holds all edges of all of them, whatever the number of ranks.

    Where no smaller one does it is all_to_all, which is also what is assumed of a job of which
    nothing is known.

    Args:
        names: of built-in patterns; none at all, or only "none", is "none".

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
    """The pattern with the fewest edges of those that hold all of them."""
    if len(names) == 1:
        return next(iter(names))
    return min((name for name in PATTERNS if all(_holds(name, part) for part in names)), key=_size)


@cache
def _holds(whole: str, part: str) -> bool:
    """Whether one pattern has all edges of another, for each number of ranks."""
    return all(
        set(PATTERNS[part].edges(ranks)) <= set(PATTERNS[whole].edges(ranks)) for ranks in _RANKS
    )


def _size(name: str) -> int:
    return sum(len(PATTERNS[name].edges(ranks)) for ranks in _RANKS)
