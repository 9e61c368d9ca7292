"""A sparse graph cut into two parts of given sizes, so that little is cut."""
# pure: decides on plain values

from collections.abc import Iterator, Sequence
from math import inf

Rows = Sequence[Sequence[tuple[int, float]]]
"""Neighbours of each vertex, and the weight of the edge to them."""

_GOLDEN = 0.6180339887
"""Its multiples, without their integers, are as evenly spread as can be, however many there are."""

_PATIENCE = 8
"""Exchanges without a gain after which a pass gives up."""

TINY = 1e-9
"""Below it, a difference of traffic is rounding."""


Split = tuple[float, list[int]]
"""A graph in two parts: the weight of all edges that are cut, and 0 or 1 for each vertex."""


def splits(rows: Rows, size: int, starts: int, shift: int = 0) -> Iterator[Split]:
    """Yield ways to split a graph into `size` vertices and the rest, each a local optimum.

    A part is grown around a vertex, next the one that adds least to the cut, then improved by
    passes that exchange vertices.

    Args:
        size: vertices of part 0, 1 to all but one.
        starts: number of vertices to begin at, evenly spread.
        shift: moves them.

    Cost: with few edges, linear in their number for each start.

    Source: Fiduccia and Mattheyses, A linear-time heuristic for improving network partitions, DAC
        1982. Departures: vertices are exchanged, not moved, so that sizes stay exact, and only
        those with an edge that is cut.
    """
    n = len(rows)
    # how much less is cut, below 0, if a vertex leaves the side where all others are
    alone = [-sum([weight for _, weight in row]) for row in rows]
    for start in range(starts):
        gains = alone[:]
        sides = _grow(rows, size, int((start * _GOLDEN % 1) * n + shift) % n, gains)
        while _run_pass(rows, sides, gains, alone) > TINY:
            pass
        cut = 0.0
        for gain, least, side in zip(gains, alone, sides, strict=True):
            cut += 0.0 if side else (gain - least) / 2
        yield cut, sides


def bisect(rows: Rows, size: int, starts: int) -> Split:
    """Return the split that cuts least, of equals the first; see splits().

    It stops early if nothing is cut, or if a third of the starts led to the same cut.
    """
    best: Split = inf, []
    found = 0
    for cut, sides in splits(rows, size, starts):
        if cut < best[0] - TINY:
            best, found = (cut, sides), 0
        found += cut < best[0] + TINY
        if best[0] < TINY or 3 * found > starts:
            break
    return best


def _grow(rows: Rows, size: int, start: int, gains: list[float]) -> list[int]:
    """Return parts, part 0 of a size grown around a vertex.

    Gains are those of moves from part 1, which has all vertices; then of moves from the new parts.
    """
    sides = [1] * len(rows)
    front = {start}
    for _ in range(size):
        if not front:  # what is connected is inside: begin anew
            front.add(max([v for v, side in enumerate(sides) if side], key=gains.__getitem__))
        vertex = max(front, key=gains.__getitem__)
        front.remove(vertex)
        sides[vertex] = 0
        gains[vertex] = -gains[vertex]
        for other, weight in rows[vertex]:
            if sides[other]:
                gains[other] += 2 * weight
                front.add(other)
            else:
                gains[other] -= 2 * weight
    return sides


def _run_pass(rows: Rows, sides: list[int], gains: list[float], alone: list[float]) -> float:
    """Exchange vertices, the best of each side, each once; keep the best point on the way."""
    before = sides[:], gains[:]
    free: tuple[set[int], set[int]] = (set(), set())  # of each side, those with an edge that is cut
    for vertex, (gain, least) in enumerate(zip(gains, alone, strict=True)):
        if gain > least + TINY:
            free[sides[vertex]].add(vertex)
    moved: list[int] = []
    total = best = 0.0
    kept = 0
    locked = [False] * len(rows)
    while free[0] and free[1] and len(moved) - kept < 2 * _PATIENCE:
        for here in free:
            if here:
                vertex = max(here, key=gains.__getitem__)
                total += gains[vertex]
                moved.append(vertex)
                _move(rows, sides, gains, vertex, here, locked)
        if total > best + TINY and len(moved) % 2 == 0:
            best, kept = total, len(moved)
    if not kept:
        sides[:], gains[:] = before
        return 0.0
    for vertex in moved[kept:]:
        _move(rows, sides, gains, vertex, set(), locked)
    return best


def _move(
    rows: Rows,
    sides: list[int],
    gains: list[float],
    vertex: int,
    here: set[int],
    locked: list[bool],
) -> None:
    """Move a vertex to the other side, once: its neighbours `here` may be moved then."""
    side = sides[vertex]
    sides[vertex] = 1 - side
    gains[vertex] = -gains[vertex]
    here.discard(vertex)
    locked[vertex] = True
    for other, weight in rows[vertex]:
        if sides[other] == side:
            gains[other] += 2 * weight
            if not locked[other]:
                here.add(other)
        else:
            gains[other] -= 2 * weight
