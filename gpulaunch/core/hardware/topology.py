"""The hardware graph as a value: GPUs and the best direct connection of every two of them."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

from gpulaunch.core.hardware.bandwidth import PathType, nvlink_figures, pcie_bandwidth

LinkKind = Literal["nvlink", "nvswitch", "pcie"]


class Mig(NamedTuple):
    """What makes a GPU a MIG instance: a slice of a card, with memory and processors of its own.

    Attributes:
        card: index of the card.
        card_uuid: its identity.
        instance: number on the card, as nvidia-smi -L counts; gaps are possible.
        profile: such as "1g.10gb".
    """

    card: int
    card_uuid: str
    instance: int
    profile: str


class Gpu(NamedTuple):
    """One GPU: a card, or a MIG instance of one.

    Attributes:
        index: number by PCI order, as NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID count; gaps are possible. A MIG instance
            has its mig_index.
        uuid: identity that survives reboots, "GPU-..." or "MIG-...".
        model: product name.
        memory_bytes: total device memory.
        numa_node: NUMA node of the CPUs next to it, or None if unknown.
        cpuset: CPUs next to it; empty if unknown.
        compute_capability: such as "7.0", or None if unknown.
        pcie_generation: highest that GPU and slot can do (the current one drops when idle); 0 if unknown.
        pcie_width: lanes, likewise; 0 if unknown.
        nvlink_version: major version of its NVLinks; 0 if it has none.
        nvswitch_links: how many of its NVLinks end in an NVSwitch.
        cpu_nvlinks: how many of them end in a CPU, as on POWER.
        nvlink_gb_per_s: what one of them carries per direction, as driver or description say; 0 if neither does.
        pci_address: "domain:bus:device", or None if unknown.
        mig: what instance of which card it is; None for a card.
    """

    index: int  # type: ignore[assignment]  # the field's own word; nobody asks a GPU for tuple.index
    uuid: str
    model: str
    memory_bytes: int
    numa_node: int | None = None
    cpuset: frozenset[int] = frozenset()
    compute_capability: str | None = None
    pcie_generation: int = 0
    pcie_width: int = 0
    nvlink_version: int = 0
    nvswitch_links: int = 0
    cpu_nvlinks: int = 0
    nvlink_gb_per_s: float = 0.0
    pci_address: str | None = None
    mig: Mig | None = None

    @property
    def card(self) -> int:
        """Index of the card that it is, or is an instance of."""
        return self.mig.card if self.mig else self.index

    @property
    def name(self) -> str:
        """What people call it: its index, or "card:instance"."""
        return f"{self.mig.card}:{self.mig.instance}" if self.mig else str(self.index)


def mig_index(card: int, instance: int) -> int:
    """Index of a MIG instance: 100 x (card + 1) + instance, so that it is nobody else's and easy to read.

    CUDA has no number of its own for it: it is named by UUID there.
    """
    return 100 * (card + 1) + instance


class Link(NamedTuple):
    """How two GPUs meet; `a` and `b` are indices, a < b.

    Attributes:
        kind: what their best direct connection is made of.
        nvlink_count: NVLinks between the two, or into the switch that joins them.
        nvlink_version: major version of those; 0 if there are none.
        pcie_path: how they meet over PCIe, whether they need to or not.
        pcie_generation: of the slower end; 0 if unknown.
        pcie_width: lanes of the narrower end; 0 if unknown.
        nvlink_gb_per_s: nominal NVLink bandwidth per direction; 0 without NVLink.
        nvlink_planned_gb_per_s: the same as NCCL plans with it.
        pcie_gb_per_s: PCIe bandwidth per direction.
        peer_to_peer: whether one can read the other's memory over PCIe; None if unknown.
    """

    a: int
    b: int
    kind: LinkKind
    nvlink_count: int
    nvlink_version: int
    pcie_path: PathType
    pcie_generation: int
    pcie_width: int
    nvlink_gb_per_s: float
    nvlink_planned_gb_per_s: float
    pcie_gb_per_s: float
    peer_to_peer: bool | None = None

    @property
    def path(self) -> PathType:
        """Path type of the best direct connection."""
        return "NVL" if self.nvlink_count else self.pcie_path

    @property
    def bandwidth_gb_per_s(self) -> float:
        """Nominal bandwidth of the best direct connection: the weight w(a, b) of mapa-sc21 3.2."""
        return self.nvlink_gb_per_s or self.pcie_gb_per_s


class Topology(NamedTuple):
    """All GPUs of a machine and a link for every two of them.

    Attributes:
        name: of a described machine, or the host's.
        gpus: by ascending index.
        links: by ascending (a, b); complete.
        source: where the facts come from.
        digest: of the description; None for the machine that we run on.
    """

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    source: str
    digest: str | None = None


class Wire(NamedTuple):
    """How two cards are joined, before it is known what that carries.

    Attributes:
        pcie_path: how they meet over PCIe.
        direct_nvlinks: NVLinks that join the two without a switch.
        pcie_gb_per_s: PCIe bandwidth where the machine's description states it, else it is computed.
        peer_to_peer: whether they can over PCIe; None if unknown, which counts as yes.
    """

    pcie_path: PathType
    direct_nvlinks: int = 0
    pcie_gb_per_s: float | None = None
    peer_to_peer: bool | None = None


def wired(gpus: Sequence[Gpu], wire: Callable[[int, int], Wire]) -> tuple[Link, ...]:
    """A link for every two GPUs; MIG instances share the wires of their cards, and those of one card have none.

    Args:
        gpus: by ascending index.
        wire: of two cards by index, the lower one first.
    """
    return tuple(
        connect(a, b, wire(*sorted((a.card, b.card))))
        if a.card != b.card
        else connect(a._replace(nvswitch_links=0), b, Wire("PIX", peer_to_peer=False))
        for a, b in combinations(gpus, 2)
    )


def connect(a: Gpu, b: Gpu, wire: Wire) -> Link:
    """The link of two GPUs, with every bandwidth that follows from what they are; the order does not matter."""
    a, b = sorted((a, b), key=lambda gpu: gpu.index)
    count = wire.direct_nvlinks or min(a.nvswitch_links, b.nvswitch_links)
    version = min(a.nvlink_version, b.nvlink_version) if count else 0
    reported = min(a.nvlink_gb_per_s, b.nvlink_gb_per_s)
    nominal, planned = nvlink_figures(version, a.compute_capability, reported) if count else (0.0, 0.0)
    generation = min(a.pcie_generation, b.pcie_generation)
    width = min(a.pcie_width, b.pcie_width)
    pcie_gb_per_s = wire.pcie_gb_per_s
    if pcie_gb_per_s is None:
        pcie_gb_per_s = pcie_bandwidth(wire.pcie_path, generation, width, peer_to_peer=wire.peer_to_peer is not False)
    return Link(
        a=a.index,
        b=b.index,
        kind="pcie" if not count else "nvlink" if wire.direct_nvlinks else "nvswitch",
        nvlink_count=count,
        nvlink_version=version,
        pcie_path=wire.pcie_path,
        pcie_generation=generation,
        pcie_width=width,
        nvlink_gb_per_s=count * nominal,
        nvlink_planned_gb_per_s=count * planned,
        pcie_gb_per_s=pcie_gb_per_s,
        peer_to_peer=wire.peer_to_peer,
    )
