"""Scores of a candidate, by name.

Inside, all scores are whole numbers of which more is better: bandwidths in 1e-6 GB/s, sockets and
fragmentation negative.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import combinations

from gpulaunch.decide.placement.effective import (
    BANDWIDTH_MODELS,
    effective_bandwidth,
    most_cut,
    nvlink_parts,
)
from gpulaunch.decide.placement.fabric import MAPPED_GPUS, TABULATED_GPUS, UNIT, Fabric
from gpulaunch.decide.placement.mapping import EXACT_RANKS, Mapper
from gpulaunch.decide.placement.search import Criterion, Guide, Weigh
from gpulaunch.decide.placement.traffic import Mapping, Traffic
from gpulaunch.decide.placement.utility import communication_cost, fragmentation
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.records import Record
from gpulaunch.typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # few policies expect jobs
    from gpulaunch.decide.placement.expected import JobSizes

ScoreName = Literal[
    "nvlink",
    "adequate_bandwidth",
    "effective_bandwidth",
    "preserved_bandwidth",
    "lasting_bandwidth",
    "aggregate_bandwidth",
    "sockets",
    "fragmentation",
    "expected_bandwidth",
]

MOST_MAPPED = 4
"""Number of sets of many ranks, equal in all scores before, whose sums of bandwidths are compared.

Those with the best links; each takes about 1 ms.
"""


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
        expected_bandwidth: what jobs to come can expect of what it leaves, now and once all others
            have left, GB/s; see expected.py. None unless the policy goes by it.
        sockets: number of sockets that it touches, less is better. Ours.
    """

    aggregate_bandwidth: float | None
    effective_bandwidth: float | None
    preserved_bandwidth: float
    lasting_bandwidth: float
    fragmentation: float
    communication_cost: int
    expected_bandwidth: float | None = None
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
        many: whether many candidates are to be weighed.
        job_sizes: sizes of the jobs to come; None for the default ones.
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
        many: bool = False,
        job_sizes: "JobSizes | None" = None,
    ) -> None:
        self.fabric = fabric
        self.free = free
        self.count = count
        self.collective = pattern.collective
        self._name = "" if pattern.given else pattern.name
        self._sizes = job_sizes
        self.edges = pattern.edges(count)
        self._model = model
        self._scope = scope
        among = fabric.tables.get("among")
        if among is None and many and len(fabric.gpus) <= TABULATED_GPUS:
            among = fabric.sums_among
        self._sum_among = among.__getitem__ if among else fabric.sum_among

    @cached_property
    def traffic(self) -> Traffic:
        """The pattern over the links; no collective's edge is faster than two GPUs by the model."""
        kinds = range(len(self.fabric.kinds) - 1)
        speeds = None if self.collective else [*map(self._pair_speed, kinds), 0]
        return Traffic(self.fabric, self.edges, speeds)

    @cached_property
    def mapper(self) -> Mapper:
        """Finds the pattern's best mappings."""
        return Mapper(self.traffic, self._slowest)

    def _pair_speed(self, kind: int) -> int:
        """Return how fast two GPUs are that such a link joins, by the model; 0 without any."""
        for a, b in combinations(range(len(self.fabric.gpus)), 2):
            if self.fabric.kind[a][b] == kind:
                return BANDWIDTH_MODELS[self._model](self.fabric, (a, b))
        return 0

    # ------------------------------------------------------------------ figures to compare by

    def tells_apart(self, name: ScoreName) -> bool:
        """Return whether candidates can differ in a score."""
        if self.fabric.alike:
            return name in ("sockets", "fragmentation")
        if name == "expected_bandwidth":
            return self._expected() is not None
        return name != "effective_bandwidth" or bool(self.edges)

    def figure(self, name: ScoreName, by: Sequence[ScoreName], minimum: int = 0) -> Criterion:
        """Return a score as a figure by which candidates are compared.

        Args:
            name: name of the score.
            by: all scores that are compared, in order: the mapping is the best one by these.
            minimum: bandwidth that is adequate, 1e-6 GB/s.
        """
        if name == "nvlink":
            return Criterion(lambda mask: len(nvlink_parts(self.fabric, self._gpus(mask))) == 1)
        if name in ("sockets", "fragmentation"):
            figure = self.sockets if name == "sockets" else self.fragmentation
            return Criterion(lambda mask: -round(figure(mask) * UNIT))
        if name == "expected_bandwidth" or name in self._pulls:
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

    def guide(self, name: ScoreName | None) -> Guide:
        """Return what sets are worth that grow, where all are too many to be weighed by a score.

        A score that counts what a set leaves is its own guide. Collectives are as fast as the
        NVLinks within the set; what else is asked for, compact sets have.
        """
        weight, none = self.fabric.weight, [0] * len(self.fabric.gpus)
        if name in self._pulls:
            pulls, _, regions = self._pulls[name]
            return Guide([-pull for pull in pulls], [[regions * w for w in row] for row in weight])
        if name == "effective_bandwidth" and self.collective and any(map(any, self.fabric.direct)):
            return Guide(none, self.fabric.direct)
        return Guide(none, weight)

    def _weigh_rest(self, name: ScoreName) -> Weigh:
        """Return what weighs what a set leaves: by the sum of w over all pairs in some regions."""
        if name == "expected_bandwidth":
            return self._expected() or (lambda _: 0)
        among = self._sum_among
        pulls, every, regions = self._pulls[name]
        first, second, *others = _subset_sums([-pull for pull in pulls], every)
        if others:
            tables = list(enumerate((first, second, *others)))
            return lambda mask: (
                sum([sums[mask >> 8 * i & 255] for i, sums in tables]) + regions * among(mask)
            )
        return lambda mask: first[mask & 255] + second[mask >> 8] + regions * among(mask)

    def _expected(self) -> Weigh | None:
        """Return what tells the bandwidth that jobs to come can expect of what a set leaves."""
        from gpulaunch.decide.placement.expected import DEFAULT_SIZES, expected_of  # late: as above

        expected = expected_of(self.fabric, self._sizes or DEFAULT_SIZES)
        if expected is None:
            return None
        free, scope = self.fabric.mask(self.free), self.fabric.mask(self._scope)
        return lambda mask: expected[free & ~mask] + expected[scope & ~mask]

    def _aggregate(self, *, slowest_first: bool) -> Criterion:
        # Without edges every pair counts, so that such jobs stay compact, too.
        if not self.edges or self.traffic.alike:
            return Criterion(self._sum_among)
        if self._orders(slowest_first=slowest_first):
            return Criterion(lambda mask: self.mapping(mask, slowest_first=slowest_first).total)
        return Criterion(
            lambda mask: self.mapper.total(self._gpus(mask), slowest_first=slowest_first),
            lambda mask: self.traffic.most_total(self._gpus(mask)),
            most_weighed=MOST_MAPPED if self.count > EXACT_RANKS else None,
        )

    def _effective(self, *, slowest_first: bool) -> Criterion:
        if not self.edges:
            return Criterion(lambda _: 0)
        table = self._table("cut") if self.collective else self._slowest
        if table and (self.collective or slowest_first):
            return Criterion(table.__getitem__)
        if self.collective:
            return Criterion(
                partial(effective_bandwidth, self.fabric, self._model),
                partial(most_cut, self.fabric) if self._model == "cut" else None,
            )
        mapper = self.mapper
        # A chain runs through every grid, so no grid's slowest edge is faster.
        chain = self._table("chain slowest") if self._name.startswith("stencil") else None

        def bound(mask: int) -> int:
            return min(self._fastest, chain[mask]) if chain else self._fastest

        return Criterion(
            lambda mask: mapper.slowest(self._gpus(mask), slowest_first=slowest_first),
            bound if slowest_first else None,
            mapper.tighten,
        )

    @cached_property
    def _fastest(self) -> int:
        """How fast the slowest edge of any set is at most, 1e-6 GB/s."""
        return self.mapper.fastest(self.fabric.mask(self.free))

    @property
    def _slowest(self) -> Sequence[int] | None:
        """The table of the pattern's slowest edges, if the machine has it."""
        if self.collective:
            return None
        is_chain = self.edges == PATTERNS["chain"].edges(self.count)  # as a grid of 11 ranks is
        return self._table("chain slowest" if is_chain else f"{self._name} slowest")

    def _table(self, name: str) -> Sequence[int] | None:
        """Return a table of the machine, if it has it; they are made for the model `cut`."""
        return self.fabric.tables.get(name) if self._model == "cut" else None

    def _orders(self, *, slowest_first: bool) -> Sequence[int] | None:
        """Return the table of the pattern's best mappings, if the machine has it."""
        if self._model != "cut" or not (slowest_first or self.collective):
            return None
        return self.fabric.orders.get(self._name)

    def mapping(self, mask: int, *, slowest_first: bool, kicks: int = 0) -> Mapping:
        """Return the best mapping to a set; see Mapper.best."""
        orders = self._orders(slowest_first=slowest_first)
        if orders and self.edges:
            start = MAPPED_GPUS * mask
            return self.traffic.figures(tuple(orders[start : start + self.count]))
        return self.mapper.best(self._gpus(mask), slowest_first=slowest_first, kicks=kicks)

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

    def scores(self, mask: int, mapping: Mapping, by: Sequence[ScoreName] = ()) -> Scores:
        """Return all scores of a candidate with a mapping of it.

        Args:
            mask: the candidate.
            mapping: the mapping.
            by: the scores that decide; only if expected bandwidth is one is it told.
        """
        speed = mapping.slowest
        if self.collective and self.edges:
            speed = effective_bandwidth(self.fabric, self._model, mask)
        expected = self._expected() if "expected_bandwidth" in by else None
        return Scores(
            aggregate_bandwidth=mapping.total / UNIT if self.edges else None,
            effective_bandwidth=speed / UNIT if self.edges else None,
            preserved_bandwidth=self._weigh_rest("preserved_bandwidth")(mask) / UNIT,
            lasting_bandwidth=self._weigh_rest("lasting_bandwidth")(mask) / UNIT,
            fragmentation=self.fragmentation(mask),
            communication_cost=communication_cost(self.fabric.distance, self._gpus(mask)),
            expected_bandwidth=expected(mask) / UNIT if expected else None,
            sockets=self.sockets(mask),
        )


def _subset_sums(values: Sequence[int], start: int) -> list[list[int]]:
    """Return the sums of the values of eight positions each, and of the start, by their bits.

    The lowest bits come first; there are two lists at least.
    """
    found = []
    for end in range(len(values), 0, -8):
        sums = [start]
        for value in reversed(values[max(0, end - 8) : end]):
            sums += [known + value for known in sums]
        found.append(sums)
        start = 0
    return found if len(found) > 1 else [*found, [0]]


def slowest_decides(by: Sequence[ScoreName]) -> bool:
    """Return whether the best mapping has the fastest slowest edge, not the largest sum."""
    of_mapping = ("adequate_bandwidth", "effective_bandwidth", "aggregate_bandwidth")
    return next((name for name in by if name in of_mapping), None) != "aggregate_bandwidth"
