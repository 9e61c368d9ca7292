"""Costs, utility and placements of topology-aware policies, each against trying everything."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain, combinations, permutations
from math import comb, sqrt
from typing import NamedTuple

import pytest
from values import V100, cards, cases, posed, wired_up, wiring
from values import machine as load

from gpulaunch.decide.decision import weights_of
from gpulaunch.decide.needs import mean_slowdown
from gpulaunch.errors import UsageError
from gpulaunch.machine.link import Wiring
from gpulaunch.machine.topology import Topology, distances, machine_tree
from gpulaunch.placement.policies import place
from gpulaunch.placement.problem import MOST_SETS, Weights
from gpulaunch.placement.topo_aware import Valuation, cut_in_two, job_weights, place_tasks, utility
from gpulaunch.records import as_list


class Machine(NamedTuple):
    """GPUs, the socket of each, and how far apart they are."""

    topology: Topology
    socket_of: dict[int, int]
    far: dict[tuple[int, int], int]

    @property
    def gpus(self) -> list[int]:
        return sorted(self.socket_of)

    @property
    def total(self) -> Counter[int]:
        return Counter(self.socket_of.values())

    def value(self, ranks, free=None, *, noise=None, weights=None, edges=None, begun=None):
        """Return what a job is worth, all-to-all unless it has edges, beside noisy sockets."""
        free = self.gpus if free is None else free
        slowdown = {gpu: (noise or {}).get(self.socket_of[gpu], 0.0) for gpu in self.gpus}
        problem = posed(self.topology, ranks, free=free, slowdown=slowdown, begun=begun)
        problem.edges = all_to_all(ranks) if edges is None else edges
        worst = max(0.1, *(slowdown[gpu] for gpu in free))
        return Valuation(problem, weights or Weights(), worst)

    def place(self, ranks, free=None, **job):
        """Return place_tasks' answer."""
        return place_tasks(self.value(ranks, free, **job), self.gpus if free is None else free)

    def costs(self, gpus):
        value = self.value(len(gpus))
        return value.costs(gpus, value.distance(gpus))


def all_to_all(ranks: int) -> list[tuple[int, int, float]]:
    return [(a, b, 1.0) for a, b in combinations(range(ranks), 2)]


def described(name: str) -> Machine:
    return laid_out(load(name))


def laid_out(topology: Topology) -> Machine:
    tree = machine_tree(topology)
    sockets = {gpu: i for i, socket in enumerate(tree.sockets) for gpu in socket.gpus}
    far = {(a, b): way for a, row in distances(topology, tree).items() for b, way in row.items()}
    return Machine(topology, sockets, far)


SOCKETS = ("power8-minsky", "summit", "dgx1-v100", "pcie-8gpu-workstation")
MACHINES = {
    name: described(name) for name in (*SOCKETS, "dgx-a100", "cube-mesh-16", "torus-2d-16", "dgx2")
}
MINSKY, DGX1, PCIE8 = (
    MACHINES["power8-minsky"],
    MACHINES["dgx1-v100"],
    MACHINES["pcie-8gpu-workstation"],
)


# Costs and utility


WRONG = {
    (1, -1, 0): "weight of interference: asked for -1, a weight is 0 or more",
    (float("inf"), 0, 1): "weight of communication: asked for inf, a weight is 0 or more",
    (0, 0, 0): "weights of communication, interference and fragmentation: all are 0, one must be "
    "more",
}


@pytest.mark.parametrize("weights", WRONG)
def test_wrong_weights(weights):
    """Weights that are negative, no numbers, or all nothing are refused by name."""
    with pytest.raises(UsageError) as caught:
        weights_of(*weights)
    assert caught.value.message == WRONG[weights]


def test_interference():
    """Interference is the mean slowdown of all affected, in which less than 2 % is none.

    Equation 4, mended.
    """
    assert [mean_slowdown(case) for case in ([], [0.019], [0.02], [0.3, 0.0], [-0.1, 0.5])] == [
        0,
        0,
        0.02,
        0.15,
        0.25,
    ]


def test_thresholds_of_table_1():
    """With 0.3 and 0.5 a split pair waits, a packed one starts; 5 % of interference is bearable.

    That of 40 % is not. What fragmentation weighs, which is no business of a job, goes to the
    others in equal parts.
    """
    weights = job_weights(Weights())
    packed, split = (utility(MINSKY.costs(gpus), weights) for gpus in ([0, 1], [0, 2]))
    noisy = [round(utility((0, slowdown, 0), weights), 2) for slowdown in (0.05, 0.2, 0.4)]
    assert (packed, round(split, 2), noisy) == (1.0, 0.18, [0.62, 0.37, 0.27])
    weights = job_weights(weights_of(0, 0, 1))
    assert [utility((0.25, 0, cost), weights) for cost in (0.0, 1.0)] == [
        pytest.approx(0.1 / (0.5 * 0.5 + 0.5 * 0.1))
    ] * 2


@pytest.mark.parametrize("name", SOCKETS)
def test_idle_machine_is_never_waited_for(name):
    """On an idle machine a job of any size finds a placement that reaches a threshold of 0.5."""
    machine = MACHINES[name]
    for ranks in range(1, len(machine.gpus) + 1):
        gpus = machine.place(ranks)
        assert utility(machine.costs(gpus), job_weights(Weights())) >= 0.5, ranks


# Dual recursive bipartitioning


class Case(NamedTuple):
    """A placement to be decided, with its objective written down once more."""

    name: str
    free: list[int]
    ranks: int
    noise: dict[int, float]
    weights: Weights

    edges: list[tuple[int, int, float]] | None = None  # all-to-all
    begun: dict[int, int] | None = None

    def far(self, gpus: Sequence[int]) -> float:
        """Return the mean distance over edges."""
        edges = all_to_all(self.ranks) if self.edges is None else self.edges
        ways = sum(weight * MACHINES[self.name].far[gpus[a], gpus[b]] for a, b, weight in edges)
        return ways / (sum(weight for *_, weight in edges) or 1)

    def use(self, gpus: Sequence[int]) -> float:
        machine = MACHINES[self.name]
        low, high = span(self.name, self.ranks)
        t = min(1.0, max(0.0, (self.far(gpus) - low) / ((high - low) or 1)))
        noise = {gpu: self.noise.get(machine.socket_of[gpu], 0.0) for gpu in self.free}
        i = sum(noise[gpu] for gpu in gpus) / len(gpus) / max(0.1, *noise.values(), 0.0)
        stays = Counter(machine.socket_of[gpu] for gpu in self.free if gpu not in gpus)
        touched = {machine.socket_of[gpu] for gpu in gpus}
        w = sum(stays[socket] / machine.total[socket] for socket in touched) / len(touched)
        costs = zip(as_list(self.weights), (t, i, w), strict=True)
        return round(0.1 / sum(weight * max(0.1, sqrt(cost)) for weight, cost in costs), 9)

    def value(self) -> Valuation:
        return MACHINES[self.name].value(
            self.ranks,
            self.free,
            noise=self.noise,
            weights=self.weights,
            edges=self.edges,
            begun=self.begun,
        )

    def answer(self) -> tuple[int, ...]:
        return place_tasks(self.value(), self.free)

    def best(self) -> tuple[int, ...]:
        """Return the best of all sets in all orders of ranks: of equals the first."""
        tried = (
            gpus for held in combinations(self.free, self.ranks) for gpus in permutations(held)
        )
        return max(
            tried,
            key=lambda gpus: (
                self.use(gpus),
                -round(self.far(gpus), 9),
                sum((self.begun or {}).get(gpu, 0) for gpu in gpus),
            ),
        )


@cache
def span(name: str, ranks: int) -> tuple[float, float]:
    """Return the least and the largest mean distance of as many GPUs."""
    machine = MACHINES[name]
    means = [
        sum(machine.far[pair] for pair in combinations(s, 2)) / (comb(ranks, 2) or 1)
        for s in combinations(machine.gpus, ranks)
    ]
    return min(means), max(means)


def random_case(name: str, seed: int) -> Case:
    chance, gpus = random.Random(f"{name} {seed}"), MACHINES[name].gpus
    free = sorted(chance.sample(gpus, chance.randint(1, min(len(gpus), 12))))
    noise = {socket: chance.choice([0, 0, 0.1, 0.3]) for socket in MACHINES[name].total}
    drawn = weights_of(chance.random(), chance.random(), chance.random())
    weights = chance.choice(
        [Weights(), Weights(), weights_of(1, 0, 0), weights_of(0, 1, 0), weights_of(0, 0, 1), drawn]
    )
    return Case(name, free, chance.randint(1, min(len(free), 6)), noise, weights)


def drawn_edges(chance: random.Random, ranks: int) -> list[tuple[int, int, float]]:
    """Draw a ring, a chain, an all-to-all, a star, or a graph with weights."""
    chain = [(a, a + 1, 1.0) for a in range(ranks - 1)]
    ring = [*chain, (0, ranks - 1, 1.0)] if ranks > 2 else chain
    star = [(0, a, 1.0) for a in range(1, ranks)]
    pairs = list(combinations(range(ranks), 2))
    some = chance.sample(pairs, chance.randint(0, len(pairs)))
    graph = [(a, b, chance.choice([0.1, 1.0, 3.0, chance.random()])) for a, b in some]
    return chance.choice([ring, chain, all_to_all(ranks), star, graph])


@pytest.mark.parametrize("name", [*SOCKETS, "cube-mesh-16", "torus-2d-16"])
def test_against_every_placement(name):
    """A ring, chain, star or any graph gets the best of all sets and mappings, the first one."""
    machine = MACHINES[name]
    for seed in range(12):
        chance = random.Random(f"{name} {seed}")
        free = sorted(chance.sample(machine.gpus, chance.randint(1, min(len(machine.gpus), 8))))
        ranks = chance.randint(1, min(len(free), 5 if len(free) < 7 else 4))
        case = random_case(name, seed)._replace(
            free=free, ranks=ranks, edges=drawn_edges(chance, ranks)
        )
        if seed % 2:
            case = case._replace(begun={gpu: machine.socket_of[gpu] for gpu in machine.gpus})
        assert (case, case.answer()) == (case, case.best())


MISSED = [("dgx1-v100", 0), ("summit", 1), ("dgx-a100", 3), ("torus-2d-16", 1), ("dgx2", 1)]


@pytest.mark.parametrize(("name", "often"), MISSED)
def test_the_published_algorithm_alone(name, often):
    """Algorithms 2 and 3 once, from the top, miss the best of 25 sets now and then."""
    worse = 0
    for case in (random_case(name, seed) for seed in range(25)):
        gpus = cut_in_two(case.value(), case.free)
        assert len(set(gpus) & set(case.free)) == case.ranks
        worse += case.use(gpus) < case.use(case.answer())
    assert worse == often


def test_only_what_is_allowed():
    """The best of the sets that will do is taken; if none will, there is none."""
    for seed in range(20):
        chance = random.Random(seed)
        value = DGX1.value(3, edges=drawn_edges(chance, 3))
        allowed = chance.sample([frozenset(c) for c in combinations(DGX1.gpus, 3)], 5)
        tried = chain.from_iterable(permutations(sorted(chosen)) for chosen in allowed)
        got = place_tasks(value, DGX1.gpus, lambda gpus, ok=allowed: frozenset(gpus) in ok)
        want = max(value.worth_of(gpus) for gpus in tried)
        assert (value.worth_of(got), frozenset(got) in allowed) == (want, True)
    assert place_tasks(DGX1.value(3), DGX1.gpus, lambda _: False) is None


def test_what_is_not_all_tried():
    """Of too many sets it is what the algorithm as published makes, if that will do."""
    wire = lambda a, b: wiring("NODE" if a // 2 == b // 2 else "SYS", 1)  # noqa: E731
    rack = laid_out(wired_up(cards(24, **V100), wire))
    assert comb(24, 8) > MOST_SETS
    value = rack.value(8)
    assert place_tasks(value, rack.gpus) == cut_in_two(value, rack.gpus)
    assert place_tasks(value, rack.gpus, lambda _: False) is None


@pytest.mark.parametrize(
    ("policy", "gpus", "utility"),
    [("topo_aware", (1, 3, 7, 5), 1.0), ("topo_aware_drb", (3, 2, 1, 7), 0.28)],
)
def test_the_published_algorithm_is_a_policy(policy, gpus, utility):
    """A ring of four on a DGX-1 V100 finds its one cycle of NVLinks, and as published does not."""
    found = place(posed(load("dgx1-v100"), 4, free=(1, 2, 3, 4, 5, 7)), policy)
    assert (found.gpus, round(found.utility, 2)) == (gpus, utility)


TIMELINE = {
    "a first job of one GPU takes the first": (1, [0, 1, 2, 3], {}, (0,)),
    "a second one that the first disturbs by 7 % goes to the other socket": (
        *(1, [1, 2, 3], {0: 0.067}),
        (2,),
    ),
    "one that is not disturbed leaves a socket whole": (1, [1, 2, 3], {}, (1,)),
    "a job goes beside what disturbs it less": (1, [1, 3], {0: 0.1, 1: 0.03}, (3,)),
    "a pair is packed in the socket that became free": (2, [0, 1, 3], {}, (0, 1)),
    "where each socket has one GPU left, a pair is split": (2, [1, 3], {}, (1, 3)),
}


@cases(TIMELINE, "ranks", "free", "noise", "want")
def test_timeline(ranks, free, noise, want):
    """Each decision of the paper's Minsky timeline is made, at equal weights with its slowdowns."""
    assert MINSKY.place(ranks, free, noise=noise) == want


def test_groups_of_a_large_job():
    """Of 32 tasks, 8 groups of four heavy talkers get a socket each, though all talk a little."""

    def wire(a: int, b: int) -> Wiring:
        return wiring("NODE", 1) if a // 4 == b // 4 else wiring("SYS")

    machine = laid_out(wired_up(cards(32, **V100), wire))
    pairs = list(combinations(range(32), 2))
    heavy = [(a, b, 10.0) for a, b in pairs if a % 8 == b % 8]
    gpus = machine.place(
        32, edges=[(a, b, 0.1) for a, b in pairs if a % 8 != b % 8 and (a + b) % 3 == 0] + heavy
    )
    assert {machine.far[gpus[a], gpus[b]] for a, b, _ in heavy} == {1}
