"""Topologies of many machines: what a network says, levels, distances, pictures and way back."""

import random
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpulaunch.errors import FieldError
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.levels import Distances, Level, machine_tree
from gpulaunch.machine.read_description import described_topology
from gpulaunch.machine.topology import Topology, machines
from gpulaunch.machine.write_description import machine_document
from gpulaunch.records import replace
from gpulaunch.show.topology.svg import topology_svg
from gpulaunch.show.topology.text import topology_lines

CLUSTER = load_described_machine("minsky-cluster")[0]


def several(nodes: int, **tables: Any) -> dict[str, Any]:
    """Describe machines of three A100 on an NVSwitch, two on one PCIe switch, and add `tables`."""
    return {
        "name": "box",
        "source": "made up",
        "gpus": {"count": 3, "model": "A100", "memory_mib": 40960, "compute_capability": "8.0"},
        "nvlink": {"version": 3, "switch_links_per_gpu": 12},
        "pcie": {"generation": 4, "width": 16, "groups": {"PIX": [[0, 1]]}},
        "numa": [
            {"node": 0, "gpus": [0, 1], "cpuset": "0-7"},
            {"node": 1, "gpus": [2], "cpuset": "8-15"},
        ],
        "network": {"nodes": nodes, "bandwidth_gb_per_s": 12.5},
        **tables,
    }


def built(nodes: int, **tables: Any) -> Topology:
    return described_topology(several(nodes, **tables), "")


SPLIT = {"mig": [{"gpu": 1, "profile": "3g.20gb", "memory_mib": 20096, "instances": [0, 4]}]}

# A description's GPUs and links


def test_gpus_count_on() -> None:
    """GPUs and UUIDs are counted on through the machines; NUMA nodes and CPUs begin anew."""
    got = [(gpu.index, gpu.uuid, gpu.node, gpu.numa_node, min(gpu.cpuset)) for gpu in built(2).gpus]
    assert got == [
        (0, "GPU-box-0", 0, 0, 0),
        (1, "GPU-box-1", 0, 0, 0),
        (2, "GPU-box-2", 0, 1, 8),
        (3, "GPU-box-3", 1, 0, 0),
        (4, "GPU-box-4", 1, 0, 0),
        (5, "GPU-box-5", 1, 1, 8),
    ]


def test_links_between_machines() -> None:
    """Two machines have only the network between them: no NVLink, NVSwitch or PCIe."""
    got = {
        (
            link.kind,
            link.path,
            link.pcie_path,
            link.nvlink_count,
            link.bandwidth_gb_per_s,
            link.pcie_gb_per_s,
            link.name,
        )
        for link in built(3).links
        if link.a // 3 != link.b // 3
    }
    assert got == {("network", "NET", "NET", 0, 12.5, 12.5, "NET 12.5")}


def test_links_within_a_machine() -> None:
    """Within each machine the links are those of the machine alone."""
    alone = built(1)
    for node, part in machines(built(3)).items():
        got = [replace(link, a=link.a - 3 * node, b=link.b - 3 * node) for link in part.links]
        assert got == list(alone.links)


def test_instances_on_each_machine() -> None:
    """MIG instances are numbered by their card's index, which counts on through the machines."""
    gpus = built(2, **SPLIT).gpus
    got = [(gpu.index, gpu.name, gpu.uuid, gpu.card, gpu.node) for gpu in gpus]
    assert got == [
        (0, "0", "GPU-box-0", 0, 0),
        (2, "2", "GPU-box-2", 2, 0),
        (3, "3", "GPU-box-3", 3, 1),
        (5, "5", "GPU-box-5", 5, 1),
        (200, "1:0", "MIG-box-1-0", 1, 0),
        (204, "1:4", "MIG-box-1-4", 1, 0),
        (500, "4:0", "MIG-box-4-0", 4, 1),
        (504, "4:4", "MIG-box-4-4", 4, 1),
    ]
    assert [gpu.mig.card_uuid for gpu in gpus if gpu.mig] == ["GPU-box-1"] * 2 + ["GPU-box-4"] * 2


# Mistakes in a description

WRONG: list[tuple[dict[str, Any], tuple[str | int, ...], str]] = [
    (
        {"nodes": 342, "bandwidth_gb_per_s": 1},
        ("network", "nodes"),
        "nodes: 342 machines of 3 GPUs each are 1026 GPUs, more than 1024",
    ),
    ({"nodes": 2}, ("network",), "key 'bandwidth_gb_per_s' is missing in network"),
    (
        {"nodes": 2, "bandwidth_gb_per_s": 1, "latency_us": 2},
        ("network", "latency_us"),
        "unknown key 'latency_us': known here are nodes, bandwidth_gb_per_s",
    ),
]


@pytest.mark.parametrize(("network", "path", "want"), WRONG)
def test_wrong_network(network: dict[str, Any], path: tuple[str | int, ...], want: str) -> None:
    """A mistake about the network is named with its key, what was found and what is allowed."""
    with pytest.raises(FieldError) as problem:
        built(2, network=network)
    assert (problem.value.path, problem.value.message) == (path, want)


def test_most_machines() -> None:
    """Machines of one GPU are levels of their own; above 100 cards none has instances."""
    bare = {"nvlink": {"version": 3}, "numa": [], "gpus": {"count": 1, "model": "A100"}}
    bare["pcie"] = {"generation": 4, "width": 8}
    assert [gpu.node for gpu in built(128, **bare).gpus] == list(range(128))
    tree = outline(machine_tree(built(2, **bare)))
    assert tree == ("network", None, ("machine", 0, 0), ("machine", 1, 1))
    with pytest.raises(FieldError) as problem:
        built(40, **SPLIT)
    assert problem.value.message == "a machine of more than 100 cards cannot have MIG instances"


# Levels and distances


def outline(level: Level) -> Any:
    """Return a level's kind, its node, and what is below; GPUs as their index."""
    return (
        level.gpus[0]
        if level.kind == "GPU"
        else (level.kind, level.node, *map(outline, level.children))
    )


def test_levels_of_the_published_cluster() -> None:
    """The network is the first level, then come the machines, the sockets and the GPUs."""
    want = [
        ("machine", n, ("socket", n, 4 * n, 4 * n + 1), ("socket", n, 4 * n + 2, 4 * n + 3))
        for n in range(5)
    ]
    assert outline(machine_tree(CLUSTER)) == ("network", None, *want)


def test_numa_nodes_of_different_machines() -> None:
    """GPUs of one NUMA node number in different machines are not of one NUMA node."""
    tree = machine_tree(built(2, numa=[{"node": 0, "gpus": [0, 1, 2], "cpuset": "0-7"}]))
    got = [(level.numa_node, level.cpuset, level.node) for level in (tree, *tree.children)]
    assert got == [
        (None, frozenset(), None),
        (0, frozenset(range(8)), 0),
        (0, frozenset(range(8)), 1),
    ]


def test_network_is_farthest() -> None:
    """Two GPUs of one machine are nearer than any two of different ones, whatever lies between."""
    levels = {"PIX": [[0, 1]], "PXB": [[0, 1, 2]], "PHB": [[0, 1, 2, 3]], "NODE": [[0, 1, 2, 3, 4]]}
    deep = several(2, gpus={"count": 6, "model": "A40"}, nvlink={"version": 3}, numa=[])
    deep["pcie"]["groups"] = levels
    topology = described_topology(deep, "")
    tree = machine_tree(topology)
    reach: dict[str, list[int]] = {}
    for link in topology.links:
        reach.setdefault(link.path, []).append(Distances(tree).between(link.a, link.b))
    ranges = [
        (min(reach[path]), max(reach[path])) for path in ("PIX", "PXB", "PHB", "NODE", "SYS", "NET")
    ]
    assert all(before[1] < after[0] for before, after in pairwise(ranges)), ranges


# There and back


def any_cluster(rng: random.Random) -> dict[str, Any]:
    """Draw 1 to 5 machines of 1 to 4 cards with anything that a description can say."""
    count = rng.randint(1, 4)
    pairs = list(combinations(range(count), 2))
    document = several(
        rng.randint(1, 5),
        gpus={
            "count": count,
            "model": rng.choice(["A100", ["A100"] * (count - 1) + ["A40"]]),
            "memory_mib": 4096,
        },
        nvlink={
            "version": 3,
            "links": [
                [*pair, rng.randint(1, 4)] for pair in rng.sample(pairs, rng.randint(0, len(pairs)))
            ],
            "switch_links_per_gpu": rng.choice([0, 6]),
        },
        numa=[
            {
                "node": card % 2,
                "gpus": [card],
                "cpuset": f"{card}",
                "memory_gb_per_s": 40.0 + card % 2,
            }
            for card in range(rng.randint(0, count))
        ],
    )
    document["pcie"] = {"generation": 4, "width": rng.choice([8, [16] * count])}
    document["pcie"]["groups"] = {"PHB": [sorted(rng.sample(range(count), rng.randint(1, count)))]}
    document["network"]["bandwidth_gb_per_s"] = rng.choice([1.25, 12.5, 50])
    if rng.random() < 0.3:
        document["pcie"]["peer_to_peer"] = False
    if rng.random() < 0.3:
        document["pcie"]["bandwidth_gb_per_s"] = 11.0
    if rng.random() < 0.4:
        document["mig"] = [
            {**SPLIT["mig"][0], "gpu": rng.randrange(count), "instances": rng.sample(range(7), 2)}
        ]
    return document


def test_any_cluster_there_and_back() -> None:
    """Any description of networked machines survives as a document."""
    for seed in range(40):
        topology = described_topology(any_cluster(random.Random(seed)), "0badc0de")
        assert described_topology(machine_document(topology), "0badc0de") == topology, seed


# Text and pictures

TWO_NODES = """\
box: 6 x A100, 40 GiB, on 2 nodes
GPU  0         1         2         3         4         5         node  NUMA
  0  X         NV12 300  NV12 300  NET 12.5  NET 12.5  NET 12.5  0     0
  1  NV12 300  X         NV12 300  NET 12.5  NET 12.5  NET 12.5  0     0
  2  NV12 300  NV12 300  X         NET 12.5  NET 12.5  NET 12.5  0     1
  3  NET 12.5  NET 12.5  NET 12.5  X         NV12 300  NV12 300  1     0
  4  NET 12.5  NET 12.5  NET 12.5  NV12 300  X         NV12 300  1     0
  5  NET 12.5  NET 12.5  NET 12.5  NV12 300  NV12 300  X         1     1

node 0, the first of 2: GPUs 0-2
  NUMA 0 (CPUs 0-7): GPUs 0,1 on one PCIe switch
  NUMA 1 (CPUs 8-15): GPU 2
each GPU: 12 NVLinks into NVSwitch

links with GB/s per direction; NV# = so many NVLinks, NET = over the network
source: made up
"""


def test_text_of_two_machines() -> None:
    """The matrix has each GPU's node, the tree is the first node's, and NET is explained."""
    assert "\n".join(topology_lines(built(2), colour=False)) + "\n" == TWO_NODES


def test_text_of_a_cluster() -> None:
    """Beyond the matrix's size, the text counts pairs by link; the tree is the first machine's."""
    assert topology_lines(CLUSTER, colour=False)[:8] == [
        "minsky-cluster: 20 x Tesla P100-SXM2-16GB, 15.9 GiB, on 5 nodes",
        "20 GPUs; of 190 pairs",
        "    10 have NV2 40 GB/s",
        "    20 have SYS 6 GB/s",
        "   160 have NET 1.25 GB/s",
        "",
        "node 0, the first of 5: GPUs 0-3",
        "  NUMA 0 (CPUs 0-63): GPUs 0,1 on host bridges of their own",
    ]


SVG = "{http://www.w3.org/2000/svg}"


def of_class(svg: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in svg.iter() if name in element.get("class", "").split()]


def frame(element: ET.Element) -> tuple[float, float, float, float]:
    left, top, width, height = (
        float(element.get(name, "nan")) for name in ("x", "y", "width", "height")
    )
    return left, top, left + width, top + height


def test_picture_of_several_machines() -> None:
    """Each machine has a frame with its name and all its GPUs inside, and frames keep apart."""
    topology = built(2, **SPLIT)
    svg = ET.fromstring(topology_svg(topology))
    groups = of_class(svg, "node")
    frames = [frame(group.find(f"{SVG}rect")) for group in groups]
    assert [group.find(f"{SVG}text").text for group in groups] == [
        f"node {node}" for node in machines(topology)
    ]
    assert all(above[3] < below[1] for above, below in pairwise(frames))
    homes = {str(gpu.index): frames[gpu.node] for gpu in topology.gpus}
    boxes = [
        (homes[box.get("data-gpu", "")], frame(box.find(f"{SVG}rect")))
        for box in of_class(svg, "gpu")
    ]
    assert all(o[0] < b[0] and o[1] < b[1] and b[2] < o[2] and b[3] < o[3] for o, b in boxes)
