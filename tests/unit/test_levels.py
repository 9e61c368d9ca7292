"""The machine as a tree of levels, distances in it, and machines as networkx graphs."""

from itertools import pairwise

from values import cards, machine, wired_up, wiring

from gpulaunch.machine.catalog import machine_names
from gpulaunch.machine.gpu import Mig, mig_index
from gpulaunch.machine.link import Wiring
from gpulaunch.machine.topology import Level, Topology, distances, machine_tree
from gpulaunch.records import replace


def grouped(**groups: list[tuple[int, ...]]) -> Topology:
    """Make eight cards whose paths are given by the nearest group that holds both."""
    gpus = [replace(gpu, numa_node=gpu.index // 4) for gpu in cards(8)]
    near = [(set(group), path) for path in groups for group in groups[path]]

    def wire(a: int, b: int) -> Wiring:
        return wiring(next((path for group, path in near if {a, b} <= group), "SYS"))

    return wired_up(gpus, wire)


def outline(level: Level):
    """Return a level's kind and what is below; GPUs as their index."""
    return level.gpus[0] if level.kind == "GPU" else (level.kind, *map(outline, level.children))


def test_every_level_nests_in_the_next() -> None:
    """PIX, PXB, PHB and NODE each make a level, and a GPU alone at all is the machine's child.

    Each path is longer than the one before. A socket has the NUMA node of its GPUs, the machine
    none.
    """
    groups = {"PIX": [(0, 1)], "PXB": [(0, 1, 2)], "PHB": [(0, 1, 2, 3)]}
    topology = grouped(**groups, NODE=[(0, 1, 2, 3, 4, 5)])
    tree = machine_tree(topology)
    want = ("machine", ("socket", ("host bridge", ("switch", ("switch", 0, 1), 2), 3), 4, 5), 6, 7)
    assert outline(tree) == want
    got = [distances(topology, tree)[0][other] for other in (0, 1, 2, 3, 4, 6)]
    assert got == [0, 2, 1 + 2 + 2, 1 + 2 + 4 + 4, 1 + 2 + 4 + 8 + 8, 1 + 2 + 4 + 8 + 20 + 20]
    tree = machine_tree(machine("summit"))
    assert (tree.numa_node, [socket.numa_node for socket in tree.children]) == (None, [0, 8])


def test_machine_of_one_level() -> None:
    """Where all GPUs meet at one level, the machine is that level and has its distance."""
    for path, want in {"PIX": 2, "PXB": 4, "PHB": 8, "NODE": 16}.items():
        topology = grouped(**{path: [tuple(range(8))]})
        tree = machine_tree(topology)
        assert (outline(tree), tree.path) == (("machine", *range(8)), path)
        assert distances(topology, tree)[0][7] == want


def test_paths_that_contradict_each_other() -> None:
    """Where 0 is near 1 and 1 near 2, but 0 is said to be far from 2, the three make one group."""
    tree = machine_tree(grouped(PIX=[(0, 1), (1, 2)]))
    assert outline(tree) == ("machine", ("socket", 0, 1, 2), 3, 4, 5, 6, 7)


def test_instances_of_a_card_are_a_level() -> None:
    """MIG instances hang on their card, which hangs where the card does.

    The node of one in a graph has its card, number and profile, and its index as name.
    """
    (whole,) = cards(1)
    parts = [
        replace(whole, index=mig_index(1, i), uuid=f"MIG-{i}", mig=Mig(1, "GPU-1", i, "1g.10gb"))
        for i in range(2)
    ]
    topology = wired_up([whole, *parts], lambda *_: wiring("PHB"))
    tree = machine_tree(topology)
    assert outline(tree) == ("machine", 0, ("card", 200, 201))
    assert distances(topology, tree)[200][201] == 2
    want = {"mig_card": 1, "mig_card_uuid": "GPU-1", "mig_instance": 1, "mig_profile": "1g.10gb"}
    assert topology.to_networkx().nodes[201].items() >= want.items()


def test_distance_follows_the_path() -> None:
    """In every machine a pair with a nearer path is nearer, whatever other levels lie between."""
    order = ["NVL", "PIX", "PXB", "PHB", "NODE", "SYS"]
    for name in machine_names():
        topology, reach = machine(name), dict[int, list[int]]()
        far = distances(topology, machine_tree(topology))
        for link in topology.links:
            reach.setdefault(order.index(link.path), []).append(far[link.b][link.a])
        ranges = [(min(reach[i]), max(reach[i])) for i in sorted(reach)]
        assert all(before[1] < after[0] for before, after in pairwise(ranges)), name


def test_distances_of_the_published_machine() -> None:
    """On Minsky, as published, a socket's GPUs are at 1, others at what the sockets' edges say."""
    minsky = machine("power8-minsky")
    far = distances(minsky, machine_tree(minsky))
    assert far[0][1] == far[2][3] == 1
    (across,) = {far[a][b] for a in (0, 1) for b in (2, 3)}
    assert across > 40


def test_attributes_are_scalars() -> None:
    """A graph's attributes have our fields' names, are scalars, and leave out what is unknown."""
    graph = machine("dgx1-v100").to_networkx()
    assert (graph.graph["name"], graph.nodes[0]["cpuset"]) == ("dgx1-v100", "0-19,40-59")
    assert "pci_address" not in graph.nodes[0]
    want = {"path": "NVL", "nvlink_count": 2, "kind": "nvlink", "weight": 50.0}
    assert graph.edges[0, 3].items() >= want.items()
    kinds = {type(value) for _, values in graph.nodes(data=True) for value in values.values()}
    assert kinds == {str, int, float}
