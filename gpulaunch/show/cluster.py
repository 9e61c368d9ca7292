"""A cluster as a tree of lines, and as a document."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Iterator

from gpulaunch.cluster.cluster import Cluster, Node
from gpulaunch.errors import counted, printable
from gpulaunch.show import Document


def cluster_lines(cluster: Cluster) -> list[str]:
    """Return the switches and nodes of a cluster, indented as `tree` does, and what nodes have."""
    gpus = sum(len(node.topology.gpus) for node in cluster.nodes)
    slots = sum(node.slots for node in cluster.nodes)
    counts = (len(cluster.nodes), "node"), (gpus, "GPU"), (slots, "rank")
    head = f"{printable(cluster.name)}: {', '.join(counted(*count) for count in counts)}"
    return [head, *_lines_below(cluster, 0, "")]


def _lines_below(cluster: Cluster, vertex: int, margin: str) -> Iterator[str]:
    network = cluster.network
    at_leaf = dict(zip(network.leaves, cluster.nodes, strict=True))
    children = network.children()[vertex] if vertex or len(network.parents) > 1 else [0]
    for number, child in enumerate(children):
        last = number == len(children) - 1
        node = at_leaf.get(child)
        name = printable(network.names[child])
        text = f"{name}: {_node_text(node)}" if node else name
        yield f"{margin}{'└── ' if last else '├── '}{text}"
        if child:
            yield from _lines_below(cluster, child, margin + ("    " if last else "│   "))


def _node_text(node: Node) -> str:
    models = Counter(gpu.model for gpu in node.topology.gpus)
    gpus = ", ".join(f"{count} x {printable(model)}" for model, count in models.items())
    cores = sum(map(len, node.sockets))
    return f"{gpus or 'no GPU'}; {counted(cores, 'core')} in {counted(len(node.sockets), 'socket')}"


def cluster_document(cluster: Cluster) -> Document:
    """Return the document of `gpulaunch cluster show --json`."""
    network = cluster.network
    return {
        "name": cluster.name,
        "source": cluster.source,
        "nodes": [
            {
                "name": node.name,
                "gpus": [
                    {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model}
                    for gpu in node.topology.gpus
                ],
                "sockets": [list(cores) for cores in node.sockets],
                "ranks": node.slots,
            }
            for node in cluster.nodes
        ],
        "network": [
            {
                "name": network.names[vertex],
                "parent": network.names[parent] if parent >= 0 else None,
                "bandwidth_gb_per_s": network.gb_per_s[vertex] or None,
            }
            for vertex, parent in enumerate(network.parents)
        ],
    }
