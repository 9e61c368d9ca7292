"""The parts of the search for the best placement, each held against trying everything."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import pytest
from test_policies import CARDS, random_pattern, random_topology

from gpulaunch.decide.placement.candidates import Limits, enumerate_sets
from gpulaunch.decide.placement.effective import cut, most_cut
from gpulaunch.decide.placement.embedding import Embedding
from gpulaunch.decide.placement.expected import (
    DEFAULT_SIZES,
    JobSizes,
    expected_bandwidths,
    expected_of,
)
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.decide.placement.mapping import Mapper
from gpulaunch.decide.placement.search import Criterion, best_set, ranked
from gpulaunch.decide.placement.traffic import Traffic
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS

# ------------------------------------------------------------------------------------- embedding.py


def embeddings() -> Iterator[tuple[random.Random, Traffic, int, int]]:
    """Draw patterns of 2 to 5 ranks over machines of up to 7 GPUs, with a floor and a set."""
    rng = random.Random("embeddings")
    for _ in range(300):
        fabric = Fabric(random_topology(rng, rng.randrange(2, 8)))
        ranks = rng.randrange(2, min(5, len(fabric.gpus)) + 1)
        speeds = [rng.randrange(1, 5) for _ in fabric.kinds[:-1]]
        traffic = Traffic(fabric, random_pattern(rng, ranks).edges(ranks), [*speeds, 0])
        if traffic.edges:
            members = rng.sample(
                range(len(fabric.gpus)), rng.randrange(ranks, len(fabric.gpus) + 1)
            )
            yield rng, traffic, rng.choice(traffic.floors), fabric.mask(members)


def slowest(traffic: Traffic, gpus: Sequence[int]) -> int:
    return traffic.figures(gpus).slowest


def test_fits_where_some_mapping_does() -> None:
    """A pattern fits a set if and only if a mapping to GPUs of it has no edge below the floor."""
    seen = set()
    for _, traffic, floor, mask in embeddings():
        every = permutations(traffic.fabric.positions(mask), traffic.ranks)
        want = any(slowest(traffic, gpus) >= floor for gpus in every)
        assert Embedding(traffic, floor).fits(mask, 10**9) == want, (traffic.edges, floor, mask)
        seen.add(want)
    assert seen == {True, False}


def test_mapping_that_fits_is_one() -> None:
    """The mapping that was found has every rank on its own GPU, and no edge below the floor."""
    for _, traffic, floor, mask in embeddings():
        embedding = Embedding(traffic, floor)
        if embedding.fits(mask, 10**9):
            gpus = embedding.find(mask)
            assert len({*gpus}) == traffic.ranks
            assert {*gpus} <= {*traffic.fabric.positions(mask)}
            assert slowest(traffic, gpus) >= floor


def test_little_effort_says_no_at_worst() -> None:
    """With little effort a pattern fits only where it does, and little more is tried than asked."""
    gave_up = 0
    for rng, traffic, floor, mask in embeddings():
        effort = rng.randrange(5)
        hasty, thorough = Embedding(traffic, floor), Embedding(traffic, floor)
        found, truth = hasty.fits(mask, effort), thorough.fits(mask, 10**9)
        assert truth or not found
        assert hasty.steps <= effort + traffic.ranks
        gave_up += truth and not found
    assert gave_up


# --------------------------------------------------------------------------------------- traffic.py


@pytest.mark.parametrize("name", ["ring", "chain", "star", "tree", "stencil_2d", "stencil_3d"])
@pytest.mark.parametrize("ranks", [2, 4, 6, 7, 8])
def test_what_turns_looks_alike_from_every_rank(name: str, ranks: int) -> None:
    """If a pattern turns, then some renaming of it onto itself brings any rank to rank 0."""
    fabric = Fabric(random_topology(random.Random(0), 8))
    traffic = Traffic(fabric, PATTERNS[name].edges(ranks))
    edges = {(a, b) for a, b, _ in traffic.edges}
    if traffic.turns:
        first = {
            names.index(0)
            for names in permutations(range(ranks))
            if all((min(names[a], names[b]), max(names[a], names[b])) in edges for a, b in edges)
        }
        assert first == {*range(ranks)}
    assert traffic.connected.turns == traffic.turns
    assert traffic.turns or (name, ranks) not in {("ring", 7), ("stencil_2d", 4), ("stencil_3d", 8)}


def test_turns_lose_no_mapping() -> None:
    """A cube of ranks fits where it fits without its turns, and its best mapping is the same."""
    rng, seen = random.Random("turns"), set()
    edges = PATTERNS["stencil_3d"].edges(8)
    for _ in range(12):
        fabric = Fabric(random_topology(rng, 9))
        gpus = rng.sample(range(9), 8)
        speeds = [*(rng.randrange(1, 4) for _ in fabric.kinds[:-1]), 0]
        turning, still = Traffic(fabric, edges, speeds), Traffic(fabric, edges, speeds)
        still.turns = False
        for floor in turning.floors:
            fits, want = (
                Embedding(traffic, floor).fits(511, 10**9) for traffic in (turning, still)
            )
            assert fits == want
            seen.add(want)
        for slowest_first in (True, False):
            found, want = (
                Mapper(traffic).best(sorted(gpus), slowest_first=slowest_first)
                for traffic in (turning, still)
            )
            assert found == want
    assert seen == {True, False}


# ---------------------------------------------------------------------------------------- search.py

Figures = list[dict[int, int]]


def figures() -> Iterator[tuple[random.Random, list[int], Figures]]:
    """Draw sets with up to three figures of few values, so that most are tied."""
    rng = random.Random("figures")
    for _ in range(300):
        masks = rng.sample(range(64), rng.randrange(1, 20))
        yield (
            rng,
            masks,
            [{mask: rng.randrange(-3, 3) for mask in masks} for _ in range(rng.randrange(4))],
        )


def in_order(masks: Sequence[int], by: Figures) -> list[int]:
    """Sort sets by all figures; of equals the larger mask has the lower indices."""
    return sorted(masks, key=lambda mask: (*(one[mask] for one in by), mask), reverse=True)


def test_best_set_is_first_by_all_figures() -> None:
    """The best set has the most of the first figure, of equals the next, then lowest indices."""
    for _, masks, by in figures():
        assert best_set(masks, [Criterion(one.__getitem__) for one in by]) == in_order(masks, by)[0]


def test_ranked_is_that_order() -> None:
    """Sets are ranked as sorting by all figures ranks them, each of them once."""
    for _, masks, by in figures():
        assert [*ranked(masks, [Criterion(one.__getitem__) for one in by])] == in_order(masks, by)


def test_bound_changes_nothing() -> None:
    """Figures with any bounds, which are tightened at once or in steps, find the same best set."""
    for rng, masks, by in figures():
        criteria = []
        for one in by:
            bound = {mask: figure + rng.choice((0, 0, 1, 5)) for mask, figure in one.items()}

            def tighten(mask: int, most: int, one: dict[int, int] = one) -> int:
                return max(one[mask], most - 1)

            limit = rng.choice((None, bound.__getitem__))
            step = rng.choice((None, tighten)) if limit else None
            criteria.append(Criterion(one.__getitem__, limit, step))
        assert best_set(masks, criteria) == in_order(masks, by)[0], (by, criteria)


def test_bounds_are_bounds() -> None:
    """No cut of a set is above its bound, nor any total; the bound of cuts is met."""
    rng = random.Random("bounds")
    met = False
    for _ in range(60):
        fabric = Fabric(random_topology(rng, rng.randrange(2, 8)))
        masks = [mask for mask in range(1 << len(fabric.gpus)) if mask.bit_count() > 1]
        for mask in rng.sample(masks, min(20, len(masks))):
            gpus = fabric.positions(mask)
            most, value = most_cut(fabric, mask), cut(fabric, gpus)
            assert value <= most, (gpus, fabric.text)
            met = met or value == most
            traffic = Traffic(fabric, random_pattern(rng, len(gpus)).edges(len(gpus)))
            if traffic.edges:
                total = Mapper(traffic).total(gpus, slowest_first=False)
                assert total <= traffic.most_total(gpus), (traffic.edges, gpus, fabric.text)
    assert met


# ------------------------------------------------------------------------------------ candidates.py


def renamings(fabric: Fabric, free: int, limits: Limits) -> list[list[int]]:
    """Return all ways to rename GPUs that change no link, no limit and no free GPU's socket."""
    every = range(len(fabric.gpus))
    masks = (free, limits.admitted, limits.required, *limits.groups)
    masks += tuple(group for group, _ in limits.at_most)
    own = [
        (
            fabric.into_switch[gpu],
            fabric.nvls[gpu],
            fabric.socket_size[fabric.socket[gpu]],
            *(bool(fabric.bit[gpu] & mask) for mask in masks),
        )
        for gpu in every
    ]
    idle = fabric.positions(free)

    def changes_nothing(name: Sequence[int]) -> bool:
        socket = fabric.socket
        return (
            all(own[name[a]] == own[a] for a in every)
            and all(
                fabric.kind[name[a]][name[b]] == fabric.kind[a][b] for a in every for b in every
            )
            and all(
                (socket[name[a]] == socket[name[b]]) == (socket[a] == socket[b])
                for a, b in combinations(idle, 2)
            )
        )

    return [list(name) for name in permutations(every) if changes_nothing(name)]


def behind_a_switch(rng: random.Random, count: int) -> Topology:
    """Draw GPUs that are all alike but for their sockets."""
    socket = [rng.randrange(3) for _ in range(count)]
    gpus = tuple(
        Gpu(i, f"GPU-{i}", "test", 1 << 34, socket[i], nvswitch_links=2, **CARDS["V100"])
        for i in range(count)
    )
    links = wired(gpus, lambda a, b: Wire("PHB" if socket[a] == socket[b] else "SYS"))
    return Topology("test", gpus, links, "a test")


def limits_of(rng: random.Random, fabric: Fabric, free: list[int], count: int) -> Limits:
    """Draw limits: mostly none."""
    every = fabric.mask(range(len(fabric.gpus)))
    admitted = rng.sample(free, rng.choice((count, len(free), len(free))))
    some = fabric.mask(rng.sample(admitted, rng.randrange(len(admitted) + 1)))
    required = rng.sample(admitted, rng.choice((0, 0, 1)))
    groups = (fabric.mask(admitted),)
    if not required and rng.random() < 0.2:
        groups = (some, groups[0] & ~some)
    return Limits(
        admitted=fabric.mask(admitted),
        required=fabric.mask(required),
        groups=groups,
        at_most=((every & ~some, rng.randrange(3)),) if rng.random() < 0.2 else (),
    )


def test_set_that_is_left_out_is_alike_to_one_that_is_not() -> None:
    """Of all sets that keep the limits, those left out are others with their GPUs renamed."""
    rng = random.Random("candidates")
    left_out = 0
    for _ in range(500):
        draw = rng.choice((random_topology, behind_a_switch))
        fabric = Fabric(draw(rng, rng.randrange(4, 7)))
        free = rng.sample(range(len(fabric.gpus)), len(fabric.gpus) - rng.randrange(3))
        count = rng.randrange(1, len(free) + 1)
        limits = limits_of(rng, fabric, free, count)
        kept = enumerate_sets(fabric, fabric.mask(free), count, limits)
        assert kept is not None
        every = [fabric.mask(gpus) for gpus in combinations(range(len(fabric.gpus)), count)]
        allowed = {mask for mask in every if limits.allow(mask)}
        assert {*kept} <= allowed
        assert len({*kept}) == len(kept)
        if allowed != {*kept}:
            names = renamings(fabric, fabric.mask(free), limits)
            for mask in allowed - {*kept}:
                left_out += 1
                alike = {fabric.mask(name[gpu] for gpu in fabric.positions(mask)) for name in names}
                # the one that is kept has the lower indices, so that ties fall to it
                assert max(alike & {*kept}, default=0) > mask, (mask, kept, free, limits)
    assert left_out > 300


# -------------------------------------------------------------------------------------- expected.py


@pytest.mark.parametrize(
    ("sentence", "machine", "gpus", "shares", "want"),
    [
        # V100's NVLinks carry 20 GB/s as NCCL plans, PCIe 12 there. Two double links join pairs.
        ("philly on all of it: 0.1 x 40 + 0.15 x 80 + 0.05 x 120", "dgx1-v100", range(8), None, 22),
        ("a quad: 0.1 x 40 + 0.15 x 80", "dgx1-v100", range(4), None, 16),
        ("without its best pair: 0.1 x 20", "dgx1-v100", (0, 1), None, 2),
        ("two that only PCIe joins: 0.1 x 12", "dgx1-v100", (0, 5), None, 1.2),
        ("one GPU", "dgx1-v100", (3,), None, 0),
        ("none", "dgx1-v100", (), None, 0),
        ("a socket, pairs and threes: 0.5 x 40 + 0.5 x 80", "summit", range(3), (2, 3), 60),
        ("two of it, no three: 0.5 x 40", "summit", (0, 1), (2, 3), 20),
        ("one of each socket: 0.5 x 12", "summit", (0, 3), (2, 3), 6),
        ("four have to leave NVLink: 12", "summit", range(6), (4,), 12),
    ],
)
def test_expected_bandwidth_by_hand(
    sentence: str, machine: str, gpus: Sequence[int], shares: tuple[int, ...] | None, want: float
) -> None:
    """The mean over the sizes of jobs, of the best of so many of the GPUs, is what hands find."""
    fabric = Fabric(load_described_machine(machine)[0])
    sizes = DEFAULT_SIZES
    if shares:
        sizes = JobSizes("test", tuple((size, 1 / len(shares)) for size in shares))
    found = expected_bandwidths(fabric, sizes)[fabric.mask(gpus)] / UNIT
    assert found == pytest.approx(want), sentence


@pytest.mark.parametrize(
    ("machine", "want"), [("summit", True), ("torus-2d-16", False), ("dgx-h100", False)]
)
def test_expected_bandwidth_is_known(machine: str, want: bool) -> None:
    """It is known on machines of up to 8 GPUs whose links are of more than one kind."""
    fabric = Fabric(load_described_machine(machine)[0])
    assert (expected_of(fabric, DEFAULT_SIZES) is not None) == want


def test_other_sizes_of_the_same_name_are_others() -> None:
    """A machine that knows the figures of some sizes does not take them for those of others."""
    fabric = Fabric(load_described_machine("summit")[0])
    for size in (2, 3):
        sizes = JobSizes("ours", ((size, 1.0),))
        assert expected_of(fabric, sizes) == expected_bandwidths(fabric, sizes)
