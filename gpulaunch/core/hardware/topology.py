"""The hardware graph as a value: GPUs and the best direct connection of every two of them."""

from typing import Literal, NamedTuple

from gpulaunch.core.hardware.bandwidth import PathType, nvlink_figures, pcie_bandwidth

LinkKind = Literal["nvlink", "nvswitch", "pcie"]


class Gpu(NamedTuple):
    """One GPU.

    Attributes:
        index: number by PCI order, as NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID count; gaps are possible.
        uuid: identity that survives reboots, "GPU-...".
        model: product name.
        memory_bytes: total device memory.
        numa_node: NUMA node of the CPUs next to it, or None if unknown.
        cpuset: CPUs next to it; empty if unknown.
        compute_capability: such as "7.0", or None if unknown.
        pcie_generation: highest that GPU and slot can do (the current one drops when idle); 0 if unknown.
        pcie_width: lanes, likewise; 0 if unknown.
        nvlink_version: major version of its NVLinks; 0 if it has none.
        nvswitch_links: how many of its NVLinks end in an NVSwitch.
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


def connect(
    a: Gpu, b: Gpu, pcie_path: PathType, *, direct_nvlinks: int = 0, pcie_gb_per_s: float | None = None
) -> Link:
    """The link of two GPUs, with every bandwidth that follows from what they are.

    Args:
        a: one GPU.
        b: the other; the order does not matter.
        pcie_path: how they meet over PCIe.
        direct_nvlinks: NVLinks that join the two without a switch.
        pcie_gb_per_s: PCIe bandwidth where the machine's description states it, else it is computed.
    """
    a, b = sorted((a, b), key=lambda gpu: gpu.index)
    count = direct_nvlinks or min(a.nvswitch_links, b.nvswitch_links)
    version = min(a.nvlink_version, b.nvlink_version) if count else 0
    nominal, planned = nvlink_figures(version, a.compute_capability) if count else (0.0, 0.0)
    generation = min(a.pcie_generation, b.pcie_generation)
    width = min(a.pcie_width, b.pcie_width)
    return Link(
        a=a.index,
        b=b.index,
        kind="pcie" if not count else "nvlink" if direct_nvlinks else "nvswitch",
        nvlink_count=count,
        nvlink_version=version,
        pcie_path=pcie_path,
        pcie_generation=generation,
        pcie_width=width,
        nvlink_gb_per_s=count * nominal,
        nvlink_planned_gb_per_s=count * planned,
        pcie_gb_per_s=pcie_bandwidth(pcie_path, generation, width) if pcie_gb_per_s is None else pcie_gb_per_s,
    )
