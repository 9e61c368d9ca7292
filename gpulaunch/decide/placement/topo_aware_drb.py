"""Topology-aware scheduling as published: dual recursive bipartitioning of machine and job.

Source: topo-aware-sc17 4.4, Algorithms 2 and 3. docs/decisions/topo-aware.md lists the departures.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain

from gpulaunch.decide.placement.utility import Gpus, JobOnMachine, Valuation

_STARTS = 128
"""First splits that are tried, times the number of vertices.

All 8 vertices of a small machine begin one, one of 128 does.
"""

_SAME_SOCKET = 0.01
"""Closeness of two GPUs of a socket besides the inverse of their distance.

It decides where all are equally far, as behind an NVSwitch.
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


def cut_in_two(job: JobOnMachine, choosable: Iterable[int]) -> Gpus:
    """Return the placement that dual recursive bipartitioning makes.

    The machine is cut in two halves as it is built, whatever is free; the tasks are dealt out to
    them one by one, each to the half where it is of more use; and so on within the halves.

    Args:
        job: the job and the machine.
        choosable: the GPUs that may be chosen, at least as many as there are ranks.

    Returns:
        The GPUs in rank order.

    Source: topo-aware-sc17 Algorithms 2 and 3.
    """
    descent = _Descent(job, frozenset(choosable))
    descent.narrow(sorted(job.socket_of), range(job.ranks))
    return tuple(descent.where[rank][0] for rank in range(job.ranks))


def _halves(job: JobOnMachine, part: Sequence[int]) -> tuple[list[int], list[int]]:
    def closeness(a: int, b: int) -> float:
        return 1 / job.far[a][b] + _SAME_SOCKET * (job.socket_of[a] == job.socket_of[b])

    return bipartition(part, closeness)


class _Descent:
    """Tasks on their way down.

    Attributes:
        where: the choosable GPUs among which each task is.
    """

    def __init__(self, job: JobOnMachine, choosable: frozenset[int]) -> None:
        self._value, self._job, self._choosable = Valuation(job), job, choosable
        self.where: dict[int, Gpus] = {}
        self._apart = lru_cache(maxsize=None)(self._mean_distance)

    def narrow(self, part: Sequence[int], tasks: Iterable[int]) -> None:
        """Bring tasks to single GPUs of a part of the machine (Algorithm 2)."""
        self.where.update(dict.fromkeys(tasks, self._choosable_of(part)))
        if len(part) < 2:
            return
        halves = _halves(self._job, part)
        shares = self._deal_out(tuple(map(self._choosable_of, halves)), tasks)
        for half, share in zip(halves, shares, strict=True):
            if share:
                self.narrow(half, share)

    def _choosable_of(self, part: Iterable[int]) -> Gpus:
        return tuple(gpu for gpu in part if gpu in self._choosable)

    def _mean_distance(self, here: Gpus, there: Gpus) -> float:
        """Return the mean distance of a GPU here from another one there; 0 if there is no other."""
        pairs = len(here) * len(there) - len(set(here) & set(there))
        total = sum(self._job.far[a][b] for a in here for b in there)
        return total / pairs if pairs else 0.0

    def _deal_out(
        self, halves: Sequence[Gpus], tasks: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """Return the tasks of either half (Algorithm 3).

        Next is always the task that says most to those that are settled.
        """
        left, talk = set(tasks), self._value.talk
        shares: tuple[list[int], list[int]] = ([], [])

        def pull(task: int) -> tuple[float, float, int]:
            settled = sum(weight for other, weight in talk[task].items() if other not in left)
            return settled, sum(talk[task].values()), -task

        while left:
            task = max(left, key=pull)
            left.remove(task)
            uses = [
                self._use(task, halves[side], halves[1 - side], len(shares[side]), left)
                for side in (0, 1)
            ]
            side = int(uses[1] > uses[0])
            shares[side].append(task)
            self.where[task] = halves[side]
        return shares

    def _use(
        self, task: int, here: Gpus, there: Gpus, taken: int, left: set[int]
    ) -> tuple[float, float]:
        """Return the utility of a side to a task, then its nearness.

        The tasks that it says most to are taken to follow it, as room allows.
        """
        room = len(here) - taken - 1
        if room < 0:
            return 0.0, 0.0
        talk = self._value.talk[task]
        ahead = sorted((weight for other, weight in talk.items() if other in left), reverse=True)
        ways = sum(
            weight * self._apart(here, self.where[other])
            for other, weight in talk.items()
            if other not in left
        )
        ways += sum(ahead[:room]) * self._apart(here, here)
        ways += sum(ahead[room:]) * self._apart(here, there)
        distance = ways / (sum(talk.values()) or 1.0)
        fillings = self._fill(here, taken + 1 + min(room, len(left)))
        return max(self._value.utility(gpus, distance) for gpus in fillings), -round(distance, 9)

    def _fill(self, gpus: Gpus, count: int) -> list[list[int]]:
        """Return ways to take GPUs: from one socket each, else from as few sockets as possible."""
        by_socket: dict[int, list[int]] = {}
        for gpu in gpus:
            by_socket.setdefault(self._job.socket_of[gpu], []).append(gpu)
        whole = [members[:count] for members in by_socket.values() if len(members) >= count]
        fullest_first = sorted(by_socket.values(), key=len, reverse=True)
        return whole or [list(chain.from_iterable(fullest_first))[:count]]
