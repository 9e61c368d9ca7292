"""Scores, held against the papers' numbers and searches written a second time."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import networkx as nx
import pytest

from gpulaunch.decide.placement.effective import (
    BANDWIDTH_MODELS,
    cut,
    mapa_equation,
    measured,
)
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.decide.placement.mapping import EXACT_RANKS, MOST_KICKS, Mapper
from gpulaunch.decide.placement.problem import PlacementProblem, Scores
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Wire, connect, wired
from gpulaunch.machine.topology import Measured, Topology
from gpulaunch.profiles.pattern import PATTERNS, Edge
from gpulaunch.records import as_list, replace

Pair = tuple[int, int]

# mapa-sc21 Figure 1c, with its own numbers: it counts GPUs from 1.
DOUBLE = ((1, 4), (1, 5), (2, 3), (2, 6), (3, 4), (5, 8), (6, 7), (7, 8))
SINGLE = ((1, 2), (1, 3), (2, 4), (3, 7), (4, 8), (5, 6), (5, 7), (6, 8))

V100 = {"nvlink_version": 2, "compute_capability": "7.0", "pcie_generation": 3, "pcie_width": 16}
A100 = {"nvlink_version": 3, "compute_capability": "8.0", "pcie_generation": 4, "pcie_width": 16}
H100 = {"nvlink_version": 4, "compute_capability": "9.0", "pcie_generation": 5, "pcie_width": 16}
B200 = {"nvlink_version": 5, "compute_capability": "10.0", "pcie_generation": 5, "pcie_width": 16}

V100_PLANNED = 20.0  # GB/s for one of its NVLinks, as NCCL plans with them (src/graph/topo.h, SM70)


def machine(
    count: int,
    *,
    gpu: Mapping[str, object],
    nvlinks: Mapping[Pair, int] | None = None,
    switch_links: Mapping[int, int] | None = None,
    pcie: Mapping[Pair, float] | None = None,
    path: str = "SYS",
) -> Topology:
    """Describe GPUs joined as said; a pair without a PCIe figure gets that of its path."""
    gpus = tuple(
        Gpu(
            index=i,
            uuid=f"GPU-{i}",
            model="test",
            memory_bytes=1 << 34,
            nvswitch_links=(switch_links or {}).get(i, 0),
            **gpu,
        )
        for i in range(count)
    )
    links = tuple(
        connect(
            a,
            b,
            Wire(
                path,
                (nvlinks or {}).get((a.index, b.index), 0),
                (pcie or {}).get((a.index, b.index)),
            ),
        )
        for a, b in combinations(gpus, 2)
    )
    return Topology("test", gpus, links, "a test")


def switched(count: int, links: int, gpu: Mapping[str, object]) -> Topology:
    return machine(count, gpu=gpu, switch_links=dict.fromkeys(range(count), links))


def pairs(count: int) -> list[Pair]:
    return list(combinations(range(count), 2))


def random_nvlinks(rng: random.Random, count: int, choices: Sequence[int]) -> dict[Pair, int]:
    return {pair: links for pair in pairs(count) if (links := rng.choice(choices))}


def random_pcie(rng: random.Random, count: int) -> dict[Pair, float]:
    return {pair: float(rng.randrange(3, 13)) for pair in pairs(count)}


def zero_based(gpus: Iterable[int]) -> tuple[int, ...]:
    return tuple(gpu - 1 for gpu in gpus)


def weights(fabric: Fabric) -> dict[Pair, float]:
    """Return W of every two GPUs, GB/s."""
    return {
        (a, b): fabric.kinds[fabric.kind[a][b]].weight / UNIT for a, b in pairs(len(fabric.gpus))
    }


def scores(
    fabric: Fabric,
    gpus: Iterable[int],
    pattern: str = "ring",
    *,
    free: Iterable[int] | None = None,
    model: str = "cut",
) -> Scores:
    """Return the scores of a set with its best mapping."""
    free, gpus = sorted(range(len(fabric.gpus)) if free is None else free), sorted(gpus)
    problem = PlacementProblem(
        fabric.topology,
        free=free,
        admitted=free,
        count=len(gpus),
        pattern=PATTERNS[pattern],
        sensitive=True,
        model=model,
    )
    return problem.scores(problem.mapper.best(gpus))


@pytest.fixture(scope="module")
def dgx1() -> Fabric:
    return Fabric(load_described_machine("dgx1-v100")[0])


# -------------------------------------------------------------- the paper's machine and its numbers


def test_dgx1_links_are_the_papers(dgx1: Fabric) -> None:
    """The shipped DGX-1 V100 has the links of mapa-sc21 Figure 1c, with Table 1's bandwidths."""
    paper = dict.fromkeys(combinations(range(1, 9), 2), 12.0)
    paper |= dict.fromkeys(DOUBLE, 50.0) | dict.fromkeys(SINGLE, 25.0)
    assert {(a + 1, b + 1): w for (a, b), w in weights(dgx1).items()} == paper


def test_dgx1_total(dgx1: Fabric) -> None:
    """All 28 pairs of the DGX-1 V100 sum to 744 GB/s, which is what an idle machine preserves."""
    assert sum(weights(dgx1).values()) == 744
    assert scores(dgx1, range(8), "all_to_all").aggregate_bandwidth == 744


@pytest.mark.parametrize(
    ("sentence", "gpus", "want"),
    [
        ("a baseline's three of mapa-sc21 2.2", (1, 2, 5), 87),
        ("its best three", (1, 3, 4), 125),
        ("as good", (2, 3, 4), 125),
        ("as good", (5, 7, 8), 125),
        ("as good", (6, 7, 8), 125),
        ("the match of its Figure 10", (1, 2, 4), 100),
        ("a double NVLink is one edge of a ring of two", (1, 4), 50),
        ("PCIe", (1, 6), 12),
        ("a ring of four uses four of the six pairs", (1, 2, 3, 4), 25 + 50 + 50 + 50),
    ],
)
def test_aggregate_bandwidth_on_dgx1(
    dgx1: Fabric, sentence: str, gpus: tuple[int, ...], want: float
) -> None:
    """Eq. 1 of rings on the DGX-1 V100 comes out as in the paper, whose GPUs count from 1."""
    assert scores(dgx1, zero_based(gpus)).aggregate_bandwidth == want, sentence


def test_four_best_triples(dgx1: Fabric) -> None:
    """No three GPUs of the DGX-1 V100 beat 125 GB/s, and four sets reach it."""
    best = [
        gpus for gpus in combinations(range(8), 3) if scores(dgx1, gpus).aggregate_bandwidth >= 125
    ]
    assert best == [zero_based(gpus) for gpus in ((1, 3, 4), (2, 3, 4), (5, 7, 8), (6, 7, 8))]


def test_preserved_bandwidth_of_figure_10(dgx1: Fabric) -> None:
    """Taking GPUs 1, 2 and 4 of an idle DGX-1 V100 preserves 286 GB/s."""
    assert scores(dgx1, zero_based((1, 2, 4))).preserved_bandwidth == 286


@pytest.mark.parametrize(
    ("x", "y", "z", "want"),
    [
        (2, 1, 0, 57.86),
        (0, 0, 0, 12.34),
        (1, 0, 0, 39.08),
        (0, 1, 0, 21.61),
        (0, 0, 1, 10.09),
        (1, 1, 1, 24.11),
        (3, 1, 0, 68.71),
    ],
)
def test_mapa_equation(x: int, y: int, z: int, want: float) -> None:
    """Eq. 2 with Table 2 gives the paper's values for x double, y single NVLinks, z PCIe edges."""
    assert round(mapa_equation(x, y, z), 2) == want


@pytest.mark.parametrize(
    ("ranks", "values"),
    [
        (3, "210=57.9 120=44.1 201=30.0 111=24.1 102=10.4 021=9.0 012=3.2"),
        (
            4,
            """310=68.7 220=49.1 130=42.2 301=41.6 211=31.3 121=28.6 022=26.4 031=21.9 112=20.6
            202=18.2 004=12.5 013=11.6 103=4.9""",
        ),
        (
            5,
            """032=53.6 401=53.5 320=51.8 023=49.2 230=39.0 041=36.5 311=34.5 122=33.3 131=33.0
            302=26.4 014=22.4 113=21.3 221=20.9 212=17.9 203=9.2 104=0.5""",
        ),
    ],
)
def test_mapa_equation_of_larger_rings(ranks: int, values: str) -> None:
    """Eq. 2 takes these values, xyz=GB/s, for the link mixes of rings on a DGX-1 V100."""
    want = {mix: float(value) for mix, value in (entry.split("=") for entry in values.split())}
    assert all(sum(map(int, mix)) == ranks for mix in want)
    assert {mix: round(mapa_equation(*map(int, mix)), 1) for mix in want} == want


# ------------------------------------------------------------------------------------ the cut model


@pytest.mark.parametrize("seed", range(12))
def test_cut_is_the_global_minimum_cut(seed: int) -> None:
    """Where NVLinks connect twelve GPUs, the cut model is their global minimum cut."""
    rng = random.Random(seed)
    nvlinks = random_nvlinks(rng, 12, (0, 0, 1, 1, 2, 3))
    graph = nx.Graph()
    graph.add_weighted_edges_from((a, b, V100_PLANNED * n) for (a, b), n in nvlinks.items())
    assert nx.is_connected(graph)
    want = nx.stoer_wagner(graph)[0]
    got = cut(Fabric(machine(12, gpu=V100, nvlinks=nvlinks)), rng.sample(range(12), 12))
    assert got == want * UNIT


@pytest.mark.parametrize(
    ("sentence", "gpu", "links", "want"),
    [
        ("DGX-2: six NVLinks", V100, 6, 6 * 20.0),
        ("DGX A100: twelve", A100, 12, 12 * 20.0),
        ("DGX H100: eighteen", H100, 18, 18 * 20.6),
        ("DGX B200: eighteen", B200, 18, 18 * 40.1),
    ],
)
def test_ring_on_nvswitch(
    sentence: str, gpu: Mapping[str, object], links: int, want: float
) -> None:
    """Behind NVSwitch a ring of two to four GPUs has the bandwidth of one GPU's links."""
    fabric = Fabric(switched(16, links, gpu))
    got = [cut(fabric, gpus) / UNIT for gpus in ((0, 1), (3, 9, 15), range(4))]
    assert got == pytest.approx([want] * 3), sentence


def test_cut_on_nvswitch_is_the_least_linked_gpu() -> None:
    """Behind NVSwitch the GPU with the fewest links decides."""
    fabric = Fabric(machine(4, gpu=A100, switch_links={0: 12, 1: 12, 2: 8, 3: 12}))
    assert cut(fabric, (0, 1, 3)) == 240 * UNIT
    assert cut(fabric, (0, 1, 2, 3)) == 160 * UNIT


@pytest.mark.parametrize(
    ("sentence", "topology", "link", "want"),
    [
        ("PCIe", machine(3, gpu=V100, path="PHB"), "PHB 10", 14.0),
        ("NVLinks", machine(3, gpu=V100, nvlinks=dict.fromkeys(pairs(3), 1)), "NV1 25", 28.0),
        ("NVSwitch", switched(3, 12, A100), "NV12 300", 14.0),
    ],
)
def test_measured_links(sentence: str, topology: Topology, link: str, want: float) -> None:
    """Kinds that were not measured get the cut, over links at their class's measured bandwidth."""
    fabric = Fabric(replace(topology, measured=(Measured((link,), 14.0),)))
    assert measured(fabric, range(2)) == 14 * UNIT, sentence
    assert measured(fabric, range(3)) == want * UNIT, sentence


@pytest.mark.parametrize("model", ["cut", "mapa", "measured"])
def test_several_machines_are_as_fast_as_their_network(model: str) -> None:
    """NVSwitches of two machines join none across the network, neither for rings nor for sums."""
    gpus = tuple(
        Gpu(i, f"GPU-{i}", "test", 1 << 34, nvswitch_links=18, node=i // 4, **H100)
        for i in range(8)
    )
    links = wired(
        gpus, lambda a, b: Wire("SYS") if a // 4 == b // 4 else Wire("NET", pcie_gb_per_s=1.25)
    )
    fabric = Fabric(Topology("test", gpus, links, "a test"))
    assert BANDWIDTH_MODELS[model](fabric, range(4)) > 50 * UNIT
    if model != "mapa":
        assert [BANDWIDTH_MODELS[model](fabric, gpus) for gpus in ((0, 4), range(8))] == [
            1.25 * UNIT
        ] * 2


# ------------------------------------------------------------------------------------------ mapping


def mapper_of(
    fabric: Fabric, edges: tuple[Edge, ...], speeds: Sequence[int] | None = None
) -> Mapper:
    return Mapper(fabric.kind, edges, [kind.weight for kind in fabric.kinds], speeds)


def random_edges(rng: random.Random, ranks: int) -> tuple[Edge, ...]:
    """Draw edges of random weight that join all ranks."""
    joined = {(rng.randrange(b), b) for b in range(1, ranks)}
    joined |= {tuple(sorted(rng.sample(range(ranks), 2))) for _ in range(rng.randrange(ranks))}
    weights = rng.choice(((1.0,), (1.0, 2.0), (1.0, 3.0, 10.0)))
    return tuple((a, b, rng.choice(weights)) for a, b in sorted(joined))


def test_lighter_edges_are_waited_for_less() -> None:
    """An edge of a tenth of the weight is ten times as fast: the heavy one gets the NVLink."""
    fabric = Fabric(machine(3, gpu=V100, nvlinks={(1, 2): 1}, path="PHB"))
    mapper = mapper_of(fabric, ((0, 1, 1.0), (1, 2, 10.0)), [kind.hop for kind in fabric.kinds])
    mapping = mapper.best(range(3), slowest_first=True)
    assert as_list(mapping) == [
        (0, 1, 2),
        20 * UNIT,
        25 * UNIT + 1 * UNIT,
    ]  # 20 planned, and 10 / 0.1 over PCIe


@pytest.mark.parametrize("pattern", ["all_to_all", "none"])
def test_patterns_that_treat_ranks_alike_keep_index_order(dgx1: Fabric, pattern: str) -> None:
    """Where every rank talks to all others or to none, the GPUs stay in index order."""
    mapper = mapper_of(dgx1, PATTERNS[pattern].edges(4))
    assert mapper.best((0, 1, 3, 6)).gpus == (0, 1, 3, 6)


@pytest.mark.parametrize(
    ("sentence", "pattern", "gpus", "want"),
    [
        (
            "all-to-all uses all six pairs of four",
            "all_to_all",
            (1, 2, 3, 4),
            50 + 50 + 50 + 25 + 25 + 25,
        ),
        ("a chain leaves the ring's worst edge out", "chain", (1, 2, 5), 75),
        ("a star has its centre on the GPU with the best links", "star", (1, 2, 5), 75),
        ("no pattern, no edges, no figure", "none", (1, 2, 5), None),
        ("one GPU has no edge", "ring", (1,), None),
        ("one GPU has no edge", "all_to_all", (1,), None),
    ],
)
def test_aggregate_bandwidth_of_patterns(
    dgx1: Fabric, sentence: str, pattern: str, gpus: tuple[int, ...], want: float | None
) -> None:
    """Aggregate bandwidth counts the edges that the pattern uses; without any there is none."""
    assert scores(dgx1, zero_based(gpus), pattern).aggregate_bandwidth == want, sentence


@pytest.mark.parametrize("model", ["cut", "mapa", "measured"])
def test_one_gpu_has_no_effective_bandwidth(dgx1: Fabric, model: str) -> None:
    """No model has a figure for a single GPU."""
    assert scores(dgx1, (3,), model=model).effective_bandwidth is None


@pytest.mark.parametrize("pattern", ["ring", "chain", "stencil_2d", "given"])
@pytest.mark.parametrize("slowest_first", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_mapping_of_many_ranks(pattern: str, seed: int, *, slowest_first: bool) -> None:
    """Beyond eight ranks the order is no worse than by index, nor far from a long search's."""
    rng = random.Random(f"{pattern} {seed}")
    ranks = rng.randrange(EXACT_RANKS + 1, 17)
    nvlinks = random_nvlinks(rng, ranks, (0, 0, 0, 1, 2))
    if seed % 2:  # a wiring that suits the index order
        nvlinks |= {(gpu, gpu + 1): 2 for gpu in range(ranks - 1)} | {(0, ranks - 1): 2}
    fabric = Fabric(machine(ranks, gpu=V100, nvlinks=nvlinks, pcie=random_pcie(rng, ranks)))
    edges = random_edges(rng, ranks) if pattern == "given" else PATTERNS[pattern].edges(ranks)
    mapper = mapper_of(fabric, edges, [kind.hop for kind in fabric.kinds])
    got, best = (
        mapper.best(range(ranks), slowest_first=slowest_first, kicks=kicks)
        for kicks in (MOST_KICKS, 500)
    )
    by_index = mapper.figures(range(ranks))
    assert sorted(got.gpus) == list(range(ranks))
    if slowest_first:
        assert got.slowest >= 0.5 * best.slowest  # MOST_KICKS tells the mean
        assert (got.slowest, got.total) >= (by_index.slowest, by_index.total)
    assert got.total >= max(0.8 * best.total, 0 if slowest_first else by_index.total)
