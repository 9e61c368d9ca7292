"""The cut model against published all-reduce bandwidths; run, it prints the tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

from gpulaunch.decide.placement import effective
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.link import PathType, Wire, pcie_bandwidth, wired
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "bandwidth.md"

A100 = {"nvlink_version": 3, "compute_capability": "8.0", "pcie_generation": 4, "pcie_width": 16}
HOPPER = {"nvlink_version": 4, "compute_capability": "9.0", "pcie_generation": 5, "pcie_width": 16}
BLACKWELL = {
    "nvlink_version": 5,
    "compute_capability": "10.0",
    "pcie_generation": 5,
    "pcie_width": 16,
}
TURING = {"nvlink_version": 2, "compute_capability": "7.5", "pcie_generation": 3, "pcie_width": 16}
VOLTA_PCIE = {"compute_capability": "7.0", "pcie_generation": 3, "pcie_width": 16}
RTX_4090 = {"compute_capability": "8.9", "pcie_generation": 4, "pcie_width": 16}
RTX_5090 = {"compute_capability": "12.0", "pcie_generation": 5, "pcie_width": 16}
RTX_PRO_6000 = RTX_5090


def machine(
    gpus: Sequence[Gpu],
    path: Callable[[int, int], PathType],
    *,
    bridges: Mapping[tuple[int, int], int] | None = None,
    peer_to_peer: bool | None = None,
) -> Topology:
    def wire(a: int, b: int) -> Wire:
        return Wire(path(a, b), (bridges or {}).get((a, b), 0), peer_to_peer=peer_to_peer)

    return Topology("test", tuple(gpus), wired(gpus, wire), "a test")


def cards(count: int, facts: Mapping[str, object], switch_links: int = 0) -> list[Gpu]:
    return [
        Gpu(i, f"GPU-{i}", "test", 1 << 34, nvswitch_links=switch_links, **facts)
        for i in range(count)
    ]


def switched(count: int, links: int, facts: Mapping[str, object]) -> Topology:
    return machine(cards(count, facts, links), lambda *_: "SYS")


def sockets(
    count: int,
    facts: Mapping[str, object],
    *,
    peer_to_peer: bool,
    near: PathType = "NODE",
    each: int = 4,
) -> Topology:
    """Describe GPUs without NVLink, `each` of them at a socket, or all at one."""
    return machine(
        cards(count, facts),
        lambda a, b: near if a // each == b // each else "SYS",
        peer_to_peer=peer_to_peer,
    )


def bridged(count: int, facts: Mapping[str, object], links: int) -> Topology:
    """Describe PCIe cards of one socket, the first two joined by NVLink bridges."""
    return machine(cards(count, facts), lambda *_: "NODE", bridges={(0, 1): links})


def groups_of_four(facts: Mapping[str, object], links: int) -> Topology:
    """Describe eight PCIe cards on two sockets, four and four joined by NVLink bridges."""
    pairs = {(a, b): links for a, b in combinations(range(8), 2) if a // 4 == b // 4}
    return machine(
        cards(8, facts), lambda a, b: "NODE" if a // 4 == b // 4 else "SYS", bridges=pairs
    )


def described(name: str, gpus: Sequence[int]) -> Topology:
    """Return a part of a shipped machine."""
    whole = load_described_machine(name)[0]
    return replace(
        whole,
        gpus=tuple(gpu for gpu in whole.gpus if gpu.index in gpus),
        links=tuple(link for link in whole.links if link.a in gpus and link.b in gpus),
    )


def gb_per_s(
    model: Callable[[Fabric, Sequence[int]], int], fabric: Fabric, gpus: Iterable[int]
) -> float:
    """Return what a model says of some GPUs by index."""
    return model(fabric, [fabric.position[gpu] for gpu in gpus]) / UNIT


cut_bandwidth = partial(gb_per_s, effective.cut)


def ring_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float:
    """Return what the model says of a ring behind a switch, which is as fast as two of its GPUs."""
    return cut_bandwidth(fabric, gpus[:2])


nvls_bandwidth = partial(gb_per_s, effective.nvls_bandwidth)


class Point(NamedTuple):
    """A published measurement.

    Attributes:
        sentence: what was measured.
        topology: the GPUs that took part.
        published_gb_per_s: bus bandwidth of large messages.
        source: who published it, where.
        model: what stands for it.
        explanation: why the model is more than 25 % off; empty where it is not.
        small: whether its messages are smaller than 1 GiB, which is less than the model forecasts.
    """

    sentence: str
    topology: Topology
    published_gb_per_s: float
    source: str
    model: Callable[[Fabric, Sequence[int]], float | None] = cut_bandwidth
    explanation: str = ""
    small: bool = False

    @property
    def over_nvlink(self) -> bool:
        """Whether NVLink joins its GPUs."""
        fabric = Fabric(self.topology)
        return len(effective.nvlink_parts(fabric, range(len(fabric.gpus)))) == 1

    @property
    def gb_per_s(self) -> float:
        """What the model says."""
        return self.model(Fabric(self.topology), [gpu.index for gpu in self.topology.gpus]) or 0.0

    @property
    def ratio(self) -> float:
        """Of the model to the measurement."""
        return self.gb_per_s / self.published_gb_per_s


AZURE = "Azure/AI-benchmarking-guide"
ML_ENGINEERING = "stas00/ml-engineering network/README"
MAPA = "mapa-sc21 Eq. 2, fitted to measurements"
RTX6KPRO = "voipmonitor/rtx6kpro hardware"
OCI = "oracle-japan ocitutorials"

HOST = "a rented container; the host's memory is in the way of every transfer"

# The figures of the model were chosen by these: NVSwitch's efficiency, the share of bridged cards,
# the shares of PCIe paths.
FITTED = (
    # Sums computed in NVSwitch.
    Point("8 H100, NVSwitch", switched(8, 18, HOPPER), 478.9, f"{AZURE} ND_H100_v5"),
    Point("8 H100, NVSwitch, NCCL's author", switched(8, 18, HOPPER), 480, "nccl-tests#212"),
    Point("5 H100 of 8", switched(5, 18, HOPPER), 420, "nccl#1455"),
    Point("5 H200 of 8", switched(5, 18, HOPPER), 414.2, ML_ENGINEERING),
    Point("6 H200 of 8", switched(6, 18, HOPPER), 435.6, ML_ENGINEERING),
    Point("7 H200 of 8", switched(7, 18, HOPPER), 460.0, ML_ENGINEERING),
    Point("8 H200, NVSwitch", switched(8, 18, HOPPER), 473.1, ML_ENGINEERING),
    Point("8 H800, 8 links each", switched(8, 8, HOPPER), 215, "nccl#1374"),
    Point("6 B200 of 8", switched(6, 18, BLACKWELL), 778.2, ML_ENGINEERING),
    Point("8 B200, NVSwitch", switched(8, 18, BLACKWELL), 838.0, ML_ENGINEERING),
    Point("8 B300, NVSwitch", switched(8, 18, BLACKWELL), 845, "nccl#2140"),
    # NVLink bridges.
    Point("2 A100 PCIe, bridged", bridged(2, A100, 12), 208, "nccl-tests#178"),
    Point("2 H100 NVL, bridged", bridged(2, HOPPER, 12), 211, "MLPerf report, 2 x H100 NVL"),
    Point("2 RTX 2080 Ti, bridged", bridged(2, TURING, 2), 21.9, "nccl-tests#44", small=True),
    # PCIe, through the host's memory.
    Point("4 RTX 5090, one socket", sockets(4, RTX_5090, peer_to_peer=False), 35, "nccl#1639"),
    Point("8 RTX 5090, two sockets", sockets(8, RTX_5090, peer_to_peer=False), 28, "nccl#1639"),
    Point("4 RTX 4090, one socket", sockets(4, RTX_4090, peer_to_peer=False), 18, "nccl#1603"),
    # PCIe, peer to peer.
    Point("3 A100 PCIe, 2 of them bridged", bridged(3, A100, 12), 20, "nccl-tests#178"),
    Point(
        "4 RTX 4090, one socket, P2P driver",
        sockets(4, RTX_4090, peer_to_peer=True),
        22,
        "nccl#1603",
    ),
    Point(
        "4 RTX PRO 6000, one socket",
        sockets(4, RTX_PRO_6000, peer_to_peer=True),
        39.3,
        f"{RTX6KPRO}/asus-esc8000a",
        small=True,
    ),
    Point(
        "8 RTX PRO 6000, 3 PCIe switches",
        sockets(8, RTX_PRO_6000, each=8, peer_to_peer=True),
        41.1,
        f"{RTX6KPRO}/pcie-bandwidth",
    ),
    Point(
        "8 RTX PRO 6000, 4 PCIe switches",
        sockets(8, RTX_PRO_6000, each=8, peer_to_peer=True),
        39.4,
        f"{RTX6KPRO}/pcie-bandwidth",
    ),
    Point(
        "8 RTX PRO 6000, two EPYC 9005",
        sockets(8, RTX_PRO_6000, peer_to_peer=True),
        37.6,
        f"{RTX6KPRO}/pcie-bandwidth",
    ),
    Point(
        "7 RTX PRO 6000, two EPYC 9005",
        sockets(7, RTX_PRO_6000, peer_to_peer=True),
        41.5,
        f"{RTX6KPRO}/pcie-bandwidth",
    ),
    Point(
        "8 H100 PCIe, two sockets",
        sockets(8, HOPPER, peer_to_peer=True),
        40,
        "a provider's guide: 35 to 45",
    ),
)

# No figure of the model was chosen by these.
HELD_OUT = (
    # Through NVSwitch.
    Point("8 H100, NVSwitch, ring", switched(8, 18, HOPPER), 370, "nccl-tests#212", ring_bandwidth),
    Point("8 H100, NVSwitch, 4 GiB", switched(8, 18, HOPPER), 476.5, "nccl-tests#290"),
    Point("8 H100, NVSwitch, 8 GiB", switched(8, 18, HOPPER), 479.7, "aigatech/vpbenchmarking"),
    Point(
        "8 H100, NVSwitch, A3 High",
        switched(8, 18, HOPPER),
        263.2,
        "cluster-toolkit, A3 High test plan",
        explanation=(
            "set up for the network of that cloud; which limit of NCCL slows it is not said"
        ),
    ),
    Point(
        "8 H100, NVSwitch, XE9680",
        switched(8, 18, HOPPER),
        481.3,
        "nccl-tests#309, 275 algorithm bandwidth",
    ),
    Point("4 H200 of 8", switched(4, 18, HOPPER), 363.3, ML_ENGINEERING),
    Point("8 H200, NVSwitch, 4 GiB", switched(8, 18, HOPPER), 475, "nccl-tests#272"),
    Point("4 B200 of 8", switched(4, 18, BLACKWELL), 673.2, ML_ENGINEERING),
    Point("5 B200 of 8", switched(5, 18, BLACKWELL), 677.8, ML_ENGINEERING),
    Point(
        "8 B200, NVSwitch, ring", switched(8, 18, BLACKWELL), 682.2, ML_ENGINEERING, ring_bandwidth
    ),
    Point("4 GB200 of an NVL72", described("nvl72", range(4)), 679.6, f"{AZURE} ND_GB200_v6"),
    Point(
        "8 GB200 of an NVL72",
        described("nvl72", range(8)),
        811,
        "lixueduan.com, gb200-mnnvl-nccl-test",
    ),
    Point("72 GB200, NVL72", described("nvl72", range(72)), 846.8, "coreweave/nccl-tests#43"),
    Point("8 A100, NVSwitch", switched(8, 12, A100), 235, ML_ENGINEERING),
    Point("8 A100, NVSwitch, Azure", switched(8, 12, A100), 231.6, f"{AZURE} ND_A100_v4"),
    Point("8 A100, NVSwitch, OCI, 10 GiB", switched(8, 12, A100), 232.0, f"{OCI} BM.GPU4.8"),
    Point("8 A100, NVSwitch, OCI, 8 GiB", switched(8, 12, A100), 235.1, f"{OCI}, GPU cluster"),
    Point(
        "8 A100, NVSwitch, SuperBench",
        switched(8, 12, A100),
        235.3,
        "microsoft/superbenchmark test data",
    ),
    Point("8 A100, NVSwitch, 1 GiB", switched(8, 12, A100), 200, "nccl-tests#149"),
    Point("8 A100, NVSwitch, 220", switched(8, 12, A100), 220, "nccl-tests#228, count assumed"),
    Point(
        "12 of 16 V100, DGX-2",
        described("dgx2", range(12)),
        123.6,
        "nccl-tests on the DGX-2 seville",
    ),
    # NVLink without a switch.
    Point(
        "2 H100 PCIe, bridged",
        bridged(2, HOPPER, 12),
        115.9,
        "nccl#1161",
        explanation=(
            "one box, with no more than six of its twelve links would carry; two H100 NVL with "
            "twelve reach 211"
        ),
    ),
    Point("8 V100 SXM2, OCI", described("dgx1-v100", range(8)), 135.5, f"{OCI} BM.GPU3.8"),
    Point(
        "8 V100 SXM2, 128 MiB",
        described("dgx1-v100", range(8)),
        129.1,
        "notes on nccl-tests, 2019",
        small=True,
    ),
    Point("2 V100, double NVLink", described("dgx1-v100", (0, 3)), 39.08, MAPA),
    Point("2 V100, single NVLink", described("dgx1-v100", (0, 1)), 21.61, MAPA),
    Point("3 V100, 2 double and 1 single", described("dgx1-v100", (0, 2, 3)), 57.86, MAPA),
    Point("3 V100, 1 double and 2 single", described("dgx1-v100", (0, 1, 3)), 44.11, MAPA),
    # PCIe, through the host's memory.
    Point(
        "8 RTX PRO 6000, default NCCL",
        sockets(8, RTX_PRO_6000, peer_to_peer=True),
        22.2,
        f"{RTX6KPRO}/pcie-bandwidth",
        explanation="NCCL's default beyond one switch; the same box reaches 37.6 peer to peer",
        small=True,
    ),
    Point(
        "4 RTX PRO 6000, default NCCL",
        sockets(4, RTX_PRO_6000, peer_to_peer=True),
        30.3,
        f"{RTX6KPRO}/asus-esc8000a",
        explanation="the same between two switches; this box reaches 39.3 peer to peer",
        small=True,
    ),
    Point(
        "2 RTX 4090, one switch, rented",
        sockets(2, RTX_4090, near="PIX", peer_to_peer=False),
        2.2,
        "kalavai, GPU interconnects",
        explanation=HOST,
    ),
    Point(
        "4 RTX 4090, rented",
        sockets(4, RTX_4090, peer_to_peer=False),
        2.6,
        "kalavai, GPU interconnects",
        explanation=HOST,
    ),
    Point(
        "2 RTX 4090, two sockets, rented",
        sockets(2, RTX_4090, each=1, peer_to_peer=False),
        3.9,
        "kalavai, GPU interconnects",
        explanation=HOST,
    ),
    Point(
        "2 RTX 2080 Ti, one PCIe switch",
        sockets(2, TURING, near="PIX", peer_to_peer=False),
        4.0,
        "Anthony-Hoo.github.io, AutoDL test",
        explanation=(
            "a rented container whose plain copies between the GPUs reach 5.7 GB/s one way and "
            "6.1 both ways"
        ),
    ),
    # PCIe, peer to peer.
    Point("2 V100, PCIe", described("dgx1-v100", (0, 5)), 10.09, MAPA),
    Point(
        "4 V100 PCIe, one switch",
        sockets(4, VOLTA_PCIE, near="PIX", peer_to_peer=True),
        11.2,
        "Sheffield Bessemer, 128 MiB",
        small=True,
    ),
    Point(
        "4 V100 SXM2 without NVLink",
        sockets(4, VOLTA_PCIE, each=2, peer_to_peer=True),
        7.2,
        "notes on nccl-tests, host gdr116",
    ),
    Point(
        "4 RTX 4090, one switch, P2P driver",
        sockets(4, RTX_4090, near="PIX", peer_to_peer=True),
        25.95,
        "tinygrad driver#36",
    ),
    Point(
        "5 RTX 4090, one socket, P2P driver",
        sockets(5, RTX_4090, each=5, peer_to_peer=True),
        24.7,
        "tinygrad driver#17, 32 MiB",
        small=True,
    ),
    Point(
        "8 RTX 5090, P2P driver",
        sockets(8, RTX_5090, each=8, peer_to_peer=True),
        45.7,
        "aikitoria driver README, 32 MiB",
        small=True,
    ),
    Point(
        "2 H100 NVL without a bridge",
        sockets(2, HOPPER, peer_to_peer=True),
        50,
        "MLPerf report, 2 x H100 NVL",
    ),
    Point(
        "8 H200 NVL, two groups of four",
        groups_of_four(HOPPER, 6),
        68.7,
        "Kubernetes NCCL guide, 32 GiB",
        explanation=(
            "NCCL crosses between the two NVLink groups over several slots at once, and the model "
            "counts one"
        ),
    ),
)

POINTS = (*FITTED, *HELD_OUT)

MISSED_BY_A_LITTLE = {
    "72 GB200, NVL72": 1.24,
    "8 A100, NVSwitch, 1 GiB": 1.20,
    "2 V100, PCIe": 1.19,
    "4 V100 SXM2 without NVLink": 0.83,
    "5 RTX 4090, one socket, P2P driver": 0.80,
    "2 H100 NVL without a bridge": 0.79,
}
"""Goal missed by a little: model / published of the points that are 15 to 25 % off."""


def table(points: Sequence[Point]) -> str:
    """Return points as the page shows them: `s` where messages are smaller than 1 GiB."""
    rows = [f"{'GB/s':36}{'model':>7}{'published':>11}{'ratio':>7}    source"]
    for point in points:
        mark = "s" if point.small else " "
        rows.append(
            f"{point.sentence:36}{point.gb_per_s:7.1f}{point.published_gb_per_s:11.1f}"
            f"{point.ratio:7.2f} {mark} {point.source}"
        )
    return "\n".join(rows)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.sentence)
def test_published_all_reduce(point: Point) -> None:
    """The cut model is within 15 % of a published all-reduce, 25 % if listed, or explained."""
    off = abs(point.ratio - 1)
    assert bool(point.explanation) == (off > 0.25)
    assert round(point.ratio, 2) == MISSED_BY_A_LITTLE.get(point.sentence, round(point.ratio, 2))
    assert (point.sentence in MISSED_BY_A_LITTLE) == (0.15 < off <= 0.25)


def test_enough_is_published() -> None:
    """There are 55 figures and more, more of them held out than fitted to, each with a source."""
    assert len(POINTS) >= 55
    assert len(HELD_OUT) > len(FITTED)
    assert [point.sentence for point in POINTS if not point.source] == []


def test_nine_of_ten_over_nvlink_are_near() -> None:
    """Of the figures over NVLink, of 1 GiB and more, 90 % are within 15 %."""
    over = [point for point in POINTS if point.over_nvlink and not point.small]
    near = [point for point in over if abs(point.ratio - 1) <= 0.15]
    assert len(near) >= 0.9 * len(over)
    held_out = [point for point in over if point in HELD_OUT]
    text = (
        f"Over NVLink, {len(near)} of {len(over)} figures of 1 GiB and more are within 15 %, of "
        f"those held out {sum(point in near for point in held_out)} of {len(held_out)}."
    )
    assert text in " ".join(DOCUMENT.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("sentence", "facts", "links", "first"),
    [
        ("NVSwitch of V100 and A100 cannot", A100, 12, None),
        ("Hopper: H200 switches at five", HOPPER, 18, 5),
        ("Blackwell: B200 switches at six", BLACKWELL, 18, 6),
        ("a GPU of unknown age counts as too old", HOPPER | {"compute_capability": None}, 18, None),
        (
            "so does a capability that is no number",
            HOPPER | {"compute_capability": "new"},
            18,
            None,
        ),
        (
            "a newer one than is known counts as Blackwell",
            BLACKWELL | {"compute_capability": "13.1"},
            18,
            6,
        ),
    ],
)
def test_sum_in_the_switch_pays_from(
    sentence: str, facts: Mapping[str, object], links: int, first: int | None
) -> None:
    """NVSwitch computes sums from as many GPUs on as NCCL was seen to use it; fewer use a ring."""
    fabric = Fabric(switched(9, links, facts))
    ring = ring_bandwidth(fabric, range(9))
    gains = [n for n in range(2, 10) if cut_bandwidth(fabric, range(n)) > ring * 1.001]
    assert gains == list(range(first or 10, 10)), sentence


def test_sum_in_the_switch_of_eight() -> None:
    """Eight H100 send 9/8 of their data at 83 % of 18 x 20.6 GB/s, for a bus bandwidth of 14/9."""
    fabric = Fabric(switched(8, 18, HOPPER))
    assert cut_bandwidth(fabric, range(8)) == pytest.approx(0.83 * 18 * 20.6 * 14 / 9)


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        ("a GPU whose switch cannot", {"compute_capability": "8.0"}),
        ("a GPU that is not behind the switch", {"nvswitch_links": 0}),
        ("a MIG instance", {"mig": Mig(7, "GPU-7", 0, "3g.40gb")}),
    ],
)
def test_one_gpu_makes_it_a_ring(sentence: str, change: Mapping[str, object]) -> None:
    """The switch computes the sum for all GPUs of a set or for none; the others still have it."""
    gpus = cards(8, HOPPER, 18)
    fabric = Fabric(
        machine([*gpus[:7], replace(gpus[7], **change)], lambda *_: "SYS", bridges={(0, 7): 2})
    )
    assert nvls_bandwidth(fabric, range(8)) == 0, sentence
    assert cut_bandwidth(fabric, range(1, 7)) == pytest.approx(0.83 * 18 * 20.6 * 10 / 7)


@pytest.mark.parametrize("near", ["PIX", "PXB", "PHB", "NODE"])
def test_without_peer_to_peer_near_is_no_help(near: PathType) -> None:
    """Cards that cannot reach each other's memory go through the host's, however near they are."""
    staged = Fabric(sockets(4, RTX_5090, near=near, peer_to_peer=False))
    assert cut_bandwidth(staged, range(4)) == 48 * 0.75


@pytest.mark.parametrize(
    ("sentence", "path", "generation", "peer_to_peer", "gb_per_s"),
    [
        ("half a slot between sockets of PCIe 4", "SYS", 4, True, 12),
        ("more on PCIe 5, which 35 to 45 is published of", "SYS", 5, True, 0.78 * 48),
        ("and on what comes after", "SYS", 6, True, 0.78 * 96),
        ("within a socket, 20 to 22 of 24", "NODE", 4, True, 0.82 * 24),
        ("staged in a socket", "NODE", 5, False, 36),
        ("staged between two, 28 and 22 of 48", "SYS", 5, False, 24),
    ],
)
def test_pcie_path(
    sentence: str, path: PathType, generation: int, peer_to_peer: bool, gb_per_s: float
) -> None:
    """A path keeps a share of its slot's bandwidth."""
    found = pcie_bandwidth(path, generation, 16, peer_to_peer=peer_to_peer)
    assert found == pytest.approx(gb_per_s), sentence


@pytest.mark.parametrize(
    ("sentence", "facts", "links", "gb_per_s"),
    [
        ("three bridges of A100: 208 is published", A100, 12, 0.87 * 240),
        ("fewer links keep all that NCCL plans with", A100, 4, 80),
        ("Turing's bridge: 21.9 is published", TURING, 2, 22),
    ],
)
def test_bridge(sentence: str, facts: Mapping[str, object], links: int, gb_per_s: float) -> None:
    """A full set of bridges keeps 87 % of what NCCL plans with, and a Turing link is worth 11."""
    pair = Fabric(bridged(2, facts, links))
    assert cut_bandwidth(pair, range(2)) == pytest.approx(gb_per_s), sentence


if __name__ == "__main__":
    print(table(FITTED), table(HELD_OUT), sep="\n\n")
