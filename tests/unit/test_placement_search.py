"""The parts of the search for the best placement, each held against trying everything."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

from test_policies import CARDS, random_pattern, random_topology

from gpulaunch.decide.placement.effective import cut, most_cut
from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.placement.search import Criterion, Limits, enumerate_sets, ranked
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.topology import Topology

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


def test_ranked_is_that_order() -> None:
    """Sets are ranked as sorting by all figures ranks them, each of them once, with any bounds."""
    for rng, masks, by in figures():
        drawn = []
        for one in by:
            bound = {mask: figure + rng.choice((0, 0, 1, 5)) for mask, figure in one.items()}
            drawn.append(Criterion(one.__getitem__, rng.choice((None, bound.__getitem__))))
        assert [*ranked(masks, drawn)] == in_order(masks, by), by


def test_slow_figures_are_asked_for_as_often_as_allowed() -> None:
    """A slow figure is weighed for the most promising sets alone; the others count as 0."""
    asked: list[int] = []

    def weigh(mask: int) -> int:
        asked.append(mask)
        return 1

    by = [Criterion(weigh, lambda mask: mask + 1, most_weighed=3)]
    assert [*ranked(range(6), by)] == [5, 4, 3, 2, 1, 0]
    assert asked == [5, 4, 3]


def test_bounds_are_bounds() -> None:
    """No cut of a set is above its bound, nor any total or slowest edge; that of cuts is met."""
    rng = random.Random("bounds")
    met = False
    for _ in range(60):
        fabric = Fabric(random_topology(rng, rng.randrange(2, 8)))
        masks = [mask for mask in range(1 << len(fabric.gpus)) if mask.bit_count() > 1]
        for mask in rng.sample(masks, min(20, len(masks))):
            gpus = fabric.positions(mask)
            most, value = most_cut(fabric, mask), cut(fabric, gpus)
            assert value <= most, gpus
            met = met or value == most
            pattern = random_pattern(rng, len(gpus))
            problem = PlacementProblem(
                fabric.topology,
                free=fabric.gpus,
                admitted=fabric.gpus,
                count=len(gpus),
                pattern=pattern,
                sensitive=True,
                model="cut",
            )
            if problem.edges:
                best = problem.mapper.best(gpus)
                assert best.total <= problem.mapper.most_total(gpus), (problem.edges, gpus)
            if problem.edges and not pattern.collective:
                slowest = problem.mapper.best(gpus, slowest_first=True).slowest
                assert slowest <= problem.most_slowest(mask), (problem.edges, gpus)
    assert met


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
