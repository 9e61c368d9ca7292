"""The communication graph of a job, from its links' counters."""

import random
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toml_parser import tomllib

from gpulaunch.lab.measure.run import (
    NOISE_BYTES,
    NOISE_SHARE,
    GpuRun,
    PeerTraffic,
    Run,
    communication_of,
    traffic_between,
)
from gpulaunch.records import replace

MACHINES = Path(__file__).parents[2] / "profiles" / "machines"
WIRES = {
    (a, b): n
    for a, b, n in tomllib.loads((MACHINES / "dgx1-v100.toml").read_text())["nvlink"]["links"]
}
GB = 10**9

Bytes = dict[tuple[int, int], int]


def gpu_run(gpu: int, *traffic: PeerTraffic) -> GpuRun:
    """Make a GPU of a job with this traffic."""
    return GpuRun(gpu, f"GPU-{gpu}", "V100", 16 << 30, {}, traffic=traffic)


def job_of(gpus: list[GpuRun], seconds: float = 1.0) -> Run:
    return Run(("job",), 0, seconds, tuple(gpus), "2026-11-21T20:00:00Z")


def counted(order: list[int], sent: Bytes) -> list[GpuRun]:
    """Return a DGX-1's GPUs after `sent` bytes between ranks."""
    found = []
    for rank, gpu in enumerate(order):
        traffic = []
        for pair in WIRES:
            if gpu in pair:
                peer = sum(pair) - gpu
                other = order.index(peer) if peer in order else None
                there, back = sent.get((rank, other), 0), sent.get((other, rank), 0)
                traffic.append(PeerTraffic(peer, there, back))
        found.append(gpu_run(gpu, *traffic))
    return found


def test_the_papers_example() -> None:
    """GPUs 5 and 6 of mapa-sc21 Figure 9b are one edge; other GPUs' traffic is not the job's."""
    there, back = 6_417_636_280 * 1024, 5_242_973_340 * 1024
    five = gpu_run(5, PeerTraffic(6, there, back), PeerTraffic(7, 0, 0))
    six = gpu_run(6, PeerTraffic(2, 9 * GB, 0), PeerTraffic(5, back, there))
    section, lines = communication_of(job_of([five, six], 3600.0), "here")
    assert section["edges"] == [[0, 1, 11940.0]]
    assert lines == ("over direct NVLinks, both ways: ranks 0-1 3.32 GB/s",)


@given(st.integers(0, 2**32))
def test_noise_and_crooked_counters(seed: int) -> None:
    """Noise on all links adds no edge; ends that differ by 1 % change an edge by at most 1 %."""
    rng = random.Random(seed)
    order = rng.sample(range(8), rng.randint(2, 8))  # GPUs of a DGX-1 in rank order
    pairs = combinations(range(len(order)), 2)
    linked = [(a, b) for a, b in pairs if tuple(sorted((order[a], order[b]))) in WIRES]
    sent: Bytes = {}
    for a, b in rng.sample(linked, rng.randint(0, len(linked))):
        sent[a, b], sent[b, a] = rng.randint(GB, 50 * GB), rng.randint(0, 50 * GB)

    def crooked(amount: int) -> int:
        return int(amount * rng.uniform(0.99, 1)) + rng.randrange(NOISE_BYTES // 100)

    gpus = []
    for gpu in counted(order, sent):
        traffic = tuple(
            replace(one, sent=crooked(one.sent), received=crooked(one.received))
            for one in gpu.traffic
        )
        gpus.append(replace(gpu, traffic=traffic))
    amounts = traffic_between(gpus)
    floor = max(NOISE_BYTES, NOISE_SHARE * max(amounts.values(), default=0))
    found = {pair: amount for pair, amount in amounts.items() if amount >= floor}
    true = {(a, b): sent[a, b] + sent[b, a] for a, b in sent if a < b}
    largest = max(true.values(), default=0)
    sure = {pair for pair, amount in true.items() if amount > 1.02 * NOISE_SHARE * largest}
    assert sure <= found.keys() <= true.keys()
    for pair in sure:
        assert found[pair] == pytest.approx(true[pair], rel=0.011, abs=NOISE_BYTES)


def test_two_ends() -> None:
    """What one end sent, the other received: each direction is counted twice.

    One end is enough; ends that differ have their mean. Without both nothing is known, and traffic
    with other jobs' GPUs is left out.
    """
    for one, other, want in (
        (PeerTraffic(1, 3 * GB, GB), PeerTraffic(0), {(0, 1): 4 * GB}),
        (PeerTraffic(1, 100 * GB, 0), PeerTraffic(0, 0, 97 * GB), {(0, 1): 98.5 * GB}),
        (PeerTraffic(1), PeerTraffic(0), None),
        (PeerTraffic(7, GB, GB), PeerTraffic(6), {}),
    ):
        assert traffic_between([gpu_run(0, one), gpu_run(1, other)]) == want


def test_a_graph_that_joins_all_ranks_is_kept() -> None:
    """A profile gets the edges if they join all ranks; ranks apart, or one GPU, give nothing."""
    found = []
    for order in ([0, 1, 2], [0, 1], [0]):
        run = job_of(counted(order, {(0, 1): GB, (1, 0): GB}))
        found.append(communication_of(run, "here")[0].get("edges"))
    assert found == [None, [[0, 1, 2.0]], None]


def test_what_does_not_show() -> None:
    """Where the counters give no graph, a line says why.

    Ranks only shook hands, an NVSwitch hides the peers, or nobody counted.
    """
    silent = [gpu_run(0, PeerTraffic(1, 5000, 5000)), gpu_run(1, PeerTraffic(0, 5000, 5000))]
    hidden = [replace(gpu, hides_peers=True) for gpu in counted([0, 1], {(0, 1): GB})]
    unclear = "who talks to whom does not show"
    for gpus, line in (
        (silent, "no pair of ranks talked over direct NVLinks"),
        (hidden, f"{unclear}: NVLinks end at an NVSwitch, or unknown"),
        ([gpu_run(0, PeerTraffic(1)), gpu_run(1)], f"{unclear}: some NVLinks have no counters"),
    ):
        assert communication_of(job_of(gpus), "here") == ({}, (line,))
