"""One placement to be decided: the sets that it could get, and all that a policy asks about them.

A set is a mask over the positions of a Fabric: of two sets the larger number has the lower indices.
GPUs that have the same links to all others and to a switch, on the same socket, are
interchangeable: only the lowest of them are taken. So are whole sockets of such GPUs, as in an
NVSwitch machine: the first sockets get the most.

Inside, all scores are whole numbers of which more is better: bandwidths in 1e-6 GB/s, sockets and
fragmentation negative.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as Figures
from functools import cached_property, partial
from heapq import heapify, heappop, heapreplace, nlargest
from itertools import accumulate, combinations, pairwise
from math import comb, inf
from typing import Literal

from gpulaunch.machine.gpu import gpu_names
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.fabric import (
    BANDWIDTH_MODELS,
    UNIT,
    Fabric,
    fabric_of,
    nvlink_parts,
    nvls_bandwidth,
)
from gpulaunch.placement.mapping import EXACT_RANKS, Mapper, Mapping
from gpulaunch.profiles.pattern import Pattern
from gpulaunch.records import Record

MOST_SETS = 20_000
"""Number of sets that are compared at most; 8 of 16 GPUs, all different, are 12,870."""

MOST_GROWN = 640_000
"""GPUs of sets that are looked at while sets grow, each time anew: some 0.2 s on 32 GPUs."""


def positions(fabric: Fabric, mask: int) -> list[int]:
    """Return the positions of a set, ascending; they are worked out once."""
    found = fabric.positions_of_mask.get(mask)
    if found is None:
        found = [i for i, bit in enumerate(fabric.bit) if mask & bit]
        fabric.positions_of_mask[mask] = found
    return found


def sum_over_pairs(figures: Sequence[Sequence[int]], gpus: Sequence[int]) -> int:
    """Return the sum over all pairs of positions of what every two have."""
    return sum([figures[a][b] for a, b in combinations(gpus, 2)])


def effective_bandwidth(fabric: Fabric, model: str, mask: int) -> int:
    """Return the effective bandwidth of a set of at least two GPUs by a model, worked out once."""
    known = fabric.effective.setdefault(model, {})
    key = mask.bit_count() if fabric.alike else mask
    found = known.get(key)
    if found is None:
        found = known[key] = BANDWIDTH_MODELS[model](fabric, positions(fabric, mask))
    return found


def _most_cut(fabric: Fabric, mask: int) -> int:
    """Return at least the cut of a set.

    It is the fastest way from a GPU that has no NVLink in the set. If there is none, no cut is
    wider than the NVLinks of one GPU, and no way over PCIe faster than the fastest.
    """
    gpus = positions(fabric, mask)
    alone = [a for a in gpus if not fabric.nvlinked[a] & mask]
    if alone:
        return min([max([fabric.hop[a][b] for b in gpus]) for a in alone])
    into_switch = fabric.into_switch
    linked = min([sum([fabric.direct[a][b] for b in gpus]) + into_switch[a] for a in gpus])
    return max(
        linked, fabric.fastest_pcie, nvls_bandwidth(fabric, gpus) if into_switch[gpus[0]] else 0
    )


def _enumerate_sets(
    fabric: Fabric, free: int, count: int, required: int, groups: Sequence[int]
) -> list[int] | None:
    """Return all sets of a size that are not alike, as masks.

    Args:
        free: all free GPUs, admitted or not, which tell the sockets that are alike.
        groups: the GPUs that may be taken, in groups of which a set lies in one.

    Returns:
        None if there are more than MOST_SETS.
    """
    found: set[int] = set()
    for group in groups:
        eligible = positions(fabric, group & ~required)
        alike = _sockets_alike(fabric, free, eligible)
        masks = _choose(fabric, alike, count - required.bit_count())
        if masks is None:
            return None
        found.update([required | mask for mask in masks])
    return [*found] if len(found) <= MOST_SETS else None


def _sockets_alike(fabric: Fabric, free: int, eligible: Sequence[int]) -> list[list[list[int]]]:
    """Return GPUs that may be taken: groups of sockets that are alike, each with GPUs alike."""
    free_on: dict[int, list[int]] = {}
    for gpu in positions(fabric, free):
        free_on.setdefault(fabric.socket[gpu], []).append(gpu)
    kinds: list[list[int]] = []
    for gpu in eligible:
        for twins in kinds:
            if _are_twins(fabric, gpu, twins[0]):
                twins.append(gpu)
                break
        else:
            kinds.append([gpu])
    groups: list[list[list[int]]] = []
    for twins in kinds:
        parts: dict[int, list[int]] = {}
        for gpu in twins:
            parts.setdefault(fabric.socket[gpu], []).append(gpu)
        # Only if they follow each other does the first socket have the lowest GPUs.
        in_order = all(a[-1] < b[0] for a, b in pairwise(parts.values()))
        alike: dict[object, list[list[int]]] = {}
        for socket, part in parts.items():
            key: object = socket
            if in_order and free_on[socket] == part:
                key = fabric.socket_size[socket], len(part)
            alike.setdefault(key, []).append(part)
        groups += alike.values()
    return groups


def _are_twins(fabric: Fabric, a: int, b: int) -> bool:
    """Return whether two GPUs have the same links to all others and into a switch."""
    if (fabric.into_switch[a], fabric.nvls[a]) != (fabric.into_switch[b], fabric.nvls[b]):
        return False
    rows = fabric.kind[a], fabric.kind[b]
    return all(rows[0][c] == rows[1][c] for c in range(len(fabric.gpus)) if c not in (a, b))


def _choose(fabric: Fabric, groups: list[list[list[int]]], count: int) -> list[int] | None:
    """Return all ways to take so many GPUs; None if they are far more than can be compared.

    Of sockets that are alike the first give the most, and each gives its lowest GPUs.
    """
    left = sum(len(part) for sockets in groups for part in sockets)
    found = [(0, 0, 0)]  # GPUs that were taken, of them those of the last socket, and which
    for sockets in groups:
        for place, part in enumerate(sockets):
            left -= len(part)
            lowest = [*accumulate([fabric.bit[gpu] for gpu in part], initial=0)]
            grown = []
            for taken, before, mask in found:
                least = max(0, count - taken - left)
                most = min(len(part), count - taken, before if place else count)
                grown += [(taken + n, n, mask | lowest[n]) for n in range(least, most + 1)]
            found = grown
            if len(found) > 2 * MOST_SETS:
                return None
    return [mask for taken, _, mask in found if taken == count]


def _grow_sets(
    fabric: Fabric, count: int, required: int, groups: Sequence[int], worth: Callable[[int], int]
) -> list[int]:
    """Return sets that grew one GPU at a time, where all sets are too many to compare.

    Of all that one more GPU makes of the sets so far those with the most worth grow on: beam search
    (Lowerre, The HARPY speech recognition system, 1976).

    Returns:
        As many as grew to this size, perhaps none.
    """
    found: set[int] = set()
    for group in groups:
        gpus = positions(fabric, group & ~required)
        # A set is looked at for each GPU that it may grow by, in each of `count` steps.
        looks = len(groups) * count * max(1, len(gpus))
        width = max(1, MOST_GROWN // (looks * count))
        beam = [required]
        for _ in range(required.bit_count(), count):
            grown = {part | fabric.bit[gpu] for part in beam for gpu in gpus}
            grown.difference_update(beam)
            beam = nlargest(width, grown, key=lambda mask: (worth(mask), mask))
        found.update(beam)
    return list(found)


ScoreName = Literal[
    "effective_bandwidth",
    "preserved_bandwidth",
    "lasting_bandwidth",
    "aggregate_bandwidth",
    "sockets",
    "fragmentation",
]

MOST_MAPPED = 4
"""Sets of more than EXACT_RANKS ranks that get a mapping, the most promising; each takes 1 ms.

Others count as 0 where mappings are compared.
"""


class Weights(Record):
    """Weights of the three costs of topo-aware-sc17, which sum to 1; it has equal ones (5.2.1)."""

    communication: float = 1 / 3
    interference: float = 1 / 3
    fragmentation: float = 1 / 3


EQUAL_WEIGHTS = Weights()


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
            (topo-aware-sc17 Eq. 3, over the pairs of the chosen GPUs: as printed its bounds go over
            all free ones).
        sockets: number of sockets that it touches, less is better. Ours.
    """

    aggregate_bandwidth: float | None
    effective_bandwidth: float | None
    preserved_bandwidth: float
    lasting_bandwidth: float
    fragmentation: float
    communication_cost: int
    sockets: int = 1


class PlacementProblem:
    """One placement to be decided: the machine, the GPUs to choose from and what the job needs.

    Args:
        free: indices of all GPUs that are free; what is preserved is counted over these.
        admitted: those of them that the request admits.
        count: number of GPUs, 1 to len(admitted).
        sensitive: whether the job's speed depends on its links; without traffic between GPUs it
            does not.
        required: GPUs by index that must be in the set.
        within: groups of GPUs by index of which it must lie in one; empty for anywhere.
        nvlink: whether NVLink must join it.
        least_gb_per_s: its least effective bandwidth; 0 for any.
        weights: weights of the costs, for policies that go by utility (topo-aware-sc17).
        slowdown: by index, what a GPU's neighbours and this job would suffer, 0.1 is 10 %; missing
            is none.
        least_utility: under this utility the job would wait.
        begun: by index, how late the last job on the GPU's socket began, as a place in the order of
            all; missing is 0.
        scope: indices of all GPUs in reach, busy or not; None for those of the machine.
        rank_order: GPUs by index in the order that their ranks are to have; empty for the best.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        free: Sequence[int],
        admitted: Sequence[int],
        count: int,
        pattern: Pattern,
        sensitive: bool,
        model: str,
        required: frozenset[int] = frozenset(),
        within: Sequence[frozenset[int]] = (),
        nvlink: bool = False,
        least_gb_per_s: float = 0.0,
        weights: Weights = EQUAL_WEIGHTS,
        slowdown: Figures[int, float] | None = None,
        least_utility: float = 0.0,
        begun: Figures[int, int] | None = None,
        scope: Sequence[int] | None = None,
        rank_order: Sequence[int] = (),
    ) -> None:
        self.topology = topology
        self.fabric = fabric_of(topology)
        self.free = tuple(sorted(free))
        self.admitted = tuple(sorted(admitted))
        self.count = count
        self.edges = pattern.edges(count)
        self.sensitive = sensitive and bool(self.edges)
        self.required = required
        self.within = within
        self.nvlink = nvlink
        self.least_gb_per_s = least_gb_per_s
        self.weights = weights
        self.slowdown = slowdown or {}
        self.least_utility = least_utility
        self.begun = begun or {}
        self.rank_order = rank_order
        self._collective = pattern.collective
        self._model = model
        self._scope = self.fabric.gpus if scope is None else scope

    # ------------------------------------------------------------------ GPUs

    def format_ranks(self, gpus: Sequence[int]) -> str:
        """Return GPUs by index as people name them, in their order: "3,0,1"."""
        names = {gpu.index: gpu.name for gpu in self.topology.gpus}
        return ",".join(names[gpu] for gpu in gpus)

    def format_set(self, gpus: Sequence[int]) -> str:
        """Return GPUs by index as people name them, without an order: "0-1,3"."""
        return gpu_names(gpu for gpu in self.topology.gpus if gpu.index in gpus)

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """The admitted GPUs of each group that a set may lie in and that has enough of them."""
        masks = [mask for mask in self._groups if mask.bit_count() >= self.count]
        gpus = self.fabric.gpus
        return [tuple([gpus[i] for i in positions(self.fabric, mask)]) for mask in masks]

    def split_by_socket(self, gpus: Sequence[int]) -> list[tuple[int, ...]]:
        """Return GPUs by index, one tuple for each socket, in the order of sockets."""
        found: dict[int, list[int]] = {}
        for gpu in gpus:
            found.setdefault(self.fabric.socket[self.fabric.position[gpu]], []).append(gpu)
        return [tuple(found[number]) for number in sorted(found)]

    def count_free_beside(self, gpus: Sequence[int]) -> int:
        """Return how many GPUs are free on the sockets of these."""
        socket, position = self.fabric.socket, self.fabric.position
        touched = {socket[position[gpu]] for gpu in gpus}
        return sum(socket[position[gpu]] in touched for gpu in self.free)

    def mask(self, gpus: Iterable[int]) -> int:
        """Return GPUs by index as a mask."""
        fabric = self.fabric
        return sum([fabric.bit[fabric.position[gpu]] for gpu in gpus])

    # ------------------------------------------------------------------ candidates

    @cached_property
    def _groups(self) -> list[int]:
        """The admitted GPUs of each group that has all required ones, as masks."""
        required, admitted = self.required, frozenset(self.admitted)
        groups = [group & admitted for group in self.within or (admitted,)]
        return [self.mask(group) for group in groups if required <= group]

    @cached_property
    def candidates(self) -> int:
        """The number of sets to choose from, alike or not."""
        required = len(self.required)
        return sum(
            comb(group.bit_count() - required, self.count - required) for group in self._groups
        )

    @cached_property
    def _sets(self) -> list[int] | None:
        free, required = self.mask(self.free), self.mask(self.required)
        return _enumerate_sets(self.fabric, free, self.count, required, self._groups)

    @property
    def too_many(self) -> bool:
        """Return whether there are more sets than can be compared."""
        return self._sets is None

    def ranked(self, by: Sequence[ScoreName]) -> Iterator[int]:
        """Yield the candidates as masks, the best first, one of those that are alike.

        Where they are too many to compare, they are some good ones. Some may lack the links that
        the job needs, see meets().

        A set is looked at more closely only while it may be the best of those that are left: first
        by bounds of the scores that are slow to tell, then by these. Until then it may have any.

        Args:
            by: the scores that decide, the first one first; the lowest indices decide last.
        """
        masks = self._sets
        if masks is None:
            required, worth = self.mask(self.required), self._worth_of_part(by)
            masks = _grow_sets(self.fabric, self.count, required, self._groups, worth)
        slowest_first = self.is_slowest_first(by)
        names = [name for name in by if self._tells_apart(name)]
        # By the places of scores that are slow to tell: how many sets more are looked at closely.
        left: dict[int, float] = {}
        for place, name in enumerate(names):
            if name in self._mapped:
                left[place] = MOST_MAPPED if self.count > EXACT_RANKS else inf
            elif name == "effective_bandwidth" and self._collective and self._model == "cut":
                left[place] = inf
        steps = [*range(len(names)), *left]
        # Negative, since a heap has the least in front; a larger mask has lower indices.
        heap: list[tuple[tuple[float, ...], int, int]]
        heap = [((-inf,) * len(names), -mask, 0) for mask in masks]
        heapify(heap)
        while heap:
            known, negative, done = heap[0]
            if done == len(steps):
                heappop(heap)
                yield -negative
                continue
            place = steps[done]
            if done < len(names) and place in left:
                score = self._bound(names[place], -negative)
            elif done < len(names) or left[place] > 0:
                score = self._score(names[place], -negative, slowest_first)
            else:
                score = 0
            if done >= len(names):
                left[place] -= 1
            known = (*known[:place], -score, *known[place + 1 :])
            heapreplace(heap, (known, negative, done + 1))

    def allows(self, gpus: Sequence[int]) -> bool:
        """Return whether a set of GPUs by index has what the job needs."""
        mask = self.mask(gpus)
        fits = any(not mask & ~group for group in self._groups)
        return fits and self.required.issubset(gpus) and self.meets(mask)

    def meets(self, mask: int) -> bool:
        """Return whether a candidate has the links that the job needs."""
        if not self._is_joined(mask):
            return False
        return not self._least or self._effective_bandwidth(mask) >= self._least

    def _is_joined(self, mask: int) -> bool:
        parts = nvlink_parts(self.fabric, positions(self.fabric, mask)) if self.nvlink else ()
        return len(parts) < 2

    @property
    def _least(self) -> int:
        """The effective bandwidth that a candidate must have, 1e-6 GB/s; 0 without edges."""
        return round(self.least_gb_per_s * UNIT) if self.edges else 0

    def _effective_bandwidth(self, mask: int) -> int:
        return self._score("effective_bandwidth", mask, slowest_first=True)

    def best_effective_bandwidth(self) -> float | None:
        """Return the largest effective bandwidth of sets that meet all other needs, GB/s.

        Returns:
            None if no set meets them.
        """
        for mask in self.ranked(("effective_bandwidth",)):
            if self._is_joined(mask):
                return self._effective_bandwidth(mask) / UNIT
        return None

    # ------------------------------------------------------------------ scores to compare by

    def scores_by(self, mask: int, by: Sequence[ScoreName]) -> tuple[int, ...]:
        """Return the exact scores of a set, by name."""
        slowest_first = self.is_slowest_first(by)
        return tuple(self._score(name, mask, slowest_first) for name in by)

    def is_slowest_first(self, by: Sequence[ScoreName]) -> bool:
        """Return whether the best mapping has the fastest slowest edge, not the largest sum."""
        if self._least:
            return True
        of_mapping = [name for name in by if name in ("effective_bandwidth", "aggregate_bandwidth")]
        return of_mapping[:1] != ["aggregate_bandwidth"]

    @cached_property
    def mapper(self) -> Mapper:
        """The pattern over the links; no edge is faster than two GPUs by the model.

        Of collectives no edge is waited for.
        """
        fabric = self.fabric
        speeds = None
        if not self._collective:
            speeds = [0] * len(fabric.kind_name)
            for a, b in combinations(range(len(fabric.gpus)), 2):
                kind = fabric.kind[a][b]
                speeds[kind] = speeds[kind] or BANDWIDTH_MODELS[self._model](fabric, (a, b))
        return Mapper(fabric.kind, self.edges, fabric.kind_weight, speeds)

    def _tells_apart(self, name: ScoreName) -> bool:
        """Return whether candidates can differ in a score."""
        if self.fabric.alike:
            return name in ("sockets", "fragmentation")
        return name != "effective_bandwidth" or bool(self.edges)

    @cached_property
    def _mapped(self) -> list[ScoreName]:
        """The scores that are those of a set's best mapping."""
        found: list[ScoreName] = []
        if self.edges and not self._collective:
            found.append("effective_bandwidth")
        if self.edges and not self.mapper.tells_no_rank_apart:
            found.append("aggregate_bandwidth")
        return found

    def _bound(self, name: ScoreName, mask: int) -> int:
        """Return at least a score that is slow to tell."""
        if name not in self._mapped:
            return _most_cut(self.fabric, mask)
        gpus = positions(self.fabric, mask)
        if name == "effective_bandwidth":
            return self.mapper.most_slowest(gpus)
        return self.mapper.most_total(gpus)

    def _score(self, name: ScoreName, mask: int, slowest_first: bool) -> int:
        """Return a score as a whole number, by which candidates are compared."""
        if name == "sockets":
            return -UNIT * len(set(self._sockets(mask)))
        if name == "fragmentation":
            return -round(self._fragmentation(mask) * UNIT)
        if name in self._regions:
            return self._left_to_others(name, mask)
        if name in self._mapped:
            gpus = positions(self.fabric, mask)
            mapping = self.mapper.best(gpus, slowest_first=slowest_first)
            return mapping.slowest if name == "effective_bandwidth" else mapping.total
        if name == "aggregate_bandwidth":  # also without edges, so that such jobs stay compact
            return self._sum_among(mask)
        return effective_bandwidth(self.fabric, self._model, mask) if self.edges else 0

    @cached_property
    def _regions(self) -> dict[str, list[tuple[list[int], int]]]:
        """The GPUs that are counted to scores of what a set leaves, now and later.

        Of each region it is the sum of w from each position to all in it, and the sum of w over all
        pairs in it, 1e-6 GB/s.
        """
        regions = []
        for gpus in (self.free, self._scope):
            region = [self.fabric.position[gpu] for gpu in gpus]
            pulls = [sum([row[b] for b in region]) for row in self.fabric.weight]
            regions.append((pulls, sum([pulls[a] for a in region]) // 2))
        return {"preserved_bandwidth": regions[:1], "lasting_bandwidth": regions}

    def _left_to_others(self, name: str, mask: int) -> int:
        """Return the sum of w over all pairs that a set leaves, in each region."""
        gpus = positions(self.fabric, mask)
        among = sum_over_pairs(self.fabric.weight, gpus)
        left = 0
        for pulls, every in self._regions[name]:
            left += every - sum([pulls[a] for a in gpus]) + among
        return left

    def _worth_of_part(self, by: Sequence[ScoreName]) -> Callable[[int], int]:
        """Return what weighs sets that grow, where all are too many.

        A score that counts what a set leaves is its own guide. Collectives are as fast as the
        NVLinks within the set; what else is asked for, compact sets have.
        """
        if by and by[0] in self._regions:
            return partial(self._left_to_others, by[0])
        if by and by[0] == "effective_bandwidth" and self._collective:
            direct = self.fabric.direct
            if any(map(any, direct)):
                return lambda mask: sum_over_pairs(direct, positions(self.fabric, mask))
        return self._sum_among

    def _sum_among(self, mask: int) -> int:
        """Return the sum of w over all pairs of a set."""
        return sum_over_pairs(self.fabric.weight, positions(self.fabric, mask))

    # ------------------------------------------------------------------ scores to report

    def _sockets(self, mask: int) -> list[int]:
        return [self.fabric.socket[gpu] for gpu in positions(self.fabric, mask)]

    def _fragmentation(self, mask: int) -> float:
        total = dict(enumerate(self.fabric.socket_size))
        return fragmentation(self._free_by_socket, total, self._sockets(mask))

    @cached_property
    def _free_by_socket(self) -> Counter[int]:
        return Counter(self._sockets(self.mask(self.free)))

    def scores(self, mapping: Mapping) -> Scores:
        """Return all scores of a set with a mapping of it."""
        gpus = [self.fabric.gpus[place] for place in mapping.gpus]
        mask = self.mask(gpus)
        speed = mapping.slowest
        if self._collective and self.edges:
            speed = effective_bandwidth(self.fabric, self._model, mask)
        return Scores(
            aggregate_bandwidth=mapping.total / UNIT if self.edges else None,
            effective_bandwidth=speed / UNIT if self.edges else None,
            preserved_bandwidth=self._left_to_others("preserved_bandwidth", mask) / UNIT,
            lasting_bandwidth=self._left_to_others("lasting_bandwidth", mask) / UNIT,
            fragmentation=self._fragmentation(mask),
            communication_cost=sum([self.fabric.far[a][b] for a, b in combinations(gpus, 2)]),
            sockets=len(set(self._sockets(mask))),
        )


def fragmentation(
    free_by_socket: Figures[int, int], total_by_socket: Figures[int, int], sockets: Sequence[int]
) -> float:
    """Return the mean share of GPUs that stay free on the sockets of a placement: 0..1.

    Lower is fuller.

    Args:
        free_by_socket: free GPUs of each socket before the placement.

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
