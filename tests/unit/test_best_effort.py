"""The best-effort policy of Kubernetes' device plugin, held against a walk over every partition."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from test_policies import random_topology

from gpulaunch.decide.placement.best_effort import best_of_partition, points
from gpulaunch.decide.placement.place import place
from gpulaunch.decide.placement.problem import Needs, PlacementProblem
from gpulaunch.errors import FailedError
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import replace

Gpus = tuple[int, ...]


def partitions(gpus: Gpus, size: int, rest: int) -> Iterator[list[Gpus]]:
    """Yield every way to divide GPUs into sets of a size and a remainder, which stands last."""
    if len(gpus) == rest:
        yield [gpus] if rest else []
        return
    for left_over in combinations(gpus, rest):
        others = tuple(gpu for gpu in gpus if gpu not in left_over)
        for group in combinations(others[1:], size - 1):
            first = (others[0], *group)
            remaining = tuple(gpu for gpu in others if gpu not in first)
            for more in partitions(remaining, size, 0):
                yield [first, *more, left_over] if rest else [first, *more]


def tried_out(
    topology: Topology, gpus: Gpus, size: int, required: frozenset[int]
) -> tuple[int, int]:
    """Return the points of the best partition with a set of all required GPUs, and of that set."""
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    score = {
        (link.a, link.b): points(link, same_card=card[link.a] == card[link.b])
        for link in topology.links
    }
    best = (-1, -1)
    for partition in partitions(gpus, size, len(gpus) % size):
        whole = [group for group in partition if len(group) == size]
        worth = [sum(score[pair] for pair in combinations(sorted(group), 2)) for group in partition]
        held = [
            sum(score[pair] for pair in combinations(sorted(g), 2))
            for g in whole
            if required.issubset(g)
        ]
        if held:
            best = max(best, (sum(worth), max(held)))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_best_partition(seed: int) -> None:
    """The set comes from a partition with the most points that has a set with all required GPUs."""
    rng = random.Random(seed)
    topology = random_topology(rng, rng.randrange(3, 9))
    gpus = tuple(
        sorted(
            rng.sample(
                [gpu.index for gpu in topology.gpus], rng.randrange(2, len(topology.gpus) + 1)
            )
        )
    )
    size = rng.randrange(2, len(gpus) + 1)
    required = frozenset(rng.sample(gpus, rng.choice((0, 0, 1, min(2, size)))))
    got = best_of_partition(topology, gpus, size, required)
    assert len(set(got)) == size
    assert required <= set(got) <= set(gpus)
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    score = {
        (link.a, link.b): points(link, same_card=card[link.a] == card[link.b])
        for link in topology.links
    }
    left = tuple(gpu for gpu in gpus if gpu not in got)
    own = sum(score[pair] for pair in combinations(sorted(got), 2))
    rest = max(
        sum(score[pair] for group in partition for pair in combinations(sorted(group), 2))
        for partition in partitions(left, size, len(left) % size)
    )
    total, best_set = tried_out(topology, gpus, size, required)
    assert own + rest == total
    assert own <= best_set


def test_points_of_a_dgx1() -> None:
    """GPU 0 of a DGX-1 V100 has the points that the plugin gives it."""
    topology, _ = load_described_machine("dgx1-v100")
    assert [points(link) for link in topology.links if link.a == 0] == [
        150,
        130,
        230,
        210,
        10,
        10,
        10,
    ]


@pytest.mark.parametrize(
    ("sentence", "free", "count", "required", "want"),
    [
        ("a single GPU is the first one that is free", (3, 5), 1, (), (3,)),
        ("or the one that is required", (3, 5), 1, (5,), (5,)),
        ("a pair leaves the others their best partners", range(8), 2, (), (0, 3)),
        (
            "a required GPU comes with the partner that it has in the best partition",
            range(8),
            2,
            (6,),
            (5, 6),
        ),
        ("four are one of the two halves", range(8), 4, (), (0, 1, 2, 3)),
        ("the half with the required one", range(8), 4, (5,), (4, 5, 6, 7)),
    ],
)
def test_on_a_dgx1(sentence: str, free: Gpus, count: int, required: Gpus, want: Gpus) -> None:
    """On a DGX-1 V100 the policy takes what the plugin takes."""
    topology, _ = load_described_machine("dgx1-v100")
    problem = PlacementProblem(
        topology,
        free=tuple(free),
        admitted=tuple(free),
        count=count,
        pattern=PATTERNS["none"],
        sensitive=False,
        model="cut",
        needs=Needs(required=frozenset(required)),
    )
    placement = place(problem, "best_effort")
    assert placement is not None
    assert tuple(sorted(placement.gpus)) == want, sentence


def test_nvswitch_links_count() -> None:
    """Behind an NVSwitch pairs get points for NVLinks; of equal pairs the lowest indices win."""
    topology, _ = load_described_machine("dgx2")
    assert points(topology.links[0]) == 50 + 600
    topology, _ = load_described_machine("nvl72")
    alike = replace(
        topology, links=tuple(replace(link, pcie_path="SYS") for link in topology.links)
    )
    assert best_of_partition(alike, range(10, 60), 4) == (10, 11, 12, 13)
    assert best_of_partition(alike, range(10, 60), 4, frozenset({40})) == (10, 11, 12, 40)


def test_too_many_to_partition() -> None:
    """Over 16 GPUs of unlike links have too many partitions; the error says what to do."""
    topology, _ = load_described_machine("minsky-cluster")
    with pytest.raises(FailedError) as problem:
        best_of_partition(topology, range(17), 2)
    assert problem.value.message == "17 GPUs are free: policy best-effort can partition at most 16"
    assert problem.value.hint == "narrow the choice with --only, or take another --policy"


def test_a_required_gpu_of_another_machine() -> None:
    """Among several machines the policy partitions the one that has the required GPU."""
    topology, _ = load_described_machine("minsky-cluster")
    gpus = [gpu.index for gpu in topology.gpus]
    nodes = tuple(frozenset(range(first, first + 4)) for first in range(0, 20, 4))

    def taken(*required: int) -> Gpus | None:
        needs = Needs(required=frozenset(required), within=nodes)
        problem = PlacementProblem(
            topology,
            free=gpus,
            admitted=gpus,
            count=2,
            pattern=PATTERNS["ring"],
            sensitive=True,
            model="cut",
            needs=needs,
        )
        placement = place(problem, "best_effort")
        return placement and placement.gpus

    assert taken(6) == (6, 7)
    assert taken(1, 6) is None
