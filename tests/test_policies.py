"""Policies, held against a second implementation that tries everything.

The second implementation counts in tenths of a GB/s, so that its sums are exact, and takes nothing from the code under
test but the values that a test hands to both.
"""

import random
from collections.abc import Iterable
from itertools import combinations, permutations
from math import comb
from typing import NamedTuple

import pytest

from gpulaunch.core.hardware.gpu import Gpu
from gpulaunch.core.hardware.link import Wire, connect
from gpulaunch.core.hardware.topology import Topology
from gpulaunch.core.placement.policies import Choice, place, ranking
from gpulaunch.host.catalog import load_described_machine, load_profile

Pair = tuple[int, int]

NVLINK, NVLINK_PLANNED = 250, 200  # one link of version 2, tenths of a GB/s: as printed, and as NCCL plans with it
PCIE = {"PIX": 120, "PXB": 114, "PHB": 100, "NODE": 90, "SYS": 60}  # generation 3, 16 lanes


class Machine(NamedTuple):
    """What the second implementation knows: the wiring, by GPU index."""

    gpus: list[int]
    nvlinks: dict[Pair, int]
    switch_links: dict[int, int]
    path: dict[Pair, str]

    def topology(self) -> Topology:
        gpus = {
            index: Gpu(
                index=index,
                uuid=f"GPU-{index}",
                model="test",
                memory_bytes=1 << 34,
                compute_capability="7.0",
                pcie_generation=3,
                pcie_width=16,
                nvlink_version=2,
                nvswitch_links=self.switch_links.get(index, 0),
            )
            for index in self.gpus
        }
        links = tuple(
            connect(gpus[a], gpus[b], Wire(path, self.nvlinks.get((a, b), 0))) for (a, b), path in self.path.items()
        )
        return Topology("test", tuple(gpus.values()), links, "a test")

    def link_count(self, a: int, b: int) -> int:
        pair = min(a, b), max(a, b)
        return self.nvlinks.get(pair, 0) or min(self.switch_links.get(a, 0), self.switch_links.get(b, 0))

    def weight(self, a: int, b: int) -> int:
        return self.link_count(a, b) * NVLINK or PCIE[self.path[min(a, b), max(a, b)]]


def random_machine(rng: random.Random) -> Machine:
    """Up to ten GPUs, some indices missing, some behind a switch, the others joined by few kinds of links."""
    gpus = sorted(rng.sample(range(12), rng.randrange(3, 11)))
    members = rng.sample(gpus, rng.choice((0, 0, 2, len(gpus) // 2, len(gpus))))
    switch_links = {gpu: rng.choice((2, 2, 3)) for gpu in members} if len(members) > 1 else {}
    kinds = rng.choice(((0,), (0, 0, 0, 1), (0, 1, 2), (0, 0, 1, 1, 2, 3)))
    nvlinks, path = {}, {}
    for pair in combinations(gpus, 2):
        path[pair] = rng.choice(("PIX", "PXB", "PHB", "NODE", "SYS", "SYS"))
        if not set(pair) <= set(switch_links) and (links := rng.choice(kinds)):
            nvlinks[pair] = links
    return Machine(gpus, nvlinks, switch_links, path)


def all_pairs(machine: Machine, gpus: Iterable[int]) -> int:
    return sum(machine.weight(a, b) for a, b in combinations(gpus, 2))


def best_order(machine: Machine, gpus: tuple[int, ...], pattern: str) -> tuple[int | None, tuple[int, ...]]:
    """The pattern's bandwidth in the best order of the GPUs, and the first such order; None without an edge."""
    if pattern == "none" or len(gpus) == 1:
        return None, gpus
    if pattern == "all_to_all":
        return all_pairs(machine, gpus), gpus
    best, first = -1, gpus
    for order in permutations(gpus):
        total = sum(machine.weight(order[i], order[i + 1]) for i in range(len(order) - 1))
        if pattern == "ring" and len(order) > 2:
            total += machine.weight(order[-1], order[0])
        if total > best:
            best, first = total, order
    return best, first


def joined(machine: Machine, gpus: tuple[int, ...], pcie_from: float) -> bool:
    """Whether NVLink, together with PCIe of at least so much, connects the GPUs."""
    reached, new = {gpus[0]}, [gpus[0]]
    while new:
        a = new.pop()
        for b in set(gpus) - reached:
            if machine.link_count(a, b) or PCIE[machine.path[min(a, b), max(a, b)]] >= pcie_from:
                reached.add(b)
                new.append(b)
    return reached == set(gpus)


def cut(machine: Machine, gpus: tuple[int, ...]) -> int | None:
    """The narrowest way to divide the GPUs in two, or the widest PCIe that must be crossed where NVLink ends."""
    if len(gpus) == 1:
        return None
    if not joined(machine, gpus, float("inf")):
        return max(width for width in PCIE.values() if joined(machine, gpus, width))
    widths = []
    for size in range(1, len(gpus) // 2 + 1):
        for side in combinations(gpus, size):
            other = [gpu for gpu in gpus if gpu not in side]
            direct = sum(machine.nvlinks.get((min(a, b), max(a, b)), 0) for a in side for b in other)
            into_switch = [sum(machine.switch_links.get(gpu, 0) for gpu in part) for part in (side, other)]
            widths.append(direct + min(into_switch))
    return min(widths) * NVLINK_PLANNED


def mapa(machine: Machine, gpus: tuple[int, ...]) -> float | None:
    """mapa-sc21 Eq. 2 in tenths of a GB/s, over the links of the best ring."""
    if len(gpus) == 1:
        return None
    order = best_order(machine, gpus, "ring")[1]
    counts = [machine.link_count(order[i - 1], order[i]) for i in range(len(order) if len(order) > 2 else 1)]
    x, y, z = len([c for c in counts if c >= 2]), counts.count(1), counts.count(0)
    bandwidth = (
        16.396 * x
        + 4.536 * y
        + 1.556 * z
        - 20.694 / (x + 1)
        - 9.467 / (y + 1)
        + 7.615 / (z + 1)
        - 7.973 * x * y
        + 12.733 * y * z
        - 4.195 * z * x
        - 8.413 / (x * y + 1)
        + 62.851 / (y * z + 1)
        + 27.418 / (z * x + 1)
        - 5.114 * x * y * z
        - 46.973 / (x * y * z + 1)
    )
    return round(10 * bandwidth, 6)


MODELS = {"cut": cut, "mapa": mapa}


class Case(NamedTuple):
    """One placement to be decided."""

    machine: Machine
    free: list[int]
    admitted: list[int]
    count: int
    policy: str
    model: str
    sensitive: bool
    pattern: str

    def choice(self) -> Choice:
        return Choice(
            self.machine.topology(),
            free=self.free,
            admitted=self.admitted,
            count=self.count,
            pattern=self.pattern,
            sensitive=self.sensitive,
            model=self.model,
        )

    def scores(self, gpus: tuple[int, ...]) -> tuple[float | None, float | None, float]:
        """Aggregate, effective and preserved bandwidth in tenths of a GB/s."""
        return (
            best_order(self.machine, gpus, self.pattern)[0],
            MODELS[self.model](self.machine, gpus),
            all_pairs(self.machine, sorted(set(self.free) - set(gpus))),
        )

    def ranked(self) -> list[tuple[int, ...]]:
        """All sets of the right size, best first; what is equal stays in order of indices."""

        def merit(gpus: tuple[int, ...]) -> list[float]:
            aggregate, effective, preserved = self.scores(gpus)
            if aggregate is None:
                aggregate = all_pairs(self.machine, gpus)
            if self.policy == "greedy":
                return [aggregate]
            if self.policy == "preserve":
                return (
                    [effective, preserved, aggregate] if self.sensitive and self.count > 1 else [preserved, aggregate]
                )
            return []

        candidates = list(combinations(sorted(self.admitted), self.count))
        return sorted(candidates, key=merit, reverse=True)  # a reversed sort keeps equals in their order too


def random_case(seed: str, policy: str, model: str, sensitive: bool, pattern: str) -> Case:
    rng = random.Random(seed)
    machine = random_machine(rng)
    free = rng.sample(machine.gpus, rng.randrange(1, min(8, len(machine.gpus)) + 1))
    admitted = rng.sample(free, rng.randrange(1, len(free) + 1)) if rng.random() < 0.4 else free
    count = min(rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8)), len(admitted))
    return Case(machine, free, admitted, count, policy, model, sensitive, pattern)


def gb_per_s(tenths: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else pytest.approx(value / 10, abs=1e-6) for value in tenths]


@pytest.mark.parametrize("pattern", ["ring", "chain", "all_to_all", "none"])
@pytest.mark.parametrize("sensitive", [True, False], ids=["sensitive", "insensitive"])
@pytest.mark.parametrize("model", ["cut", "mapa"])
@pytest.mark.parametrize("policy", ["baseline", "greedy", "preserve"])
@pytest.mark.parametrize("seed", range(10))
def test_policy_finds_what_trying_everything_finds(
    seed: int, policy: str, model: str, sensitive: bool, pattern: str
) -> None:
    """Each policy takes the set that its scores put first, maps it best, and ranks all sets likewise."""
    case = random_case(f"{seed} {policy} {model} {sensitive} {pattern}", policy, model, sensitive, pattern)
    want = case.ranked()
    placement = place(case.choice(), policy)
    assert placement.gpus == best_order(case.machine, want[0], pattern)[1]
    assert list(placement.scores) == gb_per_s(case.scores(want[0]))
    assert placement.candidates == comb(len(case.admitted), case.count)
    ranked = ranking(case.choice(), policy, len(want))
    assert [gpus for gpus, _ in ranked] == want
    assert [list(scores) for _, scores in ranked] == [gb_per_s(case.scores(gpus)) for gpus in want]


def test_cases_cover_what_they_should() -> None:
    """The random cases hold ties, constraints, every size, NVLink parts that PCIe joins, and mixed switches."""
    seen = set()
    for seed in range(480):
        case = random_case(str(seed), "preserve", "cut", sensitive=True, pattern="ring")
        ranked = case.ranked()
        seen.add(f"{case.count} GPUs")
        if len(ranked) > 1 and case.scores(ranked[0]) == case.scores(ranked[1]):
            seen.add("tied")
        if len(case.admitted) < len(case.free):
            seen.add("constrained")
        if not joined(case.machine, ranked[0], float("inf")):
            seen.add("over PCIe")
        behind = set(ranked[0]) & set(case.machine.switch_links)
        if len(behind) > 1 and behind < set(ranked[0]) and joined(case.machine, ranked[0], float("inf")):
            seen.add("partly behind a switch")
    assert seen == {*(f"{n} GPUs" for n in range(1, 9)), "tied", "constrained", "over PCIe", "partly behind a switch"}


def dgx1_choice(count: int, *, pattern: str = "ring", sensitive: bool, free: Iterable[int] = range(8)) -> Choice:
    topology, _ = load_described_machine("dgx1-v100")
    free = list(free)
    return Choice(topology, free=free, admitted=free, count=count, pattern=pattern, sensitive=sensitive, model="cut")


def test_vgg16_on_an_idle_dgx1() -> None:
    """Three GPUs for vgg16 on an idle DGX-1 V100 are 0, 2 and 3: effective 60, preserved 311, aggregate 125 GB/s."""
    vgg16 = load_profile("vgg16")
    placement = place(dgx1_choice(3, pattern=vgg16.pattern, sensitive=vgg16.bandwidth_sensitive), "preserve")
    assert placement.gpus == (0, 2, 3)
    assert placement.scores == (125, 60, 311)
    assert placement.candidates == 56


@pytest.mark.parametrize(
    ("sentence", "policy", "sensitive", "want"),
    [
        ("baseline takes the lowest indices", "baseline", True, ()),
        ("greedy looks at the pattern's links alone", "greedy", True, ("aggregate_bandwidth",)),
        (
            "a sensitive job comes first, then those after it",
            "preserve",
            True,
            ("effective_bandwidth", "preserved_bandwidth", "aggregate_bandwidth"),
        ),
        (
            "an insensitive job spares the links, then stays compact",
            "preserve",
            False,
            ("preserved_bandwidth", "aggregate_bandwidth"),
        ),
    ],
)
def test_scores_that_decide(sentence: str, policy: str, sensitive: bool, want: tuple[str, ...]) -> None:
    """A placement names the scores that decided it, in order of weight."""
    assert place(dgx1_choice(3, sensitive=sensitive), policy).by == want, sentence


@pytest.mark.parametrize("free", [range(8), (0, 1, 2, 3, 7), (1, 4, 5, 6)])
def test_one_gpu_is_insensitive(free: Iterable[int]) -> None:
    """A single GPU has no link to be sensitive about: it goes where it spoils least for others."""
    asked = dgx1_choice(1, sensitive=True, free=free)
    assert asked.sensitive is False
    placement = place(asked, "preserve")
    assert placement == place(dgx1_choice(1, sensitive=False, free=free), "preserve")
    assert placement.by == ("preserved_bandwidth", "aggregate_bandwidth")
    assert placement.scores[:2] == (None, None)


def test_insensitive_jobs_without_a_pattern_stay_compact() -> None:
    """Where two sets preserve the same, a job without traffic takes the one with more bandwidth inside."""
    # 1 and 2 are joined by NVLink; whichever two of the three are taken, the one that is left preserves nothing.
    path = dict.fromkeys(combinations(range(3), 2), "SYS")
    machine = Machine([0, 1, 2], {(1, 2): 2}, {}, path)
    case = Case(machine, [0, 1, 2], [0, 1, 2], 2, "preserve", "cut", sensitive=False, pattern="none")
    assert place(case.choice(), "preserve").gpus == (1, 2)
