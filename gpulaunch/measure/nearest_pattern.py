"""The named pattern that a measured communication graph looks most like.

A graph and a pattern are compared as vectors over all pairs of ranks: similarity is the cosine of
the angle between them, 1 if the graph is the pattern times some amount, 0 if they share no edge,
whatever the unit. The search is for the order of ranks with the highest similarity.
"""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, pairwise
from math import fsum, sqrt

from gpulaunch.measure.rank_fit import fit, most
from gpulaunch.profiles.pattern import PATTERNS, Edge
from gpulaunch.records import Record

LEAST_SIMILARITY = 0.9
"""Least similarity to a pattern whose name the graph gets. Our choice;
docs/explanation/communication.md has the experiment.
"""

LEAST_SHARE = 0.9
"""Least share of the traffic along a pattern's edges: a chain with a weak edge beside it is no
chain. Our choice.
"""

EVEN = 0.1
"""Largest difference between totals of ranks that count as equal, as part of the largest total.
Our choice.
"""

_TIE = 1e-9
_LEAST_GAIN = 0.02
"""Least gain in similarity of two rings over a single shape, since two rings have more freedom to
fit. Our choice.
"""

_MOST_CYCLES = 400

_SIMPLEST = ("ring", "chain", "all_to_all", "star", "stencil_2d", "stencil_3d", "tree", "ring+tree")
"""Names in order of preference, where several patterns are one graph."""

Pair = tuple[int, int]
Weights = dict[Pair, float]


class NearestPattern(Record):
    """The named pattern nearest to a graph.

    Attributes:
        name: name of the nearest pattern; None if none is near.
        similarity: similarity to it, 0 to 1; if none is near, the best that was found before the
            search stopped.
        order: the rank at each place of the pattern; () where there is no single order.
        rings: how many rings in different orders the graph is made of; 0 if it is something else.
        alike: the names of all patterns that are as near, the simplest first.
    """

    name: str | None
    similarity: float
    order: tuple[int, ...] = ()
    rings: int = 0
    alike: tuple[str, ...] = ()


class _Match(Record):
    """A pattern at its best order of ranks.

    Attributes:
        similarity: 0 to 1.
        order: the rank at each place; () if only some pairs were compared.
        edges: number of edges of the pattern.
        share: part of the traffic along the pattern's edges, 0 to 1.
    """

    similarity: float
    order: tuple[int, ...]
    edges: int
    share: float = 1.0

    @property
    def near(self) -> bool:
        """Whether the graph is near enough to get the pattern's name."""
        return self.similarity >= LEAST_SIMILARITY and self.share >= LEAST_SHARE


def nearest_pattern(
    ranks: int, edges: Iterable[Edge], pairs: Collection[Pair] | None = None
) -> NearestPattern:
    """Return the named pattern nearest to a weighted graph; on a tie, the one with fewest edges.

    A graph that is the sum of two rings in different orders counts as a ring: NCCL lays its
    collectives over the links of a DGX-1 in this way.

    Args:
        ranks: number of ranks of the job, 1 or more.
        edges: what pairs of ranks exchanged, in any unit; each pair once, the lower rank first.
        pairs: pairs whose traffic could be seen at all; None for all. An all-to-all is compared
            over these only: the others talk over paths whose counters tell no peers.

    Returns:
        "none" if there is no edge, and no name if nothing reaches LEAST_SIMILARITY and LEAST_SHARE.

    Cost: exact for up to 8 ranks; beyond that a good order of ranks, as rank_fit says.

    Example:
        >>> nearest_pattern(4, [(0, 2, 5.0), (1, 2, 5.1), (1, 3, 4.9)]).name
        'chain'
    """
    weights = {(a, b): weight for a, b, weight in edges if weight > 0}
    if not weights:
        return NearestPattern("none", 1.0, alike=("none",))
    matches = _match_patterns(ranks, weights, pairs)
    near = {name: match for name, match in matches.items() if match.near}
    most_similar = max((match.similarity for match in near.values()), default=0.0)
    names = sorted(near, key=lambda name: (near[name].edges, _SIMPLEST.index(name)))
    alike = tuple(name for name in names if near[name].similarity >= most_similar - _TIE)
    rings = _match_two_rings(ranks, weights)
    single = max(
        match.similarity
        for match in (*matches.values(), _match_all_to_all(ranks, weights, None))
        if match.order
    )
    if rings >= max(LEAST_SIMILARITY, single) + _LEAST_GAIN and rings >= most_similar - _TIE:
        also = alike if most_similar >= rings - _TIE else ()
        return NearestPattern("ring", rings, rings=2, alike=("ring", *also))
    if not near:
        best = max(matches.values(), key=lambda match: (match.similarity, match.order, match.edges))
        return NearestPattern(None, best.similarity, best.order)
    return NearestPattern(
        alike[0], most_similar, near[alike[0]].order, int(alike[0] == "ring"), alike
    )


def compatible_patterns(totals: Sequence[float]) -> tuple[str, ...]:
    """Return the named patterns that fit the ranks' total traffic, in the order of PATTERNS.

    Each edge of a pattern is taken to carry equal traffic, so that a rank's total is proportional
    to the number of its edges: a star's hub has all of it, the ends of a chain have half. Equal
    totals rule out no collective: NCCL's trees are made so that every rank carries about as much
    as the others (double binary trees), and through NVSwitch it may reduce in the switch.

    Args:
        totals: traffic of every rank, in any unit.

    Example:
        >>> compatible_patterns([30, 10, 10, 10])
        ('star',)
    """
    largest = max(totals, default=0.0)
    if largest <= 0:
        return ("none",)
    shares = sorted(total / largest for total in totals)
    even = shares[0] >= 1 - EVEN
    return tuple(
        name
        for name, pattern in PATTERNS.items()
        if name != "none"
        and ((even and pattern.collective) or _agree(shares, _relative_degrees(name, len(totals))))
    )


def nearest_to_totals(totals: Sequence[float]) -> NearestPattern:
    """Return the pattern for known totals only, as behind NVSwitch; named only if just one fits."""
    names = compatible_patterns(totals)
    return NearestPattern(
        names[0] if len(names) == 1 else None, float(len(names) == 1), alike=names
    )


def _relative_degrees(name: str, ranks: int) -> list[float]:
    """Return each rank's number of edges as a share of the busiest rank's, sorted."""
    counts = [0] * ranks
    for a, b, _ in PATTERNS[name].edges(ranks):
        counts[a] += 1
        counts[b] += 1
    return sorted(count / max(counts) for count in counts)


def _agree(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) <= EVEN for a, b in zip(one, other, strict=True))


def _match_patterns(
    ranks: int, weights: Weights, pairs: Collection[Pair] | None
) -> dict[str, _Match]:
    """Match the graph with each pattern at its best order of ranks.

    Where a pattern cannot win, its order may be worse than the best.
    """
    shapes = {
        name: [(a, b) for a, b, _ in PATTERNS[name].edges(ranks)]
        for name in PATTERNS
        if name != "none"
    }
    bounds = {
        name: _cosine(most(shape, weights), weights, len(shape)) for name, shape in shapes.items()
    }
    found: dict[str, _Match] = {"all_to_all": _match_all_to_all(ranks, weights, pairs)}
    best = found["all_to_all"].similarity
    for name in sorted(shapes, key=lambda name: -bounds[name]):
        if name != "all_to_all":
            shape = shapes[name]
            wanted = max(best, LEAST_SIMILARITY) * most(shape, weights) / bounds[name]
            total, order = fit(ranks, shape, weights, wanted)
            share = total / fsum(weights.values())
            found[name] = _Match(
                _cosine(total, weights, len(shape)), tuple(order), len(shape), share
            )
            best = max(best, found[name].similarity * found[name].near)
    return found


def _match_all_to_all(ranks: int, weights: Weights, pairs: Collection[Pair] | None) -> _Match:
    """Match the graph with all-to-all; the order is () if only some pairs are compared."""
    every = ranks * (ranks - 1) // 2
    seen = every if pairs is None else len({*pairs, *weights})
    return _Match(
        _cosine(fsum(weights.values()), weights, seen), tuple(range(ranks)) * (seen == every), every
    )


def _cosine(shared: float, weights: Weights, edges: int) -> float:
    length = sqrt(fsum(weight * weight for weight in weights.values()))
    return min(1.0, shared / (length * sqrt(edges)))


def _match_two_rings(ranks: int, weights: Weights) -> float:
    """Return the similarity to the best sum of two rings in different orders; 0 without two rings.

    With s the traffic on each ring's edges and o the edges they share, the amounts x of both follow
    from the normal equations n x + o y = s, o x + n y = t; the similarity is the length of their
    sum over that of the graph.
    """
    best = 0.0
    square = fsum(weight * weight for weight in weights.values())
    for (one, s), (other, t) in combinations(_find_cycles(ranks, weights), 2):
        shared = len(one & other)
        x = (ranks * s - shared * t) / (ranks**2 - shared**2)
        y = (ranks * t - shared * s) / (ranks**2 - shared**2)
        if x > 0 and y > 0:
            best = max(best, x * s + y * t)
    return min(1.0, sqrt(best / square))


def _find_cycles(ranks: int, weights: Weights) -> list[tuple[frozenset[Pair], float]]:
    """Return the first _MOST_CYCLES rings over edges of the graph with their traffic.

    The search takes heavy edges first.
    """
    neighbours: list[list[int]] = []
    for rank in range(ranks):
        near = [other for other in range(ranks) if _ordered(rank, other) in weights]
        heaviest_first = sorted((-weights[_ordered(rank, other)], other) for other in near)
        neighbours.append([other for _, other in heaviest_first])
    found: dict[frozenset[Pair], float] = {}

    def walk(path: list[int]) -> None:
        if len(path) == ranks:
            if 0 in neighbours[path[-1]] and ranks > 3:
                edges = frozenset(_ordered(a, b) for a, b in pairwise([*path, 0]))
                found.setdefault(edges, fsum(weights[edge] for edge in edges))
            return
        for rank in neighbours[path[-1]]:
            if rank not in path and len(found) < _MOST_CYCLES:
                walk([*path, rank])

    walk([0])
    return list(found.items())


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
