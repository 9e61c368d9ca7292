"""A GPU as a value: a card, or a MIG instance of one."""
# pure: decides on plain values

from gpulaunch.records import Record


class Mig(Record):
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


class Gpu(Record):
    """One GPU: a card, or a MIG instance of one.

    Attributes:
        index: number by PCI order, as NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID count; gaps are
            possible. A MIG instance has its mig_index.
        uuid: identity that survives reboots, "GPU-..." or "MIG-...".
        model: product name.
        memory_bytes: total device memory.
        numa_node: NUMA node of the CPUs next to it, or None if unknown.
        cpuset: CPUs next to it; empty if unknown.
        compute_capability: such as "7.0", or None if unknown.
        pcie_generation: highest that GPU and slot can do (the current one drops when idle); 0 if
            unknown.
        pcie_width: lanes, likewise; 0 if unknown.
        nvlink_version: major version of its NVLinks; 0 if it has none.
        nvswitch_links: how many of its NVLinks end in an NVSwitch.
        cpu_nvlinks: how many of them end in a CPU, as on POWER.
        nvlink_gb_per_s: what one of them carries per direction, as driver or description say; 0 if
            neither does.
        pci_address: "domain:bus:device", or None if unknown.
        host_gb_per_s: what the memory of its NUMA node carries; 0 if unknown.
        node: number of the machine that it is in, where a description has several; NUMA nodes and
            CPUs are that one's.
        mig: what instance of which card it is; None for a card.
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
