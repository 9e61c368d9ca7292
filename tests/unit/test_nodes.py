"""Topologies of many machines: what a network says, levels, distances, graphs and way back."""

from itertools import product
from typing import Any

import pytest

from gpulaunch.cli.topo import topology_lines
from gpulaunch.errors import FieldError
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.read_description import described_topology
from gpulaunch.machine.topology import Topology, machines
from gpulaunch.machine.write_description import machine_document
from gpulaunch.records import replace

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
    """Cards are counted on through the machines; NUMA nodes and CPUs begin anew.

    MIG instances are numbered by their card's index.
    """
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
    assert [(gpu.numa_node, min(gpu.cpuset)) for gpu in gpus] == [(0, 0), (1, 8)] * 2 + [(0, 0)] * 4
    assert [gpu.mig.card_uuid for gpu in gpus if gpu.mig] == ["GPU-box-1"] * 2 + ["GPU-box-4"] * 2


def test_links() -> None:
    """Two machines have only the network between them: no NVLink, NVSwitch or PCIe.

    Within each machine the links are those of the machine alone.
    """
    topology, alone = built(3), built(1)
    between = [link for link in topology.links if link.a // 3 != link.b // 3]
    paths = {(link.kind, link.path, link.pcie_path, link.nvlink_count) for link in between}
    assert paths == {("network", "NET", "NET", 0)}
    speeds = {(link.bandwidth_gb_per_s, link.pcie_gb_per_s, link.name) for link in between}
    assert speeds == {(12.5, 12.5, "NET 12.5")}
    for node, part in machines(topology).items():
        got = [replace(link, a=link.a - 3 * node, b=link.b - 3 * node) for link in part.links]
        assert got == list(alone.links)


# Mistakes in a description

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"nodes": 342, "bandwidth_gb_per_s": 1},
        "nodes: 342 machines of 3 GPUs each are 1026 GPUs, more than 1024",
    ),
    ({"nodes": 2}, "key 'bandwidth_gb_per_s' is missing in network"),
    (
        {"nodes": 2, "bandwidth_gb_per_s": 1, "latency_us": 2},
        "unknown key 'latency_us': known here are nodes, bandwidth_gb_per_s",
    ),
]


def test_wrong_network() -> None:
    """A mistake about the network is named with its key, what was found and what is allowed."""
    for network, want in WRONG:
        with pytest.raises(FieldError) as problem:
            built(2, network=network)
        assert (problem.value.path[0], problem.value.message) == ("network", want)


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


def test_levels() -> None:
    """The network is the first level, then come the machines, the sockets and the GPUs.

    GPUs of one NUMA node number in different machines are not of one NUMA node.
    """
    want = [
        ("machine", n, ("socket", n, 4 * n, 4 * n + 1), ("socket", n, 4 * n + 2, 4 * n + 3))
        for n in range(5)
    ]
    assert outline(machine_tree(CLUSTER)) == ("network", None, *want)
    tree = machine_tree(built(2, numa=[{"node": 0, "gpus": [0, 1, 2], "cpuset": "0-7"}]))
    assert (tree.numa_node, tree.cpuset) == (None, frozenset())
    got = [(level.node, level.numa_node, level.cpuset) for level in tree.children]
    assert got == [(0, 0, frozenset(range(8))), (1, 0, frozenset(range(8)))]


# There and back


def test_clusters_there_and_back() -> None:
    """A description of networked machines survives as a document."""
    slow = {"network": {"nodes": 2, "bandwidth_gb_per_s": 1.25}}
    no_peers = {"pcie": {"generation": 4, "width": [16, 8, 8], "peer_to_peer": False}}
    pair = {"nvlink": {"version": 3, "links": [[0, 2, 4]]}}
    for nodes, tables in product((1, 2, 5), ({}, SPLIT, slow, no_peers, pair, {"numa": []})):
        topology = described_topology(several(nodes, **tables), "0badc0de")
        assert described_topology(machine_document(topology), "0badc0de") == topology


# Text and pictures


def test_text_of_two_machines() -> None:
    """The matrix and the sockets have each GPU's node, and NET is explained."""
    lines = [" ".join(line.plain.split()) for line in topology_lines(built(2))]
    assert lines[1:3] == [
        "GPU 0 1 2 3 4 5 node NUMA",
        "0 X NV12 NV12 NET NET NET 0 0",
    ]
    assert lines[7] == "5 NET NET NET NV12 NV12 X 1 1"
    assert lines[9:11] == [
        "node 0, NUMA 0 (CPUs 0-7): GPUs 0,1",
        "node 0, NUMA 1 (CPUs 8-15): GPU 2",
    ]
    legend = "GB/s per direction: NV12 300, NET 12.5; NV# = so many NVLinks, NET = over the network"
    assert legend in lines


def test_text_of_a_cluster() -> None:
    """Beyond the matrix's size, the text counts pairs by link."""
    lines = [line.plain for line in topology_lines(CLUSTER)]
    assert lines[0] == "minsky-cluster: 20 x Tesla P100-SXM2-16GB, 15.9 GiB, on 5 nodes"
    assert lines[4:7] == [
        "   160 have NET 1.25 GB/s",
        "",
        "node 0, NUMA 0 (CPUs 0-63): GPUs 0,1",
    ]
