"""The communication graph from link counters, and the union of named patterns."""

import random
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.files.toml_parser import tomllib
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
