"""The link between two GPUs as a value, with the bandwidth in GB/s that follows from its wiring.

Two figures are kept for NVLink. *Nominal* is the vendor's and what MAPA adds up; *planned* is the
one in NCCL's own topology search, which is closer to a measured all-reduce. For PCIe the planned
figure serves both.

Sources:
    Nominal: mapa-sc21 Table 1 (NVLink 1 and 2); NVIDIA's data sheets of A100, H100 and B200 (600,
        900 and 1800 GB/s over 12, 18 and 18 links, both directions); GA102 white paper (112.5 GB/s
        over 4 links, both directions).
    Planned: NCCL src/graph/topo.h (SM60_NVLINK_BW ... SM100_NVLINK_BW) and its PCIe speed table.
"""
# pure: decides on plain values

from collections.abc import Callable, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Literal

from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record, replace

LinkKind = Literal["nvlink", "nvswitch", "pcie"]
PathType = Literal["NVL", "PIX", "PXB", "PHB", "NODE", "SYS"]

PCIE_PATHS: tuple[PathType, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""PCIe path types from near to far, as nvidia-smi topo names them."""

# Nominal and planned bandwidth of one NVLink in GB/s per direction, by major version.
_NVLINK_BY_VERSION = {
    1: (20.0, 18.0),
    2: (25.0, 20.0),
    3: (25.0, 20.0),
    4: (25.0, 20.6),
    5: (50.0, 40.1),
    6: (50.0, 40.1),  # NCCL has no figure for it yet: that of version 5
}
# The bridge of RTX 3090, A40 and A6000 reports version 3 and is slower.
_GA10X = (14.0625, 12.0)
# NCCL plans with 20 for the bridge of RTX 2080 Ti and Titan RTX, as for V100. The one published
# all-reduce of two such links is 21.9 (nccl-tests issue 44).
_TURING = (25.0, 11.0)

# NVLinks of three bridges, which is as many as two PCIe cards can have between them, and the share
# of the planned figure that so many links reach: 208 of 240 (A100) and 211 of 247 (H100 NVL).
_BRIDGED_LINKS = 12
_BRIDGED_SHARE = 0.87

# Bandwidth of a GPU's links into an NVSwitch that computes the sum, as a share of the planned
# figure, by major compute capability. Older GPUs cannot, newer ones count as the last. Fitted to
# the all-reduces in tests/unit/test_bandwidth.py: H100, H200 and H800, 5 to 8 GPUs, 0.82 to 0.85;
# B200 and B300, 6 to 8 GPUs, 0.75. NCCL plans with 0.85 and 0.74.
_NVLS_EFFICIENCY = {9: 0.83, 10: 0.75}

# Major NVLink version by major compute capability; of 6, only 6.0 has NVLink. Source: NCCL
# src/graph/topo.h, ncclTopoNVLinkBw, which goes by compute capability alone.
_VERSION_BY_CAPABILITY = {"7": 2, "8": 3, "9": 4, "10": 5}

_RAW_RATE_TOLERANCE = 0.1
_PLANNED_SHARE = 0.8  # planned / nominal of versions 2, 3 and 5

_PCIE_SPEED = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}  # per lane, in NCCL's unit

# Share of the slot's bandwidth that a path keeps peer to peer. PIX is the slot itself; PHB is
# NCCL's overhead of peer-to-peer through an Intel root complex (INTEL_P2P_OVERHEAD 6/5); PXB is
# assumed, so that a longer path is never as good as a shorter one. NODE is fitted to the
# all-reduces in tests/unit/test_bandwidth.py: 20 to 22 of 24, 39 to 50 of 48. SYS at one half
# follows NCCL's figures between sockets up to PCIe 4 (6 for gen 3 Broadwell, 10 to 16 for gen 4).
_PCIE_PATH_SHARE: dict[PathType, float] = {
    "PIX": 1.0,
    "PXB": 0.95,
    "PHB": 5 / 6,
    "NODE": 0.82,
    "SYS": 0.5,
}

# SYS of PCIe 5 and later, fitted to all-reduces across the sockets of EPYC 9005 and of servers of
# H100 PCIe cards: 38 to 42 of 48. NCCL's figure for such Xeons is lower, 22.
_PCIE_5_SYS_SHARE = 0.78

# Share of the slot's bandwidth through the host's memory, however near the GPUs are: 18 of 24 and
# 35 of 48 in a socket, 28 and 22 of 48 between two.
_STAGED_SHARE, _STAGED_SYS_SHARE = 0.75, 0.5


def nvlink_version(compute_capability: str | None) -> int | None:
    """Return the major NVLink version of a GPU; None if its compute capability does not tell."""
    major, _, minor = (compute_capability or "").partition(".")
    return 1 if (major, minor) == ("6", "0") else _VERSION_BY_CAPABILITY.get(major)


def _nvlink_figures(
    version: int, compute_capability: str | None, reported_gb_per_s: float
) -> tuple[float, float]:
    """Return the nominal and the planned bandwidth of one NVLink.

    Drivers report the raw rate of the lanes, up to 6 % above the nominal one (26.56 for 25 on
    H100). A figure near the version's is therefore replaced by the version's; any other one is
    taken as it is, with NCCL's usual discount.

    Args:
        version: major NVLink version, 1 to 6; a newer one counts as 6.
        compute_capability: version of the GPUs at its ends, such as "8.6", or None if unknown.
        reported_gb_per_s: bandwidth of one link as stated by the driver or a description; 0 if
            none.
    """
    if version == 3 and compute_capability == "8.6":
        known = _GA10X
    elif version == 2 and compute_capability == "7.5":
        known = _TURING
    else:
        known = _NVLINK_BY_VERSION[min(max(version, 1), max(_NVLINK_BY_VERSION))]
    if not reported_gb_per_s or abs(reported_gb_per_s / known[0] - 1) < _RAW_RATE_TOLERANCE:
        return known
    return reported_gb_per_s, reported_gb_per_s * _PLANNED_SHARE


def nvls_efficiency(compute_capability: str | None) -> float:
    """Return the share of its planned bandwidth at which a GPU feeds an NVSwitch that sums.

    It is 0 for GPUs that cannot do that.

    Args:
        compute_capability: version such as "9.0", or None if unknown, which counts as too old.
    """
    major = (compute_capability or "").partition(".")[0]
    return (
        _NVLS_EFFICIENCY.get(min(int(major), max(_NVLS_EFFICIENCY)), 0.0)
        if major.isdecimal()
        else 0.0
    )


def pcie_bandwidth(
    path: PathType, generation: int, width: int, *, peer_to_peer: bool = True
) -> float:
    """Return the bandwidth between two GPUs over PCIe, in GB/s per direction.

    Args:
        generation: PCIe generation of the slower end, 1 to 6; an unknown one (0) counts as 3.
        width: lanes of the narrower end; an unknown one (0) counts as 16.
        peer_to_peer: whether it works; if not, everything goes through the host's memory, however
            near the GPUs are.

    Source: NCCL src/graph/topo.cc, width x speed / 80; for the shares see _PCIE_PATH_SHARE.
    """
    generation = min(generation or 3, max(_PCIE_SPEED))
    slot = (width or 16) * _PCIE_SPEED[generation] / 80
    if not peer_to_peer:
        return slot * (_STAGED_SYS_SHARE if path == "SYS" else _STAGED_SHARE)
    late = path == "SYS" and generation >= 5
    return slot * (_PCIE_5_SYS_SHARE if late else _PCIE_PATH_SHARE[path])


class Link(Record):
    """The connection of two GPUs; `a` and `b` are indices, a < b.

    Attributes:
        nvlink_count: NVLinks between the two, or into the switch that joins them.
        pcie_path: path over PCIe, whether it is needed or not.
        nvlink_gb_per_s: nominal NVLink bandwidth per direction; 0 without NVLink.
        nvlink_planned_gb_per_s: NVLink bandwidth per direction that NCCL plans with; 0 without
            NVLink.
        peer_to_peer: whether one can read the other's memory over PCIe; None if unknown.
    """

    a: int
    b: int
    kind: LinkKind
    nvlink_count: int
    pcie_path: PathType
    nvlink_gb_per_s: float
    nvlink_planned_gb_per_s: float
    pcie_gb_per_s: float
    peer_to_peer: bool | None = None

    @property
    def path(self) -> PathType:
        """Path type of the best direct connection."""
        return "NVL" if self.nvlink_count else self.pcie_path

    @property
    def name(self) -> str:
        """Name of its class: "NV2 50", "PHB 10", with its bandwidth in GB/s."""
        kind = f"NV{self.nvlink_count}" if self.nvlink_count else self.pcie_path
        return f"{kind} {self.bandwidth_gb_per_s:.4g}"

    @property
    def bandwidth_gb_per_s(self) -> float:
        """Nominal bandwidth of the best direct connection: the weight w(a, b) of mapa-sc21 3.2."""
        return self.nvlink_gb_per_s or self.pcie_gb_per_s


Wiring = tuple[PathType, int, float | None, bool | None]
"""The wiring of two cards, before its bandwidth is known: what connect() takes after the GPUs."""


def wired(gpus: Sequence[Gpu], wire: Callable[[int, int], Wiring]) -> tuple[Link, ...]:
    """Return a link for every two GPUs.

    MIG instances share the wires of their cards, and those of one card have none.

    Args:
        gpus: GPUs by ascending index.
        wire: returns the wiring of two cards by index, the lower one first.
    """
    wirings: list[Wiring | None] = []
    for card, other in combinations(map(attrgetter("card"), gpus), 2):
        wirings.append(None if card == other else wire(min(card, other), max(card, other)))
    links = []
    for (a, b), wiring in zip(combinations(gpus, 2), wirings, strict=True):
        if wiring is None:
            link = connect(replace(a, nvswitch_links=0), b, "PIX", peer_to_peer=False)
        else:
            link = connect(a, b, *wiring)
        links.append(link)
    return tuple(links)


def connect(
    a: Gpu,
    b: Gpu,
    path: PathType,
    direct_nvlinks: int = 0,
    pcie_gb_per_s: float | None = None,
    peer_to_peer: bool | None = None,
) -> Link:
    """Return the link of two GPUs, with all bandwidths that follow from them; the order is free.

    Args:
        pcie_gb_per_s: bandwidth over PCIe if the machine's description states it; else it is
            computed.
        peer_to_peer: whether peer-to-peer over PCIe works; None if unknown, which counts as yes.
    """
    if a.index > b.index:
        a, b = b, a
    count = direct_nvlinks or min(a.nvswitch_links, b.nvswitch_links)
    nominal, planned = 0.0, 0.0
    if count:
        version = min(a.nvlink_version, b.nvlink_version)
        reported = min(a.nvlink_gb_per_s, b.nvlink_gb_per_s)
        nominal, planned = _nvlink_figures(version, a.compute_capability, reported)
    share = _BRIDGED_SHARE if direct_nvlinks >= _BRIDGED_LINKS else 1.0
    if pcie_gb_per_s is None:
        pcie_gb_per_s = computed_pcie(a, b, path, peer_to_peer)
    kind: LinkKind = "pcie"
    if count:
        kind = "nvlink" if direct_nvlinks else "nvswitch"
    return Link(
        a=a.index,
        b=b.index,
        kind=kind,
        nvlink_count=count,
        pcie_path=path,
        nvlink_gb_per_s=count * nominal,
        nvlink_planned_gb_per_s=count * planned * share,
        pcie_gb_per_s=pcie_gb_per_s,
        peer_to_peer=peer_to_peer,
    )


def computed_pcie(a: Gpu, b: Gpu, path: PathType, peer_to_peer: bool | None) -> float:
    """Return the bandwidth over PCIe that follows from the slots of two GPUs, in GB/s."""
    return pcie_bandwidth(
        path,
        min(a.pcie_generation, b.pcie_generation),
        min(a.pcie_width, b.pcie_width),
        peer_to_peer=peer_to_peer is not False,
    )
