"""The best-effort policy of Kubernetes' device plugin, held against its walk over partitions."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from values import cards, cases, machine, posed, wired_up, wiring

from gpulaunch.machine.link import Wiring
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.best_effort import best_of_partition, points
from gpulaunch.placement.policies import place
from gpulaunch.records import replace

Gpus = tuple[int, ...]
Padded = tuple[int | None, ...]


def partitions(gpus: Padded, size: int) -> Iterator[list[Padded]]:
    """Yield the partitions into sets of a size in the plugin's order; None is an empty place."""
    if len(gpus) == size:
        yield [gpus]
        return
    for companions in combinations(gpus[1:], size - 1):
        group = (gpus[0], *companions)
        if group.count(None) in (0, gpus.count(None)):
            for more in partitions(tuple(gpu for gpu in gpus if gpu not in group), size):
                yield [group, *more]


def by_the_plugin(topology: Topology, gpus: Gpus, size: int, required: frozenset[int]) -> Gpus:
    """Walk over all partitions as the plugin does, but for taking a set with empty places."""
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    score = {
        (link.a, link.b): points(link, same_card=card[link.a] == card[link.b])
        for link in topology.links
    }

    def worth(group: Padded) -> int:
        return sum(score.get(pair, 0) for pair in combinations(group, 2))

    if size == 1:
        return next((gpu,) for gpu in gpus if required <= {gpu})
    best: list[Padded] = []
    most = 0
    for partition in partitions((*gpus, *[None] * (-len(gpus) % size)), size):
        holds = any(required.issubset(group) and None not in group for group in partition)
        total = sum(map(worth, partition))
        if holds and (total > most or not best):
            best, most = partition, total
    whole = [group for group in best if required.issubset(group) and None not in group]
    return tuple(gpu for gpu in max(whole, key=worth) if gpu is not None)


def random_machine(rng: random.Random) -> Topology:
    """Draw a machine of 16 GPUs whose links have many equal points."""
    paths = rng.sample(["SYS", "NODE", "PHB", "PXB", "PIX"], rng.randrange(1, 4))
    nvlinks = rng.sample([0, 0, 1, 2, 3, 12], rng.randrange(1, 4))
    return wired_up(cards(16), lambda *_: wiring(rng.choice(paths), rng.choice(nvlinks)))


@pytest.mark.parametrize("seed", range(4))
def test_random_links(seed: int) -> None:
    """On links of many equal points the policy takes what the plugin takes, whatever is asked."""
    rng = random.Random(seed)
    for case in range(60):
        gpus = tuple(sorted(rng.sample(range(16), rng.randrange(2, 10))))
        topology = random_machine(rng)
        size = rng.randrange(1, len(gpus) + 1)
        required = frozenset(rng.sample(gpus, rng.choice([0, 1, rng.randrange(size + 1)])))
        got = best_of_partition(topology, gpus, size, required)
        assert got == by_the_plugin(topology, gpus, size, required), case


ON_A_DGX1 = {
    "a single GPU is the first one that is free": ((3, 5), 1, (), (3,)),
    "of single links, the one behind one PCIe switch": ((0, 2, 4, 5), 2, (), (4, 5)),
    "a pair leaves the others their best partners": (range(8), 2, (), (0, 3)),
    "a required GPU comes with its partner in the best partition": (range(8), 2, (4,), (4, 7)),
    "four are one of the two halves": (range(8), 4, (), (0, 1, 2, 3)),
}


@cases(ON_A_DGX1, "free", "count", "required", "want")
def test_on_a_dgx1(free: Gpus, count: int, required: Gpus, want: Gpus) -> None:
    """On a DGX-1 V100 the policy takes what the plugin's own tests ask for."""
    assert best_of_partition(machine("dgx1-v100"), free, count, frozenset(required)) == want


def test_what_is_left_over_is_never_taken() -> None:
    """Two GPUs with more points than any three are not taken for three, where the plugin errs."""

    def wire(a: int, b: int) -> Wiring:
        return wiring("PHB" if b < 3 else "SYS", 12 if (a, b) == (3, 4) else 0)

    assert best_of_partition(wired_up(cards(5), wire), range(5), 3) == (0, 1, 2)


def test_nvswitch_links_count() -> None:
    """Behind an NVSwitch pairs get points for NVLinks; of equal pairs the lowest indices win."""
    assert points(machine("dgx2").links[0]) == 50 + 600
    topology = machine("nvl72")
    alike = replace(
        topology, links=tuple(replace(link, pcie_path="SYS") for link in topology.links)
    )
    assert best_of_partition(alike, range(10, 60), 4) == (10, 11, 12, 13)
    assert best_of_partition(alike, range(10, 60), 4, frozenset({40})) == (10, 11, 12, 40)


def test_a_required_gpu_of_another_socket() -> None:
    """Of two sockets the policy partitions the one that has the required GPU."""
    sockets = frozenset(range(4)), frozenset(range(4, 8))

    def taken(*required: int) -> Gpus | None:
        needs = {"required": frozenset(required), "within": sockets}
        placement = place(posed(machine("dgx1-v100"), 2, **needs), "best_effort")
        return placement and placement.gpus

    assert taken(6) == (5, 6)
    assert taken(1, 6) is None
