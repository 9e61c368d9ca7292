"""The link between two GPUs as a value, with the bandwidth that follows from its wiring."""
# pure: decides on plain values

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link_bandwidth import (
    NETWORK_PATH,
    NO_NVLINK,
    PathType,
    bundle_share,
    nvlink_figures,
    pcie_bandwidth,
)
from gpulaunch.records import Record, replace

LinkKind = Literal["nvlink", "nvswitch", "pcie", "network"]


class Link(Record):
    """The connection of two GPUs; `a` and `b` are indices, a < b.

    Attributes:
        kind: kind of their best direct connection.
        nvlink_count: NVLinks between the two, or into the switch that joins them.
        pcie_path: path over the host, whether it is needed or not: over PCIe, or "NET" between
            machines.
        nvlink_gb_per_s: nominal NVLink bandwidth per direction; 0 without NVLink.
        nvlink_planned_gb_per_s: NVLink bandwidth per direction that NCCL plans with; 0 without
            NVLink.
        pcie_gb_per_s: bandwidth over the host per direction: over PCIe, or over the network between
            machines.
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


class Wire(Record):
    """The wiring of two cards, before its bandwidth is known.

    Attributes:
        pcie_path: path over the host; "NET" if the cards are in different machines.
        direct_nvlinks: NVLinks that join the two without a switch.
        pcie_gb_per_s: bandwidth over the host if the machine's description states it, as it must
            for a network; else it is computed.
        peer_to_peer: whether peer-to-peer over PCIe works; None if unknown, which counts as yes.
    """

    pcie_path: PathType
    direct_nvlinks: int = 0
    pcie_gb_per_s: float | None = None
    peer_to_peer: bool | None = None


def wired(gpus: Sequence[Gpu], wire: Callable[[int, int], Wire]) -> tuple[Link, ...]:
    """Return a link for every two GPUs.

    MIG instances share the wires of their cards, and those of one card have none.

    Args:
        gpus: GPUs by ascending index.
        wire: returns the wiring of two cards by index, the lower one first.
    """
    links = []
    for a, b in combinations(gpus, 2):
        if a.card == b.card:
            link = connect(replace(a, nvswitch_links=0), b, Wire("PIX", peer_to_peer=False))
        else:
            link = connect(a, b, wire(*sorted((a.card, b.card))))
        links.append(link)
    return tuple(links)


def connect(a: Gpu, b: Gpu, wire: Wire) -> Link:
    """Return the link of two GPUs, with all bandwidths that follow from them; the order is free.

    No NVSwitch joins two machines.
    """
    a, b = sorted((a, b), key=lambda gpu: gpu.index)
    apart = wire.pcie_path == NETWORK_PATH
    count = wire.direct_nvlinks or (0 if apart else min(a.nvswitch_links, b.nvswitch_links))
    per_link = NO_NVLINK
    if count:
        version = min(a.nvlink_version, b.nvlink_version)
        reported = min(a.nvlink_gb_per_s, b.nvlink_gb_per_s)
        per_link = nvlink_figures(version, a.compute_capability, reported)
    pcie_gb_per_s = wire.pcie_gb_per_s
    if pcie_gb_per_s is None:
        pcie_gb_per_s = computed_pcie(a, b, wire.pcie_path, wire.peer_to_peer)
    kind: LinkKind = "network" if apart else "pcie"
    if count:
        kind = "nvlink" if wire.direct_nvlinks else "nvswitch"
    return Link(
        a=a.index,
        b=b.index,
        kind=kind,
        nvlink_count=count,
        pcie_path=wire.pcie_path,
        nvlink_gb_per_s=count * per_link.nominal_gb_per_s,
        nvlink_planned_gb_per_s=count
        * per_link.planned_gb_per_s
        * bundle_share(wire.direct_nvlinks),
        pcie_gb_per_s=pcie_gb_per_s,
        peer_to_peer=wire.peer_to_peer,
    )


def computed_pcie(a: Gpu, b: Gpu, path: PathType, peer_to_peer: bool | None) -> float:
    """Return the bandwidth over PCIe that follows from the slots of two GPUs, in GB/s."""
    return pcie_bandwidth(
        path,
        min(a.pcie_generation, b.pcie_generation),
        min(a.pcie_width, b.pcie_width),
        peer_to_peer=peer_to_peer is not False,
    )
