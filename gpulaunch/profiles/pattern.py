"""Communication patterns: the edges between a job's ranks, and their weights (mapa-sc21 3.1)."""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations, pairwise
from math import fsum
from numbers import Integral, Real
from typing import Any, Literal

from gpulaunch.errors import FieldError, UsageError, excerpt, printable
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.machine.gpu import gpus_text
from gpulaunch.records import Record

Edge = tuple[int, int, float]
"""Two ranks, the lower first, and the weight of what they exchange: above 0."""

Pairs = Iterable[tuple[int, int]]

Graph = Any
"""A networkx graph: the package has no types, and few launches import it."""

Confidence = Literal["certain", "likely", "guess"]
"""How sure it is that a job has a pattern."""

CONFIDENCES: tuple[Confidence, ...] = ("certain", "likely", "guess")
"""All values, surest first."""

MAX_RANKS = 1024
"""Largest number of ranks in a given graph.

More than any machine has GPUs, and small enough for an all-to-all to fit into memory.
"""

_MOST_DIGITS = 9  # of a rank that is named by a text

# Bounds that keep quotients and sums of weights from becoming 0 or infinite.
_FIELDS: FieldTable = {"weight": (1e-9, 1e18)}


class Pattern(Record):
    """A communication pattern of a job's ranks.

    Attributes:
        name: "ring" and the like, or the name of the given file or graph.
        collective: the traffic is NCCL collectives, whose speed is a property of the whole set of
            GPUs; otherwise the edge that is slowest for its weight decides.
        ranks: number of ranks of a given graph; 0 if the pattern exists for any number.
        given: sorted edges of a given graph; () for a built-in shape.
    """

    name: str
    collective: bool
    ranks: int = 0
    given: tuple[Edge, ...] = ()

    def edges(self, ranks: int) -> tuple[Edge, ...]:
        """Return the pairs that exchange data, sorted, without duplicates, the lower rank first.

        Returns:
            Edges of weight 1.0 for a built-in shape; () for one rank.

        Raises:
            UsageError: the pattern is a graph with another number of ranks.
        """
        if not self.given:
            pairs = {(min(a, b), max(a, b)) for a, b in _SHAPES[self.name](ranks) if a != b}
            return tuple([(a, b, 1.0) for a, b in sorted(pairs)])
        if ranks != self.ranks:
            raise UsageError(
                f"{gpus_text(ranks)} requested: pattern {printable(self.name)} has {self.ranks} "
                "ranks",
                f"-n {self.ranks}",
            )
        return self.given


def _ring_edges(ranks: int) -> Pairs:
    """Join each rank to its successor, and the last to the first."""
    return ((rank, (rank + 1) % ranks) for rank in range(ranks))


def _tree_edges(ranks: int) -> Pairs:
    """Return both of NCCL's binary trees.

    In the first, a rank's parent has the lowest set bit of its number cleared and the next one set,
    or, if there is no such rank, only cleared; rank 0 is the root. The second is the first moved on
    by one rank if their number is odd, else its mirror image, so that no rank but 0 has others
    below it in both.

    Source: ncclGetBtree and ncclGetDtree in NCCL's src/graph/trees.cc. NCCL has whole machines as
        nodes of these trees and strings the GPUs of each on a chain; here every rank is a node, as
        in Figure 8 of mapa-sc21.
    """
    first = list(_binary_tree_edges(ranks))
    if ranks % 2:
        return [*first, *(((a + 1) % ranks, (b + 1) % ranks) for a, b in first)]
    return [*first, *((ranks - 1 - a, ranks - 1 - b) for a, b in first)]


def _binary_tree_edges(ranks: int) -> Iterator[tuple[int, int]]:
    """Join each rank but 0 to its parent."""
    for rank in range(1, ranks):
        bit = rank & -rank
        above = rank - bit
        parent = above | bit << 1
        yield rank, parent if parent < ranks else above


def _grid_edges(ranks: int, axes: int) -> Iterator[tuple[int, int]]:
    """Join neighbours in a grid without wrap-around, with MPI_Cart_create's row-major numbering."""
    stride = 1
    for size in reversed(dimensions(ranks, axes)):
        for rank in range(ranks):
            if rank // stride % size + 1 < size:
                yield rank, rank + stride
        stride *= size


def dimensions(ranks: int, axes: int) -> tuple[int, ...]:
    """Return sizes of a grid whose product is `ranks`, as equal as possible, the largest first.

    Of all such grids it is the one whose largest size is smallest, then the second largest, and so
    on. Up to 1024 ranks and three axes this grid also has the least difference between largest and
    smallest size, and the least sum, so that "as equal as possible" has one meaning.

    Args:
        ranks: 1 or more; a prime number gives a line.
        axes: 1 or more.

    Source: MPI_Dims_create of the MPI standard.
    """
    if axes == 1:
        return (ranks,)
    sizes = (size for size in range(1, ranks + 1) if ranks % size == 0)
    grids = ((size, *dimensions(ranks // size, axes - 1)) for size in sizes)
    return min(grid for grid in grids if grid[0] >= grid[1])


_SHAPES: dict[str, Callable[[int], Pairs]] = {
    "ring": _ring_edges,
    "tree": _tree_edges,
    "ring+tree": lambda ranks: [*_ring_edges(ranks), *_tree_edges(ranks)],
    "chain": lambda ranks: pairwise(range(ranks)),
    "all_to_all": lambda ranks: combinations(range(ranks), 2),
    "star": lambda ranks: ((0, rank) for rank in range(1, ranks)),
    "stencil_2d": lambda ranks: _grid_edges(ranks, 2),
    "stencil_3d": lambda ranks: _grid_edges(ranks, 3),
    "none": lambda _: (),
}


PATTERNS: dict[str, Pattern] = {
    name: Pattern(name, collective=name in ("ring", "tree", "ring+tree", "all_to_all"))
    for name in _SHAPES
}
"""Name -> pattern of every built-in shape.

all_to_all is assumed for an unknown job (mapa-sc21 3.1); most of such jobs call NCCL collectives.
"""


_COMPARED = range(2, 17)
"""Numbers of ranks for which a union must contain its parts: the sizes of one machine. Ours."""


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
    parts = set(names)
    if len(parts) == 1:
        return parts.pop()
    inside = _edges_compared("none").union(*map(_edges_compared, parts))
    containing = [name for name in PATTERNS if inside <= _edges_compared(name)]
    return min(containing, key=lambda name: len(_edges_compared(name)))


@cache
def _edges_compared(name: str) -> frozenset[tuple[int, Edge]]:
    """Return a pattern's edges for all numbers of ranks that are compared."""
    return frozenset((ranks, edge) for ranks in _COMPARED for edge in PATTERNS[name].edges(ranks))


def given_pattern(
    name: str, edges: Sequence[tuple[int, int, Any]], nodes: Iterable[int] = ()
) -> Pattern:
    """Build the pattern of a graph: check its edges and add up those of one pair.

    Args:
        edges: two ranks in either order and a weight, 1e-9 to 1e18 in any unit: only ratios matter.
        nodes: all ranks, 0 or more, if known; ranks without an edge are an error.

    Raises:
        FieldError: ranks are not 0 to n - 1, n exceeds MAX_RANKS, an edge joins a rank to itself or
            has a wrong weight, there is no edge, or the graph is not connected. Its path is the
            position of the edge, or () if no single edge is at fault.

    Source: topo-aware-sc17 4.1.1, whose weights are the bandwidth used between two GPUs. Here
        directions are added up, since a link has the same bandwidth in both.
    """
    weights: dict[tuple[int, int], list[float]] = {}
    for at, (one, other, weight) in enumerate(edges):
        a, b = sorted((one, other))
        _refuse_edge(at, a, b, weight)
        weights.setdefault((a, b), []).append(float(weight))
    if not weights:
        raise FieldError((), "no edge: a pattern has at least two ranks that talk")
    ranks = _count_ranks({*nodes, *(rank for pair in weights for rank in pair)})
    _refuse_parts(ranks, weights)
    return Pattern(
        name,
        collective=False,
        ranks=ranks,
        given=tuple((*p, fsum(weights[p])) for p in sorted(weights)),
    )


def is_whole(edges: Sequence[tuple[int, int, Any]], ranks: int) -> bool:
    """Return whether the edges join all these ranks, and so are a pattern by themselves.

    Example:
        >>> is_whole([(0, 1, 2.0)], 2), is_whole([(0, 1, 2.0), (2, 3, 2.0)], 4)
        (True, False)
    """
    try:
        given_pattern("edges", edges, range(ranks))
    except FieldError:
        return False
    return True


def graph_pattern(graph: Graph, name: str) -> Pattern:
    """Build the pattern of a networkx graph: Graph, DiGraph, MultiGraph or MultiDiGraph.

    Its nodes are the ranks, 0 to n - 1 as numbers or decimal text; the attribute "weight" of an
    edge counts 1 where it is missing. Weights of both directions, and of parallel edges, add up.

    Raises:
        UsageError: the graph is no pattern (see given_pattern), or a node is no rank.
    """
    subject = f"pattern {printable(name)}"
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges")):
        raise UsageError(f"{subject}: a {type(graph).__name__} is no name, path or networkx graph")
    try:
        ranks = _ranks_of(graph.nodes)
        edges = [
            (ranks[one], ranks[other], _to_plain(weight))
            for one, other, weight in graph.edges(data="weight", default=1.0)
        ]
        return given_pattern(name, edges, ranks.values())
    except FieldError as problem:
        raise UsageError(f"{subject}: {problem.message}") from None
    except (OverflowError, ValueError):
        raise UsageError(f"{subject}: a weight has more digits than can be read") from None


def _ranks_of(nodes: Iterable[Any]) -> dict[object, int]:
    """Return the rank that each node is, as a number or as decimal text."""
    ranks: dict[object, int] = {}
    for node in nodes:
        is_text = isinstance(node, str) and node.isascii() and node.isdecimal()
        rank = int(node) if is_text and len(node) <= _MOST_DIGITS else _to_plain(node)
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 10**_MOST_DIGITS:
            raise FieldError((), f"node {excerpt(repr(node))}: it must be a rank: 0, 1, 2 ...")
        ranks[node] = rank
    if len(set(ranks.values())) < len(ranks):
        raise FieldError((), "two of its nodes are the same rank")
    return ranks


def _to_plain(value: Any) -> Any:  # noqa: ANN401
    """Convert a number, which may be numpy's, to one of Python's own."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _refuse_edge(at: int, a: int, b: int, weight: object) -> None:
    if b >= MAX_RANKS:
        raise FieldError((at,), _too_many_ranks(b))
    if a == b:
        raise FieldError((at,), f"edge {a}-{b}: it joins a rank to itself")
    try:
        checked({"weight": weight}, _FIELDS)
    except FieldError as problem:
        raise FieldError((at,), f"edge {a}-{b}: {problem.message}") from None


def _too_many_ranks(rank: int) -> str:
    return f"rank {rank}: a pattern has at most {MAX_RANKS} ranks, 0 to {MAX_RANKS - 1}"


def _count_ranks(found: set[int]) -> int:
    """Return the number of ranks after checking that none is missing."""
    last = max(found)
    if last >= MAX_RANKS:
        raise FieldError((), _too_many_ranks(last))
    missing = sorted(set(range(last)) - found)
    if missing:
        which = (
            f"rank {missing[0]} is"
            if len(missing) == 1
            else f"rank {missing[0]} and {len(missing) - 1} more are"
        )
        raise FieldError(
            (), f"{which} missing: ranks are 0, 1, 2 ... up to the largest, here {last}"
        )
    return last + 1


def _refuse_parts(ranks: int, pairs: Pairs) -> None:
    """Check that every rank can be reached from rank 0."""
    neighbours: list[set[int]] = [set() for _ in range(ranks)]
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)
    reached, fresh = {0}, [0]
    while fresh:
        found = neighbours[fresh.pop()] - reached
        reached |= found
        fresh += found
    apart = sorted(set(range(ranks)) - reached)
    if apart:
        raise FieldError((), f"ranks 0 and {apart[0]} are not joined, not even over other ranks")
