"""The GPUs of a machine in their places: by socket, and which of them NVLinks join."""

from collections.abc import Iterator, Sequence

from gpulaunch.machine.gpu import format_cpuset
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record


class GpuPlace(Record):
    """GPUs that are near each other.

    Attributes:
        title: the socket, and what NVLinks join there; empty if the machine has no parts.
        gpus: their indices, in the order of the cards.
    """

    title: str
    gpus: tuple[int, ...]


def gpu_places(topology: Topology) -> list[GpuPlace]:
    """Return the sockets of a machine, or of several, each with its GPUs.

    NVLinks are told of only where they do not join all GPUs.
    """
    tree = machine_tree(topology)
    islands = _islands(tree)
    name_of = {gpu.index: gpu.name for gpu in topology.gpus}
    order = {card: place for place, card in enumerate(tree.cards)}
    placed = sorted(topology.gpus, key=lambda gpu: (order[gpu.card], gpu.index))
    places = []
    if len(islands) == 1 and len(islands[0]) == len(topology.gpus):
        islands = []  # nothing to be told apart
    for title, socket in _sockets(tree):
        joined = "; ".join(
            _names(island, name_of) for island in islands if set(island) & set(socket.gpus)
        )
        nvlink = f"NVLink joins {joined}" if joined else ""
        gpus = tuple(gpu.index for gpu in placed if gpu.index in socket.gpus)
        places.append(GpuPlace(", ".join(filter(None, (title, nvlink))), gpus))
    return places


def _sockets(tree: Level) -> Iterator[tuple[str, Level]]:
    machines = tree.children if tree.kind == "network" else (tree,)
    for machine in machines:
        sockets = machine.sockets
        where = f"machine {machine.node}" if len(machines) > 1 else ""
        for number, socket in enumerate(sockets):
            node = socket.numa_node
            socket_name = f"socket {number}" if node is None else f"NUMA node {node}"
            parts = (where, socket_name if len(sockets) > 1 else "")
            yield ", ".join(filter(None, parts)), socket


def _islands(tree: Level) -> list[list[int]]:
    """Return the groups of GPUs that NVLinks join, directly or through others, ascending."""
    found: list[set[int]] = []
    for pair in tree.nvlinks:
        met = [island for island in found if island & set(pair)]
        found = [island for island in found if island not in met]
        found.append(set(pair).union(*met))
    return sorted(map(sorted, found))


def _names(gpus: Sequence[int], name_of: dict[int, str]) -> str:
    if all(name_of[index] == str(index) for index in gpus):
        return format_cpuset(frozenset(gpus))
    return ",".join(name_of[index] for index in gpus)
