"""Who talks to whom: the edges between the ranks of a job (mapa-sc21 3.1)."""

from collections.abc import Callable
from itertools import combinations

Edges = tuple[tuple[int, int], ...]


def ring(ranks: int) -> Edges:
    """Each rank with its successor, as NCCL's rings; two ranks share one edge."""
    if ranks < 3:
        return chain(ranks)
    return (*chain(ranks), (0, ranks - 1))


def chain(ranks: int) -> Edges:
    """Each rank with its successor, as a pipeline."""
    return tuple((rank, rank + 1) for rank in range(ranks - 1))


def all_to_all(ranks: int) -> Edges:
    """Every pair: what is assumed when nothing is known (mapa-sc21 3.1)."""
    return tuple(combinations(range(ranks), 2))


def none(ranks: int) -> Edges:  # noqa: ARG001
    """No traffic between GPUs."""
    return ()


PATTERNS: dict[str, Callable[[int], Edges]] = {"ring": ring, "chain": chain, "all_to_all": all_to_all, "none": none}
"""Pattern name -> its edges (a, b), a < b, for a number of ranks."""
