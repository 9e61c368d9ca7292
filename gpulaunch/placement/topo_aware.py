"""The placement of most use to the system: all sets of GPUs, each with its best mapping.

Each cost is brought to 0..1, 0 being the best that there is and 1 the worst, before costs meet in a
utility. Source: topo-aware-sc17 4.3 and 4.4. docs/decisions/topo-aware.md lists the departures.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import comb, inf, sqrt
from operator import mul

from gpulaunch.placement.mapping import EXACT_RANKS, Mapper
from gpulaunch.placement.problem import MOST_SETS, PlacementProblem, Weights, fragmentation

WORST_SLOWDOWN = 1.0
"""The slowdown that counts as the worst for a job's own utility.

From twice the time on, one after the other is as fast as both together.
"""

LEAST_WORST_SLOWDOWN = 0.1
"""The least slowdown that counts as the worst where a choice is made; else it is the largest one.

Source: topo-aware-sc17 Eq. 1 divides interference by that of the worst scenario. Departure: the
10 %, without which 2 % here and none there would matter as much as 30 %. With it, at equal weights,
5 % weighs as much as a socket left half empty, and the first decision of the paper's timeline
(5.2.2) comes out as it tells.
"""

COST_FLOOR = 0.01
"""Costs below make no difference: the published code's MIN_COST."""

MOST_MAPPED = 32
"""Sets of more than EXACT_RANKS ranks that get a mapping, the most promising."""

Gpus = tuple[int, ...]
Allows = Callable[[Gpus], bool]

Costs = tuple[float, float, float]
"""Communication, interference and fragmentation, each 0 (the best there is) to 1 (the worst)."""

Worth = tuple[float, float, int]
"""Utility and nearness of a placement, and how late its neighbours began."""


@lru_cache(maxsize=256)
def communication_range(far: tuple[tuple[int, ...], ...], count: int) -> tuple[int, int]:
    """Return the least and the largest communication cost of so many GPUs of a machine.

    A set grows around each GPU, by the nearest or by the farthest GPU each time. On all described
    machines where all sets can be tried, that finds the least and the largest of them.

    Args:
        far: distance of every two GPUs, also those that are busy, so that a cost means the same at
            any time.
        count: number of GPUs, 1 to len(far).
    """
    seeds = range(len(far))
    least = min(_grow(far, seed, count, 1) for seed in seeds)
    return least, max(_grow(far, seed, count, -1) for seed in seeds)


def _grow(far: Sequence[Sequence[int]], seed: int, count: int, sign: int) -> int:
    """Return the cost of a set that grew by whatever costs least (sign 1) or most (-1)."""
    added = dict(enumerate(far[seed]))
    del added[seed]
    cost = 0
    for _ in range(count - 1):
        nearest = min(added, key=lambda gpu: sign * added[gpu])
        cost += added.pop(nearest)
        added = {gpu: way + far[nearest][gpu] for gpu, way in added.items()}
    return cost


def utility(costs: Costs, weights: Weights) -> float:
    """Return the use of a placement to the whole system, by which the best is chosen.

    It is 0.1 if all is at its worst, up to 1: the inverse of the weighted mean of the costs' roots.
    One cost at its worst brings it under 0.3 at equal weights, however good the others are; a cost
    of weight 0 makes no difference.

    Source: topo-aware-sc17 Eq. 2, in the form that its thresholds of 0.3 and 0.5 need. Departures:
        as printed, over raw costs, U divides by 0 for a single GPU, exceeds 1, and is hardly under
        0.66, so that nothing would ever wait. The published code divides by the sum of each cost,
        of 0.01 at least, to the power of its weight; a weight of 0 adds a constant 1 there and
        drowns the rest. Here the power is 1/2 for all, as it is there at equal weights without
        fragmentation, and the weights are factors.

    Example:
        >>> utility((0, 0, 0), Weights())
        1.0
    """
    communication, interference, left = (sqrt(max(cost, COST_FLOOR)) for cost in costs)
    roots = (
        weights.communication * communication
        + weights.interference * interference
        + weights.fragmentation * left
    )
    return min(1.0, sqrt(COST_FLOOR) / roots)


def job_weights(weights: Weights) -> Weights:
    """Return the weights of the use to the job itself, which its minimum utility is compared with.

    Fragmentation is none of the job's business, so half its weight goes to each of the others. At
    equal weights a threshold of 0.5 wants a cost of less than 0.09 if there is but one, and 0.3 one
    of less than 0.32: a slowdown of 9 or of 32 %.

    Source: the published code of topo-aware-sc17.
    """
    half = weights.fragmentation / 2
    return Weights(weights.communication + half, weights.interference + half, 0.0)


class Valuation:
    """What placements of a problem's job are worth.

    Communication is the mean distance over the job's edges by their weights, which is Eq. 3 if all
    talk to all alike. It is set between the least and the largest mean distance of as many GPUs of
    the machine; a mapping whose edges have found even shorter or longer ways counts as these. A job
    without edges communicates at no cost.

    Args:
        worst: the slowdown that counts as 1.

    Attributes:
        far: distance of every two GPUs, free or not: 1 or more; 0 to itself.
        socket_of: socket of every GPU, near ones next to each other.
        talk: for each rank the weights of its edges to others; those of the whole job sum to 1.
        edges: these edges, each once, the lower rank first.
    """

    def __init__(
        self, problem: PlacementProblem, weights: Weights, worst: float = WORST_SLOWDOWN
    ) -> None:
        fabric, self.ranks = problem.fabric, problem.count
        self._weights, self._begun = weights, problem.begun
        cards = {card: place for place, card in enumerate(fabric.tree.cards)}
        near = sorted(problem.topology.gpus, key=lambda gpu: (cards[gpu.card], gpu.index))
        self.far = fabric.far
        self.socket_of = {gpu.index: fabric.socket[fabric.position[gpu.index]] for gpu in near}
        volume = sum(weight for *_, weight in problem.edges)
        self.edges = [(a, b, weight / volume) for a, b, weight in problem.edges]
        self.talk: list[dict[int, float]] = [{} for _ in range(self.ranks)]
        for a, b, weight in self.edges:
            self.talk[a][b] = self.talk[b][a] = weight
        pairs = max(1, comb(self.ranks, 2))
        least, most = communication_range(
            tuple(tuple([self.far[a][b] for b in fabric.gpus]) for a in fabric.gpus), self.ranks
        )
        self._least, self._most = least / pairs, most / pairs
        self._total = Counter(self.socket_of.values())
        self._free = Counter(self.socket_of[gpu] for gpu in problem.free)
        self._noise = {gpu: min(1.0, problem.slowdown.get(gpu, 0.0) / worst) for gpu in fabric.gpus}

    def distance(self, gpus: Gpus) -> float:
        """Return the mean distance over the job's edges, for GPUs in rank order."""
        return sum(weight * self.far[gpus[a]][gpus[b]] for a, b, weight in self.edges)

    def costs(self, gpus: Sequence[int], distance: float) -> Costs:
        """Return the costs of GPUs with this mean distance over edges, 0 if there are none.

        Source: Eq. 1 divides by the worst case alone. Departure: the best is taken off first, as
            the published code does for two and three GPUs. Else a job of three on a machine with
            two GPUs in each socket, which nothing can keep together, would find little use in any
            placement, and be postponed for ever.
        """
        communication = 0.0
        if self._most > self._least:
            communication = (distance - self._least) / (self._most - self._least)
        return (
            min(1.0, max(0.0, communication)),
            sum(self._noise[gpu] for gpu in gpus) / len(gpus),
            fragmentation(self._free, self._total, [self.socket_of[gpu] for gpu in gpus]),
        )

    def utility(self, gpus: Sequence[int], distance: float) -> float:
        """Return their utility; rounded, so that the order of a sum makes no difference."""
        return round(utility(self.costs(gpus, distance), self._weights), 9)

    def worth(self, gpus: Sequence[int], distance: float) -> Worth:
        """Return what GPUs with this mean distance over edges are worth."""
        begun = sum(self._begun.get(gpu, 0) for gpu in gpus)
        return self.utility(gpus, distance), -round(distance, 9), begun

    def worth_of(self, gpus: Gpus) -> Worth:
        """Return what a placement in rank order is worth."""
        return self.worth(gpus, self.distance(gpus))


# ---------------------------------------------------------------------- all sets and mappings


def place_tasks(
    value: Valuation, choosable: Sequence[int], allows: Allows = lambda _: True
) -> Gpus | None:
    """Return the placement of highest utility to the system, in rank order.

    Of equals it is the one with the shorter ways, then the one beside jobs that began last, since
    sockets of older jobs will be free sooner as a whole, then the one with the lowest GPUs, then
    the one whose first ranks have the lowest. Where there are too many sets to try, it is the one
    of dual recursive bipartitioning.

    Returns:
        None if nothing was found that will do.
    """
    gpus = sorted(choosable)
    if comb(len(gpus), value.ranks) > MOST_SETS:
        return cut_in_two(value, gpus, allows)
    # The most promising first, of equals the one with the lowest GPUs.
    most = {chosen: _most(value, chosen) for chosen in combinations(gpus, value.ranks)}
    promising = sorted(most, key=most.__getitem__, reverse=True)
    is_exact = value.ranks <= EXACT_RANKS
    mapper = _mapper_of_distances(value, gpus)
    best: tuple[Worth, list[int]] | None = None
    found: Gpus | None = None
    for chosen in promising if is_exact else promising[:MOST_MAPPED]:
        lowest_first = [-gpu for gpu in chosen]
        if best and (most[chosen], lowest_first) < best:
            break  # no later one can win either
        if allows(chosen):
            places = [gpus.index(gpu) for gpu in chosen]
            placed = tuple([gpus[place] for place in mapper.best(places).gpus])
            worth = value.worth_of(placed), lowest_first
            if not best or worth > best:
                best, found = worth, placed
    return found


def _most(value: Valuation, gpus: Gpus) -> Worth:
    """Return what a set would be worth if the heaviest edges had the shortest ways."""
    weights = sorted((weight for *_, weight in value.edges), reverse=True)
    ways = sorted([value.far[a][b] for a, b in combinations(gpus, 2)])
    return value.worth(gpus, sum(map(mul, weights, ways), 0.0))


def _mapper_of_distances(value: Valuation, gpus: Sequence[int]) -> Mapper:
    """Return a mapper to which a link is worth more the shorter it is."""
    far = [[value.far[a][b] for b in gpus] for a in gpus]
    longest = max(map(max, far))
    # Whole numbers of 1e-9, so that the order of a sum makes no difference.
    worth = [10**9 * (longest - way) for way in range(longest + 1)]
    mapper = Mapper(far, value.edges, worth, ranks=value.ranks)
    mapper.left = inf  # a job is refused only after all was tried, however long that takes
    return mapper


# ---------------------------------------------------------------------- as published


def cut_in_two(
    value: Valuation, choosable: Sequence[int], allows: Allows = lambda _: True
) -> Gpus | None:
    """Return the placement that dual recursive bipartitioning makes, in rank order.

    The machine is cut in two halves as it is built, whatever is free; the tasks are dealt out to
    them one by one, each to the half where it is of more use; and so on within the halves.

    Args:
        choosable: the GPUs that may be chosen, at least as many as there are ranks.

    Returns:
        None if the placement will not do.

    Source: topo-aware-sc17 Algorithms 2 and 3. Departure: the machine is cut along its levels; on
        every described machine that is where Fiduccia and Mattheyses' heuristic cuts it.
    """
    descent = _Descent(value, frozenset(choosable))
    descent.narrow(list(value.socket_of), range(value.ranks))
    found = tuple(descent.where[rank][0] for rank in range(value.ranks))
    return found if allows(found) else None


class _Descent:
    """Tasks on their way down.

    Attributes:
        where: the choosable GPUs among which each task is.
    """

    def __init__(self, value: Valuation, choosable: frozenset[int]) -> None:
        self._value, self._choosable = value, choosable
        self.where: dict[int, Gpus] = {}
        self._apart = lru_cache(maxsize=None)(self._mean_distance)

    def narrow(self, part: Sequence[int], tasks: Iterable[int]) -> None:
        """Bring tasks to single GPUs of a part of the machine (Algorithm 2)."""
        self.where.update(dict.fromkeys(tasks, self._choosable_of(part)))
        if len(part) < 2:
            return
        middle = (len(part) + 1) // 2
        halves = part[:middle], part[middle:]
        shares = self._deal_out([self._choosable_of(half) for half in halves], tasks)
        for half, share in zip(halves, shares, strict=True):
            if share:
                self.narrow(half, share)

    def _choosable_of(self, part: Iterable[int]) -> Gpus:
        return tuple(gpu for gpu in sorted(part) if gpu in self._choosable)

    def _mean_distance(self, here: Gpus, there: Gpus) -> float:
        """Return the mean distance of a GPU here from another one there; 0 if there is no other."""
        pairs = len(here) * len(there) - len(set(here) & set(there))
        total = sum(self._value.far[a][b] for a in here for b in there)
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
            by_socket.setdefault(self._value.socket_of[gpu], []).append(gpu)
        whole = [members[:count] for members in by_socket.values() if len(members) >= count]
        fullest_first = sorted(by_socket.values(), key=len, reverse=True)
        return whole or [list(chain.from_iterable(fullest_first))[:count]]
