"""Dual recursive bipartitioning: machine and job are cut in two together.

Source: topo-aware-sc17, Algorithms 2 and 3.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from gpulaunch.decide.placement.bipartition import bipartition
from gpulaunch.decide.placement.utility import (
    WORST_SLOWDOWN,
    Costs,
    Weights,
    communication_range,
    fragmentation,
    normalize,
    utility,
    worst_slowdown,
)
from gpulaunch.errors import UsageError
from gpulaunch.records import Record

Gpus = tuple[int, ...]
Edges = Sequence[tuple[int, int, float]]

_SAME_SOCKET = 0.01
"""Closeness of two GPUs of a socket besides the inverse of their distance.

It decides where all are equally far, as behind an NVSwitch.
"""

_EXCHANGES = 1_000
"""Possible exchanges beyond which none is tried: 8 of 128 GPUs have 988."""


def place_tasks(
    edges: Edges,
    ranks: int,
    free: Sequence[int],
    distance: Callable[[int, int], int],
    socket_of: Mapping[int, int],
    total_by_socket: Mapping[int, int],
    free_by_socket: Mapping[int, int],
    slowdown: Mapping[int, float],
    weights: Weights,
    begun: Mapping[int, int] = MappingProxyType({}),
) -> tuple[int, ...]:
    """Return the GPU of each rank: a good one for the job's utility to the system, not always the
    best.

    The machine is cut in two halves, the tasks are dealt out to them one by one, each to the half
    where it is of more use, and so on within the halves. This is done for the machine, and for
    every half that has room for the whole job; the placement with the highest utility is taken, of
    equals the one with the shorter ways, then the one beside jobs that began last, since sockets of
    older jobs will be free sooner as a whole, then the first. In the end single GPUs are exchanged
    as long as that helps, if there are not too many to try.

    Args:
        edges: two different ranks, and how much they say to each other, 0 or more; only the
            proportions matter.
        ranks: number of GPUs, 1 or more.
        free: the GPUs that may be chosen, at least `ranks`.
        distance: returns the distance of two GPUs, the lower index first; 1 or more, the same in
            both directions.
        socket_of: socket of every GPU of the machine, free or not. The machine is cut as it is
            built, whatever is free.
        total_by_socket: number of all GPUs of each socket.
        free_by_socket: number of free GPUs of each socket, also those that this job may not choose.
        slowdown: slowdown of a task on each GPU, as mean_slowdown() means it: 0.1 is 10 % slower;
            missing is 0.
        weights: weights of the costs.
        begun: for a GPU, how late the last job on its socket began, as a place in the order of all;
            missing is 0.

    Returns:
        The GPUs in rank order, no two alike.

    Raises:
        UsageError: an edge is none, or there are more ranks than GPUs that may be chosen.

    Cost: up to 5 ms on 16 GPUs, up to 150 ms on 64 or 128, most of it for what depends on the
        machine alone.

    Source: topo-aware-sc17 4.4. docs/decisions/topo-aware.md lists the departures, and how far from
        the best it gets.
    """
    _check_job(edges, ranks, free)
    worst = worst_slowdown(slowdown.get(gpu, 0.0) for gpu in free)
    job = _JobOnMachine(
        edges,
        ranks,
        distance,
        socket_of,
        total_by_socket,
        free_by_socket,
        slowdown,
        weights,
        worst,
        begun,
    )
    machine = _cut(job, sorted(socket_of), frozenset(free))
    placements = [_map_job(job, part) for part in _parts_with_room(machine, ranks)]
    return _improve_by_exchanges(job, max(placements, key=job.worth), free)


def placement_costs(
    edges: Edges,
    ranks: int,
    distance: Callable[[int, int], int],
    socket_of: Mapping[int, int],
    total_by_socket: Mapping[int, int],
    free_by_socket: Mapping[int, int],
    slowdown: Mapping[int, float],
    worst: float = WORST_SLOWDOWN,
) -> Callable[[Sequence[int]], Costs]:
    """Return what gives the costs of a placement in rank order, for job_utility() and utility().

    Communication is the mean distance over the job's edges by their weights, which is Eq. 3 if all
    talk to all alike. It is set between the least and the largest mean distance of as many GPUs of
    the machine; a mapping whose edges have found even shorter or longer ways counts as these. A job
    without edges communicates at no cost.

    Args:
        edges: edges of the job, as in place_tasks.
        ranks: number of GPUs.
        distance: returns the distance of two GPUs.
        socket_of: socket of every GPU of the machine.
        total_by_socket: number of all GPUs of each socket.
        free_by_socket: number of free GPUs, before the placement.
        slowdown: slowdown of a task on each GPU.
        worst: the slowdown that counts as 1. For job_utility it is the same at any time, or a
            threshold would mean nothing; place_tasks itself chooses by that of worst_slowdown().
    """
    job = _JobOnMachine(
        edges,
        ranks,
        distance,
        socket_of,
        total_by_socket,
        free_by_socket,
        slowdown,
        Weights(),
        worst,
    )
    return lambda gpus: job.costs(*job.talk_of(gpus), gpus)


def _check_job(edges: Edges, ranks: int, free: Sequence[int]) -> None:
    if not 1 <= ranks <= len(set(free)):
        raise UsageError(
            f"job of {ranks} tasks: each needs a GPU of its own, and {len(set(free))} may be chosen"
        )
    for a, b, weight in edges:
        if a == b or not (0 <= a < ranks and 0 <= b < ranks):
            raise UsageError(f"edge {a}-{b}: it must join two of the ranks 0 to {ranks - 1}")
        if not 0 <= weight < float("inf"):
            raise UsageError(f"edge {a}-{b}: asked for weight {weight:g}, a weight is 0 or more")


class _JobOnMachine:
    """A job and the machine it meets: the arguments of place_tasks, laid out for fast look-up.

    Attributes:
        talk: for each rank the weight of its edge to others.
        far: distance of every two GPUs.
        socket_of: socket of every GPU.
        weights: weights of the costs.
    """

    def __init__(
        self,
        edges: Edges,
        ranks: int,
        distance: Callable[[int, int], int],
        socket_of: Mapping[int, int],
        total_by_socket: Mapping[int, int],
        free_by_socket: Mapping[int, int],
        slowdown: Mapping[int, float],
        weights: Weights,
        worst: float,
        begun: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.talk: list[dict[int, float]] = [{} for _ in range(ranks)]
        for a, b, weight in edges:
            self.talk[a][b] = self.talk[b][a] = self.talk[a].get(b, 0.0) + weight
        self.far: dict[int, dict[int, int]] = {gpu: {gpu: 0} for gpu in socket_of}
        for a in socket_of:
            for b in socket_of:
                if a < b:
                    self.far[a][b] = self.far[b][a] = distance(a, b)
        least, most = communication_range(lambda a, b: self.far[a][b], sorted(socket_of), ranks)
        pairs = max(1, ranks * (ranks - 1) // 2)
        self._range = least / pairs, most / pairs
        self.socket_of, self.weights = socket_of, weights
        self._total, self._free = total_by_socket, free_by_socket
        self._noise = {gpu: min(1.0, slowdown.get(gpu, 0.0) / worst) for gpu in socket_of}
        self._begun_at = begun
        self._apart: dict[tuple[Gpus, Gpus], float] = {}

    def apart(self, here: Gpus, there: Gpus) -> float:
        """Return the mean distance of a GPU here from another one there; 0 if there is no other."""
        if (here, there) not in self._apart:
            pairs = len(here) * len(there) - len(set(here) & set(there))
            total = sum(self.far[a][b] for a in here for b in there)
            self._apart[here, there] = total / pairs if pairs else 0.0
        return self._apart[here, there]

    def talk_of(self, gpus: Sequence[int]) -> tuple[float, float]:
        """Return the sum of weight times distance, and of weight alone, over the job's edges.

        Args:
            gpus: the GPU of each rank.
        """
        talk = volume = 0.0
        for a, row in enumerate(self.talk):
            for b, weight in row.items():
                if a < b:
                    talk += weight * self.far[gpus[a]][gpus[b]]
                    volume += weight
        return talk, volume

    def costs(self, talk: float, volume: float, gpus: Sequence[int]) -> Costs:
        """Return the costs of GPUs taken together.

        Args:
            talk: sum of weight times distance over the job's edges.
            volume: sum of their weights.
            gpus: the GPUs.
        """
        return Costs(
            normalize(talk / volume, *self._range) if volume else 0.0,
            sum(self._noise[gpu] for gpu in gpus) / len(gpus),
            fragmentation(self._free, self._total, [self.socket_of[gpu] for gpu in gpus]),
        )

    def worth(self, gpus: Sequence[int]) -> tuple[float, float, int]:
        """Return utility and nearness of a placement, and how late its neighbours began.

        Rounded, so that the order of a sum makes no difference.
        """
        talk, volume = self.talk_of(gpus)
        return (
            round(utility(self.costs(talk, volume, gpus), self.weights), 9),
            -round(talk, 9),
            sum(map(self._begun, gpus)),
        )

    def _begun(self, gpu: int) -> int:
        return self._begun_at.get(gpu, 0)


class _MachinePart(Record):
    """A part of the machine, and the two parts below it; none below a single GPU.

    Attributes:
        free: GPUs of the part that may be chosen.
        halves: the parts that it is cut into.
    """

    free: Gpus
    halves: "tuple[_MachinePart, ...]" = ()


def _cut(job: _JobOnMachine, gpus: Sequence[int], free: frozenset[int]) -> _MachinePart:
    """Cut GPUs in two until at most one of each part may be chosen; leave out empty halves."""
    chosen = tuple(gpu for gpu in gpus if gpu in free)
    if len(chosen) < 2:
        return _MachinePart(chosen)

    def closeness(a: int, b: int) -> float:
        return 1 / job.far[a][b] + _SAME_SOCKET * (job.socket_of[a] == job.socket_of[b])

    halves = [_cut(job, side, free) for side in bipartition(gpus, closeness)]
    halves = [half for half in halves if half.free]
    return halves[0] if len(halves) == 1 else _MachinePart(chosen, tuple(halves))


def _parts_with_room(part: _MachinePart, ranks: int) -> Iterator[_MachinePart]:
    """Yield this part and those below it that have room for so many tasks."""
    if len(part.free) >= ranks:
        yield part
        for half in part.halves:
            yield from _parts_with_room(half, ranks)


def _map_job(job: _JobOnMachine, part: _MachinePart) -> Gpus:
    where: dict[int, Gpus] = {}
    ranks = range(len(job.talk))
    _map_tasks(job, part, ranks, where)
    return tuple(where[rank][0] for rank in ranks)


def _map_tasks(
    job: _JobOnMachine, part: _MachinePart, tasks: Iterable[int], where: dict[int, Gpus]
) -> None:
    """Narrow down where each task is, to a single GPU in the end (Algorithm 2)."""
    where.update(dict.fromkeys(tasks, part.free))
    if part.halves:
        shares = _deal_out(job, part.halves, tasks, where)
        for half, share in zip(part.halves, shares, strict=True):
            where.update(dict.fromkeys(share, half.free))
        for half, share in zip(part.halves, shares, strict=True):
            if share:
                _map_tasks(job, half, share, where)


def _improve_by_exchanges(job: _JobOnMachine, gpus: Gpus, free: Iterable[int]) -> Gpus:
    """Move or exchange ranks one at a time, the best such step first, while it helps."""
    worth = job.worth(gpus)
    while True:
        others = sorted(set(free) - set(gpus))
        if len(gpus) * (len(others) + (len(gpus) - 1) / 2) > _EXCHANGES:
            return gpus
        best = max(_neighbours(gpus, others), key=job.worth, default=gpus)
        best_worth = job.worth(best)
        if best_worth <= worth:
            return gpus
        gpus, worth = best, best_worth


def _neighbours(gpus: Gpus, others: Sequence[int]) -> Iterator[Gpus]:
    for i, gpu in enumerate(gpus):
        for other in others:
            yield (*gpus[:i], other, *gpus[i + 1 :])
        for j in range(i):
            yield (*gpus[:j], gpu, *gpus[j + 1 : i], gpus[j], *gpus[i + 1 :])


class _Deal(Record):
    """Tasks being dealt out to two halves.

    Attributes:
        halves: the GPUs of both sides.
        shares: the tasks of both sides so far.
        left: tasks that have no side yet.
        where: GPUs among which each task is that has its side, here or elsewhere.
    """

    halves: tuple[Gpus, Gpus]
    shares: tuple[list[int], list[int]]
    left: set[int]
    where: dict[int, Gpus]


def _deal_out(
    job: _JobOnMachine,
    halves: Sequence[_MachinePart],
    tasks: Iterable[int],
    where: Mapping[int, Gpus],
) -> tuple[list[int], list[int]]:
    """Return the tasks of either half (Algorithm 3).

    Next is always the task that says most to those that are settled.
    """
    left = set(tasks)
    settled = {task: gpus for task, gpus in where.items() if task not in left}
    deal = _Deal((halves[0].free, halves[1].free), ([], []), left, settled)
    while left:
        task = max(left, key=lambda task: _pull(job.talk[task], settled, task))
        left.remove(task)
        uses = [_weigh_side(job, deal, task, side) for side in (0, 1)]
        side = int(uses[1] > uses[0])
        deal.shares[side].append(task)
        settled[task] = deal.halves[side]
    return deal.shares


def _pull(
    talk: Mapping[int, float], settled: Mapping[int, Gpus], task: int
) -> tuple[float, float, int]:
    return (
        sum(weight for other, weight in talk.items() if other in settled),
        sum(talk.values()),
        -task,
    )


def _weigh_side(job: _JobOnMachine, deal: _Deal, task: int, side: int) -> tuple[float, float]:
    """Return the utility of a side to a task, then its nearness.

    The tasks that it says most to are taken to follow it, as room allows.
    """
    here, there, share = deal.halves[side], deal.halves[1 - side], deal.shares[side]
    room = len(here) - len(share) - 1
    if room < 0:
        return 0.0, 0.0
    talk, ahead = 0.0, []
    for other, weight in job.talk[task].items():
        if other in deal.left:
            ahead.append(weight)
        else:
            talk += weight * job.apart(here, deal.where[other])
    ahead.sort(reverse=True)
    talk += sum(ahead[:room]) * job.apart(here, here) + sum(ahead[room:]) * job.apart(here, there)
    volume = sum(job.talk[task].values())
    count = len(share) + 1 + min(room, len(deal.left))
    fillings = _fill(job, here, count)
    best = max(utility(job.costs(talk, volume, gpus), job.weights) for gpus in fillings)
    return round(best, 9), -round(talk, 9)


def _fill(job: _JobOnMachine, gpus: Gpus, count: int) -> list[list[int]]:
    """Return ways to take `count` GPUs: one socket each, else as few sockets as possible."""
    by_socket: dict[int, list[int]] = {}
    for gpu in gpus:
        by_socket.setdefault(job.socket_of[gpu], []).append(gpu)
    whole = [members[:count] for members in by_socket.values() if len(members) >= count]
    if whole:
        return whole
    fullest_first = sorted(by_socket.values(), key=len, reverse=True)
    return [list(chain.from_iterable(fullest_first))[:count]]
