"""The placement of most use to the system: by trying all, or by cutting machine and job in two.

Source: topo-aware-sc17 4.4. docs/decisions/topo-aware.md lists the departures.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import comb, inf
from operator import mul

from gpulaunch.decide.placement.bipartition import bipartition
from gpulaunch.decide.placement.valuation import Gpus, JobOnMachine, Valuation, Worth
from gpulaunch.errors import UsageError

Allows = Callable[[Gpus], bool]

Ways = tuple[int, ...]

MOST_SETS = 20_000
"""Sets up to which they are tried; 8 of 16 GPUs are 12,870."""

MOST_STEPS = 60_000
"""Tasks that are placed on the way to all mappings: enough for any 20,000 placements."""

_SAME_SOCKET = 0.01
"""Closeness of two GPUs of a socket besides the inverse of their distance.

It decides where all are equally far, as behind an NVSwitch.
"""

_ROUNDING = 1e-12
"""Mean distances that differ by less are the same."""


def place_tasks(
    job: JobOnMachine, choosable: Sequence[int], allows: Allows = lambda _: True
) -> tuple[Gpus | None, bool]:
    """Return the placement of highest utility to the system, and whether it is sure to be that.

    Of equals it is the one with the shorter ways, then the one beside jobs that began last, since
    sockets of older jobs will be free sooner as a whole, then the one with the lowest GPUs, then
    the one whose first ranks have the lowest. Where there is too much to try, it is the better one
    of what was tried, most promising sets first, and of dual recursive bipartitioning.

    Args:
        job: the job and the machine.
        choosable: the GPUs that may be chosen.
        allows: returns whether a set will do.

    Returns:
        The GPUs in rank order, None if nothing was found that will do; and whether all were tried,
            or ruled out by a bound of their utility.

    Raises:
        UsageError: an edge is none, or there are more ranks than GPUs that may be chosen.

    Cost: 4 of 8 GPUs under 1 ms, of 16 GPUs 10 ms; at most 100 ms.
    """
    if not 1 <= job.ranks <= len(set(choosable)):
        raise UsageError(
            f"job of {job.ranks} tasks: each needs a GPU of its own, and "
            f"{len(set(choosable))} may be chosen"
        )
    found, all_tried = None, False
    value = Valuation(job)
    if comb(len(choosable), job.ranks) <= MOST_SETS:
        found, all_tried = _try_all(value, choosable, allows)
    if not all_tried:
        cut = cut_in_two(job, choosable)
        if allows(cut) and (not found or value.worth_of(cut) > value.worth_of(found)):
            found = cut
    return found, all_tried


def _try_all(
    value: Valuation, choosable: Iterable[int], allows: Allows
) -> tuple[Gpus | None, bool]:
    """Try sets, the most promising first, until no other can be better or too much was tried."""
    mapper = _TaskMapper(value)
    best, result = None, None
    for bound, number, gpus, ways in _promising_sets(value, choosable):
        if mapper.steps <= 0 or (best and (bound, number) < best):
            break
        if allows(gpus):
            distance, order = mapper.map(ways)
            if order and (not best or (value.worth(gpus, distance), number) > best):
                best = value.worth(gpus, distance), number
                result = tuple([gpus[place] for place in order])
    return result, mapper.steps > 0


def _promising_sets(
    value: Valuation, choosable: Iterable[int]
) -> Iterator[tuple[Worth, int, Gpus, Ways]]:
    """Yield all sets: the most that they can be worth, minus their number, GPUs and distances.

    The most that they can be worth comes first, then the lowest indices. It is that of a mapping
    whose heaviest edges have the shortest ways.
    """
    job = value.job
    gpus = sorted(choosable)
    way = {(a, b): job.far[a][b] for a, b in combinations(gpus, 2)}
    weights = sorted((weight for *_, weight in value.edges), reverse=True)
    # GPUs that differ in none of these make sets that are worth the same.
    kind = {gpu: (job.socket_of[gpu], job.slowdown.get(gpu), job.begun.get(gpu)) for gpu in gpus}
    nearest: dict[Ways, float] = {}
    bounds: dict[object, Worth] = {}
    found: dict[Worth, list[tuple[Worth, int, Gpus, Ways]]] = {}
    for number, chosen in enumerate(combinations(gpus, job.ranks)):
        ways = tuple(map(way.__getitem__, combinations(chosen, 2)))
        if ways not in nearest:
            nearest[ways] = sum(map(mul, weights, sorted(ways)))
        key = nearest[ways], *map(kind.__getitem__, chosen)
        if key not in bounds:
            bounds[key] = value.worth(chosen, nearest[ways])
        found.setdefault(bounds[key], []).append((bounds[key], -number, chosen, ways))
    return chain.from_iterable(found[bound] for bound in sorted(found, reverse=True))


class _TaskMapper:
    """Finds the mapping of a job to sets of GPUs that has the shortest ways, by branch and bound.

    Attributes:
        steps: tasks that may still be placed in all.
    """

    def __init__(self, value: Valuation) -> None:
        talk, ranks = value.talk, range(value.job.ranks)
        self.steps = MOST_STEPS
        self._twin = [_twin_before(talk, rank) for rank in ranks]
        self._earlier = [[(a, weight) for a, weight in talk[b].items() if a < b] for b in ranks]
        self._later = [
            sorted((weight for row in self._earlier[rank + 1 :] for _, weight in row), reverse=True)
            for rank in ranks
        ]
        self._known: dict[Ways, tuple[float, Gpus]] = {}

    def map(self, ways: Ways) -> tuple[float, Gpus]:
        """Return the least mean distance, and for each rank the place of its GPU in the set.

        Args:
            ways: the distances of the set's pairs in their order.
        """
        if ways not in self._known:
            self._known[ways] = self._search(ways)
        return self._known[ways]

    def _search(self, ways: Ways) -> tuple[float, Gpus]:
        count = len(self._earlier)
        far = [[0] * count for _ in range(count)]
        for (a, b), way in zip(combinations(range(count), 2), ways, strict=True):
            far[a][b] = far[b][a] = way
        # The least that edges of later ranks can add
        rest = [sum(map(mul, weights, sorted(ways))) for weights in self._later]
        best: tuple[float, Gpus] = inf, ()

        def place(at: Gpus, distance: float) -> None:
            nonlocal best
            rank = len(at)
            if rank == count:
                best = distance, at
                return
            twin = self._twin[rank]  # those that could change places are in order
            for gpu in range(0 if twin is None else at[twin] + 1, count):
                if gpu in at or self.steps <= 0:
                    continue
                self.steps -= 1
                row, more = far[gpu], distance
                for other, weight in self._earlier[rank]:
                    more += weight * row[at[other]]
                if more + rest[rank] < best[0] - _ROUNDING:
                    place((*at, gpu), more)

        place((), 0.0)
        return best


def _twin_before(talk: Sequence[Mapping[int, float]], rank: int) -> int | None:
    """Return the last lower rank that could change places with this one."""

    def without(one: int, other: int) -> dict[int, float]:
        return {peer: weight for peer, weight in talk[one].items() if peer != other}

    lower = range(rank - 1, -1, -1)
    return next((other for other in lower if without(other, rank) == without(rank, other)), None)


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
        halves = bipartition(part, self._closeness)
        shares = self._deal_out(tuple(map(self._choosable_of, halves)), tasks)
        for half, share in zip(halves, shares, strict=True):
            if share:
                self.narrow(half, share)

    def _choosable_of(self, part: Iterable[int]) -> Gpus:
        return tuple(gpu for gpu in part if gpu in self._choosable)

    def _closeness(self, a: int, b: int) -> float:
        socket_of = self._job.socket_of
        return 1 / self._job.far[a][b] + _SAME_SOCKET * (socket_of[a] == socket_of[b])

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
