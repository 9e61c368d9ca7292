"""Costs and utility of a placement, for the job and for the whole machine.

Each cost is brought to 0..1, 0 being the best that there is and 1 the worst, before costs meet in a
utility. Source: topo-aware-sc17 4.3 and 4.4.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb, isfinite, sqrt

from gpulaunch.errors import UsageError
from gpulaunch.records import Record, as_dict

WORST_SLOWDOWN = 1.0
"""The slowdown that counts as the worst for a job's own utility.

From twice the time on, one after the other is as fast as both together.
"""

LEAST_WORST_SLOWDOWN = 0.1
"""The least slowdown that counts as the worst where a choice is made."""

COST_FLOOR = 0.01
"""Costs below make no difference: the published code's MIN_COST."""

MAX_SETS = 3_000
"""Sets of GPUs up to which the range of the communication cost is found by trying all: 6 of 14."""

ALL_SEEDS = 16
"""Number of GPUs up to which sets grow around each."""


Gpus = tuple[int, ...]

Worth = tuple[float, float, int]
"""Utility and nearness of a placement, and how late its neighbours began."""


class Weights(Record):
    """Weights of the three costs, which sum to 1; the paper has equal ones (5.2.1)."""

    communication: float = 1 / 3
    interference: float = 1 / 3
    fragmentation: float = 1 / 3


class Costs(Record):
    """The costs of a placement, each 0 (the best there is) to 1 (the worst)."""

    communication: float
    interference: float
    fragmentation: float


def weights_of(communication: float, interference: float, fragmentation: float) -> Weights:
    """Return weights that sum to 1, from any three numbers of 0 or more that are not all 0.

    Raises:
        UsageError: one is negative or no number, or all are 0.

    Example:
        >>> weights_of(2, 1, 1)
        Weights(communication=0.5, interference=0.25, fragmentation=0.25)
    """
    asked = as_dict(Weights(communication, interference, fragmentation))
    for name, value in asked.items():
        if not (isfinite(value) and value >= 0):
            raise UsageError(f"weight of {name}: asked for {value:g}, a weight is 0 or more")
    largest = max(asked.values())
    if not largest:
        raise UsageError(
            "weights of communication, interference and fragmentation: all are 0, one must be more"
        )
    shares = [value / largest for value in asked.values()]  # their sum is finite
    return Weights(*(share / sum(shares) for share in shares))


def communication_cost(distance: Callable[[int, int], int], gpus: Iterable[int]) -> int:
    """Return the sum of the distances over all pairs of the chosen GPUs; 0 for a single one.

    Source: topo-aware-sc17 Eq. 3. Departure: as printed its bounds go over all free GPUs; what is
        meant are the pairs of the chosen ones.
    """
    return sum(distance(a, b) for a, b in combinations(gpus, 2))


@lru_cache(maxsize=256)
def communication_range(far: tuple[tuple[int, ...], ...], count: int) -> tuple[int, int]:
    """Return the least and the largest communication cost of so many GPUs of a machine.

    Found by trying all sets if there are no more than MAX_SETS; else by letting a set grow around
    each GPU, by the nearest or by the farthest GPU each time. On the described machines of 16 GPUs
    that finds the least, and the largest but for 2 %. With more than ALL_SEEDS GPUs, one is tried
    of all that have the same distances to the others.

    Args:
        far: distance of every two GPUs, also those that are busy, so that a cost means the same at
            any time.
        count: number of GPUs, 1 to len(far).

    Cost: some ms, once for each machine and count.
    """
    gpus = range(len(far))
    if comb(len(far), count) <= MAX_SETS:
        costs = [
            sum([far[a][b] for a, b in combinations(chosen, 2)])
            for chosen in combinations(gpus, count)
        ]
        return min(costs), max(costs)
    alike = {tuple(sorted(row)): gpu for gpu, row in enumerate(far)}
    seeds = gpus if len(far) <= ALL_SEEDS else alike.values()
    return min(_grow(far, seed, count, 1) for seed in seeds), max(
        _grow(far, seed, count, -1) for seed in seeds
    )


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


def normalize(cost: float, least: float, most: float) -> float:
    """Return where a cost lies between the least and the largest there is: 0..1.

    It is 0 where all are the same.

    Source: Eq. 1 divides by the worst case alone. Departure: the best is taken off first, as the
        published code does for two and three GPUs. Else a job of three on a machine with two GPUs
        in each socket, which nothing can keep together, would find little use in any placement, and
        be postponed for ever.

    Example:
        >>> normalize(28.5, 1, 56)
        0.5
    """
    return min(1.0, max(0.0, (cost - least) / (most - least))) if most > least else 0.0


def fragmentation(
    free_by_socket: Mapping[int, int], total_by_socket: Mapping[int, int], sockets: Sequence[int]
) -> float:
    """Return the mean share of GPUs that stay free on the sockets of a placement: 0..1.

    Lower is fuller.

    Args:
        free_by_socket: free GPUs of each socket before the placement.
        total_by_socket: all its GPUs.
        sockets: the socket of each chosen GPU.

    Source: topo-aware-sc17 Eq. 5. Departures: it is counted over the placement's own sockets, since
        over all of a machine with equal sockets every placement has the same; and after the
        placement, as the published code does.

    Example:
        >>> fragmentation({0: 1, 1: 2}, {0: 2, 1: 2}, [0])
        0.0
    """
    touched = sorted(set(sockets))
    left = [
        (free_by_socket[socket] - sockets.count(socket)) / total_by_socket[socket]
        for socket in touched
    ]
    return sum(left) / len(left)


def worst_slowdown(slowdowns: Iterable[float]) -> float:
    """Return the slowdown that counts as 1 in a choice: the largest of all, but 10 % at least.

    Source: topo-aware-sc17 Eq. 1 divides interference by that of the worst scenario. Departure: the
        10 %, without which 2 % here and none there would matter as much as 30 %. With it, at equal
        weights, 5 % weighs as much as a socket left half empty, and the first decision of the
        paper's timeline (5.2.2) comes out as it tells.
    """
    return max((LEAST_WORST_SLOWDOWN, *slowdowns))


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
        >>> utility(Costs(0, 0, 0), Weights())
        1.0
    """
    roots = (
        weights.communication * sqrt(max(costs.communication, COST_FLOOR))
        + weights.interference * sqrt(max(costs.interference, COST_FLOOR))
        + weights.fragmentation * sqrt(max(costs.fragmentation, COST_FLOOR))
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


class JobOnMachine(Record):
    """A job and the machine that it meets.

    Attributes:
        edges: two different ranks, and how much they say to each other, 0 or more; only the
            proportions matter.
        ranks: number of GPUs, 1 or more.
        far: distance of every two GPUs of the machine, free or not: 1 or more; 0 to itself.
        socket_of: socket of every GPU of the machine.
        free: the free GPUs, also those that this job may not choose.
        weights: weights of the costs.
        slowdown: slowdown of a task on each GPU, as mean_slowdown() means it: 0.1 is 10 % slower;
            missing is 0.
        worst: the slowdown that counts as 1.
        begun: for a GPU, how late the last job on its socket began, as a place in the order of all;
            missing is 0.
    """

    edges: Sequence[tuple[int, int, float]]
    ranks: int
    far: Mapping[int, Mapping[int, int]]
    socket_of: Mapping[int, int]
    free: Sequence[int]
    weights: Weights = Weights()
    slowdown: Mapping[int, float] = {}
    worst: float = WORST_SLOWDOWN
    begun: Mapping[int, int] = {}


class Valuation:
    """What placements of a job are worth on a machine.

    Communication is the mean distance over the job's edges by their weights, which is Eq. 3 if all
    talk to all alike. It is set between the least and the largest mean distance of as many GPUs of
    the machine; a mapping whose edges have found even shorter or longer ways counts as these. A job
    without edges communicates at no cost.

    Attributes:
        job: the job and the machine.
        talk: for each rank the weights of its edges to others; those of the whole job sum to 1.
    """

    def __init__(self, job: JobOnMachine) -> None:
        self.job, ranks = job, job.ranks
        self.talk: list[dict[int, float]] = [{} for _ in range(ranks)]
        volume = sum(weight for _, _, weight in job.edges) or 1.0
        for a, b, weight in job.edges:
            if weight:
                self.talk[a][b] = self.talk[b][a] = self.talk[a].get(b, 0.0) + weight / volume
        gpus = sorted(job.socket_of)
        rows = tuple(tuple([job.far[a][b] for b in gpus]) for a in gpus)
        pairs = max(1, comb(ranks, 2))
        least, most = communication_range(rows, ranks)
        self._range = least / pairs, most / pairs
        self._total = Counter(job.socket_of.values())
        self._free = Counter(job.socket_of[gpu] for gpu in job.free)
        self._noise = {g: min(1.0, job.slowdown.get(g, 0.0) / job.worst) for g in gpus}

    @property
    def edges(self) -> list[tuple[int, int, float]]:
        """The edges, each once, the lower rank first."""
        rows = enumerate(self.talk)
        return [(a, b, weight) for a, row in rows for b, weight in row.items() if a < b]

    def distance(self, gpus: Gpus) -> float:
        """Return the mean distance over the job's edges, for GPUs in rank order."""
        far = self.job.far
        return sum(weight * far[gpus[a]][gpus[b]] for a, b, weight in self.edges)

    def costs(self, gpus: Sequence[int], distance: float) -> Costs:
        """Return the costs of GPUs with this mean distance over edges, 0 if there are none."""
        return Costs(
            normalize(distance, *self._range),
            sum(self._noise[gpu] for gpu in gpus) / len(gpus),
            fragmentation(self._free, self._total, [self.job.socket_of[gpu] for gpu in gpus]),
        )

    def utility(self, gpus: Sequence[int], distance: float) -> float:
        """Return their utility; rounded, so that the order of a sum makes no difference."""
        return round(utility(self.costs(gpus, distance), self.job.weights), 9)

    def worth(self, gpus: Sequence[int], distance: float) -> Worth:
        """Return what GPUs with this mean distance over edges are worth."""
        begun = sum(self.job.begun.get(gpu, 0) for gpu in gpus)
        return self.utility(gpus, distance), -round(distance, 9), begun

    def worth_of(self, gpus: Gpus) -> Worth:
        """Return what a placement in rank order is worth."""
        return self.worth(gpus, self.distance(gpus))
