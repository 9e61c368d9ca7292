"""The cards of a machine, with MIG instances grouped by card, and the links between cards."""
# pure: decides on plain values

from collections.abc import Iterable

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record


class Card(Record):
    """The contents of one slot: a GPU, or the MIG instances of one.

    Attributes:
        index: index of the card.
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
