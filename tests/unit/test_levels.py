"""The machine as a tree of levels, distances in it, and machines as networkx graphs."""

import io
import sys
from itertools import combinations, pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_described_machine, machine_names
from gpulaunch.machine.gpu import Gpu, Mig, mig_index
from gpulaunch.machine.levels import Distances, Level, machine_tree, to_networkx
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace

MACHINES = {name: load_described_machine(name)[0] for name in machine_names()}


class Box(NamedTuple):
    """A machine of eight cards whose paths are given by the nearest group that holds both."""

    groups: dict[str, list[tuple[int, ...]]]

    def topology(self) -> Topology:
        gpus = tuple(Gpu(i, f"GPU-{i}", "card", 1 << 30, numa_node=i // 4) for i in range(8))
        near = [(set(group), path) for path, groups in self.groups.items() for group in groups]

        def wire(a: int, b: int) -> Wire:
            return Wire(next((path for group, path in near if {a, b} <= group), "SYS"))

        return Topology("box", gpus, wired(gpus, wire), "made up")


NESTED = Box(
    {"PIX": [(0, 1)], "PXB": [(0, 1, 2)], "PHB": [(0, 1, 2, 3)], "NODE": [(0, 1, 2, 3, 4, 5)]}
).topology()


def outline(level: Level):
    """Return a level's kind and what is below; GPUs as their index."""
    return level.gpus[0] if level.kind == "GPU" else (level.kind, *map(outline, level.children))


OUTLINES = [
    (
        "dgx1-v100",
        (
            "machine",
            ("socket", ("switch", 0, 1), ("switch", 2, 3)),
            ("socket", ("switch", 4, 5), ("switch", 6, 7)),
        ),
    ),
    ("summit", ("machine", ("socket", 0, 1, 2), ("socket", 3, 4, 5))),
    ("power8-minsky", ("machine", ("socket", 0, 1), ("socket", 2, 3))),
    ("pcie-4gpu-workstation", ("machine", ("socket", 0, 1), ("socket", 2, 3))),
    (
        "dgx2",
        (
            "machine",
            *(
                (
                    "socket",
                    *(
                        ("switch", ("switch", i, i + 1), ("switch", i + 2, i + 3))
                        for i in (first, first + 4)
                    ),
                )
                for first in (0, 8)
            ),
        ),
    ),
]


@pytest.mark.parametrize(("name", "want"), OUTLINES, ids=[name for name, _ in OUTLINES])
def test_levels_of_known_machines(name, want):
    """A machine has its sockets below it, these their switches, and these their GPUs."""
    assert outline(machine_tree(MACHINES[name])) == want


def test_every_level_nests_in_the_next():
    """PIX, PXB, PHB and NODE each make a level, and a GPU alone at all is the machine's child."""
    want = ("machine", ("socket", ("host bridge", ("switch", ("switch", 0, 1), 2), 3), 4, 5), 6, 7)
    assert outline(machine_tree(NESTED)) == want


@pytest.mark.parametrize(("path", "want"), [("PIX", 2), ("PXB", 4), ("PHB", 8), ("NODE", 16)])
def test_machine_of_one_level(path, want):
    """Where all GPUs meet at one level, the machine is that level and has its distance."""
    tree = machine_tree(Box({path: [tuple(range(8))]}).topology())
    assert (outline(tree), tree.path, Distances(tree).between(0, 7)) == (
        ("machine", *range(8)),
        path,
        want,
    )


def test_paths_that_contradict_each_other():
    """Where 0 is near 1 and 1 near 2, but 0 is said to be far from 2, the three make one group."""
    tree = machine_tree(Box({"PIX": [(0, 1), (1, 2)]}).topology())
    assert outline(tree) == ("machine", ("socket", 0, 1, 2), 3, 4, 5, 6, 7)


def test_sockets_are_named_by_numa_node():
    """A socket has the NUMA node of its GPUs, the machine none if its GPUs have several."""
    tree = machine_tree(MACHINES["summit"])
    assert (tree.numa_node, [socket.numa_node for socket in tree.children]) == (None, [0, 8])


def test_instances_of_a_card_are_a_level():
    """MIG instances hang on their card, which hangs where the card does."""
    whole = Gpu(0, "GPU-0", "A100", 1 << 30)
    parts = [
        replace(whole, index=mig_index(1, i), uuid=f"MIG-{i}", mig=Mig(1, "GPU-1", i, "1g.10gb"))
        for i in range(2)
    ]
    gpus = (whole, *parts)
    tree = machine_tree(Topology("mig", gpus, wired(gpus, lambda *_: Wire("PHB")), "made up"))
    assert (outline(tree), Distances(tree).between(200, 201)) == (
        ("machine", 0, ("card", 200, 201)),
        2,
    )


def test_nearer_is_shorter():
    """One NVLink is shorter than a shared switch, and each PCIe path shorter than the next."""
    tree = machine_tree(NESTED)
    got = [Distances(tree).between(0, other) for other in (0, 1, 2, 3, 4, 6)]
    assert got == [0, 2, 1 + 2 + 2, 1 + 2 + 4 + 4, 1 + 2 + 4 + 8 + 8, 1 + 2 + 4 + 8 + 20 + 20]


@pytest.mark.parametrize("name", MACHINES)
def test_distance_follows_the_path(name):
    """In every machine a pair with a nearer path is nearer, whatever other levels lie between."""
    topology = MACHINES[name]
    tree = machine_tree(topology)
    order = ["NVL", "PIX", "PXB", "PHB", "NODE", "SYS", "NET"]
    reach: dict[int, list[int]] = {}
    for link in topology.links:
        reach.setdefault(order.index(link.path), []).append(Distances(tree).between(link.b, link.a))
    ranges = [(min(reach[i]), max(reach[i])) for i in sorted(reach)]
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


def test_distances_of_the_published_machine():
    """On Minsky, as published, a socket's GPUs are at 1, others at what the sockets' edges say."""
    tree = machine_tree(MACHINES["power8-minsky"])
    far = {Distances(tree).between(a, b) for a in (0, 1) for b in (2, 3)}
    assert (
        Distances(tree).between(0, 1),
        Distances(tree).between(2, 3),
        len(far),
        far.pop() > 40,
    ) == (1, 1, 1, True)


@pytest.mark.parametrize("name", MACHINES)
def test_level_graph(name):
    """The level graph has each GPU once; its paths are the distances of pairs without NVLinks."""
    tree = machine_tree(MACHINES[name])
    graph = to_networkx(tree)
    gpus = [node for node, kind in graph.nodes(data="kind") if kind == "GPU"]
    assert gpus == list(tree.gpus)
    levels = graph.edge_subgraph(
        [(a, b) for a, b, kind in graph.edges(data="kind") if kind == "level"]
    )
    far = [link for link in MACHINES[name].links if not link.nvlink_count][:20]
    want = [nx.shortest_path_length(levels, link.a, link.b, "weight") for link in far]
    assert [Distances(tree).between(link.a, link.b) for link in far] == want
    assert "graphml" in "\n".join(nx.generate_graphml(graph))


# Machines as graphs


@pytest.mark.parametrize("name", MACHINES)
def test_graph_and_back(name):
    """Every shipped machine survives the way to a networkx graph and to a GraphML file."""
    topology = MACHINES[name]
    graph = topology.to_networkx()
    file = io.BytesIO()
    nx.write_graphml(graph, file)
    file.seek(0)
    assert Topology.from_networkx(graph) == topology
    assert Topology.from_networkx(nx.read_graphml(file)) == topology


def test_instances_and_unknowns_come_back():
    """A graph survives with MIG instances, gaps in indices and unknown sockets."""
    card = Gpu(
        3, "GPU-3", "A100", 1 << 30, nvlink_version=3, nvswitch_links=12, pci_address="0:1:0"
    )
    parts = [
        replace(card, index=mig_index(5, i), uuid=f"M{i}", mig=Mig(5, "GPU-5", i, "1g.5gb"))
        for i in (0, 4)
    ]
    gpus = (card, *parts)
    topology = Topology(
        "odd", gpus, wired(gpus, lambda *_: Wire("PXB", peer_to_peer=False)), "NVML"
    )
    assert Topology.from_networkx(topology.to_networkx()) == topology


def test_attributes_are_scalars():
    """A graph's attributes have our fields' names, are scalars, and leave out what is unknown."""
    graph = MACHINES["dgx1-v100"].to_networkx()
    assert graph.graph["name"] == "dgx1-v100"
    assert graph.nodes[0]["cpuset"] == "0-19,40-59"
    assert "pci_address" not in graph.nodes[0]
    got = {
        name: graph.edges[0, 3][name]
        for name in ("path", "nvlink_count", "kind", "bandwidth_gb_per_s", "weight")
    }
    assert got == {
        "path": "NVL",
        "nvlink_count": 2,
        "kind": "nvlink",
        "bandwidth_gb_per_s": 50.0,
        "weight": 50.0,
    }
    kinds = {type(value) for _, values in graph.nodes(data=True) for value in values.values()}
    assert kinds == {str, int, float}


def test_least_graph():
    """Nodes and edges that say one thing are a machine; pairs without an edge are far apart."""
    graph = nx.path_graph(4)
    graph.edges[0, 1]["nvlink_count"] = 2
    graph.edges[1, 2]["path"] = "PIX"
    graph.edges[2, 3].update(nvlink_count=1, weight=18.0)
    graph.add_edge(0, 3, path="NVL")
    graph.add_edge(1, 3, weight=10.0)
    topology = Topology.from_networkx(graph)
    got = [
        (link.a, link.b, link.path, link.nvlink_count, link.bandwidth_gb_per_s)
        for link in topology.links
    ]
    assert got == [
        (0, 1, "NVL", 2, 50.0),
        (0, 2, "SYS", 0, 6.0),
        (0, 3, "NVL", 1, 25.0),
        (1, 2, "PIX", 0, 12.0),
        (1, 3, "SYS", 0, 10.0),
        (2, 3, "NVL", 1, 18.0),
    ]
    assert ([gpu.uuid for gpu in topology.gpus], topology.name) == (
        [f"GPU-graph-{i}" for i in range(4)],
        "graph",
    )
    assert Topology.from_networkx(topology.to_networkx()) == topology


def test_graph_that_is_nobodys_machine():
    """A graph without UUIDs gets a checksum, which keeps its leases apart from this machine's."""
    one, other = nx.path_graph(2), nx.path_graph(3)
    digests = {Topology.from_networkx(graph).digest for graph in (one, other, one)}
    assert (len(digests), None in digests) == (2, False)


def test_switch_by_its_gpus():
    """NVLinks into a switch may be said of the GPUs alone."""
    graph = nx.empty_graph(3)
    for i in range(3):
        graph.nodes[i].update(nvswitch_links=12, nvlink_version=3)
    kinds = {
        (link.kind, link.nvlink_count, link.bandwidth_gb_per_s)
        for link in Topology.from_networkx(graph).links
    }
    assert kinds == {("nvswitch", 12, 300.0)}


WRONG_NODES = [
    ({"memory_bytes": "16 GiB"}, "node 1: memory_bytes: '16 GiB' is not a whole number"),
    ({"numa_node": 1.5}, "node 1: numa_node: 1.5 is not a whole number"),
    ({"cpuset": "0-"}, "node 1: cpuset: '0-' is no list of CPUs such as '0-19,40-59'"),
    ({"mig_card": 1}, "node 1: mig_card_uuid is missing, which a MIG instance has"),
]
WRONG_EDGES = [
    ({"nvlink_count": "two"}, "edge 0-1: nvlink_count: 'two' is not a whole number"),
    ({"nvlink_count": True}, "edge 0-1: nvlink_count: True is not a whole number"),
    ({"nvlink_count": -1}, "edge 0-1: nvlink_count: -1 is not within 0 to 999"),
    ({"path": "PCI"}, "edge 0-1: path: 'PCI' is none of NVL, PIX, PXB, PHB, NODE, SYS, NET"),
    ({"weight": float("nan")}, "edge 0-1: weight: nan is not within 0.001 to 1000000"),
    (
        {"path": "PIX", "nvlink_count": 1},
        "edge 0-1: path: 'PIX' contradicts 'NVL', which the rest amounts to",
    ),
    ({"kind": "nvlink"}, "edge 0-1: kind: 'nvlink' contradicts nvlink_count 0"),
    ({"nvlink_gb_per_s": 5.0}, "edge 0-1: nvlink_gb_per_s: 5 contradicts nvlink_count 0"),
    (
        {"nvlink_count": 1, "nvlink_gb_per_s": 25.0, "weight": 50.0},
        "edge 0-1: weight: 50 contradicts 25, which the rest amounts to",
    ),
]


def refusal(graph: nx.Graph) -> str:
    with pytest.raises(UsageError) as caught:
        Topology.from_networkx(graph)
    return caught.value.message


@pytest.mark.parametrize(("values", "want"), WRONG_NODES)
def test_wrong_node(values, want):
    """A wrong attribute of a node is refused by the names of both."""
    graph = nx.path_graph(2)
    graph.nodes[1].update(values)
    assert refusal(graph) == want


@pytest.mark.parametrize(("values", "want"), WRONG_EDGES)
def test_wrong_edge(values, want):
    """A wrong attribute of an edge, or one that another contradicts, is refused by its name."""
    graph = nx.path_graph(2)
    graph.edges[0, 1].update(values)
    assert refusal(graph) == want


def test_attribute_nobody_knows():
    """A misspelt attribute is refused, not passed over."""
    graph = nx.path_graph(2)
    graph.edges[0, 1]["nvlinks"] = 2
    assert refusal(graph).startswith(
        "edge 0-1: unknown key 'nvlinks': known here are kind, nvlink_count,"
    )


@pytest.mark.parametrize(
    ("graph", "want"),
    [
        (nx.Graph(), "graph: it has no node, so no GPU"),
        (nx.DiGraph([(0, 1)]), "graph: it must be undirected, with at most one edge for two nodes"),
        (
            nx.MultiGraph([(0, 1)]),
            "graph: it must be undirected, with at most one edge for two nodes",
        ),
        (nx.Graph([(0, 0)]), "edge 0-0: it joins a GPU to itself"),
        (nx.Graph([("a", "b")]), "node 'a': it must be the index of a GPU: 0, 1, 2 ..."),
        (nx.Graph([(0, -1)]), "node -1: it must be the index of a GPU: 0, 1, 2 ..."),
        (
            nx.Graph([("9" * 5000, 1)]),
            f"node '{'9' * 38}…: it must be the index of a GPU: 0, 1, 2 ...",
        ),
        (nx.Graph([(10**5000, 1)]), "node of type int: it must be the index of a GPU: 0, 1, 2 ..."),
        (
            nx.Graph([(0, 1, {"weight": 10**5000})]),
            "edge 0-1: a number has more digits than can be read",
        ),
        (
            nx.Graph([(0, np.True_)]),
            f"node {np.True_!r}: it must be the index of a GPU: 0, 1, 2 ...",
        ),
        (nx.Graph([(0, 1.0)]), "node 1.0: it must be the index of a GPU: 0, 1, 2 ..."),
        (nx.Graph([(1, "1")]), "graph: two of its nodes are the same index"),
        (nx.Graph([(0, 1)], name=3), "graph: name: 3 is not text"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_wrong_graph(graph, want):
    """A graph that can be no machine is refused, and it is said why."""
    if ("digits" in want or "type int" in want) and not hasattr(sys, "get_int_max_str_digits"):
        pytest.skip("Python before 3.10.7 writes numbers of any length")
    assert refusal(graph) == want


def test_two_nodes_of_one_uuid():
    """A lease is of UUIDs, so two nodes that have the same one are refused."""
    graph = nx.path_graph(3)
    graph.nodes[0]["uuid"] = graph.nodes[2]["uuid"] = "GPU-1"
    assert refusal(graph) == "node 2: uuid: 'GPU-1' is that of node 0"


@pytest.mark.parametrize(
    ("nodes", "want"),
    [
        ([{}, {"host_gb_per_s": 85}], "node 1: host_gb_per_s: 85 is stated without numa_node"),
        (
            [{"numa_node": 1, "host_gb_per_s": 85}, {"numa_node": 1, "host_gb_per_s": 85.5}],
            "node 1: host_gb_per_s: 85.5 contradicts 85 of node 0 in its NUMA node",
        ),
        (
            [{"numa_node": 1, "host_gb_per_s": 85}, {"numa_node": 1}],
            "node 1: host_gb_per_s: 0 contradicts 85 of node 0 in its NUMA node",
        ),
        (
            [{"numa_node": 1, "host_gb_per_s": -1}, {}],
            "node 0: host_gb_per_s: -1 is not within 0 to 1000000",
        ),
    ],
)
def test_memory_of_a_numa_node(nodes, want):
    """What the memory of a NUMA node carries is one figure, and it is known of which node it is."""
    graph = nx.path_graph(2)
    for index, values in enumerate(nodes):
        graph.nodes[index].update(values)
    assert refusal(graph) == want


def test_memory_of_two_numa_nodes():
    """Each NUMA node has a figure of its own, or none, and so has each machine's."""
    graph = nx.path_graph(4)
    for index, values in enumerate([(0, 0, 85.0), (0, 1, 0.0), (1, 0, 40.0), (1, 1, 85.0)]):
        graph.nodes[index].update(zip(("node", "numa_node", "host_gb_per_s"), values, strict=True))
    graph.add_edges_from((a, b, {"weight": 1.25}) for a in (0, 1) for b in (2, 3))
    topology = Topology.from_networkx(graph)
    assert [gpu.host_gb_per_s for gpu in topology.gpus] == [85, 0, 40, 85]
    assert Topology.from_networkx(topology.to_networkx()) == topology


def test_numbers_of_numpy():
    """Numbers of numpy count as Python's own, as nodes and as attributes."""
    plain, other = nx.path_graph(3), nx.Graph()
    other.add_edges_from((np.int64(a), np.int64(a + 1)) for a in range(2))
    for graph, whole, real in ((plain, int, float), (other, np.uint8, np.float32)):
        graph.nodes[0]["nvlink_version"] = whole(2)
        graph.edges[0, 1].update(nvlink_count=whole(2), weight=real(37.5))
    got = Topology.from_networkx(other)
    assert repr(got) == repr(Topology.from_networkx(plain))


def test_every_pair_has_a_link():
    """However few edges a graph has, its machine has a link for every two GPUs."""
    topology = Topology.from_networkx(nx.star_graph(4))
    assert [(link.a, link.b) for link in topology.links] == list(combinations(range(5), 2))
