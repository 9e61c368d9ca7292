"""The cut model against published all-reduce bandwidths; run, it prints the tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from values import A100, H100, card, cards, cases, wired_up
from values import machine as load

from gpulaunch.decide.placement import effective
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.machine.gpu import Mig
from gpulaunch.machine.link import PathType, Wire, pcie_bandwidth
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "bandwidth.md"

BLACKWELL, TURING, VOLTA_PCIE = card(5, "10.0", 5), card(2, "7.5", 3), card(0, "7.0", 3)
RTX_4090, RTX_5090 = card(0, "8.9", 4), card(0, "12.0", 5)


def switched(count: int, links: int, facts: Mapping[str, object]) -> Topology:
    """Make GPUs behind an NVSwitch."""
    return wired_up(cards(count, nvswitch_links=links, **facts), lambda *_: Wire("SYS"))


def slots(
    count: int,
    facts: Mapping[str, object],
    *,
    staged: bool = False,
    near: PathType = "NODE",
    each: int = 4,
    bridges: Mapping[tuple[int, int], int] | None = None,
) -> Topology:
    """Make PCIe cards, `each` of them at a socket, that reach each other's memory if not staged."""

    def wire(a: int, b: int) -> Wire:
        path = near if a // each == b // each else "SYS"
        return Wire(path, (bridges or {}).get((a, b), 0), peer_to_peer=not staged)

    return wired_up(cards(count, **facts), wire)


def bridged(count: int, facts: Mapping[str, object], links: int) -> Topology:
    """Make PCIe cards of one socket, the first two joined by NVLink bridges."""
    return slots(count, facts, bridges={(0, 1): links})


def part(name: str, gpus: Sequence[int]) -> Topology:
    """Return a part of a shipped machine."""
    whole = load(name)
    return replace(
        whole,
        gpus=tuple(gpu for gpu in whole.gpus if gpu.index in gpus),
        links=tuple(link for link in whole.links if link.a in gpus and link.b in gpus),
    )


Model = Callable[[Fabric, Sequence[int]], float]


def cut_bandwidth(fabric: Fabric, gpus: Iterable[int]) -> float:
    """Return what the model says of some GPUs by index, GB/s."""
    return effective.cut(fabric, [fabric.position[gpu] for gpu in gpus]) / UNIT


def ring_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float:
    """Return what the model says of a ring behind a switch, which is as fast as two of its GPUs."""
    return cut_bandwidth(fabric, gpus[:2])


class Point(NamedTuple):
    """A published measurement.

    Attributes:
        sentence: what was measured.
        topology: the GPUs that took part.
        published_gb_per_s: bus bandwidth of large messages.
        source: who published it, where.
        model: what stands for it.
    """

    sentence: str
    topology: Topology
    published_gb_per_s: float
    source: str
    model: Model = cut_bandwidth

    @property
    def is_small(self) -> bool:
        """Whether its messages are smaller than 1 GiB, which is less than the model forecasts."""
        return self.sentence in SMALL

    @property
    def over_nvlink(self) -> bool:
        """Whether NVLink joins its GPUs."""
        fabric = Fabric(self.topology)
        return len(effective.nvlink_parts(fabric, range(len(fabric.gpus)))) == 1

    @property
    def gb_per_s(self) -> float:
        """What the model says."""
        return self.model(Fabric(self.topology), [gpu.index for gpu in self.topology.gpus])

    @property
    def ratio(self) -> float:
        """Of the model to the measurement."""
        return self.gb_per_s / self.published_gb_per_s


AZURE = "Azure/AI-benchmarking-guide"
ML = "stas00/ml-engineering network/README"
MAPA = "mapa-sc21 Eq. 2, fitted to measurements"
RTX6K = "voipmonitor/rtx6kpro hardware"
OCI = "oracle-japan ocitutorials"
KALAVAI = "kalavai, GPU interconnects"
TESTS_2019 = "notes on nccl-tests, 2019"
SUPERBENCH = "microsoft/superbenchmark test data"

EIGHT_H100, EIGHT_A100 = switched(8, 18, H100), switched(8, 12, A100)
EIGHT_B200, EIGHT_PRO = switched(8, 18, BLACKWELL), slots(8, RTX_5090)
NVL72_8, NVL72_ALL, DGX2_12 = (
    part("nvl72", range(8)),
    part("nvl72", range(72)),
    part("dgx2", range(12)),
)
PRO_SWITCHES, TWO_STAGED = slots(8, RTX_5090, each=8), slots(2, RTX_4090, each=1, staged=True)
ONE_SWITCH, ONE_STAGED = (
    slots(4, RTX_4090, near="PIX"),
    slots(2, RTX_4090, near="PIX", staged=True),
)
SHEFFIELD, GDR116 = slots(4, VOLTA_PCIE, near="PIX"), slots(4, VOLTA_PCIE, each=2)
TURING_STAGED = slots(2, TURING, near="PIX", staged=True)
GROUPS = slots(
    8,
    H100,
    bridges={(a, b): 6 for a, b in combinations(range(8), 2) if a // 4 == b // 4},
)


def v100(*gpus: int) -> Topology:
    """Return some GPUs of a DGX-1."""
    return part("dgx1-v100", gpus or range(8))


# The figures of the model were chosen by these: NVSwitch's efficiency, the share of bridged cards,
# the shares of PCIe paths.
FITTED = (
    # Sums computed in NVSwitch.
    Point("8 H100, NVSwitch", EIGHT_H100, 478.9, f"{AZURE} ND_H100_v5"),
    Point("8 H100, NVSwitch, NCCL's author", EIGHT_H100, 480, "nccl-tests#212"),
    Point("5 H100 of 8", switched(5, 18, H100), 420, "nccl#1455"),
    Point("5 H200 of 8", switched(5, 18, H100), 414.2, ML),
    Point("6 H200 of 8", switched(6, 18, H100), 435.6, ML),
    Point("7 H200 of 8", switched(7, 18, H100), 460.0, ML),
    Point("8 H200, NVSwitch", EIGHT_H100, 473.1, ML),
    Point("8 H800, 8 links each", switched(8, 8, H100), 215, "nccl#1374"),
    Point("6 B200 of 8", switched(6, 18, BLACKWELL), 778.2, ML),
    Point("8 B200, NVSwitch", EIGHT_B200, 838.0, ML),
    Point("8 B300, NVSwitch", EIGHT_B200, 845, "nccl#2140"),
    # NVLink bridges.
    Point("2 A100 PCIe, bridged", bridged(2, A100, 12), 208, "nccl-tests#178"),
    Point("2 H100 NVL, bridged", bridged(2, H100, 12), 211, "MLPerf report, 2 x H100 NVL"),
    Point("2 RTX 2080 Ti, bridged", bridged(2, TURING, 2), 21.9, "nccl-tests#44"),
    # PCIe, through the host's memory.
    Point("4 RTX 5090, one socket", slots(4, RTX_5090, staged=True), 35, "nccl#1639"),
    Point("8 RTX 5090, two sockets", slots(8, RTX_5090, staged=True), 28, "nccl#1639"),
    Point("4 RTX 4090, one socket", slots(4, RTX_4090, staged=True), 18, "nccl#1603"),
    # PCIe, peer to peer.
    Point("3 A100 PCIe, 2 of them bridged", bridged(3, A100, 12), 20, "nccl-tests#178"),
    Point("4 RTX 4090, one socket, P2P driver", slots(4, RTX_4090), 22, "nccl#1603"),
    Point("4 RTX PRO 6000, one socket", slots(4, RTX_5090), 39.3, f"{RTX6K}/asus-esc8000a"),
    Point("8 RTX PRO 6000, 3 PCIe switches", PRO_SWITCHES, 41.1, f"{RTX6K}/pcie-bandwidth"),
    Point("8 RTX PRO 6000, 4 PCIe switches", PRO_SWITCHES, 39.4, f"{RTX6K}/pcie-bandwidth"),
    Point("8 RTX PRO 6000, two EPYC 9005", EIGHT_PRO, 37.6, f"{RTX6K}/pcie-bandwidth"),
    Point("7 RTX PRO 6000, two EPYC 9005", slots(7, RTX_5090), 41.5, f"{RTX6K}/pcie-bandwidth"),
    Point("8 H100 PCIe, two sockets", slots(8, H100), 40, "a provider's guide: 35 to 45"),
)

# No figure of the model was chosen by these.
HELD_OUT = (
    # Through NVSwitch.
    Point("8 H100, NVSwitch, ring", EIGHT_H100, 370, "nccl-tests#212", ring_bandwidth),
    Point("8 H100, NVSwitch, 4 GiB", EIGHT_H100, 476.5, "nccl-tests#290"),
    Point("8 H100, NVSwitch, 8 GiB", EIGHT_H100, 479.7, "aigatech/vpbenchmarking"),
    Point("8 H100, NVSwitch, A3 High", EIGHT_H100, 263.2, "cluster-toolkit, A3 High test plan"),
    Point("8 H100, NVSwitch, XE9680", EIGHT_H100, 481.3, "nccl-tests#309, 275 algorithm bandwidth"),
    Point("4 H200 of 8", switched(4, 18, H100), 363.3, ML),
    Point("8 H200, NVSwitch, 4 GiB", EIGHT_H100, 475, "nccl-tests#272"),
    Point("4 B200 of 8", switched(4, 18, BLACKWELL), 673.2, ML),
    Point("5 B200 of 8", switched(5, 18, BLACKWELL), 677.8, ML),
    Point("8 B200, NVSwitch, ring", EIGHT_B200, 682.2, ML, ring_bandwidth),
    Point("4 GB200 of an NVL72", part("nvl72", range(4)), 679.6, f"{AZURE} ND_GB200_v6"),
    Point("8 GB200 of an NVL72", NVL72_8, 811, "lixueduan.com, gb200-mnnvl-nccl-test"),
    Point("72 GB200, NVL72", NVL72_ALL, 846.8, "coreweave/nccl-tests#43"),
    Point("8 A100, NVSwitch", EIGHT_A100, 235, ML),
    Point("8 A100, NVSwitch, Azure", EIGHT_A100, 231.6, f"{AZURE} ND_A100_v4"),
    Point("8 A100, NVSwitch, OCI, 10 GiB", EIGHT_A100, 232.0, f"{OCI} BM.GPU4.8"),
    Point("8 A100, NVSwitch, OCI, 8 GiB", EIGHT_A100, 235.1, f"{OCI}, GPU cluster"),
    Point("8 A100, NVSwitch, SuperBench", EIGHT_A100, 235.3, SUPERBENCH),
    Point("8 A100, NVSwitch, 1 GiB", EIGHT_A100, 200, "nccl-tests#149"),
    Point("8 A100, NVSwitch, 220", EIGHT_A100, 220, "nccl-tests#228, count assumed"),
    Point("12 of 16 V100, DGX-2", DGX2_12, 123.6, "nccl-tests on the DGX-2 seville"),
    # NVLink without a switch.
    Point("2 H100 PCIe, bridged", bridged(2, H100, 12), 115.9, "nccl#1161"),
    Point("8 V100 SXM2, OCI", v100(), 135.5, f"{OCI} BM.GPU3.8"),
    Point("8 V100 SXM2, 128 MiB", v100(), 129.1, TESTS_2019),
    Point("2 V100, double NVLink", v100(0, 3), 39.08, MAPA),
    Point("2 V100, single NVLink", v100(0, 1), 21.61, MAPA),
    Point("3 V100, 2 double and 1 single", v100(0, 2, 3), 57.86, MAPA),
    Point("3 V100, 1 double and 2 single", v100(0, 1, 3), 44.11, MAPA),
    # PCIe, through the host's memory.
    Point("8 RTX PRO 6000, default NCCL", EIGHT_PRO, 22.2, f"{RTX6K}/pcie-bandwidth"),
    Point("4 RTX PRO 6000, default NCCL", slots(4, RTX_5090), 30.3, f"{RTX6K}/asus-esc8000a"),
    Point("2 RTX 4090, one switch, rented", ONE_STAGED, 2.2, KALAVAI),
    Point("4 RTX 4090, rented", slots(4, RTX_4090, staged=True), 2.6, KALAVAI),
    Point("2 RTX 4090, two sockets, rented", TWO_STAGED, 3.9, KALAVAI),
    Point("2 RTX 2080 Ti, one PCIe switch", TURING_STAGED, 4.0, "Anthony-Hoo.github.io, AutoDL"),
    # PCIe, peer to peer.
    Point("2 V100, PCIe", v100(0, 5), 10.09, MAPA),
    Point("4 V100 PCIe, one switch", SHEFFIELD, 11.2, "Sheffield Bessemer, 128 MiB"),
    Point("4 V100 SXM2 without NVLink", GDR116, 7.2, "notes on nccl-tests, host gdr116"),
    Point("4 RTX 4090, one switch, P2P driver", ONE_SWITCH, 25.95, "tinygrad driver#36"),
    Point(
        *("5 RTX 4090, one socket, P2P driver", slots(5, RTX_4090, each=5)),
        *(24.7, "tinygrad driver#17, 32 MiB"),
    ),
    Point(
        *("8 RTX 5090, P2P driver", slots(8, RTX_5090, each=8)),
        *(45.7, "aikitoria driver README, 32 MiB"),
    ),
    Point("2 H100 NVL without a bridge", slots(2, H100), 50, "MLPerf report, 2 x H100 NVL"),
    Point("8 H200 NVL, two groups of four", GROUPS, 68.7, "Kubernetes NCCL guide, 32 GiB"),
)

POINTS = (*FITTED, *HELD_OUT)

SMALL = {
    "2 RTX 2080 Ti, bridged",
    "4 RTX PRO 6000, one socket",
    "8 V100 SXM2, 128 MiB",
    "8 RTX PRO 6000, default NCCL",
    "4 RTX PRO 6000, default NCCL",
    "4 V100 PCIe, one switch",
    "5 RTX 4090, one socket, P2P driver",
    "8 RTX 5090, P2P driver",
}
HOST = "a rented container; the host's memory is in the way of every transfer"
EXPLAINED = {
    "8 H100, NVSwitch, A3 High": "set up for that cloud's network; which limit slows it is unsaid",
    "2 H100 PCIe, bridged": "one box, as slow as six of its twelve links; two H100 NVL reach 211",
    "8 RTX PRO 6000, default NCCL": "NCCL's default beyond one switch; else it reaches 37.6",
    "4 RTX PRO 6000, default NCCL": "the same between two switches; peer to peer it reaches 39.3",
    "2 RTX 4090, one switch, rented": HOST,
    "4 RTX 4090, rented": HOST,
    "2 RTX 4090, two sockets, rented": HOST,
    "2 RTX 2080 Ti, one PCIe switch": f"{HOST}; plain copies reach 5.7 GB/s one way",
    "8 H200 NVL, two groups of four": "NCCL crosses over several slots at once, the model over one",
}
"""Why the model is more than 25 % off."""
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
        mark = "s" if point.is_small else " "
        rows.append(
            f"{point.sentence:36}{point.gb_per_s:7.1f}{point.published_gb_per_s:11.1f}"
            f"{point.ratio:7.2f} {mark} {point.source}"
        )
    return "\n".join(rows)


def test_published_all_reduces() -> None:
    """The cut model is within 15 % of published all-reduces, 25 % if listed, or explained."""
    off = {point.sentence: point.ratio for point in POINTS if abs(point.ratio - 1) > 0.15}
    near = {sentence: ratio for sentence, ratio in off.items() if abs(ratio - 1) <= 0.25}
    assert {sentence: round(ratio, 2) for sentence, ratio in near.items()} == MISSED_BY_A_LITTLE
    assert off.keys() - near.keys() == EXPLAINED.keys()


def test_nine_of_ten_over_nvlink_are_near() -> None:
    """Of the figures over NVLink, of 1 GiB and more, 90 % are within 15 %, as the document says."""
    over = [point for point in POINTS if point.over_nvlink and not point.is_small]
    near = [point for point in over if abs(point.ratio - 1) <= 0.15]
    assert len(near) >= 0.9 * len(over)
    held_out = [point for point in over if point in HELD_OUT]
    document = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    assert (
        f"Over NVLink, {len(near)} of {len(over)} figures of 1 GiB and more are within 15 %, of "
        f"those held out {sum(point in near for point in held_out)} of {len(held_out)}."
    ) in document
    assert f"prints {len(POINTS)} published all-reduces" in document
    assert f"To {len(FITTED)} of them it was fitted" in document


SUMS = {
    "the NVSwitch of an A100 cannot sum": (A100, 12, 10),
    "Hopper's pays from five GPUs on": (H100, 18, 5),
    "Blackwell's pays from six on": (BLACKWELL, 18, 6),
    "a GPU of unknown age counts as too old": (H100 | {"compute_capability": None}, 18, 10),
    "so does a capability that is no number": (H100 | {"compute_capability": "new"}, 18, 10),
    "a newer one than is known counts as Blackwell": (card(5, "13.1", 5), 18, 6),
}


@cases(SUMS, "facts", "links", "first")
def test_sum_in_the_switch_pays_from(facts: Mapping[str, object], links: int, first: int) -> None:
    """NVSwitch computes sums from as many GPUs on as NCCL was seen to use it; fewer use a ring."""
    fabric = Fabric(switched(9, links, facts))
    ring = ring_bandwidth(fabric, range(9))
    gains = [n for n in range(2, 10) if cut_bandwidth(fabric, range(n)) > ring * 1.001]
    assert gains == list(range(first, 10))


def test_sum_in_the_switch_of_eight() -> None:
    """Eight H100 send 9/8 of their data at 83 % of 18 x 20.6 GB/s, for a bus bandwidth of 14/9."""
    fabric = Fabric(EIGHT_H100)
    assert cut_bandwidth(fabric, range(8)) == pytest.approx(0.83 * 18 * 20.6 * 14 / 9)


ONE_OF_EIGHT = {
    "a GPU whose switch cannot": {"compute_capability": "8.0"},
    "a GPU that is not behind the switch": {"nvswitch_links": 0},
    "a MIG instance": {"mig": Mig(7, "GPU-7", 0, "3g.40gb")},
}


@pytest.mark.parametrize("sentence", ONE_OF_EIGHT)
def test_one_gpu_makes_it_a_ring(sentence: str) -> None:
    """The switch computes the sum for all GPUs of a set or for none; the others still have it."""
    gpus = cards(8, nvswitch_links=18, **H100)
    gpus[7] = replace(gpus[7], **ONE_OF_EIGHT[sentence])
    fabric = Fabric(wired_up(gpus, lambda a, b: Wire("SYS", 2 if (a, b) == (0, 7) else 0)))
    assert effective.nvls_bandwidth(fabric, range(8)) == 0
    assert cut_bandwidth(fabric, range(1, 7)) == pytest.approx(0.83 * 18 * 20.6 * 10 / 7)


PATHS = {
    "half a slot between sockets of PCIe 4": ("SYS", 4, True, 12),
    "more on PCIe 5, which 35 to 45 is published of": ("SYS", 5, True, 0.78 * 48),
    "and on what comes after": ("SYS", 6, True, 0.78 * 96),
    "within a socket, 20 to 22 of 24": ("NODE", 4, True, 0.82 * 24),
    "staged in a socket": ("NODE", 5, False, 36),
    "however near they are": ("PIX", 5, False, 36),
    "staged between two, 28 and 22 of 48": ("SYS", 5, False, 24),
}


@cases(PATHS, "path", "generation", "peer_to_peer", "gb_per_s")
def test_pcie_path(path: PathType, generation: int, gb_per_s: float, *, peer_to_peer: bool) -> None:
    """A path keeps a share of its slot's bandwidth."""
    found = pcie_bandwidth(path, generation, 16, peer_to_peer=peer_to_peer)
    assert found == pytest.approx(gb_per_s)


def test_bridge() -> None:
    """A full set of bridges keeps 87 % of what NCCL plans with, and a Turing link is worth 11."""
    for facts, links, gb_per_s in ((A100, 12, 0.87 * 240), (A100, 4, 80), (TURING, 2, 22)):
        pair = Fabric(bridged(2, facts, links))
        assert cut_bandwidth(pair, range(2)) == pytest.approx(gb_per_s)


if __name__ == "__main__":
    print(table(FITTED), table(HELD_OUT), sep="\n\n")
