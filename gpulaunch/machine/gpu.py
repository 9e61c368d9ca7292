"""A GPU as a value: a card, or a MIG instance of one."""
# pure: decides on plain values

from gpulaunch.records import Record


class Mig(Record):
    """The identity of a MIG instance: a slice of a card, with its own memory and processors.

    Attributes:
        card: index of the card.
        card_uuid: UUID of the card.
        instance: number on the card, as nvidia-smi -L counts; gaps are possible.
        profile: name of its size, such as "1g.10gb".
    """

    card: int
    card_uuid: str
    instance: int
    profile: str


class Gpu(Record):
    """One GPU: a card, or a MIG instance of one.

    Attributes:
        index: number by PCI order, as NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID count; gaps are
            possible. A MIG instance has its mig_index.
        uuid: identity that survives reboots, "GPU-..." or "MIG-...".
        model: product name.
        memory_bytes: total device memory; 0 if unknown.
        numa_node: NUMA node of the CPUs next to it, or None if unknown.
        cpuset: CPUs next to it; empty if unknown.
        compute_capability: major and minor version, such as "7.0", or None if unknown.
        pcie_generation: highest that GPU and slot support (the current one drops when idle); 0 if
            unknown.
        pcie_width: highest number of lanes that GPU and slot support; 0 if unknown.
        nvlink_version: major version of its NVLinks; 0 if it has none.
        nvswitch_links: number of its NVLinks that end in an NVSwitch.
        cpu_nvlinks: number of its NVLinks that end in a CPU, as on POWER.
        nvlink_gb_per_s: bandwidth of one NVLink per direction, from the driver or description; 0 if
            unknown.
        pci_address: "domain:bus:device", or None if unknown.
        host_gb_per_s: memory bandwidth of its NUMA node; 0 if unknown.
        node: number of its machine, if a description has several; NUMA nodes and CPUs are those of
            this machine.
        mig: identity as a MIG instance; None for a card.
    """

    index: int
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
    host_gb_per_s: float = 0.0
    node: int = 0
    mig: Mig | None = None

    @property
    def card(self) -> int:
        """Index of the card that this GPU is, or is an instance of."""
        return self.mig.card if self.mig else self.index

    @property
    def name(self) -> str:
        """Name for people: the index, or "card:instance"."""
        return f"{self.mig.card}:{self.mig.instance}" if self.mig else str(self.index)


def mig_index(card: int, instance: int) -> int:
    """Return the index of a MIG instance: 100 x (card + 1) + instance, unique and easy to read.

    CUDA has no number for it; there it is named by its UUID.
    """
    return 100 * (card + 1) + instance
