"""A graph cut into two halves, so that little is cut (Fiduccia and Mattheyses 1982)."""
# pure: decides on plain values

from collections.abc import Callable, Sequence

_STARTS = 128
"""First splits that are tried, times the number of vertices.

All 8 vertices of a small machine begin one, one of 128 does.
"""

Rows = list[list[float]]
"""Closeness of every two vertices, by their positions."""


def bipartition(
    vertices: Sequence[int], closeness: Callable[[int, int], float]
) -> tuple[list[int], list[int]]:
    """Return two halves of the vertices with little closeness between them.

    Moves one vertex at a time to the other side, the one with the largest gain first, also where it
    is a loss, each at most once; keeps the moves up to the best point on the way, and does so again
    until a pass gains nothing. The halves differ by at most one vertex, and by one more between the
    two moves of an exchange.

    Args:
        vertices: no two alike.
        closeness: returns the weight of the edge between two vertices, the lower first; 0 or more.

    Returns:
        Both halves, ascending; the one with the lowest vertex first. The second is empty if there
            is a single vertex.

    Cost: quadratic in the number of vertices for every pass, of which two or three do, and every
        start.

    Source: Fiduccia and Mattheyses, A linear-time heuristic for improving network partitions, DAC
        1982. Departures: the graph is complete, so a heap of gains would not pay, and gains are
        compared one by one; weights are real numbers, so there are no buckets of equal gain; it
        begins not at random but with halves grown around several vertices, and the best result of
        all is taken, ties going to the earliest.
    """
    order = sorted(vertices)
    n = len(order)
    rows = [[closeness(min(a, b), max(a, b)) if a != b else 0.0 for b in order] for a in order]
    if n < 3 or _is_uniform(rows):
        return order[: (n + 1) // 2], order[(n + 1) // 2 :]
    cuts = [_improve(rows, _grow_half(rows, start)) for start in range(0, n, -(-n * n // _STARTS))]
    best = min(range(len(cuts)), key=lambda i: (round(_weigh_cut(rows, cuts[i]), 9), i))
    first = cuts[best][0]
    sides: tuple[list[int], list[int]] = ([], [])
    for vertex, side in zip(order, cuts[best], strict=True):
        sides[side != first].append(vertex)
    return sides


def _is_uniform(rows: Rows) -> bool:
    return len({value for i, row in enumerate(rows) for value in row[:i]}) == 1


def _grow_half(rows: Rows, start: int) -> list[bool]:
    """Return half of the vertices, gathered around one.

    Next comes whatever is closer to them than to the rest.
    """
    inside = [False] * len(rows)
    pull = [-sum(row) for row in rows]
    vertex = start
    for _ in range((len(rows) + 1) // 2 - 1):
        inside[vertex] = True
        pull = [p + 2 * w for p, w in zip(pull, rows[vertex], strict=True)]
        vertex = max((i for i, taken in enumerate(inside) if not taken), key=pull.__getitem__)
    inside[vertex] = True
    return inside


def _improve(rows: Rows, sides: list[bool]) -> list[bool]:
    """Run passes until one gains nothing."""
    while moved := _find_moves(rows, sides):
        sides = [side != (vertex in moved) for vertex, side in enumerate(sides)]
    return sides


def _find_moves(rows: Rows, sides: list[bool]) -> set[int]:
    """Return the moves of one pass up to the best point; none if it is the start."""
    n = len(rows)
    now = list(sides)
    gains = [
        sum(w if now[i] != now[j] else -w for j, w in enumerate(row)) for i, row in enumerate(rows)
    ]
    free = set(range(n))
    moves: list[int] = []
    total, best, kept = 0.0, 1e-9, 0
    for _ in range(n):
        # The larger side must give; either, if they are even.
        larger = 2 * sum(now) > n if 2 * sum(now) != n else None
        vertex = max(
            (v for v in free if larger is None or now[v] == larger),
            key=lambda v: (gains[v], -v),
            default=-1,
        )
        if vertex < 0:
            break
        free.remove(vertex)
        moves.append(vertex)
        total += gains[vertex]
        was = now[vertex]
        now[vertex] = not was
        gains = [
            g + (2 * w if side == was else -2 * w)
            for g, w, side in zip(gains, rows[vertex], now, strict=True)
        ]
        if total > best and abs(2 * sum(now) - n) < 2:
            best, kept = total, len(moves)
    return set(moves[:kept])


def _weigh_cut(rows: Rows, sides: list[bool]) -> float:
    return sum(
        w for i, row in enumerate(rows) for j, w in enumerate(row[:i]) if sides[i] != sides[j]
    )
