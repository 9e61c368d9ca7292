"""The communication graph from link counters, and the named pattern that it is nearest to."""

import random
from itertools import combinations, permutations
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.files.toml_parser import tomllib
from gpulaunch.measure.nearest_pattern import (
    LEAST_SIMILARITY,
    compatible_patterns,
    nearest_pattern,
    nearest_to_totals,
)
from gpulaunch.measure.rank_fit import fit
from gpulaunch.measure.traffic_graph import (
    NOISE_BYTES,
    NOISE_SHARE,
    GpuTraffic,
    LinkTraffic,
    traffic_graph,
)
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.profiles.pattern_union import union
from gpulaunch.records import replace

MACHINES = Path(__file__).parents[2] / "profiles" / "machines"
WIRES = {
    (a, b): n
    for a, b, n in tomllib.loads((MACHINES / "dgx1-v100.toml").read_text())["nvlink"]["links"]
}
GB = 10**9
NAMES = [name for name in PATTERNS if name != "none"]

Bytes = dict[tuple[int, int], int]


def counters(
    order: list[int], sent: Bytes, wires: dict[tuple[int, int], int] = WIRES
) -> list[GpuTraffic]:
    """Return a DGX-1's counters after `sent` bytes between ranks, split over a pair's links."""
    found = []
    for rank, gpu in enumerate(order):
        links = []
        for pair, count in wires.items():
            if gpu in pair:
                peer = sum(pair) - gpu
                other = order.index(peer) if peer in order else None
                for share in range(count):
                    parts = [
                        (amount + share) // count
                        for amount in (sent.get((rank, other), 0), sent.get((other, rank), 0))
                    ]
                    links.append(LinkTraffic(len(links), "gpu", peer, *parts))
        found.append(GpuTraffic(gpu, tuple(links), 0, 0))
    return found


def amounts(graph: object) -> Bytes:
    return {(a, b): round(gb * GB) for a, b, gb in graph.edges}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], Bytes]:
    """Draw GPUs of a DGX-1 in rank order, and what their ranks send over its NVLinks."""
    order = draw(st.lists(st.integers(0, 7), min_size=2, max_size=8, unique=True))
    linked = [
        (a, b)
        for a, b in combinations(range(len(order)), 2)
        if tuple(sorted((order[a], order[b]))) in WIRES
    ]
    sent: Bytes = {}
    for a, b in draw(st.lists(st.sampled_from(linked), unique=True)) if linked else []:
        sent[a, b] = draw(st.integers(GB, 50 * GB))
        sent[b, a] = draw(st.integers(0, 50 * GB))
    return order, sent


def both_ways(sent: Bytes) -> Bytes:
    pairs = {(min(pair), max(pair)) for pair in sent}
    return {(a, b): sent.get((a, b), 0) + sent.get((b, a), 0) for a, b in sorted(pairs)}


def test_the_papers_example() -> None:
    """GPUs 5 and 6 of mapa-sc21 Figure 9b, joined by link 0 and link 2, are one edge."""
    there, back = 6_417_636_280 * 1024, 5_242_973_340 * 1024

    def quiet(gpu: int, *links: int) -> list[LinkTraffic]:
        return [LinkTraffic(link, "gpu", gpu + link, 0, 0) for link in links]

    five = GpuTraffic(5, (LinkTraffic(0, "gpu", 6, there, back), *quiet(5, 1, 2, 3)))
    six = GpuTraffic(6, (*quiet(10, 0, 1), LinkTraffic(2, "gpu", 5, back, there), *quiet(10, 3)))
    graph = traffic_graph([five, six], 3600.0)
    assert graph.edges == ((0, 1, (there + back) / GB),)
    assert graph.totals_gb == (graph.edges[0][2],) * 2
    assert graph.known[0] == "1 pair of ranks talked over direct NVLinks, counted at both ends"
    assert graph.disagreements == ()


@given(jobs())
def test_the_graph_comes_back(job: tuple[list[int], Bytes]) -> None:
    """The counters of any job on a DGX-1 give back how much each rank sent to which."""
    order, sent = job
    graph = traffic_graph(counters(order, sent), 60.0)
    floor = NOISE_SHARE * max(both_ways(sent).values(), default=0)
    assert amounts(graph) == {
        pair: amount for pair, amount in both_ways(sent).items() if amount >= floor
    }
    assert not graph.hidden
    assert graph.disagreements == ()


@given(jobs(), st.integers(0, 2**32))
def test_noise_and_crooked_counters(job: tuple[list[int], Bytes], seed: int) -> None:
    """Noise on all links adds no edge; ends that differ by 1 % change an edge by at most 1 %."""
    order, sent = job
    rng = random.Random(seed)
    gpus = [
        replace(
            gpu,
            links=tuple(
                replace(
                    link,
                    tx_bytes=int(link.tx_bytes * rng.uniform(0.99, 1))
                    + rng.randrange(NOISE_BYTES // 100),
                    rx_bytes=int(link.rx_bytes * rng.uniform(0.99, 1))
                    + rng.randrange(NOISE_BYTES // 100),
                )
                for link in gpu.links
            ),
        )
        for gpu in counters(order, sent)
    ]
    found, true = amounts(traffic_graph(gpus, 60.0)), both_ways(sent)
    largest = max(true.values(), default=0)
    sure = {pair for pair, amount in true.items() if amount > 1.02 * NOISE_SHARE * largest}
    assert sure <= found.keys() <= true.keys()
    assert all(
        found[pair] == pytest.approx(true[pair], rel=0.011, abs=NOISE_BYTES) for pair in sure
    )


@given(jobs(), st.randoms(use_true_random=False))
def test_swapped_ranks_swap_edges(job: tuple[list[int], Bytes], rng: random.Random) -> None:
    """The same GPUs in another rank order have the same edges between their new ranks."""
    order, sent = job
    gpus = counters(order, sent)
    turn = list(range(len(order)))
    rng.shuffle(turn)
    swapped = traffic_graph([gpus[rank] for rank in turn], 60.0)
    back = {tuple(sorted((turn[a], turn[b]))): gb for a, b, gb in swapped.edges}
    assert back == {(a, b): gb for a, b, gb in traffic_graph(gpus, 60.0).edges}


def test_one_end_is_enough() -> None:
    """Without one end's counters the other end's are the edge; without both, it is unknown."""
    whole, lost = LinkTraffic(0, "gpu", 1, 3 * GB, GB), LinkTraffic(0, "gpu", 0)
    graph = traffic_graph([GpuTraffic(0, (whole,)), GpuTraffic(1, (lost,))], 1.0)
    assert graph.edges == ((0, 1, 4.0),)
    assert graph.totals_gb == (4.0, None)
    assert graph.known[0].endswith("counted 0 of them at both ends")
    assert "rank 1: the counters of NVLink 0 are missing or were reset" in graph.unknown
    neither = traffic_graph([GpuTraffic(0, (replace(lost, peer=1),)), GpuTraffic(1, (lost,))], 1.0)
    assert (neither.edges, neither.pairs) == ((), ())
    assert "no end counted what ranks 0 and 1 exchanged" in neither.unknown


def test_ends_that_disagree() -> None:
    """Ends that differ by more than 2 % are named, and the edge is the mean."""
    ends = [LinkTraffic(0, "gpu", 1, 100 * GB, 0), LinkTraffic(0, "gpu", 0, 0, 97 * GB)]
    graph = traffic_graph([GpuTraffic(i, (end,)) for i, end in enumerate(ends)], 1.0)
    assert graph.edges == ((0, 1, 98.5),)
    assert [(d.a, d.b, round(d.percentage, 6)) for d in graph.disagreements] == [(0, 1, 3.0)]
    assert any("differ by 3.0 %" in sentence for sentence in graph.unknown)


def test_links_elsewhere() -> None:
    """Links to foreign GPUs or down are left out; links to the CPU are the host's."""
    links = (
        LinkTraffic(0, "gpu", 1, GB, GB),
        LinkTraffic(1, "gpu", 7, 9 * GB, 9 * GB),
        LinkTraffic(2, "cpu", None, 5 * GB, 5 * GB),
        LinkTraffic(3, "down"),
    )
    graph = traffic_graph(
        [GpuTraffic(0, links), GpuTraffic(1, (LinkTraffic(0, "gpu", 0, GB, GB),))], 1.0
    )
    assert graph.edges == ((0, 1, 2.0),)
    assert graph.totals_gb == (2.0, 2.0)
    assert any("outside of the job" in sentence for sentence in graph.unknown)
    assert any("NVLinks to the CPU" in sentence for sentence in graph.unknown)
    assert not any("missing" in sentence for sentence in graph.unknown)


def test_nvswitch_hides_the_peer() -> None:
    """Behind NVSwitch only each rank's total is known, and that is said."""
    gpus = [
        GpuTraffic(i, tuple(LinkTraffic(n, "switch", None, GB, GB) for n in range(6)))
        for i in range(4)
    ]
    graph = traffic_graph(gpus, 10.0)
    assert graph.edges == ()
    assert graph.hidden
    assert graph.totals_gb == (12.0,) * 4
    assert graph.known == ("NVLink: 12 GB a rank, sent and received, in 10 s",)
    assert graph.unknown == (
        "NVSwitch hides who talks to whom: only what each rank sent and received in all is known",
    )


def test_pcie_and_silence() -> None:
    """PCIe has totals only; where nothing went over NVLink that is said."""
    gpus = [replace(gpu, pcie_tx_bytes=GB, pcie_rx_bytes=3 * GB) for gpu in counters([0, 1], {})]
    graph = traffic_graph(gpus, 4.0)
    assert graph.edges == ()
    assert graph.pcie_gb == (4.0, 4.0)
    assert graph.known == (
        "no pair of ranks talked over direct NVLinks",
        "PCIe: 4 GB a rank, sent and received, in 4 s",
    )
    assert graph.unknown[-1].startswith("PCIe counters tell no peer")


def test_set_up_is_no_edge() -> None:
    """A job whose ranks only shook hands has no edge, however even they did."""
    assert (
        traffic_graph(counters([0, 1, 2, 3], dict.fromkeys([(0, 1), (1, 2)], 5000)), 1.0).edges
        == ()
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("name", NAMES)
def test_each_pattern_is_nearest_to_itself(name: str, ranks: int) -> None:
    """A pattern in any rank order and unit is found, or its equal, in well under a second."""
    order = list(range(ranks))
    random.Random(ranks).shuffle(order)
    edges = [(*sorted((order[a], order[b])), 7.5) for a, b, _ in PATTERNS[name].edges(ranks)]
    begin = perf_counter()
    found = nearest_pattern(ranks, edges)
    assert perf_counter() - begin < 2  # 0.2 s on an idle core
    assert found.similarity == pytest.approx(1)
    assert name in found.alike
    shape = PATTERNS[found.name].edges(ranks)
    places = {tuple(sorted((found.order[a], found.order[b]))) for a, b, _ in shape}
    assert places == {(a, b) for a, b, _ in edges}


@pytest.mark.parametrize("name", NAMES)
def test_perturbed_patterns(name: str) -> None:
    """A pattern whose edges differ by 10 % and that has weak strays beside it is still found."""
    rng = random.Random(name)
    for ranks in (4, 6, 8):
        same = nearest_pattern(ranks, PATTERNS[name].edges(ranks)).alike
        for _ in range(3):
            weights = {
                (a, b): rng.lognormvariate(0, 0.1) for a, b, _ in PATTERNS[name].edges(ranks)
            }
            for pair in combinations(range(ranks), 2):
                if rng.random() < 0.2:
                    weights[pair] = weights.get(pair, 0) + rng.uniform(0, 0.1)
            found = nearest_pattern(ranks, [(*pair, weight) for pair, weight in weights.items()])
            assert found.name in same
            assert found.similarity >= LEAST_SIMILARITY


def test_nothing_is_near() -> None:
    """A graph like no pattern has no name: one heavy pair in a loose web."""
    web = [
        (a, b, 40.0 if (a, b) == (0, 1) else 1.0 + a)
        for a, b in combinations(range(8), 2)
        if (a + b) % 3
    ]
    assert nearest_pattern(8, web).name is None


def test_no_traffic_is_none() -> None:
    """Ranks that exchange nothing have the pattern "none"."""
    assert nearest_pattern(4, []).name == "none"
    assert nearest_pattern(1, []).name == "none"
    assert nearest_to_totals([0.0, 0.0]).name == "none"


def test_rings_of_a_dgx1() -> None:
    """NCCL's two rings over a DGX-1's links are a ring, though each link carries as many bytes."""
    for wires in (WIRES, dict.fromkeys(WIRES, 1)):
        found = nearest_pattern(8, [(*pair, float(count)) for pair, count in wires.items()])
        assert (found.name, found.rings, found.alike) == ("ring", 2, ("ring",))
        assert found.similarity == pytest.approx(1)


def test_all_to_all_where_pairs_are_hidden() -> None:
    """Equal traffic on all links may be an all-to-all with pairs on PCIe: both names are told."""
    even = [(*pair, 1.0) for pair in WIRES]
    assert nearest_pattern(8, even, list(WIRES)).alike == ("ring", "all_to_all")
    uneven = [(0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0), (1, 2, 1.0)]
    assert nearest_pattern(4, uneven, [pair[:2] for pair in uneven]).name == "all_to_all"


@pytest.mark.parametrize(
    ("sentence", "totals", "want"),
    [
        ("equal totals leave all collectives", [5] * 6, "ring tree ring+tree all_to_all"),
        (
            "so they do if they are nearly equal",
            [5, 5, 5, 5, 5, 4.6],
            "ring tree ring+tree all_to_all",
        ),
        ("a hub with all of it is a star", [30, 10, 10, 10], "star"),
        ("ends with half of it are a chain", [5, 10, 10, 10, 10, 5], "chain"),
        ("one rank with nothing is no pattern", [10, 10, 0, 10], ""),
        ("silence is none", [0, 0, 0], "none"),
    ],
)
def test_totals_rule_patterns_out(sentence: str, totals: list[float], want: str) -> None:
    """Totals alone rule patterns out, and name one only if no other is left."""
    found = compatible_patterns(totals)
    assert found == tuple(want.split()), sentence
    assert nearest_to_totals(totals).name == (found[0] if len(found) == 1 else None)


@pytest.mark.parametrize(
    ("names", "want"),
    [
        ((), "none"),
        (("ring",), "ring"),
        (("none", "chain"), "chain"),
        (("chain", "ring"), "ring"),
        (("ring", "tree"), "ring+tree"),
        (("star", "ring"), "all_to_all"),
        (("stencil_2d", "stencil_3d"), "all_to_all"),
    ],
)
def test_union(names: tuple[str, ...], want: str) -> None:
    """Several patterns are the smallest one that holds them all."""
    assert union(names) == want


@given(st.integers(2, 6), st.data())
def test_order_of_ranks_does_not_matter(ranks: int, data: st.DataObject) -> None:
    """Whatever the graph, its similarity is the same in any order of ranks."""
    pairs = list(combinations(range(ranks), 2))
    weights = data.draw(st.lists(st.integers(0, 9), min_size=len(pairs), max_size=len(pairs)))
    turn = data.draw(st.permutations(range(ranks)))
    edges = [(a, b, float(w)) for (a, b), w in zip(pairs, weights, strict=True)]
    turned = [(*sorted((turn[a], turn[b])), w) for a, b, w in edges]
    one, other = nearest_pattern(ranks, edges), nearest_pattern(ranks, turned)
    assert (one.name, one.rings) == (other.name, other.rings)
    if one.name:
        assert one.similarity == pytest.approx(other.similarity)


@given(st.sampled_from(NAMES), st.integers(0, 2**32))
def test_the_order_of_few_ranks_is_the_best(name: str, seed: int) -> None:
    """Up to eight ranks no other order puts more traffic onto a pattern's edges."""
    rng = random.Random(seed)
    weights = {pair: rng.random() ** 3 for pair in combinations(range(6), 2)}
    shape = [(a, b) for a, b, _ in PATTERNS[name].edges(6)]
    best = max(
        sum(weights[tuple(sorted((order[a], order[b])))] for a, b in shape)
        for order in permutations(range(6))
    )
    value, order = fit(6, shape, weights, 0.0)
    assert value == pytest.approx(best)
    assert sorted(order) == list(range(6))
