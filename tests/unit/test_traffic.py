"""The communication graph of a job, from its links' counters."""

import random
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.files.toml_parser import tomllib
from gpulaunch.measure.run import CountedLink, GpuRun, Reading, Run, Usage
from gpulaunch.measure.traffic import (
    NOISE_BYTES,
    NOISE_SHARE,
    TrafficGraph,
    communication_of,
    traffic_between,
)
from gpulaunch.profiles.pattern import union
from gpulaunch.records import replace

MACHINES = Path(__file__).parents[2] / "profiles" / "machines"
WIRES = {
    (a, b): n
    for a, b, n in tomllib.loads((MACHINES / "dgx1-v100.toml").read_text())["nvlink"]["links"]
}
GB = 10**9
FIGURES = Usage(Reading(0.0)).figures()

Bytes = dict[tuple[int, int], int]


def gpu_run(gpu: int, *links: CountedLink) -> GpuRun:
    """Make a GPU of a job with these NVLinks."""
    return GpuRun(gpu, f"GPU-{gpu}", "V100", 16 << 30, FIGURES, has_gpm=False, links=links)


def counted(order: list[int], sent: Bytes) -> list[GpuRun]:
    """Return a DGX-1's GPUs after `sent` bytes between ranks, split over a pair's links."""
    found = []
    for rank, gpu in enumerate(order):
        links = []
        for pair, count in WIRES.items():
            if gpu in pair:
                peer = sum(pair) - gpu
                other = order.index(peer) if peer in order else None
                for share in range(count):
                    parts = [
                        (amount + share) // count
                        for amount in (sent.get((rank, other), 0), sent.get((other, rank), 0))
                    ]
                    links.append(CountedLink(len(links), "gpu", peer, *parts))
        found.append(gpu_run(gpu, *links))
    return found


def amounts(traffic: TrafficGraph) -> Bytes:
    return {(a, b): round(gb * GB) for a, b, gb in traffic.edges}


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
    five = gpu_run(5, CountedLink(0, "gpu", 6, there, back), CountedLink(1, "gpu", 7, 0, 0))
    six = gpu_run(6, CountedLink(0, "gpu", 2, 0, 0), CountedLink(2, "gpu", 5, back, there))
    traffic = traffic_between([five, six], 3600.0)
    assert traffic.edges == ((0, 1, (there + back) / GB),)
    assert traffic.lines == (
        "over direct NVLinks, both ways: ranks 0-1 3.32 GB/s",
        "over all NVLinks each rank sent and received 3.32 GB/s",
    )


@given(jobs())
def test_the_graph_comes_back(job: tuple[list[int], Bytes]) -> None:
    """The counters of any job on a DGX-1 give back how much each rank sent to which."""
    order, sent = job
    floor = NOISE_SHARE * max(both_ways(sent).values(), default=0)
    assert amounts(traffic_between(counted(order, sent), 60.0)) == {
        pair: amount for pair, amount in both_ways(sent).items() if amount >= floor
    }


@given(jobs(), st.integers(0, 2**32))
def test_noise_and_crooked_counters(job: tuple[list[int], Bytes], seed: int) -> None:
    """Noise on all links adds no edge; ends that differ by 1 % change an edge by at most 1 %."""
    order, sent = job
    rng = random.Random(seed)

    def crooked(amount: int) -> int:
        return int(amount * rng.uniform(0.99, 1)) + rng.randrange(NOISE_BYTES // 100)

    gpus = []
    for gpu in counted(order, sent):
        links = tuple(
            replace(link, sent=crooked(link.sent), received=crooked(link.received))
            for link in gpu.links
        )
        gpus.append(replace(gpu, links=links))
    found, true = amounts(traffic_between(gpus, 60.0)), both_ways(sent)
    largest = max(true.values(), default=0)
    sure = {pair for pair, amount in true.items() if amount > 1.02 * NOISE_SHARE * largest}
    assert sure <= found.keys() <= true.keys()
    assert all(
        found[pair] == pytest.approx(true[pair], rel=0.011, abs=NOISE_BYTES) for pair in sure
    )


UNCOUNTED = CountedLink(0, "gpu", 0)
SWITCH = "NVSwitch hides who talks to whom"


@pytest.mark.parametrize(
    ("sentence", "one", "other", "edges", "line"),
    [
        (
            "one end's counters are enough",
            CountedLink(0, "gpu", 1, 3 * GB, GB),
            UNCOUNTED,
            ((0, 1, 4.0),),
            "over direct NVLinks, both ways: ranks 0-1 4 GB/s",
        ),
        (
            "without both ends a pair is unknown",
            replace(UNCOUNTED, peer=1),
            UNCOUNTED,
            (),
            "no end counted what ranks 0 and 1 exchanged",
        ),
        (
            "ends that differ by more than 2 % are named, and the edge is the mean",
            CountedLink(0, "gpu", 1, 100 * GB, 0),
            CountedLink(0, "gpu", 0, 0, 97 * GB),
            ((0, 1, 98.5),),
            "ranks 0 and 1: the two ends of their NVLinks differ by 3.0 %, the edge is the mean",
        ),
        (
            "ranks that only shook hands have no edge",
            CountedLink(0, "gpu", 1, 5000, 5000),
            CountedLink(0, "gpu", 0, 5000, 5000),
            (),
            "no pair of ranks talked over direct NVLinks",
        ),
        (
            "links to GPUs of other jobs, and to the CPU, are left out",
            CountedLink(0, "gpu", 7, GB, GB),
            CountedLink(0, "cpu", None, GB, GB),
            (),
            None,
        ),
        (
            "NVSwitch hides the peer",
            CountedLink(0, "switch", None, GB, GB),
            CountedLink(0, "switch", None, GB, GB),
            (),
            SWITCH,
        ),
    ],
)
def test_two_ends(
    sentence: str,
    one: CountedLink,
    other: CountedLink,
    edges: tuple[tuple[int, int, float], ...],
    line: str,
) -> None:
    """What one end sent, the other received: each direction is counted twice."""
    traffic = traffic_between([gpu_run(0, one), gpu_run(1, other)], 1.0)
    assert traffic.edges == edges, sentence
    assert (line is None or line in traffic.lines) is True, sentence


def test_a_graph_that_joins_all_ranks_is_kept() -> None:
    """A profile gets the edges if they join all ranks; ranks apart, or one GPU, give nothing."""
    found = []
    for order in ([0, 1, 2], [0, 1], [0]):
        gpus = counted(order, {(0, 1): GB, (1, 0): GB})
        run = Run(("job",), 0, 1.0, tuple(gpus), "2026-11-21T20:00:00Z")
        found.append(communication_of(run, "here")[0].get("edges"))
    assert found == [None, [[0, 1, 2.0]], None]


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
