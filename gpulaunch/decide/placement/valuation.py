"""What placements of a job are worth on the machine that it meets (topo-aware-sc17 4.3)."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import comb

from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.placement.utility import (
    WORST_SLOWDOWN,
    Costs,
    Weights,
    communication_range,
    fragmentation,
    normalize,
    utility,
)
from gpulaunch.records import Record

Gpus = tuple[int, ...]

Worth = tuple[float, float, int]
"""Utility and nearness of a placement, and how late its neighbours began."""


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


def job_on_machine(
    problem: PlacementProblem, gpus: Sequence[int], weights: Weights
) -> JobOnMachine:
    """Return the job of a problem on the machines that have some GPUs."""
    fabric = problem.fabric
    node = {gpu.index: gpu.node for gpu in problem.topology.gpus}
    nodes = {node[gpu] for gpu in gpus}
    here = tuple(gpu for gpu in fabric.gpus if node[gpu] in nodes)
    return JobOnMachine(
        problem.pattern.edges(problem.count),
        problem.count,
        _distances(fabric, here),
        {gpu: fabric.socket[fabric.position[gpu]] for gpu in here},
        [gpu for gpu in problem.free if node[gpu] in nodes],
        weights,
        problem.utility.slowdown,
        begun=problem.utility.begun,
    )


@lru_cache(maxsize=32)
def _distances(fabric: Fabric, gpus: tuple[int, ...]) -> dict[int, dict[int, int]]:
    places = {gpu: fabric.position[gpu] for gpu in gpus}
    return {a: {b: fabric.distance(place, places[b]) for b in gpus} for a, place in places.items()}
