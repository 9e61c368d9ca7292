"""Policies, held against a second implementation that tries every set and every mapping.

The second implementation counts in whole 1e-6 GB/s, so that its sums are exact. It reads the
topology's links itself, and takes nothing from the code under test but the values that a test hands
to both.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations, permutations
from math import comb
from typing import Any, NamedTuple

import numpy as np
import pytest
from values import H100, V100, Needs, card, cards, wired_up, wiring
from values import machine as load

from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.link import Wiring
from gpulaunch.machine.topology import Topology, distances, machine_tree
from gpulaunch.placement.policies import Placement, place, ranking
from gpulaunch.placement.problem import PlacementProblem, Scores
from gpulaunch.profiles.pattern import PATTERNS, Edge, Pattern
from gpulaunch.records import Record, as_dict, as_list, field_names, replace

Gpus = tuple[int, ...]
MICRO = 1_000_000
ENDLESS = 1 << 60

SCORES = {
    ("greedy", True): ("aggregate",),
    ("greedy", False): ("aggregate",),
    ("preserve", True): ("effective", "lasting", "aggregate", "together", "filling"),
    ("preserve", False): ("lasting", "aggregate", "together", "filling"),
    ("preserve_paper", True): ("effective",),
    ("preserve_paper", False): ("preserved",),
}
"""What decides, by policy and whether the job is sensitive; the other policies compare nothing."""

# ------------------------------------------------------------------------ the second implementation


def micro(gb_per_s: float) -> int:
    return round(gb_per_s * MICRO)


@cache
def orders(count: int) -> np.ndarray:
    """All orders of so many, the lowest first."""
    return np.array(list(permutations(range(count))))


def reached(start: int, others: Iterable[int], joined: Callable[[int, int], bool]) -> set[int]:
    known, new = {start}, [start]
    while new:
        a = new.pop()
        found = {b for b in others if b not in known and joined(a, b)}
        known |= found
        new += found
    return known


def widest_ways(widths: np.ndarray) -> np.ndarray:
    """Return each set's narrowest hop if every pair takes its widest path (Floyd and Warshall)."""
    widths = widths + ENDLESS * np.eye(widths.shape[1], dtype=np.int64)
    for via in range(widths.shape[1]):
        widths = np.maximum(widths, np.minimum(widths[:, :, via, None], widths[:, via, None, :]))
    return widths.min(axis=(1, 2))


class Machine:
    """A topology, counted out by hand. GPUs are positions in ascending order of index."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.indices = [gpu.index for gpu in topology.gpus]
        self.at = {index: i for i, index in enumerate(self.indices)}
        count = len(self.indices)
        self.weight, self.direct, self.hop, self.nvlinks = (
            np.zeros((count, count), np.int64) for _ in range(4)
        )
        self.into_switch = np.zeros(count, np.int64)
        instances = {gpu.index for gpu in topology.gpus if gpu.mig}
        self.apart: set[Gpus] = set()  # pairs that meet between sockets
        for link in topology.links:
            a, b = self.at[link.a], self.at[link.b]
            planned = micro(link.nvlink_planned_gb_per_s) if link.nvlink_count else 0
            self.nvlinks[a, b] = self.nvlinks[b, a] = link.nvlink_count
            if not ({link.a, link.b} & instances):  # no two of those work together
                self.weight[a, b] = self.weight[b, a] = micro(
                    link.nvlink_gb_per_s or link.pcie_gb_per_s
                )
            self.hop[a, b] = self.hop[b, a] = max(planned, micro(link.pcie_gb_per_s))
            if link.kind == "nvlink":
                self.direct[a, b] = self.direct[b, a] = planned
            if link.kind == "nvswitch":
                for i in (a, b):
                    self.into_switch[i] = (
                        topology.gpus[i].nvswitch_links * planned // link.nvlink_count
                    )
            if link.pcie_path == "SYS":
                self.apart |= {(a, b), (b, a)}
        self.known: dict[Any, Any] = {}

    @cached_property
    def socket(self) -> list[int]:
        """Return each GPU's socket as its lowest GPU; where none is known, there is one."""
        gpus = self.topology.gpus
        every = range(len(gpus))
        found = [min(reached(a, every, lambda c, d: (c, d) not in self.apart)) for a in every]
        if len(set(found)) == len(gpus) and all(gpu.numa_node is None for gpu in gpus):
            return [0] * len(gpus)
        return found

    @cached_property
    def far(self) -> dict[Gpus, int]:
        far = distances(self.topology, machine_tree(self.topology))
        return {
            (a, b): far[self.indices[a]][self.indices[b]]
            for a, b in combinations(range(len(self.indices)), 2)
        }

    def inside(self, gpus: Iterable[int]) -> int:
        chosen = list(gpus)
        return int(self.weight[np.ix_(chosen, chosen)].sum()) // 2

    def narrowest(self, sets: np.ndarray) -> np.ndarray:
        """Return the least NVLink bandwidth between two sides of a set; the switch on either."""
        widths = np.full(len(sets), ENDLESS)
        ranks = range(sets.shape[1])
        for mask in range(1, 1 << len(ranks) - 1):
            one = [i for i in ranks if mask >> i & 1]
            two = [i for i in ranks if not mask >> i & 1]
            direct = sum(self.direct[sets[:, i], sets[:, j]] for i in one for j in two)
            through = [self.into_switch[sets[:, side]].sum(axis=1) for side in (one, two)]
            widths = np.minimum(widths, direct + np.minimum(*through))
        return widths

    def in_switch(self, sets: np.ndarray) -> np.ndarray:
        """Return what NVSwitch carries where it computes the sums."""
        share = {"9": 0.83, "10": 0.75}
        able = [
            0.0 if gpu.mig else share.get((gpu.compute_capability or "").split(".")[0], 0.0)
            for gpu in self.topology.gpus
        ]
        ranks = sets.shape[1]
        return np.rint(
            (self.into_switch * able)[sets].min(axis=1) * 2 * (ranks - 1) / (ranks + 1)
        ).astype(np.int64)

    def cut(self, sets: Sequence[Gpus]) -> list[int]:
        every = np.array(sets)
        pairs = every[:, :, None], every[:, None, :]
        wired = np.where(self.nvlinks[pairs] > 0, ENDLESS, 0)
        hop = self.hop[pairs]
        whole = np.maximum(
            self.narrowest(every), np.maximum(widest_ways(hop), self.in_switch(every))
        )
        return np.where(widest_ways(wired) > 0, whole, widest_ways(np.maximum(wired, hop))).tolist()

    def bandwidth(self, sets: Sequence[Gpus]) -> dict[Gpus, int]:
        key = "cut", tuple(sets)
        if key not in self.known:
            self.known[key] = dict(zip(sets, self.cut(sets), strict=True)) if sets else {}
        return self.known[key]

    @cached_property
    def pairs(self) -> np.ndarray:
        """Return the bandwidth of every two GPUs."""
        speeds = np.zeros_like(self.weight)
        for (a, b), speed in self.bandwidth(
            list(combinations(range(len(self.indices)), 2))
        ).items():
            speeds[a, b] = speeds[b, a] = speed
        return speeds

    def mapped(
        self, sets: Sequence[Gpus], edges: Sequence[Edge], *, waited: bool, slowest_first: bool
    ) -> dict[Gpus, "Mapped"]:
        """Return each set's first best mapping, where edges are waited for or not."""
        if not edges:
            return {gpus: Mapped(gpus, 0, self.inside(gpus)) for gpus in sets}
        key = "mapped", tuple(sets), tuple(edges), waited, slowest_first
        if key not in self.known:
            self.known[key] = self._mapped(sets, edges, waited=waited, slowest_first=slowest_first)
        return self.known[key]

    def _mapped(
        self, sets: Sequence[Gpus], edges: Sequence[Edge], *, waited: bool, slowest_first: bool
    ) -> dict[Gpus, "Mapped"]:
        alike = len({weight for *_, weight in edges}) == 1 and len(edges) == comb(len(sets[0]), 2)
        every = np.array(sets)[
            :, [range(len(sets[0]))] if alike else orders(len(sets[0]))
        ]  # set, order, rank
        total = np.zeros(every.shape[:2], np.int64)
        slowest = np.full(every.shape[:2], ENDLESS if waited else 0, np.int64)
        heaviest = max(weight for _, _, weight in edges)
        for weight in {weight for _, _, weight in edges}:
            share = Fraction(weight) / Fraction(heaviest)
            gain = times(self.weight, share)
            speed = times(self.pairs, 1 / share)
            for a, b in ((a, b) for a, b, w in edges if w == weight):
                total += gain[every[:, :, a], every[:, :, b]]
                if waited:
                    slowest = np.minimum(slowest, speed[every[:, :, a], every[:, :, b]])
        first, then = (slowest, total) if slowest_first else (total, slowest)
        best = first == first.max(axis=1, keepdims=True)
        chosen = np.where(best, then, -1).argmax(axis=1)
        return {
            gpus: Mapped(tuple(map(int, every[i, j])), int(slowest[i, j]), int(total[i, j]))
            for i, (gpus, j) in enumerate(zip(sets, chosen, strict=True))
        }


class Mapped(NamedTuple):
    order: Gpus
    slowest: int
    total: int


def times(matrix: np.ndarray, factor: Fraction) -> np.ndarray:
    return np.array([[round(int(x) * factor) for x in row] for row in matrix], np.int64)


class Ranked(NamedTuple):
    """A candidate of the second implementation: indices in rank order, figures in 1e-6 GB/s."""

    gpus: Gpus
    aggregate: int | None
    effective: int | None
    preserved: int
    lasting: int
    together: int
    filling: Fraction
    cost: int


class Case(Record):
    """One placement to be decided; GPUs are indices."""

    machine: Machine
    free: list[int]
    admitted: list[int]
    count: int
    policy: str
    sensitive: bool
    pattern: Pattern
    needs: Needs = Needs()

    def problem(self) -> PlacementProblem:
        asked = as_dict(self)
        del asked["machine"], asked["policy"], asked["needs"]
        asked |= as_dict(self.needs)
        return PlacementProblem(self.machine.topology, model="cut", **asked)

    def ranked(self) -> list[Ranked]:
        """All sets that have what is needed, each with its best mapping, best first."""
        machine, edges = self.machine, self.pattern.edges(self.count)
        by = SCORES.get((self.policy, self.sensitive and bool(edges)), ())
        slowest_first = "aggregate" not in by or (
            "effective" in by and by.index("effective") < by.index("aggregate")
        )
        slowest_first |= self.needs.least_gb_per_s > 0  # a mapping that is fast enough comes first
        sets = list(combinations(sorted(machine.at[gpu] for gpu in self.admitted), self.count))
        collective = machine.bandwidth(sets) if edges and self.pattern.collective else {}
        waited = not self.pattern.collective
        ways = machine.mapped(sets, edges, waited=waited, slowest_first=slowest_first)
        found = []
        for gpus, mapped in ways.items():
            effective = collective.get(gpus, mapped.slowest) if edges else None
            if self.suits(gpus, effective):
                left = {machine.at[gpu] for gpu in self.free} - {*gpus}
                later = {*range(len(machine.indices))} - {*gpus}
                preserved = machine.inside(left)
                candidate = Ranked(
                    gpus=tuple(machine.indices[gpu] for gpu in mapped.order),
                    aggregate=mapped.total if edges else None,
                    effective=effective,
                    preserved=preserved,
                    lasting=preserved + machine.inside(later),
                    together=-len({machine.socket[gpu] for gpu in gpus}),
                    filling=self.filling(gpus),
                    cost=sum(machine.far[pair] for pair in combinations(gpus, 2)),
                )
                figures = {"effective": effective or 0, "aggregate": mapped.total}
                merit = [figures.get(name, getattr(candidate, name)) for name in by]
                found.append(([-figure for figure in merit], gpus != self.made(), gpus, candidate))
        return [candidate for *_, candidate in sorted(found, key=lambda entry: entry[:3])]

    def filling(self, gpus: Gpus) -> Fraction:
        """Minus the share of GPUs that stay free, mean over the sockets touched."""
        socket = self.machine.socket
        touched = {socket[gpu] for gpu in gpus}
        left = [
            socket[self.machine.at[gpu]] for gpu in self.free if self.machine.at[gpu] not in gpus
        ]
        return -sum(Fraction(left.count(one), socket.count(one)) for one in touched) / len(touched)

    def made(self) -> Gpus | None:
        """Return what a policy takes that fills socket after socket, within a group if it must."""
        if self.policy != "best_fit":
            return None
        socket, at = self.machine.socket, self.machine.at
        admitted = sorted(at[gpu] for gpu in self.admitted)
        groups = [
            [gpu for gpu in admitted if self.machine.indices[gpu] in group]
            for group in self.needs.within
        ]
        groups = [group for group in groups if len(group) >= self.count] or [admitted]
        full = Counter(socket[at[gpu]] for gpu in self.free)
        group = min(
            groups, key=lambda group: sum(full[one] for one in {socket[gpu] for gpu in group})
        )
        return tuple(
            sorted(sorted(group, key=lambda gpu: (full[socket[gpu]], socket[gpu]))[: self.count])
        )

    def suits(self, gpus: Gpus, effective: int | None) -> bool:
        needs, machine = self.needs, self.machine
        chosen = {machine.indices[gpu] for gpu in gpus}
        return (
            needs.required <= chosen
            and (not needs.within or any(chosen <= group for group in needs.within))
            and (
                not needs.nvlink
                or len(reached(gpus[0], gpus, lambda a, b: machine.nvlinks[a, b] > 0)) == len(gpus)
            )
            and (
                effective is None
                or not needs.least_gb_per_s
                or effective >= micro(needs.least_gb_per_s)
            )
        )


# ---------------------------------------------------------------------------------- random machines

CARDS = {
    "V100": V100,
    "H100": H100,
    "one NVLink slower than PCIe": card(1, "6.0", 5),
    "B200": card(5, "10.0", 5, 8),
}


def random_topology(rng: random.Random, count: int) -> Topology:
    """Draw GPUs with gaps in their indices, behind a switch or not, and few kinds of links."""
    has_gaps = count <= 12 and rng.random() < 0.5
    indices = sorted(rng.sample(range(12), count)) if has_gaps else [*range(count)]
    sockets = rng.choice((1, 2, 2, 3, 4))
    blocks = [i * sockets // count for i in range(count)]
    drawn = rng.choice((blocks, [rng.randrange(sockets) for _ in indices]))
    socket = dict(zip(indices, drawn, strict=True))
    members = rng.sample(indices, rng.choice((0, 0, 0, min(2, count), count // 2, count, count)))
    most = rng.choice((2, 2, 3))
    into_switch = {gpu: rng.choice((2, most)) for gpu in members if len(members) > 1}
    near = rng.choice(
        (("PIX",), ("PHB",), ("NODE",), ("PIX", "PHB"), ("PIX", "PXB", "PHB", "NODE"))
    )
    far = rng.choice((("SYS",), ("SYS",), ("SYS",), ("NODE", "SYS", "SYS")))
    nvlinks = rng.choice(((0,), (1,), (3,), (0, 1), (0, 0, 0, 1), (0, 1, 2), (0, 0, 1, 1, 2, 3)))
    only_within = rng.random() < 0.2
    card = CARDS[rng.choice(sorted(CARDS))]
    numa = rng.random() < 0.7
    instances = rng.sample(indices, rng.randrange(1, count + 1)) if rng.random() < 0.1 else ()
    gpus = [
        Gpu(
            index=index,
            uuid=f"GPU-{index}",
            model="test",
            memory_bytes=1 << 34,
            numa_node=socket[index] if numa else None,
            nvswitch_links=into_switch.get(index, 0),
            mig=Mig(index, f"GPU-{index}", 0, "1g.10gb") if index in instances else None,
            **card,
        )
        for index in indices
    ]

    def wire(a: int, b: int) -> Wiring:
        is_near = socket[a] == socket[b]
        links = rng.choice(nvlinks) if is_near or not only_within else 0
        path = rng.choice(near if is_near else far)
        return wiring(path, 0 if {a, b} <= into_switch.keys() else links)

    return wired_up(gpus, wire)


def random_pattern(rng: random.Random, ranks: int) -> Pattern:
    """Draw a shape, or a connected graph with weights."""
    shapes = [*PATTERNS.values(), PATTERNS["chain"], PATTERNS["star"], None, None, None]
    shape = rng.choice(shapes)
    if shape is not None or ranks == 1:
        return shape or PATTERNS["ring"]
    pairs = {(rng.randrange(b), b) for b in range(1, ranks)}
    pairs |= {tuple(sorted(rng.sample(range(ranks), 2))) for _ in range(rng.randrange(ranks))}
    weights = rng.choice(((1.0,), (1.0, 2.0, 4.0), (1.0, 3.0, 5.0, 10.0)))
    return Pattern(
        "given", False, ranks, tuple((a, b, rng.choice(weights)) for a, b in sorted(pairs))
    )


def random_needs(rng: random.Random, case: Case) -> Needs:
    """Mostly none, else one or two."""
    machine = case.machine
    label = rng.choice((machine.socket, [rng.randrange(3) for _ in machine.indices]))
    groups = [
        frozenset(gpu for gpu, own in zip(machine.indices, label, strict=True) if own == one)
        for one in set(label)
    ]
    kinds = rng.sample(("required", "within", "nvlink", "least", ""), 3)
    kinds = kinds[: rng.randrange(3)]
    fields: dict[str, Any] = {"nvlink": "nvlink" in kinds}
    if "required" in kinds:
        chosen = rng.sample(case.admitted, rng.randrange(1, case.count + 1))
        fields["required"] = frozenset(chosen)
    if "within" in kinds:
        fields["within"] = tuple(groups)
    if "least" in kinds and (ranked := case.ranked()):
        least = (rng.choice(ranked).effective or 0) / MICRO
        fields["least_gb_per_s"] = max(0.0, least + rng.choice((-0.5, 0.0, 0.0, 0.000001)))
    return Needs(**fields)


def random_case(rng: random.Random, machine: Machine, policy: str) -> Case:
    free = rng.sample(machine.indices, rng.randrange(1, min(8, len(machine.indices)) + 1))
    if rng.random() < 0.5:
        free = rng.sample(machine.indices, min(8, len(machine.indices)))
    admitted = rng.sample(free, rng.randrange(1, len(free) + 1)) if rng.random() < 0.3 else free
    count = min(rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8)), len(admitted))
    pattern = random_pattern(rng, count)
    case = Case(machine, free, admitted, count, policy, rng.random() < 0.6, pattern)
    return replace(case, needs=random_needs(rng, case))


# ---------------------------------------------------------------------------------------- the tests


POLICIES = ["baseline", "best_fit", "greedy", "preserve", "preserve_paper"]


def shown(found: Placement | None) -> tuple[Any, ...] | None:
    """Return what was found, as the second implementation has it."""
    if found is None:
        return None
    scores = found.scores
    exact = as_list(scores)[: field_names(Scores).index("fragmentation")]
    figures = [None if figure is None else micro(figure) for figure in exact]
    fragmentation, cost = round(scores.fragmentation, 9), scores.communication_cost
    return (found.gpus, *figures, scores.sockets, fragmentation, cost)


def wanted(ranked: Ranked) -> tuple[Any, ...]:
    filling = round(float(-ranked.filling), 9)
    return (*ranked[:5], -ranked.together, filling, ranked.cost)


@pytest.mark.parametrize("seed", range(24))
def test_policy_finds_what_trying_everything_finds(seed: int) -> None:
    """Each policy takes the set and mapping that its scores put first, or none if needs fail.

    Its ranking is in order of scores; what that leaves out is counted, and scores as one before it.
    What was asked before, by the same policy or another, does not matter, nor the order of GPUs.
    """
    rng = random.Random(seed)
    for _ in range(8):
        machine = Machine(random_topology(rng, rng.randrange(1, 11)))
        for policy in rng.sample(POLICIES, len(POLICIES)):
            case = random_case(rng, machine, policy)
            every = [wanted(ranked) for ranked in case.ranked()]
            assert shown(place(case.problem(), policy)) == (every[0] if every else None), case
            if case.needs == Needs(required=case.needs.required, within=case.needs.within):
                assert case.problem().candidates == len(every), case
            listed = [shown(candidate) for candidate in ranking(case.problem(), policy)]
            assert [candidate for candidate in every if candidate in listed] == listed, case
            before = set()
            for candidate in every:
                scores = candidate[1:-1]  # but the cost, which counts PCIe that no link uses, too
                before |= {scores} if candidate in listed else set()
                assert scores in before, (candidate, case)


@pytest.mark.parametrize("name", ["torus-2d-16", "dgx2", "random"])
def test_set_of_sixteen_is_the_best_of_all(name: str) -> None:
    """On machines of 16 GPUs preserve takes the best of all sets, with some GPUs busy."""
    rng = random.Random(name)
    machine = Machine(random_topology(rng, 16) if name == "random" else load(name))
    for sensitive in (True, False):
        free = rng.sample(range(16), rng.choice((13, 14, 16)))
        pattern = PATTERNS[rng.choice(("ring", "all_to_all"))]
        case = Case(machine, free, free, 3, "preserve", sensitive, pattern)
        assert shown(place(case.problem(), "preserve")) == wanted(case.ranked()[0])


def test_gpu_with_more_links_into_the_switch_is_not_alike() -> None:
    """Of two GPUs with the same links to all others the one with more into the switch is taken."""
    gpus = [
        replace(gpu, nvswitch_links=links)
        for gpu, links in zip(cards(5, **V100), (2, 3, 2, 2, 0), strict=True)
    ]
    direct = {(0, 4): 1, (1, 4): 1, (2, 4): 2, (3, 4): 2}
    machine = Machine(wired_up(gpus, lambda a, b: wiring("PHB", direct.get((a, b), 0))))
    case = Case(machine, [*range(5)], [*range(5)], 4, "preserve", True, PATTERNS["ring"])
    assert place(case.problem(), "preserve").gpus == (1, 2, 4, 3)
    assert wanted(case.ranked()[0])[0] == (1, 2, 4, 3)
