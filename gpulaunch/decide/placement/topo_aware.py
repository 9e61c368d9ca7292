"""The placement of most use to the system: by trying all, or by cutting machine and job in two.

Source: topo-aware-sc17 4.4. docs/decisions/topo-aware.md lists the departures.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, combinations
from math import inf
from operator import mul

from gpulaunch.decide.placement.bipartition import bipartition
from gpulaunch.decide.placement.candidates import Cell, combine
from gpulaunch.decide.placement.search import Criterion, best_set
from gpulaunch.decide.placement.valuation import Gpus, JobOnMachine, Valuation, Worth

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

_NOTHING: Worth = -1.0, 0.0, 0

_ROUNDING = 1e-12
"""Mean distances that differ by less are the same."""


def place_tasks(
    job: JobOnMachine, choosable: Sequence[int], allows: Allows | None = None
) -> tuple[Gpus | None, bool]:
    """Return the placement of highest utility to the system, and whether it is sure to be that.

    Of equals it is the one with the shorter ways, then the one beside jobs that began last, since
    sockets of older jobs will be free sooner as a whole, then the one with the lowest GPUs, then
    the one whose first ranks have the lowest. Where there is too much to try, it is the better one
    of what was tried, most promising sets first, and of dual recursive bipartitioning.

    Args:
        job: the job and the machine.
        choosable: the GPUs that may be chosen, at least as many as there are ranks.
        allows: returns whether a set will do; None for all sets.

    Returns:
        The GPUs in rank order, None if nothing was found that will do; and whether all were tried,
            or ruled out by a bound of their utility.

    Cost: 4 of 8 GPUs 0.5 ms, 4 of 16 10 ms; at most 200 ms, also on 160 GPUs.
    """
    mapper = _TaskMapper(Valuation(job))
    found, all_tried = _try_parts(
        mapper, sorted(job.socket_of), frozenset(choosable), allows, MOST_SETS
    )
    if not all_tried:
        cut = cut_in_two(job, choosable)
        if allows is None or allows(cut):
            found.append(cut)
    return max(found, key=mapper.value.worth_of, default=None), all_tried


def _try_parts(
    mapper: "_TaskMapper",
    part: Sequence[int],
    choosable: frozenset[int],
    allows: Allows | None,
    most: int,
) -> tuple[list[Gpus], bool]:
    """Return the best of all sets, or of those in each part of the machine, if they are too many.

    Args:
        mapper: finds mappings.
        part: GPUs of the part, free or not.
        choosable: the GPUs that may be chosen.
        allows: as in place_tasks.
        most: number of sets that are tried at most.

    Returns:
        Placements, and whether all sets of the part were tried.
    """
    job = mapper.value.job
    gpus = [gpu for gpu in part if gpu in choosable]
    if len(gpus) < job.ranks:
        return [], True
    sets = _distinct_sets(job, gpus, most, alike=allows is None)
    if sets is not None:
        return _best_of(mapper, gpus, sets, allows), mapper.steps > 0
    halves = _halves(job, part)
    found = [_try_parts(mapper, half, choosable, allows, most // 2)[0] for half in halves]
    return list(chain.from_iterable(found)), False


def _distinct_sets(
    job: JobOnMachine, gpus: Sequence[int], most: int, *, alike: bool
) -> list[int] | None:
    """Return all sets of GPUs as masks, the first GPU the largest; None if more than `most`.

    Of GPUs that no cost tells apart, the lowest are taken, unless they are not `alike`.
    """
    groups: dict[int, Cell] = {}  # by its first GPU: the lowest none, one, two and so on
    for gpu, bit in zip(gpus, _bits(gpus), strict=True):
        first = next((one for one in groups if alike and _are_alike(job, gpu, one, gpus)), gpu)
        cell = groups.setdefault(first, [[0]])
        cell.append([cell[-1][0] | bit])
    return combine([*groups.values()], job.ranks, most)


def _bits(gpus: Sequence[int]) -> list[int]:
    return [1 << place for place in reversed(range(len(gpus)))]


def _are_alike(job: JobOnMachine, one: int, other: int, gpus: Iterable[int]) -> bool:
    return _kind(job, one) == _kind(job, other) and all(
        job.far[one][gpu] == job.far[other][gpu] for gpu in gpus if gpu not in (one, other)
    )


def _kind(job: JobOnMachine, gpu: int) -> tuple[int, float, int]:
    """Return what the worth of a set depends on besides its distances."""
    return job.socket_of[gpu], job.slowdown.get(gpu, 0.0), job.begun.get(gpu, 0)


def _best_of(
    mapper: "_TaskMapper", gpus: Sequence[int], sets: Sequence[int], allows: Allows | None
) -> list[Gpus]:
    """Return the best placement on some sets of GPUs, if any, while the mapper has steps.

    The most promising sets come first, until no other can be better: a set is worth at most what it
    would be if the heaviest edges had the shortest ways.
    """
    value = mapper.value
    gpu_at = dict(zip(map(int.bit_length, _bits(gpus)), gpus, strict=True))
    way = {(a, b): value.job.far[a][b] for a, b in combinations(gpus, 2)}
    kind = {gpu: _kind(value.job, gpu) for gpu in gpus}
    weights = sorted((weight for *_, weight in value.edges), reverse=True)
    bounds: dict[object, Worth] = {}

    def opened(mask: int) -> tuple[Gpus, Ways]:
        chosen = []
        while mask:
            chosen.append(gpu_at[mask.bit_length()])
            mask ^= 1 << mask.bit_length() - 1
        return tuple(chosen), tuple(map(way.__getitem__, combinations(chosen, 2)))

    @cache
    def nearest(ways: Ways) -> float:
        return sum(map(mul, weights, sorted(ways)), 0.0)

    def most(mask: int) -> Worth:
        chosen, ways = opened(mask)
        key = nearest(ways), *map(kind.__getitem__, chosen)
        if key not in bounds:
            bounds[key] = value.worth(chosen, nearest(ways))
        return bounds[key]

    @cache
    def placed(mask: int) -> tuple[Worth, list[Gpus]]:
        chosen, ways = opened(mask)
        if mapper.steps > 0 and (allows is None or allows(chosen)):
            distance, order = mapper.map(ways)
            if order:
                return value.worth(chosen, distance), [tuple([chosen[place] for place in order])]
        return _NOTHING, []

    return placed(best_set(sets, [Criterion(lambda mask: placed(mask)[0], most)]))[1]


class _TaskMapper:
    """Finds the mapping of a job to sets of GPUs that has the shortest ways, by branch and bound.

    Attributes:
        value: what placements are worth.
        map: _search() that remembers.
        steps: tasks that may still be placed in all.
    """

    def __init__(self, value: Valuation) -> None:
        talk, ranks = value.talk, range(value.job.ranks)
        self.value, self.steps = value, MOST_STEPS
        self._twin = [_twin_before(talk, rank) for rank in ranks]
        self._earlier = [[(a, weight) for a, weight in talk[b].items() if a < b] for b in ranks]
        self._later = [
            sorted((weight for row in self._earlier[rank + 1 :] for _, weight in row), reverse=True)
            for rank in ranks
        ]
        self.map = lru_cache(maxsize=None)(self._search)

    def _search(self, ways: Ways) -> tuple[float, Gpus]:
        """Return the least mean distance, and for each rank the place of its GPU in the set.

        Args:
            ways: the distances of the set's pairs in their order.
        """
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
