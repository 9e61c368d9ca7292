"""Scores of a candidate by name, each as a bound that is quick and a value that is exact.

Inside, all scores are whole numbers of which more is better: bandwidths in 1e-6 GB/s, fragmentation
negative.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import combinations

from gpulaunch.decide.placement.bounds import CutBounds, TrafficBounds, most_mapa
from gpulaunch.decide.placement.candidates import places_of
from gpulaunch.decide.placement.effective import BANDWIDTH_MODELS, nvlink_parts
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.decide.placement.histogram import Histogram
from gpulaunch.decide.placement.mapping import Mapper
from gpulaunch.decide.placement.traffic import Mapping, Traffic
from gpulaunch.decide.placement.utility import communication_cost, fragmentation
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.records import Record
from gpulaunch.typing import Literal

ScoreName = Literal[
    "nvlink",
    "adequate_bandwidth",
    "effective_bandwidth",
    "preserved_bandwidth",
    "lasting_bandwidth",
    "aggregate_bandwidth",
    "fragmentation",
]
Weigh = Callable[[int], int]
"""A figure of a set, given its mask."""

_NO_BOUND = 1 << 62


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
    """

    aggregate_bandwidth: float | None
    effective_bandwidth: float | None
    preserved_bandwidth: float
    lasting_bandwidth: float
    fragmentation: float
    communication_cost: int


class Score(Record):
    """One score of the candidates of a problem, by mask.

    Attributes:
        bound: at least the value.
        stages: better and better bounds; the last is the value itself. Empty if `bound` is.
    """

    bound: Weigh
    stages: tuple[Weigh, ...] = ()


class Scorer:
    """Weighs the candidates of one problem.

    Args:
        fabric: the machine.
        free: positions of the GPUs that are free; masks are of these.
        count: number of GPUs in a candidate.
        pattern: pattern of the job.
        model: name of the effective-bandwidth model.
        scope: positions of all GPUs in reach, free or not.
        many: whether many candidates are to be weighed.
    """

    def __init__(
        self,
        fabric: Fabric,
        free: Sequence[int],
        count: int,
        pattern: Pattern,
        model: str,
        scope: Sequence[int],
        *,
        many: bool,
    ) -> None:
        self.fabric = fabric
        self.free = free
        self.count = count
        self.collective = pattern.collective
        self.edges = pattern.edges(count)
        self._model = model
        self._scope = scope
        kind = [[fabric.kind[a][b] for b in free] for a in free]
        self._histogram = Histogram(kind, len(fabric.kinds), table=many)
        self._positions: dict[int, list[int]] = {}
        self._cuts: dict[int, int] = {}

    def positions(self, mask: int) -> list[int]:
        """Return the GPUs of a candidate as positions in the fabric, ascending."""
        if mask not in self._positions:
            self._positions[mask] = [self.free[place] for place in places_of(mask, len(self.free))]
        return self._positions[mask]

    @cached_property
    def traffic(self) -> Traffic:
        """The pattern over the links; no collective's edge is faster than two GPUs by the model."""
        kinds = range(len(self.fabric.kinds) - 1)
        speeds = None if self.collective else [*map(self._pair_speed, kinds), 0]
        return Traffic(self.fabric, self.edges, speeds)

    @cached_property
    def mapper(self) -> Mapper:
        """Finds the pattern's best mappings."""
        return Mapper(self.traffic)

    def _pair_speed(self, kind: int) -> int:
        """Return how fast two GPUs are that such a link joins, by the model; 0 without any."""
        for a, b in combinations(range(len(self.fabric.gpus)), 2):
            if self.fabric.kind[a][b] == kind:
                return BANDWIDTH_MODELS[self._model](self.fabric, (a, b))
        return 0

    # ------------------------------------------------------------------ scores to compare
    # candidates by

    def score(self, name: ScoreName, by: Sequence[ScoreName], minimum: int = 0) -> Score:
        """Return a score by name.

        Args:
            name: name of the score.
            by: all scores that are compared, in order: the mapping is the best one by these.
            minimum: bandwidth that is adequate, 1e-6 GB/s.
        """
        plain = {
            "nvlink": Score(
                lambda _: 1,
                (lambda mask: int(len(nvlink_parts(self.fabric, self.positions(mask))) == 1),),
            ),
            "preserved_bandwidth": Score(self._weights[1]),
            "lasting_bandwidth": Score(self._lasting),
            "fragmentation": Score(
                lambda _: 0, (lambda mask: -round(self.fragmentation(mask) * UNIT),)
            ),
        }
        if name in plain:
            return plain[name]
        slowest_first = slowest_decides(by)
        if name == "aggregate_bandwidth":
            return self._aggregate_score(slowest_first=slowest_first)
        effective = self._effective_score(slowest_first=slowest_first)
        if name == "effective_bandwidth":
            return effective
        return Score(
            _cap(minimum, effective.bound),
            tuple(_cap(minimum, stage) for stage in effective.stages),
        )

    @cached_property
    def _weights(self) -> tuple[Weigh, Weigh]:
        """Sum of w over all pairs of a candidate, and of the GPUs that it leaves free.

        Source: mapa-sc21 Eq. 3.
        """
        return self._histogram.sums([kind.weight for kind in self.fabric.kinds])

    @cached_property
    def _links(self) -> dict[int, int]:
        """Sum of w over the links of each position in reach to all others in reach."""
        weights, kind = [kind.weight for kind in self.fabric.kinds], self.fabric.kind
        return {a: sum(weights[kind[a][b]] for b in self._scope) for a in self._scope}

    @cached_property
    def _all_links(self) -> int:
        return sum(self._links.values()) // 2

    def _lasting(self, mask: int) -> int:
        among, preserved = self._weights
        links = self._links
        lost = sum([links[gpu] for gpu in self.positions(mask)]) - among(mask)
        return preserved(mask) + self._all_links - lost

    def _aggregate_score(self, *, slowest_first: bool) -> Score:
        # Without edges every pair counts, so that such jobs stay compact, too.
        if not self.edges or self.traffic.alike:
            return Score(self._weights[0])
        return Score(
            self._most_total,
            (self._most_total_by_degree, lambda mask: self._total(mask, slowest_first)),
        )

    def _effective_score(self, *, slowest_first: bool) -> Score:
        if not self.edges:
            return Score(lambda _: 0)
        if not self.collective:
            by_gpu = self._most_slowest_by_gpu
            return Score(
                self._most_slowest, (by_gpu, lambda mask: self._slowest(mask, slowest_first))
            )
        if self._model == "mapa":
            return Score(self._most_mapa, (self._modelled,))
        if self._model != "cut":
            return Score(lambda _: _NO_BOUND, (self._modelled,))
        return Score(self._most_cut, (self._most_cut_by_gpu, self._modelled))

    # ------------------------------------------------------------------ of collectives

    @cached_property
    def _cut_bounds(self) -> CutBounds:
        return CutBounds(self.fabric, self.count)

    def _most_cut(self, mask: int) -> int:
        return self._histogram.derived("cut", self._histogram.packed(mask), self._cut_bounds.most)

    def _most_cut_by_gpu(self, mask: int) -> int:
        """Bound the cut by the links of the GPU with the fewest: no cut is wider."""
        derived = self._histogram.derived
        most = self._most_cut(mask)
        if any(self.fabric.into_switch):
            return most
        bounds = self._cut_bounds
        narrowest = min(
            [derived("links", row, bounds.links_of_gpu) for row in self._histogram.for_each(mask)]
        )
        return min(
            most,
            max(narrowest, derived("joined", self._histogram.packed(mask), bounds.most_joined)),
        )

    def _most_mapa(self, mask: int) -> int:
        most = partial(most_mapa, self.fabric, len(PATTERNS["ring"].edges(self.count)))
        return self._histogram.derived("mapa", self._histogram.packed(mask), most)

    def _modelled(self, mask: int) -> int:
        if mask not in self._cuts:
            self._cuts[mask] = BANDWIDTH_MODELS[self._model](self.fabric, self.positions(mask))
        return self._cuts[mask]

    # ------------------------------------------------------------------ of mappings

    @cached_property
    def _traffic_bounds(self) -> TrafficBounds:
        return TrafficBounds(self.traffic)

    def _most_total(self, mask: int) -> int:
        return self._histogram.derived(
            "total", self._histogram.packed(mask), self._traffic_bounds.most_total
        )

    def _most_total_by_degree(self, mask: int) -> int:
        """Bound the total by the rank with the most edges.

        It sits somewhere, and has the links there; the others have the best of all.
        """
        degree = max(self.traffic.degree)
        bounds, derived = self._traffic_bounds, self._histogram.derived
        if degree < self.count - 1:  # with so many other edges it bounds no better
            return self._most_total(mask)
        rows = self._histogram.for_each(mask)
        own = max(
            derived("row", row, lambda counts: bounds.most_of(counts, degree)) for row in rows
        )
        edges = len(self.edges) - degree
        rest = derived(
            "rest", self._histogram.packed(mask), lambda counts: bounds.most_of(counts, edges)
        )
        return min(self._most_total(mask), own + rest)

    def _total(self, mask: int, slowest_first: bool) -> int:
        return self.mapper.figures(self.positions(mask), slowest_first=slowest_first)[1]

    def _most_slowest(self, mask: int) -> int:
        packed = self._histogram.packed(mask)
        return min(
            self._histogram.derived("slowest", packed, self._traffic_bounds.most_slowest),
            self._most_anywhere,
        )

    def _most_slowest_by_gpu(self, mask: int) -> int:
        """Bound the slowest edge: every rank sits on some GPU, and every GPU has some rank."""
        speeds = self._speeds(mask)
        return min(self._most_slowest(mask), _slowest_rank(speeds), *map(max, speeds))

    @cached_property
    def _most_anywhere(self) -> int:
        """Return the highest speed of every rank, with all free GPUs around it."""
        return _slowest_rank(self._speeds(self._histogram.every))

    def _speeds(self, mask: int) -> list[tuple[int, ...]]:
        """Return for each GPU how fast each kind of rank would be on it."""
        derived, speeds = self._histogram.derived, self._traffic_bounds.speeds
        return [derived("speeds", row, speeds) for row in self._histogram.for_each(mask)]

    def _slowest(self, mask: int, slowest_first: bool) -> int:
        return self.mapper.figures(self.positions(mask), slowest_first=slowest_first)[0]

    # ------------------------------------------------------------------ figures to report

    def fragmentation(self, mask: int) -> float:
        """Return the fragmentation of a candidate; see utility.fragmentation."""
        sockets = [self.fabric.socket[gpu] for gpu in self.positions(mask)]
        return fragmentation(self._free_by_socket, self._total_by_socket, sockets)

    @cached_property
    def _free_by_socket(self) -> Counter[int]:
        return Counter(self.fabric.socket[gpu] for gpu in self.free)

    @cached_property
    def _total_by_socket(self) -> dict[int, int]:
        return dict(enumerate(self.fabric.socket_size))

    def scores(self, mask: int, mapping: Mapping) -> Scores:
        """Return all scores of a candidate with a mapping of it."""
        gpus = self.positions(mask)
        effective = None
        if self.edges:
            effective = (self._modelled(mask) if self.collective else mapping.slowest) / UNIT
        return Scores(
            aggregate_bandwidth=mapping.total / UNIT if self.edges else None,
            effective_bandwidth=effective,
            preserved_bandwidth=self._weights[1](mask) / UNIT,
            lasting_bandwidth=self._lasting(mask) / UNIT,
            fragmentation=self.fragmentation(mask),
            communication_cost=communication_cost(self.fabric.distance, gpus),
        )


def _slowest_rank(speeds: list[tuple[int, ...]]) -> int:
    """Return the least that a kind of rank could reach on the best GPU for it."""
    found: list[int] = [max(rank) for rank in zip(*speeds, strict=True)]
    return min(found)


def slowest_decides(by: Sequence[ScoreName]) -> bool:
    """Return whether the best mapping has the fastest slowest edge, not the largest sum."""
    of_mapping = ("adequate_bandwidth", "effective_bandwidth", "aggregate_bandwidth")
    return next((name for name in by if name in of_mapping), None) != "aggregate_bandwidth"


def _cap(minimum: int, weigh: Weigh) -> Weigh:
    return lambda mask: min(minimum, weigh(mask))
