"""The placement of most use to the system: all sets of GPUs, each with its best mapping.

Source: topo-aware-sc17 4.3 and 4.4. docs/decisions/topo-aware.md lists the departures.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import combinations
from operator import mul

from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.decide.placement.mapping import EXACT_RANKS, MOST_KICKS, Mapper
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.placement.search import MOST_SETS, Cell, Criterion, combine, ranked
from gpulaunch.decide.placement.topo_aware_drb import cut_in_two
from gpulaunch.decide.placement.utility import Gpus, JobOnMachine, Valuation, Weights, Worth

Allows = Callable[[Gpus], bool]

MOST_MAPPED = 32
"""Sets of more than EXACT_RANKS ranks that get a mapping, the most promising."""

_SCALE = 10**9
"""Figures are compared as whole numbers of 1e-9: the order of a sum makes no difference."""


def place_tasks(
    job: JobOnMachine, choosable: Sequence[int], allows: Allows | None = None
) -> tuple[Gpus | None, bool]:
    """Return the placement of highest utility to the system, and whether it is sure to be that.

    Of equals it is the one with the shorter ways, then the one beside jobs that began last, since
    sockets of older jobs will be free sooner as a whole, then the one with the lowest GPUs, then
    the one whose first ranks have the lowest. Where there are too many sets to try, it is the one
    of dual recursive bipartitioning.

    Args:
        job: the job and the machine.
        choosable: the GPUs that may be chosen, at least as many as there are ranks.
        allows: returns whether a set will do; None for all sets.

    Returns:
        The GPUs in rank order, None if nothing was found that will do; and whether all were tried,
            or ruled out by a bound of their utility.
    """
    gpus = sorted(choosable)
    if len(gpus) < job.ranks:
        return None, True
    sets = _distinct_sets(job, gpus, MOST_SETS, alike=allows is None)
    if sets is None:
        return bipartition_tasks(job, gpus, allows)
    search = _WorthOfSets(job, gpus)
    for mask in ranked(sets, search.figures):
        found = search.placed(mask)
        if allows is None or allows(found):
            return found, search.is_exact
    return None, search.is_exact


def bipartition_tasks(
    job: JobOnMachine, choosable: Sequence[int], allows: Allows | None = None
) -> tuple[Gpus | None, bool]:
    """Return the placement that dual recursive bipartitioning makes, as place_tasks does."""
    found = cut_in_two(job, choosable)
    return (found if allows is None or allows(found) else None), False


class _WorthOfSets:
    """What sets of GPUs are worth to a job; a set is a mask, the first GPU its largest bit.

    Attributes:
        figures: figures by which sets are compared: utility, nearness, and who began last.
        placed: returns the best placement on a set.
    """

    def __init__(self, job: JobOnMachine, gpus: Sequence[int]) -> None:
        self._value, self._gpus = Valuation(job), gpus
        far = [[job.far[a][b] for b in gpus] for a in gpus]
        ways = sorted({way for row in far for way in row})
        number = {way: kind for kind, way in enumerate(ways)}
        self._far = far
        self._mapper = Mapper(
            [[number[way] for way in row] for row in far],
            self._value.edges,
            [_SCALE * (ways[-1] - way) for way in ways],
            ranks=job.ranks,
        )
        self._exact = job.ranks <= EXACT_RANKS
        self._weights = sorted((weight for *_, weight in self._value.edges), reverse=True)
        self.placed = cache(self._place)
        worth, most = cache(self._worth), cache(self._most)
        most_weighed = float("inf") if self._exact else MOST_MAPPED
        self.figures = [
            Criterion(
                lambda mask: round(_SCALE * worth(mask)[0]),
                lambda mask: round(_SCALE * most(mask)[0]),
                most_weighed,
            ),
            Criterion(
                lambda mask: round(_SCALE * worth(mask)[1]),
                lambda mask: round(_SCALE * most(mask)[1]),
                most_weighed,
            ),
            Criterion(lambda mask: most(mask)[2]),
        ]

    @property
    def is_exact(self) -> bool:
        """Whether each mapping that was asked for is the best."""
        return self._exact and not self._mapper.gave_up

    def _places(self, mask: int) -> list[int]:
        last = len(self._gpus) - 1
        return [place for place in range(last + 1) if mask >> last - place & 1]

    def _place(self, mask: int) -> Gpus:
        kicks = 0 if self._exact else MOST_KICKS
        order = self._mapper.best(self._places(mask), kicks=kicks).gpus
        return tuple([self._gpus[place] for place in order])

    def _worth(self, mask: int) -> Worth:
        return self._value.worth_of(self.placed(mask))

    def _most(self, mask: int) -> Worth:
        """Return what a set would be worth if the heaviest edges had the shortest ways."""
        places = self._places(mask)
        ways = sorted([self._far[a][b] for a, b in combinations(places, 2)])
        nearest = sum(map(mul, self._weights, ways), 0.0)
        return self._value.worth([self._gpus[place] for place in places], nearest)


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
