"""A cluster as one topology, whose GPUs have the numbers of their nodes, for the simulator."""
# pure: decides on plain values

from itertools import combinations
from zlib import crc32

from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import UsageError
from gpulaunch.machine.gpu import Gpu, mig_index
from gpulaunch.machine.link import Link, Wire, connect
from gpulaunch.machine.link_bandwidth import NETWORK_PATH
from gpulaunch.machine.read_description import MAX_GPUS
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace


def flattened(cluster: Cluster) -> Topology:
    """Return all GPUs of a cluster as one topology.

    GPUs are counted on from one node to the next. Two GPUs of different nodes meet over the network
    alone, with the bandwidth of the slowest link between their nodes, and of one uplink of a node
    that has several.

    Raises:
        UsageError: there are more than MAX_GPUS GPUs.
    """
    total = sum(len(node.topology.gpus) for node in cluster.nodes)
    if total > MAX_GPUS:
        raise UsageError(
            f"cluster {cluster.name} has {total} GPUs: as one topology it can have {MAX_GPUS}"
        )
    gpus: list[Gpu] = []
    links: dict[tuple[int, int], Link] = {}
    first_card = 0
    for number, node in enumerate(cluster.nodes):
        own = {
            gpu.index: _numbered(gpu, first_card, number, cluster.name)
            for gpu in node.topology.gpus
        }
        gpus += own.values()
        for link in node.topology.links:
            a, b = own[link.a].index, own[link.b].index
            links[a, b] = replace(link, a=a, b=b)
        first_card += max(gpu.card for gpu in node.topology.gpus) + 1
    gpus.sort(key=lambda gpu: gpu.index)
    between = _bandwidths(cluster)
    for one, other in combinations(gpus, 2):
        if one.node != other.node:
            gb_per_s = between[one.node, other.node]
            wire = Wire(NETWORK_PATH, 0, gb_per_s, peer_to_peer=False)
            links[one.index, other.index] = connect(one, other, wire)
    described = (cluster.network, [node.topology.digest for node in cluster.nodes])
    return Topology(
        cluster.name,
        tuple(gpus),
        tuple(links[pair] for pair in sorted(links)),
        cluster.source,
        f"{crc32(repr(described).encode()):08x}",
        driver=cluster.nodes[0].topology.driver,
    )


def _numbered(gpu: Gpu, first_card: int, node: int, name: str) -> Gpu:
    """Return a GPU of a node with its number in the cluster."""
    card = gpu.card + first_card
    if gpu.mig is None:
        return replace(gpu, index=card, uuid=f"GPU-{name}-{card}", node=node)
    mig = replace(gpu.mig, card=card, card_uuid=f"GPU-{name}-{card}")
    index = mig_index(card, mig.instance)
    return replace(gpu, index=index, uuid=f"MIG-{name}-{card}-{mig.instance}", node=node, mig=mig)


def _bandwidths(cluster: Cluster) -> dict[tuple[int, int], float]:
    """Return the bandwidth between two GPUs of every two nodes, both ways round."""
    tree = cluster.network
    found = {}
    for (i, one), (j, other) in combinations(enumerate(cluster.nodes), 2):
        a, b = tree.leaves[i], tree.leaves[j]
        each = (tree.gb_per_s[a] / one.uplinks, tree.gb_per_s[b] / other.uplinks)
        found[i, j] = found[j, i] = min(*each, _slowest_link(tree, a, b))
    return found


def _slowest_link(tree: Tree, a: int, b: int) -> float:
    """Return the least bandwidth on the way between two vertices."""
    slowest = float("inf")
    while a != b:
        a, b = max(a, b), min(a, b)  # parents come before their children
        slowest = min(slowest, tree.gb_per_s[a])
        a = tree.parents[a]
    return slowest
