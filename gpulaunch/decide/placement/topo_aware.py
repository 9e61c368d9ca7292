"""Dual recursive bipartitioning: machine and job are cut in two together (topo-aware-sc17, Algorithms 2 and 3)."""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from gpulaunch.decide.placement.bipartition import bipartition
from gpulaunch.decide.placement.utility import (
    WORST_SLOWDOWN,
    Costs,
    Weights,
    communication_range,
    fragmentation,
    relative,
    utility,
    worst_slowdown,
)
from gpulaunch.errors import UsageError
from gpulaunch.records import Record

Gpus = tuple[int, ...]
Edges = Sequence[tuple[int, int, float]]

_SAME_SOCKET = 0.01
"""Closeness besides the inverse of the distance; it decides where all are equally far, as behind
an NVSwitch.
"""

_EXCHANGES = 1_000
"""Up to so many exchanges are tried at a time in the end: 8 of 128 GPUs have 988."""


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
    """The GPU of each rank: a good one for the job's utility to the system, not always the best.

    The machine is cut in two halves, the tasks are dealt out to them one by one, each to the half
    where it is of more use, and so on within the halves. This is done for the machine, and for
    every half that has room for the whole job; the placement with the highest utility is taken, of
    equals the one with the shorter ways, then the one beside jobs that began last, since sockets of
    older jobs will be free sooner as a whole, then the first. In the end single GPUs are exchanged
    as long as that helps, if there are not too many to try.

    Args:
        edges: two different ranks, and how much they say to each other, 0 or more; only the
            proportions matter.
        ranks: how many GPUs are wanted, 1 or more.
        free: the GPUs that may be chosen, at least `ranks`.
        distance: of two GPUs, the lower index first; 1 or more, the same in both directions.
        socket_of: socket of every GPU of the machine, free or not. The machine is cut as it is
            built, whatever is free.
        total_by_socket: all GPUs of each socket.
        free_by_socket: the free ones, also those that this job may not choose.
        slowdown: of a task on each GPU, as interference() means it: 0.1 is 10 % slower; missing is
            0.
        weights: of the costs.
        begun: of a GPU, how late the last job on its socket began, as a place in the order of all;
            missing is 0.

    Returns:
        The GPUs in rank order, no two alike.

    Raises:
        UsageError: an edge that is none, or more ranks than GPUs that may be chosen.

    Cost: up to 5 ms on 16 GPUs, up to 150 ms on 64 or 128, most of it for what depends on the
        machine alone.

    Source: topo-aware-sc17 4.4. docs/decisions/topo-aware.md lists the departures, and how far from
        the best it gets.
    """
    _check(edges, ranks, free)
    worst = worst_slowdown(slowdown.get(gpu, 0.0) for gpu in free)
    setting = _Setting(
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
    machine = _cut(setting, sorted(socket_of), frozenset(free))
    return _exchanged(
        setting,
        max((_mapped(setting, part) for part in _roomy(machine, ranks)), key=setting.worth),
        free,
    )


def placement_costs(
    edges: Edges,
    gpus: Sequence[int],
    distance: Callable[[int, int], int],
    socket_of: Mapping[int, int],
    total_by_socket: Mapping[int, int],
    free_by_socket: Mapping[int, int],
    slowdown: Mapping[int, float],
    worst: float = WORST_SLOWDOWN,
) -> Costs:
    """Costs of a placement, for job_utility() and utility(); the arguments are as in place_tasks.

    Communication is the mean distance over the job's edges by their weights, which is Eq. 3 if all
    talk to all alike. It is set between the least and the largest mean distance of as many GPUs of
    the machine; a mapping whose edges have found even shorter or longer ways counts as these. A job
    without edges communicates at no cost.

    Args:
        edges: of the job.
        gpus: in rank order.
        distance: of two GPUs.
        socket_of: of every GPU of the machine.
        total_by_socket: all GPUs.
        free_by_socket: the free ones, before the placement.
        slowdown: of a task on each GPU.
        worst: the slowdown that counts as 1. For job_utility the same at any time, or a threshold
            would mean nothing; place_tasks itself chooses by that of worst_slowdown().
    """
    setting = _Setting(
        edges,
        len(gpus),
        distance,
        socket_of,
        total_by_socket,
        free_by_socket,
        slowdown,
        Weights(),
        worst,
    )
    return setting.costs(*setting.talk_of(gpus), gpus)


def _check(edges: Edges, ranks: int, free: Sequence[int]) -> None:
    if not 1 <= ranks <= len(set(free)):
        raise UsageError(
            f"job of {ranks} tasks: each needs a GPU of its own, and {len(set(free))} may be chosen"
        )
    for a, b, weight in edges:
        if a == b or not (0 <= a < ranks and 0 <= b < ranks):
            raise UsageError(f"edge {a}-{b}: it must join two of the ranks 0 to {ranks - 1}")
        if not 0 <= weight < float("inf"):
            raise UsageError(f"edge {a}-{b}: asked for weight {weight:g}, a weight is 0 or more")


class _Setting:
    """What a job meets: the arguments of place_tasks, laid out for fast look-up.

    Attributes:
        talk: of each rank the weight of its edge to others.
        far: distance of every two GPUs.
        socket_of: as given, as weights are.
        weights: as given.
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
        """Mean distance of a GPU here from another one there; 0 if there is no other."""
        if (here, there) not in self._apart:
            pairs = len(here) * len(there) - len(set(here) & set(there))
            total = sum(self.far[a][b] for a in here for b in there)
            self._apart[here, there] = total / pairs if pairs else 0.0
        return self._apart[here, there]

    def talk_of(self, gpus: Sequence[int]) -> tuple[float, float]:
        """Sum of weight times distance, and of weight alone, over the edges of a job whose ranks are on these GPUs."""
        edges = [
            (w, self.far[gpus[a]][gpus[b]])
            for a, row in enumerate(self.talk)
            for b, w in row.items()
            if a < b
        ]
        return sum(weight * far for weight, far in edges), sum(weight for weight, _ in edges)

    def costs(self, talk: float, volume: float, gpus: Sequence[int]) -> Costs:
        """Costs of GPUs taken together, with a sum of weight times distance over so much weight."""
        return Costs(
            relative(talk / volume, *self._range) if volume else 0.0,
            sum(self._noise[gpu] for gpu in gpus) / len(gpus),
            fragmentation(self._free, self._total, [self.socket_of[gpu] for gpu in gpus]),
        )

    def worth(self, gpus: Sequence[int]) -> tuple[float, float, int]:
        """Utility of a placement, its nearness, how late its neighbours began.

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


class _Part(Record):
    """A part of the machine: its GPUs that may be chosen, and the two parts below; none below a single GPU."""

    free: Gpus
    halves: "tuple[_Part, ...]" = ()


def _cut(setting: _Setting, gpus: Sequence[int], free: frozenset[int]) -> _Part:
    """GPUs cut in two until at most one of each may be chosen; a half with none is left out."""
    chosen = tuple(gpu for gpu in gpus if gpu in free)
    if len(chosen) < 2:
        return _Part(chosen)

    def closeness(a: int, b: int) -> float:
        return 1 / setting.far[a][b] + _SAME_SOCKET * (setting.socket_of[a] == setting.socket_of[b])

    halves = tuple(
        half for side in bipartition(gpus, closeness) if (half := _cut(setting, side, free)).free
    )
    return halves[0] if len(halves) == 1 else _Part(chosen, halves)


def _roomy(part: _Part, ranks: int) -> Iterator[_Part]:
    """This part and those below it that have room for so many tasks."""
    if len(part.free) >= ranks:
        yield part
        for half in part.halves:
            yield from _roomy(half, ranks)


def _mapped(setting: _Setting, part: _Part) -> Gpus:
    where: dict[int, Gpus] = {}
    ranks = range(len(setting.talk))
    _map(setting, part, ranks, where)
    return tuple(where[rank][0] for rank in ranks)


def _map(setting: _Setting, part: _Part, tasks: Iterable[int], where: dict[int, Gpus]) -> None:
    """Algorithm 2: narrows down where each task is, to a single GPU in the end."""
    where.update(dict.fromkeys(tasks, part.free))
    if part.halves:
        shares = _shared(setting, part.halves, tasks, where)
        for half, share in zip(part.halves, shares, strict=True):
            where.update(dict.fromkeys(share, half.free))
        for half, share in zip(part.halves, shares, strict=True):
            if share:
                _map(setting, half, share, where)


def _exchanged(setting: _Setting, gpus: Gpus, free: Iterable[int]) -> Gpus:
    """With one rank at a time moved to another GPU, or exchanged with another rank, while the best of these helps."""
    worth = setting.worth(gpus)
    while True:
        others = sorted(set(free) - set(gpus))
        if len(gpus) * (len(others) + (len(gpus) - 1) / 2) > _EXCHANGES:
            return gpus
        best = max(_neighbours(gpus, others), key=setting.worth, default=gpus)
        if (better := setting.worth(best)) <= worth:
            return gpus
        gpus, worth = best, better


def _neighbours(gpus: Gpus, others: Sequence[int]) -> Iterator[Gpus]:
    for i, gpu in enumerate(gpus):
        for other in others:
            yield (*gpus[:i], other, *gpus[i + 1 :])
        for j in range(i):
            yield (*gpus[:j], gpu, *gpus[j + 1 : i], gpus[j], *gpus[i + 1 :])


class _Deal(Record):
    """Tasks being dealt out.

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


def _shared(
    setting: _Setting, halves: Sequence[_Part], tasks: Iterable[int], where: Mapping[int, Gpus]
) -> tuple[list[int], list[int]]:
    """Algorithm 3: the tasks of either half.

    Next is always the one that says most to those that are settled.
    """
    left = set(tasks)
    settled = {task: gpus for task, gpus in where.items() if task not in left}
    deal = _Deal((halves[0].free, halves[1].free), ([], []), left, settled)
    while left:
        task = max(left, key=lambda task: _pull(setting.talk[task], settled, task))
        left.remove(task)
        uses = [_use(setting, deal, task, side) for side in (0, 1)]
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


def _use(setting: _Setting, deal: _Deal, task: int, side: int) -> tuple[float, float]:
    """Utility of a side to a task, then its nearness, if those left follow it that it says most to, as room allows."""
    here, there, share = deal.halves[side], deal.halves[1 - side], deal.shares[side]
    room = len(here) - len(share) - 1
    if room < 0:
        return 0.0, 0.0
    talk, ahead = 0.0, []
    for other, weight in setting.talk[task].items():
        if other in deal.left:
            ahead.append(weight)
        else:
            talk += weight * setting.apart(here, deal.where[other])
    ahead.sort(reverse=True)
    talk += sum(ahead[:room]) * setting.apart(here, here) + sum(ahead[room:]) * setting.apart(
        here, there
    )
    volume = sum(setting.talk[task].values())
    count = len(share) + 1 + min(room, len(deal.left))
    fillings = _fillings(setting, here, count)
    best = max(utility(setting.costs(talk, volume, gpus), setting.weights) for gpus in fillings)
    return round(best, 9), -round(talk, 9)


def _fillings(setting: _Setting, gpus: Gpus, count: int) -> list[list[int]]:
    """So many of the GPUs, of one socket, whichever has as many; else of few, those with most first."""
    by_socket: dict[int, list[int]] = {}
    for gpu in gpus:
        by_socket.setdefault(setting.socket_of[gpu], []).append(gpu)
    whole = [members[:count] for members in by_socket.values() if len(members) >= count]
    return whole or [
        [gpu for members in sorted(by_socket.values(), key=len, reverse=True) for gpu in members][
            :count
        ]
    ]
