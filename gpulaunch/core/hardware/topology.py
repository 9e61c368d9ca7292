"""The hardware graph as a value: GPUs and the best direct connection of every two of them."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import isclose
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zlib import crc32

from gpulaunch.core.hardware.bandwidth import PCIE_PATHS, PathType, nvlink_figures, pcie_bandwidth
from gpulaunch.core.hardware.cpuset import format_cpuset, parse_cpuset
from gpulaunch.errors import UsageError

if TYPE_CHECKING:
    from gpulaunch.core.fields import FieldTable
    from gpulaunch.core.hardware.graph import Attributes, Graph

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
    def name(self) -> str:
        """What tells its class from others: "NV2 50", "PHB 10", with its bandwidth in GB/s."""
        kind = f"NV{self.nvlink_count}" if self.nvlink_count else self.pcie_path
        return f"{kind} {self.bandwidth_gb_per_s:.4g}"

    @property
    def bandwidth_gb_per_s(self) -> float:
        """Nominal bandwidth of the best direct connection: the weight w(a, b) of mapa-sc21 3.2."""
        return self.nvlink_gb_per_s or self.pcie_gb_per_s


class Measured(NamedTuple):
    """What the all-reduce of one kind of set carries.

    Attributes:
        ring: names of the links of its best ring, slowest last.
        all_reduce_gb_per_s: bus bandwidth.
    """

    ring: tuple[str, ...]
    all_reduce_gb_per_s: float


class Topology(NamedTuple):
    """All GPUs of a machine and a link for every two of them.

    Attributes:
        name: of a described machine, or the host's.
        gpus: by ascending index.
        links: by ascending (a, b); complete.
        source: where the facts come from.
        digest: of the description; None for the machine that we run on.
        measured: what `gpulaunch topo --measure` found of it, if anything.
    """

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    source: str
    digest: str | None = None
    measured: tuple[Measured, ...] = ()

    def to_networkx(self) -> "Graph":
        """The machine as an undirected networkx graph.

        Nodes are GPU indices, edges the links. All attributes are scalars and have the names of the fields of Gpu and
        Link, but for `cpuset`, a Linux CPU list; `mig_card` and the like, for a MIG instance; and at an edge besides
        `path`, `bandwidth_gb_per_s` and `weight`, which is the same. What is unknown is left out. The graph has
        `name`, `source` and `digest`. What was measured is not in it.

        Example:
            >>> two = (Gpu(0, "GPU-a", "V100", 16 << 30), Gpu(1, "GPU-b", "V100", 16 << 30))
            >>> machine = Topology("pair", two, wired(two, lambda a, b: Wire("PIX")), "made up")
            >>> machine.to_networkx().edges[0, 1]["path"]
            'PIX'
            >>> Topology.from_networkx(machine.to_networkx()) == machine
            True
        """
        from gpulaunch.core.hardware.graph import make_graph

        return make_graph(
            ((gpu.index, _gpu_attributes(gpu)) for gpu in self.gpus),
            ((link.a, link.b, _link_attributes(link)) for link in self.links),
            {"name": self.name, "source": self.source, "digest": self.digest},
        )

    @classmethod
    def from_networkx(cls, graph: "Graph") -> "Topology":
        """The machine that a networkx graph describes: the inverse of to_networkx.

        Less will do: nodes 0, 1, 2 ... without attributes, edges with `nvlink_count` or with `path` alone ("NVL" alone
        is one NVLink), and with `weight` for their bandwidth. Two nodes without an edge are a path "SYS" apart.
        NVLinks of unknown version are taken for version 3 (25 GB/s each per direction), and everything else follows
        as in a described machine.

        Args:
            graph: undirected, one edge at most for two nodes; a node is an index or its decimal text.

        Raises:
            UsageError: names the node or edge, and its attribute that is wrong, unknown, or contradicts another.
        """
        from gpulaunch.core.hardware.graph import read_attributes, read_edges, read_nodes

        facts = read_attributes(graph, _GRAPH_FIELDS)
        name = facts.get("name") or "graph"
        nodes = read_nodes(graph, _GPU_FIELDS)
        if not nodes:
            raise UsageError("graph: it has no node, so no GPU")
        gpus = tuple(_gpu_of(index, values, name) for index, values in nodes.items())
        edges = read_edges(graph, _LINK_FIELDS)
        links = tuple(_link_of(a, b, edges.get((a.index, b.index), {})) for a, b in combinations(gpus, 2))
        digest = facts.get("digest")
        if digest is None and not all("uuid" in values for values in nodes.values()):
            digest = f"{crc32(repr((gpus, links)).encode()):08x}"  # nobody's machine, so never the one we run on
        return cls(name, gpus, links, facts.get("source", "a networkx graph"), digest)


def counts_as_cuda(topology: Topology) -> bool:
    """Whether CUDA counts the GPUs as NVML does, so that an index means the same to both.

    Not where a card is in MIG mode or left out: CUDA numbers what it can use, from 0 and without gaps.
    """
    return [gpu.index for gpu in topology.gpus] == list(range(len(topology.gpus)))


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


_GRAPH_FIELDS: "FieldTable" = {"name": str, "source": str, "digest": str}
_GPU_FIELDS: "FieldTable" = {
    "uuid": str,
    "model": str,
    "memory_bytes": (0, 1 << 50),
    "numa_node": (0, 1 << 20),
    "cpuset": str,
    "compute_capability": str,
    "pcie_generation": (0, 99),
    "pcie_width": (0, 99),
    "nvlink_version": (0, 99),
    "nvswitch_links": (0, 999),
    "cpu_nvlinks": (0, 999),
    "nvlink_gb_per_s": (0.0, 1e6),
    "pci_address": str,
    "mig_card": (0, 1 << 20),
    "mig_card_uuid": str,
    "mig_instance": (0, 99),
    "mig_profile": str,
}
_LINK_FIELDS: "FieldTable" = {
    "kind": ("nvlink", "nvswitch", "pcie"),
    "nvlink_count": (0, 999),
    "nvlink_version": (0, 99),
    "pcie_path": PCIE_PATHS,
    "pcie_generation": (0, 99),
    "pcie_width": (0, 99),
    "nvlink_gb_per_s": (0.0, 1e6),
    "nvlink_planned_gb_per_s": (0.0, 1e6),
    "pcie_gb_per_s": (0.001, 1e6),
    "peer_to_peer": bool,
    "path": ("NVL", *PCIE_PATHS),
    "bandwidth_gb_per_s": (0.001, 1e6),
    "weight": (0.001, 1e6),
}
_USUAL_NVLINK_VERSION = 3


def _gpu_attributes(gpu: Gpu) -> "Attributes":
    values = {**gpu._asdict(), "cpuset": format_cpuset(gpu.cpuset) or None}
    values |= {f"mig_{name}": value for name, value in (gpu.mig._asdict() if gpu.mig else {}).items()}
    return {name: value for name, value in values.items() if name not in ("index", "mig")}


def _gpu_of(index: int, values: "Attributes", machine: str) -> Gpu:
    facts: dict[str, Any] = {"uuid": f"GPU-{machine}-{index}", "model": "GPU", "memory_bytes": 0, **values}
    parts = {field: facts.pop(f"mig_{field}") for field in Mig._fields if f"mig_{field}" in facts}
    if parts and len(parts) < len(Mig._fields):
        missing = next(field for field in Mig._fields if field not in parts)
        raise UsageError(f"node {index}: mig_{missing} is missing, which a MIG instance has")
    try:
        cpuset = parse_cpuset(facts.pop("cpuset", ""))
    except ValueError:
        raise UsageError(
            f"node {index}: cpuset: {values['cpuset']!r} is no list of CPUs such as '0-19,40-59'"
        ) from None
    return Gpu(index=index, cpuset=cpuset, mig=Mig(**parts) if parts else None, **facts)


def _link_attributes(link: Link) -> "Attributes":
    bandwidth = link.bandwidth_gb_per_s
    values = link._asdict() | {"path": link.path, "bandwidth_gb_per_s": bandwidth, "weight": bandwidth}
    return {name: value for name, value in values.items() if name not in ("a", "b")}


def _link_of(a: Gpu, b: Gpu, values: "Attributes") -> Link:
    """What the edge says, and the rest as it follows from that and from the GPUs."""
    path = values.get("path", "SYS")
    count = values.get("nvlink_count", 1 if path == "NVL" else None)
    if count is not None or a.card == b.card:
        a, b = (gpu._replace(nvswitch_links=0) for gpu in (a, b))
    version = values.get("nvlink_version", min(a.nvlink_version, b.nvlink_version)) or _USUAL_NVLINK_VERSION
    stated = values.get("bandwidth_gb_per_s", values.get("weight"))
    if count:
        each = values.get("nvlink_gb_per_s", stated or 0.0) / count
        a, b = (gpu._replace(nvlink_version=version, nvlink_gb_per_s=each or gpu.nvlink_gb_per_s) for gpu in (a, b))
    near = values.get("pcie_path", "SYS" if path == "NVL" else path)
    wire = Wire(near, count or 0, values.get("pcie_gb_per_s", None if count else stated), values.get("peer_to_peer"))
    link = connect(a, b, wire)
    if stated and count and "nvlink_gb_per_s" not in values:
        link = link._replace(nvlink_gb_per_s=stated)
    link = link._replace(**{name: value for name, value in values.items() if name in Link._fields})
    _refuse_contradiction(link, values)
    return link


def _refuse_contradiction(link: Link, values: "Attributes") -> None:
    where = f"edge {link.a}-{link.b}"
    if (link.kind == "pcie") != (link.nvlink_count == 0):
        raise UsageError(f"{where}: kind: '{link.kind}' contradicts nvlink_count {link.nvlink_count}")
    if (link.nvlink_gb_per_s > 0) != (link.nvlink_count > 0):
        raise UsageError(
            f"{where}: nvlink_gb_per_s: {link.nvlink_gb_per_s:g} contradicts nvlink_count {link.nvlink_count}"
        )
    if values.get("path", link.path) != link.path:
        raise UsageError(f"{where}: path: '{values['path']}' contradicts '{link.path}', which the rest amounts to")
    for name in ("bandwidth_gb_per_s", "weight"):
        if not isclose(values.get(name, link.bandwidth_gb_per_s), link.bandwidth_gb_per_s, rel_tol=1e-6):
            raise UsageError(
                f"{where}: {name}: {values[name]:g} contradicts {link.bandwidth_gb_per_s:g}, which the rest amounts to"
            )
