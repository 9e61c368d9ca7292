"""The machine as a tree of levels, distances in it, and machines as networkx graphs."""

from itertools import pairwise

import pytest
from values import cards, wired_up

from gpulaunch.machine.catalog import load_described_machine, machine_names
from gpulaunch.machine.gpu import Gpu, Mig, mig_index
from gpulaunch.machine.levels import Distances, Level, machine_tree
from gpulaunch.machine.link import Wire
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace

MACHINES = {name: load_described_machine(name)[0] for name in machine_names()}


def grouped(**groups: list[tuple[int, ...]]) -> Topology:
    """Make eight cards whose paths are given by the nearest group that holds both."""
    gpus = [replace(gpu, numa_node=gpu.index // 4) for gpu in cards(8)]
    near = [(set(group), path) for path in groups for group in groups[path]]

    def wire(a: int, b: int) -> Wire:
        return Wire(next((path for group, path in near if {a, b} <= group), "SYS"))

    return wired_up(gpus, wire)


NESTED = grouped(PIX=[(0, 1)], PXB=[(0, 1, 2)], PHB=[(0, 1, 2, 3)], NODE=[(0, 1, 2, 3, 4, 5)])


def outline(level: Level):
    """Return a level's kind and what is below; GPUs as their index."""
    return level.gpus[0] if level.kind == "GPU" else (level.kind, *map(outline, level.children))


OUTLINES = {
    "summit": ("machine", ("socket", 0, 1, 2), ("socket", 3, 4, 5)),
    "dgx1-v100": (
        "machine",
        ("socket", ("switch", 0, 1), ("switch", 2, 3)),
        ("socket", ("switch", 4, 5), ("switch", 6, 7)),
    ),
}


@pytest.mark.parametrize("name", OUTLINES)
def test_levels_of_known_machines(name):
    """A machine has its sockets below it, these their switches, and these their GPUs."""
    assert outline(machine_tree(MACHINES[name])) == OUTLINES[name]


def test_every_level_nests_in_the_next():
    """PIX, PXB, PHB and NODE each make a level, and a GPU alone at all is the machine's child."""
    want = ("machine", ("socket", ("host bridge", ("switch", ("switch", 0, 1), 2), 3), 4, 5), 6, 7)
    assert outline(machine_tree(NESTED)) == want


@pytest.mark.parametrize(("path", "want"), [("PIX", 2), ("PXB", 4), ("PHB", 8), ("NODE", 16)])
def test_machine_of_one_level(path, want):
    """Where all GPUs meet at one level, the machine is that level and has its distance."""
    tree = machine_tree(grouped(**{path: [tuple(range(8))]}))
    assert (outline(tree), tree.path, Distances(tree).between(0, 7)) == (
        ("machine", *range(8)),
        path,
        want,
    )


def test_paths_that_contradict_each_other():
    """Where 0 is near 1 and 1 near 2, but 0 is said to be far from 2, the three make one group."""
    tree = machine_tree(grouped(PIX=[(0, 1), (1, 2)]))
    assert outline(tree) == ("machine", ("socket", 0, 1, 2), 3, 4, 5, 6, 7)


def test_sockets_are_named_by_numa_node():
    """A socket has the NUMA node of its GPUs, the machine none if its GPUs have several."""
    tree = machine_tree(MACHINES["summit"])
    assert (tree.numa_node, [socket.numa_node for socket in tree.children]) == (None, [0, 8])


def test_instances_of_a_card_are_a_level():
    """MIG instances hang on their card, which hangs where the card does."""
    (whole,) = cards(1)
    parts = [
        replace(whole, index=mig_index(1, i), uuid=f"MIG-{i}", mig=Mig(1, "GPU-1", i, "1g.10gb"))
        for i in range(2)
    ]
    tree = machine_tree(wired_up([whole, *parts], lambda *_: Wire("PHB")))
    assert (outline(tree), Distances(tree).between(200, 201)) == (
        ("machine", 0, ("card", 200, 201)),
        2,
    )


def test_nearer_is_shorter():
    """One NVLink is shorter than a shared switch, and each PCIe path shorter than the next."""
    tree = machine_tree(NESTED)
    got = [Distances(tree).between(0, other) for other in (0, 1, 2, 3, 4, 6)]
    assert got == [0, 2, 1 + 2 + 2, 1 + 2 + 4 + 4, 1 + 2 + 4 + 8 + 8, 1 + 2 + 4 + 8 + 20 + 20]


def test_distance_follows_the_path():
    """In every machine a pair with a nearer path is nearer, whatever other levels lie between."""
    order = ["NVL", "PIX", "PXB", "PHB", "NODE", "SYS", "NET"]
    for name, topology in MACHINES.items():
        distances = Distances(machine_tree(topology))
        reach: dict[int, list[int]] = {}
        for link in topology.links:
            found = reach.setdefault(order.index(link.path), [])
            found.append(distances.between(link.b, link.a))
        ranges = [(min(reach[i]), max(reach[i])) for i in sorted(reach)]
        assert all(before[1] < after[0] for before, after in pairwise(ranges)), name


def test_distances_of_the_published_machine():
    """On Minsky, as published, a socket's GPUs are at 1, others at what the sockets' edges say."""
    distances = Distances(machine_tree(MACHINES["power8-minsky"]))
    assert distances.between(0, 1) == distances.between(2, 3) == 1
    (far,) = {distances.between(a, b) for a in (0, 1) for b in (2, 3)}
    assert far > 40


# Machines as graphs


def test_attributes_are_scalars():
    """A graph's attributes have our fields' names, are scalars, and leave out what is unknown."""
    graph = MACHINES["dgx1-v100"].to_networkx()
    assert (graph.graph["name"], graph.nodes[0]["cpuset"]) == ("dgx1-v100", "0-19,40-59")
    assert "pci_address" not in graph.nodes[0]
    want = {"path": "NVL", "nvlink_count": 2, "kind": "nvlink", "weight": 50.0}
    assert graph.edges[0, 3].items() >= want.items()
    kinds = {type(value) for _, values in graph.nodes(data=True) for value in values.values()}
    assert kinds == {str, int, float}


def test_instance_in_a_graph():
    """The node of a MIG instance has its card, number and profile, and its index as name."""
    mig = Mig(5, "GPU-5", 1, "1g.5gb")
    gpus = (Gpu(mig_index(5, 1), "M1", "A100", 1 << 30, mig=mig),)
    graph = Topology("odd", gpus, (), "NVML").to_networkx()
    want = {"mig_card": 5, "mig_card_uuid": "GPU-5", "mig_instance": 1, "mig_profile": "1g.5gb"}
    assert graph.nodes[601].items() >= want.items()
