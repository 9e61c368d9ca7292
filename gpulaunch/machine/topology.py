"""The machine as a value: its GPUs and the best direct connection of every two of them."""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpulaunch.machine.drivers import DEFAULT_DRIVER
from gpulaunch.machine.gpu import Gpu, Mig, format_cpuset, parse_cpuset
from gpulaunch.machine.link import Link
from gpulaunch.records import Record, as_dict, as_list, field_names, replace


class Measured(Record):
    """Measured all-reduce bandwidth of one kind of set of GPUs.

    Attributes:
        ring: names of the links of its best ring, slowest last.
        all_reduce_gb_per_s: bus bandwidth of the all-reduce.
    """

    ring: tuple[str, ...]
    all_reduce_gb_per_s: float


class Topology(Record):
    """All GPUs of a machine, with a link for every two of them.

    Attributes:
        name: name of the described machine, or the host's.
        gpus: GPUs by ascending index.
        links: links by ascending (a, b); complete.
        digest: digest of the description; None for the machine that we run on.
        measured: results of `gpulaunch topo --measure`, if any.
    """

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    source: str
    digest: str | None = None
    measured: tuple[Measured, ...] = ()
    driver: str = DEFAULT_DRIVER

    def to_networkx(self) -> Any:  # noqa: ANN401
        """Return the machine as an undirected networkx graph.

        Nodes are GPU indices, edges are the links. All attributes are scalars with the names of the
        fields of Gpu and Link, except `cpuset`, a Linux CPU list, and `mig_card` and the like of a
        MIG instance. Edges also have `path`, `bandwidth_gb_per_s` and `weight`, which equals it.
        Unknown values are left out. The graph has `name`, `source` and `digest`. It has neither the
        measurements nor the driver.

        Example:
            >>> from gpulaunch.machine.link import connect
            >>> two = (Gpu(0, "GPU-a", "V100", 16 << 30), Gpu(1, "GPU-b", "V100", 16 << 30))
            >>> machine = Topology("pair", two, (connect(*two, "PIX"),), "made up")
            >>> machine.to_networkx().edges[0, 1]["path"]
            'PIX'
        """
        import networkx as nx  # type: ignore[import-untyped]

        facts = {"name": self.name, "source": self.source, "digest": self.digest}
        graph = nx.Graph(**_without_none(facts))
        for gpu in self.gpus:
            values = as_dict(gpu) | {"cpuset": format_cpuset(gpu.cpuset) or None}
            del values["index"], values["mig"]
            if gpu.mig:
                values |= {f"mig_{name}": value for name, value in as_dict(gpu.mig).items()}
            graph.add_node(gpu.index, **_without_none(values))
        for link in self.links:
            weight = link.bandwidth_gb_per_s
            values = as_dict(link) | {"path": link.path, "bandwidth_gb_per_s": weight}
            del values["a"], values["b"]
            graph.add_edge(link.a, link.b, **_without_none(values), weight=weight)
        return graph


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class TableKey(Record):
    """The key of a described machine in the allocation table; this machine's own GPUs have None.

    Attributes:
        file: path of its description, so that a launch inside a lease finds it again.
    """

    name: str
    digest: str
    file: str


def same_table(a: TableKey | None, b: TableKey | None) -> bool:
    """Return whether two keys mean the same machine, wherever its file is; None is this machine."""
    return a is b is None or (
        a is not None and b is not None and (a.name, a.digest) == (b.name, b.digest)
    )


def part_of_machine(topology: Topology, uuids: Collection[str]) -> Topology:
    """Return a machine with these GPUs alone, under their own indices."""
    gpus = tuple(gpu for gpu in topology.gpus if gpu.uuid in uuids)
    left = {gpu.index for gpu in gpus}
    links = tuple(link for link in topology.links if {link.a, link.b} <= left)
    return replace(topology, gpus=gpus, links=links)


def counts_as_cuda(topology: Topology) -> bool:
    """Return whether CUDA counts the GPUs as NVML does, so that an index means the same to both.

    It does not if a card is in MIG mode or left out: CUDA numbers what it can use, from 0 and
    without gaps.
    """
    return [gpu.index for gpu in topology.gpus] == list(range(len(topology.gpus)))


class Card(Record):
    """The contents of one slot: a GPU, or the MIG instances of one.

    Attributes:
        gpu: the GPU, or its first instance, which has the card's slot, NVLinks and CPUs.
        instances: MIG instances by number; empty for a whole card.
    """

    index: int
    gpu: Gpu
    instances: tuple[Gpu, ...] = ()

    @property
    def model(self) -> str:
        """Product name of the card."""
        mig = self.gpu.mig
        return self.gpu.model.removesuffix(f" MIG {mig.profile}") if mig else self.gpu.model

    @property
    def memory_bytes(self) -> int:
        """Total device memory; 0 if unknown, as for a card in MIG mode."""
        return 0 if self.instances else self.gpu.memory_bytes


def cards(topology: Topology) -> list[Card]:
    """Return the cards of a machine by ascending index."""
    parts: dict[int, list[Gpu]] = {}
    for gpu in sorted(topology.gpus, key=lambda gpu: gpu.card):
        parts.setdefault(gpu.card, []).append(gpu)
    return [
        Card(index, gpus[0], tuple(gpus) if gpus[0].mig else ()) for index, gpus in parts.items()
    ]


def card_links(topology: Topology) -> dict[tuple[int, int], Link]:
    """Return a link for every two cards, by their indices, lower first.

    MIG instances share the wires of their card.
    """
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    links: dict[tuple[int, int], Link] = {}
    for link in topology.links:
        a, b = sorted((card[link.a], card[link.b]))
        if a != b:
            links.setdefault((a, b), link)
    return links


def several_models(found: Iterable[Card]) -> bool:
    """Return whether the cards are of more than one model."""
    return len({card.model for card in found}) > 1


def to_rows(topology: Topology) -> list[Any]:
    """Return a topology as rows of JSON values, for another process of the same version.

    They are without digest and measurements, which a machine itself has not.
    """
    gpus = []
    for gpu in topology.gpus:
        mig = as_list(gpu.mig) if gpu.mig else None
        row = as_dict(gpu) | {"cpuset": format_cpuset(gpu.cpuset), "mig": mig}
        gpus.append([*row.values()])
    links = [as_list(link) for link in topology.links]
    return [topology.name, gpus, links, topology.source, topology.driver]


def topology_of_rows(rows: list[Any]) -> Topology:
    """Return the topology of to_rows.

    Raises:
        TypeError, ValueError: they are no rows of this version.
    """
    name, gpu_rows, link_rows, source, driver = rows
    gpus = []
    for row in gpu_rows:
        fields = dict(zip(field_names(Gpu), row, strict=True))
        fields["cpuset"] = parse_cpuset(fields["cpuset"])
        fields["mig"] = Mig(*fields["mig"]) if fields["mig"] else None
        gpus.append(Gpu(**fields))
    links = tuple([Link(*row) for row in link_rows])
    return Topology(name, tuple(gpus), links, source, driver=driver)
