"""Scores of a candidate, by name.

Inside, all scores are whole numbers of which more is better: bandwidths in 1e-6 GB/s, sockets and
fragmentation negative.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import combinations
from math import inf

from gpulaunch.decide.placement.effective import (
    BANDWIDTH_MODELS,
    effective_bandwidth,
    most_cut,
    nvlink_parts,
)
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.decide.placement.mapping import EXACT_RANKS, Mapper, Mapping
from gpulaunch.decide.placement.search import Criterion
from gpulaunch.decide.placement.utility import communication_cost, fragmentation
from gpulaunch.profiles.pattern import Edge, Pattern
from gpulaunch.records import Record
from gpulaunch.typing import Literal

ScoreName = Literal[
    "nvlink",
    "adequate_bandwidth",
    "effective_bandwidth",
    "preserved_bandwidth",
    "lasting_bandwidth",
    "aggregate_bandwidth",
    "sockets",
    "fragmentation",
]

MOST_MAPPED = 4
"""Sets of more than EXACT_RANKS ranks that get a mapping, the most promising; each takes 1 ms."""


class Scores(Record):
    """All scores of one candidate with its best mapping; None where a score does not exist.

    Attributes:
        aggregate_bandwidth: sum of w over the edges that the pattern uses, each times its weight
            relative to the heaviest, GB/s (mapa-sc21 Eq. 1).
        effective_bandwidth: what the job gets, GB/s (mapa-sc21 3.4): for collectives by the
            bandwidth model, for any other pattern the slowest edge relative to its weight.
        preserved_bandwidth: sum of w over all pairs of GPUs that stay free, GB/s (mapa-sc21 Eq. 3).
        lasting_bandwidth: preserved bandwidth, and what would be preserved once all others have
            left: the sum of w over all pairs of the other GPUs in reach, of the machine or the
            lease, those that are free now counted twice, GB/s. Ours.
        fragmentation: free GPUs as a share of all, mean over the sockets that it touches, when it
            is taken: 0 to 1, less is better (topo-aware-sc17 Eq. 5, over the candidate's side as in
            Algorithm 3: over all sockets every candidate has the same).
        communication_cost: sum of the shortest-path distances of all its pairs, less is better
            (topo-aware-sc17 Eq. 3, whose printed bounds are wrong).
        sockets: number of sockets that it touches, less is better. Ours.
    """

    aggregate_bandwidth: float | None
    effective_bandwidth: float | None
    preserved_bandwidth: float
    lasting_bandwidth: float
    fragmentation: float
    communication_cost: int
    sockets: int = 1


class Scorer:
    """Weighs the candidates of one problem, by mask.

    Args:
        fabric: the machine.
        free: positions of the GPUs that are free.
        count: number of GPUs in a candidate.
        pattern: pattern of the job.
        model: name of the effective-bandwidth model.
        scope: positions of all GPUs in reach, free or not.
    """

    def __init__(
        self,
        fabric: Fabric,
        free: Sequence[int],
        count: int,
        pattern: Pattern,
        model: str,
        scope: Sequence[int],
    ) -> None:
        self.fabric = fabric
        self.free = free
        self.count = count
        self.collective = pattern.collective
        self.edges = pattern.edges(count)
        self._model = model
        self._scope = scope

    @cached_property
    def mapper(self) -> Mapper:
        """The pattern over the links; no edge is faster than two GPUs by the model.

        Of collectives no edge is waited for.
        """
        mapper = _mapper_of(self.fabric, self.edges, None if self.collective else self._model)
        mapper.start_over()
        return mapper

    # ------------------------------------------------------------------ figures to compare by

    def tells_apart(self, name: ScoreName) -> bool:
        """Return whether candidates can differ in a score."""
        if self.fabric.alike:
            return name in ("sockets", "fragmentation")
        return name != "effective_bandwidth" or bool(self.edges)

    def figure(self, name: ScoreName, by: Sequence[ScoreName], minimum: int = 0) -> Criterion:
        """Return a score as a figure by which candidates are compared.

        Args:
            name: name of the score.
            by: all scores that are compared, in order: the mapping is the best one by these.
            minimum: bandwidth that is adequate, 1e-6 GB/s.
        """
        quick: dict[ScoreName, Callable[[int], int]] = {
            "nvlink": lambda mask: len(nvlink_parts(self.fabric, self._gpus(mask))) == 1,
            "sockets": lambda mask: -UNIT * self.sockets(mask),
            "fragmentation": lambda mask: -round(self.fragmentation(mask) * UNIT),
        }
        if name in quick:
            return Criterion(quick[name])
        if name in self._pulls:
            return Criterion(self._weigh_rest(name))
        slowest_first = slowest_decides(by)
        if name == "aggregate_bandwidth":
            return self._aggregate(slowest_first=slowest_first)
        effective = self._effective(slowest_first=slowest_first)
        if name == "effective_bandwidth":
            return effective
        value, bound = effective.value, effective.bound
        return Criterion(
            lambda mask: min(minimum, value(mask)),
            bound and (lambda mask: min(minimum, bound(mask))),
            effective.most_weighed,
        )

    def _gpus(self, mask: int) -> list[int]:
        return self.fabric.positions(mask)

    @cached_property
    def _pulls(self) -> dict[ScoreName, tuple[list[int], int, int]]:
        """What counts to scores of what a set leaves.

        That is the sum of w from each position to all in the score's regions, the sum of w over all
        pairs in them, and how many regions there are; 1e-6 GB/s.
        """
        now, ever = (self._pull(region) for region in (self.free, self._scope))
        both = [a + b for a, b in zip(now[0], ever[0], strict=True)]
        return {
            "preserved_bandwidth": (*now, 1),
            "lasting_bandwidth": (both, now[1] + ever[1], 2),
        }

    def _pull(self, region: Sequence[int]) -> tuple[list[int], int]:
        pulls = [sum([row[b] for b in region]) for row in self.fabric.weight]
        return pulls, sum([pulls[a] for a in region]) // 2

    def guide(self, name: ScoreName | None) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
        """Return what positions and pairs are worth to sets that grow, where all are too many.

        A score that counts what a set leaves is its own guide. Collectives are as fast as the
        NVLinks within the set; what else is asked for, compact sets have.
        """
        weight, none = self.fabric.weight, [0] * len(self.fabric.gpus)
        if name in self._pulls:
            pulls, _, regions = self._pulls[name]
            return [-pull for pull in pulls], [[regions * w for w in row] for row in weight]
        if name == "effective_bandwidth" and self.collective and any(map(any, self.fabric.direct)):
            return none, self.fabric.direct
        return none, weight

    def _weigh_rest(self, name: ScoreName) -> Callable[[int], int]:
        """Return what weighs what a set leaves: by the sum of w over all pairs in some regions."""
        pulls, every, regions = self._pulls[name]
        among, gpus = self.fabric.sum_among, self._gpus
        return lambda mask: every - sum([pulls[a] for a in gpus(mask)]) + regions * among(mask)

    def _aggregate(self, *, slowest_first: bool) -> Criterion:
        # Without edges every pair counts, so that such jobs stay compact, too.
        if not self.edges or self.mapper.tells_no_rank_apart:
            return Criterion(self.fabric.sum_among)
        return Criterion(
            lambda mask: self._map(mask, slowest_first=slowest_first).total,
            lambda mask: self.mapper.most_total(self._gpus(mask)),
            MOST_MAPPED if self.count > EXACT_RANKS else inf,
        )

    def _effective(self, *, slowest_first: bool) -> Criterion:
        if not self.edges:
            return Criterion(lambda _: 0)
        if self.collective:
            return Criterion(
                partial(effective_bandwidth, self.fabric, self._model),
                partial(most_cut, self.fabric) if self._model == "cut" else None,
            )
        return Criterion(
            lambda mask: self._map(mask, slowest_first=slowest_first).slowest,
            self._most_slowest,
            MOST_MAPPED if self.count > EXACT_RANKS else inf,
        )

    def _map(self, mask: int, *, slowest_first: bool) -> Mapping:
        return self.mapper.best(self._gpus(mask), slowest_first=slowest_first)

    def _most_slowest(self, mask: int) -> int:
        """Return at least the slowest edge of any mapping to a set.

        Links as fast as that join the set, each of its GPUs to as many as any rank talks to, and
        one of them to as many as the rank that talks to most.
        """
        fewest, most = min(self.mapper.degree), max(self.mapper.degree)
        for floor, reached in self._reached:
            met = new = mask & -mask
            largest = 0
            while new:
                bit = new & -new
                near = reached[len(self.fabric.bit) - bit.bit_length()] & mask
                if near.bit_count() < fewest:
                    break
                largest = max(largest, near.bit_count())
                new = (new ^ bit) | near & ~met
                met |= near
            if met == mask and not new and largest >= most:
                return floor
        return 0

    @cached_property
    def _reached(self) -> list[tuple[int, list[int]]]:
        """For each speed that an edge can have, the GPUs that each position so reaches."""
        lightest = self.mapper.speed[-1]
        return [
            (floor, self.fabric.reached([speed >= floor for speed in lightest]))
            for floor in self.mapper.floors
        ]

    # ------------------------------------------------------------------ figures to report

    def sockets(self, mask: int) -> int:
        """Return the number of sockets that a candidate touches."""
        return len({self.fabric.socket[gpu] for gpu in self._gpus(mask)})

    def fragmentation(self, mask: int) -> float:
        """Return the fragmentation of a candidate; see utility.fragmentation."""
        sockets = [self.fabric.socket[gpu] for gpu in self._gpus(mask)]
        return fragmentation(self._free_by_socket, self._total_by_socket, sockets)

    @cached_property
    def _free_by_socket(self) -> Counter[int]:
        return Counter(self.fabric.socket[gpu] for gpu in self.free)

    @cached_property
    def _total_by_socket(self) -> dict[int, int]:
        return dict(enumerate(self.fabric.socket_size))

    def scores(self, mask: int, mapping: Mapping) -> Scores:
        """Return all scores of a candidate with a mapping of it."""
        speed = mapping.slowest
        if self.collective and self.edges:
            speed = effective_bandwidth(self.fabric, self._model, mask)
        return Scores(
            aggregate_bandwidth=mapping.total / UNIT if self.edges else None,
            effective_bandwidth=speed / UNIT if self.edges else None,
            preserved_bandwidth=self._weigh_rest("preserved_bandwidth")(mask) / UNIT,
            lasting_bandwidth=self._weigh_rest("lasting_bandwidth")(mask) / UNIT,
            fragmentation=self.fragmentation(mask),
            communication_cost=communication_cost(self.fabric.distance, self._gpus(mask)),
            sockets=self.sockets(mask),
        )


@lru_cache(maxsize=64)
def _mapper_of(fabric: Fabric, edges: tuple[Edge, ...], model: str | None) -> Mapper:
    """Return the mapper of edges; it remembers what it found. No model: no edge is waited for."""
    speeds = None
    if model:
        speeds = [0] * len(fabric.kinds)
        for a, b in combinations(range(len(fabric.gpus)), 2):
            kind = fabric.kind[a][b]
            speeds[kind] = speeds[kind] or BANDWIDTH_MODELS[model](fabric, (a, b))
    return Mapper(fabric.kind, edges, [kind.weight for kind in fabric.kinds], speeds)


def slowest_decides(by: Sequence[ScoreName]) -> bool:
    """Return whether the best mapping has the fastest slowest edge, not the largest sum."""
    of_mapping = ("adequate_bandwidth", "effective_bandwidth", "aggregate_bandwidth")
    return next((name for name in by if name in of_mapping), None) != "aggregate_bandwidth"
