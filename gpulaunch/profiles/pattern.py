"""Who talks to whom: the edges between the ranks of a job, and how much goes over each (mapa-sc21 3.1)."""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import fsum

from gpulaunch.errors import FieldError, UsageError, printable
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.records import Record
from gpulaunch.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulaunch.machine.graph import Graph

Edge = tuple[int, int, float]
"""Two ranks, the lower first, and the weight of what they exchange: more than 0."""

Pairs = Iterable[tuple[int, int]]

MAX_RANKS = 1024
"""Of a graph that was given: more than any machine has GPUs, and few enough for an all-to-all to
fit into memory.
"""

_FIELDS: FieldTable = {
    "weight": (1e-9, 1e18)
}  # so that no quotient or sum of them becomes 0 or infinite
_MOST_SHOWN = 8  # ranks of one part


class Pattern(Record):
    """How the ranks of a job communicate.

    Attributes:
        name: "ring" and the like, or the name of the file or graph that was given.
        collective: its traffic is NCCL's collectives, whose speed a set of GPUs has as a whole;
            otherwise the slowest edge, for its weight, decides.
        ranks: how many a graph that was given has; 0: the pattern exists for any number.
        given: the edges of a graph that was given, sorted; () for a built-in shape.
    """

    name: str
    collective: bool
    ranks: int = 0
    given: tuple[Edge, ...] = ()

    def edges(self, ranks: int) -> tuple[Edge, ...]:
        """The pairs that exchange data, sorted, each once, the lower rank first.

        Args:
            ranks: how many the job has, 1 or more.

        Returns:
            Edges of weight 1.0 for a built-in shape; () for one rank.

        Raises:
            UsageError: the pattern is a graph of another number of ranks.

        Cost: a built-in shape is worked out once for each number of ranks.
        """
        if not self.given:
            return _built_in(self.name, ranks)
        if ranks != self.ranks:
            raise UsageError(
                f"{gpus_text(ranks)} requested: pattern {printable(self.name)} has {self.ranks} "
                "ranks",
                f"-n {self.ranks}",
            )
        return self.given


def _ring(ranks: int) -> Pairs:
    """Each rank with its successor, and the last with the first."""
    return ((rank, (rank + 1) % ranks) for rank in range(ranks))


def _chain(ranks: int) -> Pairs:
    """Each rank with its successor."""
    return ((rank, rank + 1) for rank in range(ranks - 1))


def _star(ranks: int) -> Pairs:
    """Rank 0 with all others."""
    return ((0, rank) for rank in range(1, ranks))


def _tree(ranks: int) -> Pairs:
    """Both of NCCL's binary trees.

    In the first, a rank's parent has the lowest set bit of its number cleared and the next one set,
    or, if there is no such rank, only cleared; rank 0 is the root. The second is the first moved on
    by one rank if their number is odd, else its mirror image, so that no rank but 0 has others
    below it in both.

    Source: ncclGetBtree and ncclGetDtree in NCCL's src/graph/trees.cc. NCCL has whole machines as
        nodes of these trees
    and strings the GPUs of each on a chain; here every rank is a node, as in Figure 8 of mapa-sc21.
    """
    first = list(_binary_tree(ranks))
    if ranks % 2:
        return [*first, *(((a + 1) % ranks, (b + 1) % ranks) for a, b in first)]
    return [*first, *((ranks - 1 - a, ranks - 1 - b) for a, b in first)]


def _binary_tree(ranks: int) -> Iterator[tuple[int, int]]:
    """Each rank but 0 with its parent."""
    for rank in range(1, ranks):
        bit = rank & -rank
        above = rank - bit
        parent = above | bit << 1
        yield rank, parent if parent < ranks else above


def _ring_and_tree(ranks: int) -> Pairs:
    """What NCCL uses for large and for small messages together."""
    return [*_ring(ranks), *_tree(ranks)]


def _grid(ranks: int, axes: int) -> Iterator[tuple[int, int]]:
    """Neighbours in a grid without wrap-around, its ranks in row-major order, as MPI_Cart_create numbers them."""
    stride = 1
    for size in reversed(dimensions(ranks, axes)):
        yield from (
            (rank, rank + stride) for rank in range(ranks) if rank // stride % size + 1 < size
        )
        stride *= size


def dimensions(ranks: int, axes: int) -> tuple[int, ...]:
    """Sizes of a grid whose product is the number of ranks: as equal as possible, the larger first.

    Of all such grids it is the one whose largest size is smallest, then the second largest, and so
    on. Up to 1024 ranks and three axes the same grid also has the least difference between its
    largest and smallest size, and the least sum, so that "as equal as possible" has one meaning.

    Args:
        ranks: 1 or more; of a prime number all ranks stand in one line.
        axes: 1 or more.

    Source: MPI_Dims_create of the MPI standard.
    """
    if axes == 1:
        return (ranks,)
    sizes = (size for size in range(1, ranks + 1) if ranks % size == 0)
    grids = ((size, *dimensions(ranks // size, axes - 1)) for size in sizes)
    return min(grid for grid in grids if grid[0] >= grid[1])


_SHAPES: dict[str, Callable[[int], Pairs]] = {
    "ring": _ring,
    "tree": _tree,
    "ring+tree": _ring_and_tree,
    "chain": _chain,
    "all_to_all": lambda ranks: combinations(range(ranks), 2),
    "star": _star,
    "stencil_2d": lambda ranks: _grid(ranks, 2),
    "stencil_3d": lambda ranks: _grid(ranks, 3),
    "none": lambda _: (),
}


@lru_cache(maxsize=32)
def _built_in(shape: str, ranks: int) -> tuple[Edge, ...]:
    """A shape's pairs in order, each once, and none of a rank with itself, as a ring of one has it."""
    pairs = {(min(a, b), max(a, b)) for a, b in _SHAPES[shape](ranks) if a != b}
    return tuple((a, b, 1.0) for a, b in sorted(pairs))


PATTERNS: dict[str, Pattern] = {
    name: Pattern(name, collective=name in ("ring", "tree", "ring+tree", "all_to_all"))
    for name in _SHAPES
}
"""Name -> pattern of every built-in shape.

all_to_all is assumed of a job of which nothing is known (mapa-sc21 3.1), and most of such jobs call
NCCL's collectives.
"""


def given_pattern(
    name: str, edges: Sequence[tuple[int, int, Any]], nodes: Iterable[int] = ()
) -> Pattern:
    """The pattern of a graph: its edges checked, and those of one pair added up.

    Args:
        name: what it is called.
        edges: two ranks in either order and a weight, 1e-9 to 1e18 in any unit: only their ratios
            matter.
        nodes: all ranks, 0 or more, where that is known; those without an edge are an error.

    Raises:
        FieldError: ranks are not 0 to n - 1, or n is over MAX_RANKS, an edge joins a rank to itself
            or has a wrong weight, there is no edge, or some ranks are not joined to the others. Its
            path is the position of the edge, or () if no single one is at fault.

    Source: topo-aware-sc17 4.1.1, whose weights are the bandwidth used between two GPUs. Here
        directions are added up,
    since a link has the same bandwidth in both.
    """
    weights: dict[tuple[int, int], list[float]] = {}
    for at, (one, other, weight) in enumerate(edges):
        a, b = sorted((one, other))
        _refuse_edge(at, a, b, weight)
        weights.setdefault((a, b), []).append(float(weight))
    if not weights:
        raise FieldError((), "no edge: a pattern has at least two ranks that talk")
    ranks = _count({*nodes, *(rank for pair in weights for rank in pair)})
    _refuse_parts(ranks, weights)
    return Pattern(
        name,
        collective=False,
        ranks=ranks,
        given=tuple((*p, fsum(weights[p])) for p in sorted(weights)),
    )


def is_whole(edges: Sequence[tuple[int, int, Any]], ranks: int) -> bool:
    """Whether edges are a pattern of their own: they join all these ranks.

    Example:
        >>> is_whole([(0, 1, 2.0)], 2), is_whole([(0, 1, 2.0), (2, 3, 2.0)], 4)
        (True, False)
    """
    try:
        given_pattern("edges", edges, range(ranks))
    except FieldError:
        return False
    return True


def graph_pattern(graph: "Graph", name: str, origin: str | None = None) -> Pattern:
    """The pattern of a networkx graph: Graph, DiGraph, MultiGraph or MultiDiGraph.

    Its nodes are the ranks, 0 to n - 1 as numbers or decimal text; the attribute "weight" of an
    edge counts 1 where it is missing. Weights of both directions, and of parallel edges, add up.

    Args:
        graph: the graph; it stays as it is.
        name: what the pattern is called.
        origin: what errors begin with, such as a path, instead of the name.

    Raises:
        UsageError: it is no pattern, as given_pattern says, or a node is no rank.
    """
    from gpulaunch.machine.graph import read_weights

    subject = origin or f"pattern {printable(name)}"
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges")):
        raise UsageError(f"{subject}: a {type(graph).__name__} is no name, path or networkx graph")
    try:
        nodes, edges = read_weights(graph)
        return given_pattern(name, edges, nodes)
    except (FieldError, UsageError) as problem:
        raise UsageError(f"{subject}: {problem.message}") from None
    except (OverflowError, ValueError):
        raise UsageError(f"{subject}: a weight has more digits than can be read") from None


def _refuse_edge(at: int, a: int, b: int, weight: object) -> None:
    if b >= MAX_RANKS:
        raise FieldError((at,), _too_many(b))
    if a == b:
        raise FieldError((at,), f"edge {a}-{b}: it joins a rank to itself")
    try:
        checked({"weight": weight}, _FIELDS)
    except FieldError as problem:
        raise FieldError((at,), f"edge {a}-{b}: {problem.message}") from None


def _too_many(rank: int) -> str:
    return f"rank {rank}: a pattern has at most {MAX_RANKS} ranks, 0 to {MAX_RANKS - 1}"


def _count(found: set[int]) -> int:
    """How many ranks there are, once it is known that none is missing."""
    last = max(found)
    if last >= MAX_RANKS:
        raise FieldError((), _too_many(last))
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
    parts = _parts(ranks, pairs)
    if len(parts) > 1:
        one, other = (
            ",".join(map(str, part[:_MOST_SHOWN])) + "…" * (len(part) > _MOST_SHOWN)
            for part in parts[:2]
        )
        total = f" ({len(parts)} parts in all)" if len(parts) > 2 else ""
        raise FieldError((), f"ranks {one} and {other} have no edge between them{total}")


def _parts(ranks: int, pairs: Pairs) -> list[list[int]]:
    """The connected parts, each sorted, in the order of their lowest ranks."""
    neighbours: list[set[int]] = [set() for _ in range(ranks)]
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)
    left, parts = set(range(ranks)), []
    while left:
        part, fresh = set[int](), {min(left)}
        while fresh:
            part |= fresh
            fresh = set().union(*(neighbours[rank] for rank in fresh)) - part
        left -= part
        parts.append(sorted(part))
    return parts
