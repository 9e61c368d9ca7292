"""Cluster files, Slurm's texts about the network, lists of hosts, and reports of nodes."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toml_parser import tomllib
from values import cases, complaint, machine

from gpulaunch.errors import FailedError, FieldError
from gpulaunch.lab.cluster.allocation import read_reports, report_lines
from gpulaunch.lab.cluster.cluster import Node, Tree
from gpulaunch.lab.cluster.cluster_file import load_cluster, tree_of_file
from gpulaunch.lab.cluster.network import (
    ASSUMED_NODE_GB_PER_S,
    MOST_HOSTS,
    expand_hostlist,
    network_tree,
    read_topology_conf,
)
from gpulaunch.records import replace

TEXTS = tomllib.loads(Path(__file__).with_name("cluster_files.toml").read_text())
FILE = TEXTS["cluster"]


def written(directory: Path, text: str = FILE, name: str = "two.toml") -> str:
    """Write a file; return its path."""
    path = directory / name
    path.write_text(text)
    return str(path)


def links(tree: Tree) -> dict[str, tuple[str, float]]:
    """Return what is above each vertex, and the bandwidth of the link to it."""
    rows = zip(tree.names[1:], tree.parents[1:], tree.gb_per_s[1:], strict=True)
    return {name: (tree.names[parent], gb_per_s) for name, parent, gb_per_s in rows}


def leaves(tree: Tree) -> list[str]:
    """Return the names of the nodes in their order."""
    return [tree.names[leaf] for leaf in tree.leaves]


def test_a_cluster_is_its_nodes_and_their_network(tmp_path: Path) -> None:
    """Nodes have the machine, cores and links that the file says; the network is its switches."""
    cluster = load_cluster(written(tmp_path))
    got = [(node.name, node.topology.name, node.slots) for node in cluster.nodes]
    assert got == [("n1", "power8-minsky", 4), ("n2", "power8-minsky", 4), ("m1", "dgx1-v100", 8)]
    assert cluster.nodes[0].sockets == (tuple(range(8)), tuple(range(64, 72)))
    assert links(cluster.network) == {
        "leaf1": ("top", 2.0),
        "leaf2": ("top", 8.0),
        "n1": ("leaf1", 6.0),
        "n2": ("leaf1", 6.0),
        "m1": ("leaf2", 5.0),
    }
    assert leaves(cluster.network) == ["n1", "n2", "m1"]
    assert cluster.source == "made up; made up, too"


def test_own_clusters_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the user's own directory is found by its name, before a shipped one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gpulaunch" / "clusters").mkdir(parents=True)
    written(tmp_path / "gpulaunch" / "clusters", name="magc-a.toml")
    assert load_cluster("magc-a").name == "two"


@cases(TEXTS["mistakes"], "right", "wrong", "want")
def test_mistakes_have_their_line(tmp_path: Path, right: str, wrong: str, want: str) -> None:
    """A wrong value, or a network that is no tree, is one line with the file and its line."""
    assert right in FILE
    path = written(tmp_path, FILE.replace(right, wrong))
    assert complaint(load_cluster, path) == want


# Slurm's texts about the network


def nodes(*names: str) -> dict[str, float]:
    return dict.fromkeys(names, ASSUMED_NODE_GB_PER_S)


def test_networks_from_slurm(tmp_path: Path) -> None:
    """A cluster file may name Slurm's file: what that leaves open is assumed, and said to be."""
    head, _, _ = FILE.partition("[[network.switches]]")
    text = (
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=m1,other\nSwitchName=top Switches=s[1-2]"
    )
    written(tmp_path, text, "topology.conf")
    cluster = load_cluster(written(tmp_path, f'{head}file = "topology.conf"\n'))
    assert {name: gb_per_s for name, (_, gb_per_s) in links(cluster.network).items()} == {
        "s1": 6.0,  # half of two nodes with 6 GB/s
        "s2": 2.5,
        "n1": 6.0,
        "n2": 6.0,
        "m1": 5.0,
    }
    assert cluster.source.endswith("0.5 of what is below a switch for its links upward")


def test_tree_of_switches() -> None:
    """topology.conf and what scontrol prints of it give the same tree.

    A switch's links upward are assumed to have half of what is below it. Nodes that are not asked
    for, and switches above none, are left out; the order is kept.
    """
    want = {f"n{i}": (f"s{i // 4}", 12.5) for i in range(12)}
    want |= {"s0": ("s3", 25.0), "s1": ("s3", 25.0), "s2": ("top", 25.0), "s3": ("top", 25.0)}
    for text in (TEXTS["topology_conf"], TEXTS["scontrol"]):
        tree = network_tree(read_topology_conf(text), nodes(*(f"n{i}" for i in range(12))))
        assert links(tree) == want
        assert leaves(tree) == [f"n{i}" for i in range(12)]
    tree = network_tree(read_topology_conf(TEXTS["topology_conf"]), nodes("n5", "n0"))
    above = {name: parent for name, (parent, _) in links(tree).items()}
    assert above == {"s0": "s3", "s1": "s3", "s3": "top", "n0": "s0", "n5": "s1"}
    assert leaves(tree) == ["n5", "n0"]


def test_blocks(tmp_path: Path) -> None:
    """Blocks are switches below one for all, in every form of the text."""
    want = {"n01": "block1", "n02": "block1", "n03": "block2", "n04": "block2"}
    want |= {"block1": "all blocks", "block2": "all blocks"}
    for name, text in (
        ("topology.conf", TEXTS["blocks_conf"]),
        ("scontrol.txt", TEXTS["blocks_scontrol"]),
    ):
        tree = tree_of_file(written(tmp_path, text, name), nodes("n01", "n02", "n03", "n04"))
        assert {name: parent for name, (parent, _) in links(tree).items()} == want


@cases(TEXTS["mistakes_in_slurms_file"], "text", "want")
def test_mistakes_in_slurms_file(tmp_path: Path, text: str, want: str) -> None:
    """A wrong text is refused in one line with file and line."""
    path = written(tmp_path, text, "topology.conf")
    assert complaint(lambda path: tree_of_file(path, nodes("n1", "n2")), path) == want


# Lists of hosts


def test_host_lists_are_expanded() -> None:
    """Ranges are expanded in order, with leading zeros, also several in one name."""
    want = "a-b.example rack1n08-ib rack1n09-ib rack1n12-ib rack2n08-ib rack2n09-ib rack2n12-ib n3"
    assert expand_hostlist("a-b.example,rack[1-2]n[08-09,12]-ib,n[3]") == tuple(want.split())


@cases(TEXTS["mistakes_in_lists_of_hosts"], "text", "want")
def test_wrong_host_lists_are_refused(text: str, want: str) -> None:
    """What is no list of hosts, or one without an end, is refused with the part at fault."""
    with pytest.raises(FieldError, match=f"^{re.escape(want)}$"):
        expand_hostlist(text)


@given(st.text("n1[]-,09", max_size=12))
def test_host_lists_of_any_text(text: str) -> None:
    """Any text is expanded to different names, or refused."""
    try:
        names = expand_hostlist(text)
    except FieldError:
        return
    assert 1 <= len(set(names)) == len(names) <= MOST_HOSTS
    assert not set("".join(names)) & set("[],")


# Reports of nodes

SOCKETS = {"dgx1-v100": ((0, 1), (40, 41)), "nvl72": ((*range(72),),), "power8-minsky": ()}
NODES = [
    Node(f"n{task}", replace(machine(name), digest=None), sockets)
    for task, (name, sockets) in enumerate(SOCKETS.items())
]


def test_reports_survive_mixed_lines() -> None:
    """Lines of several tasks in any order, between others, give the nodes by task.

    A report without one of its lines, or of other content, names the node and a likely cause.
    """
    lines = [line for task, node in enumerate(NODES) for line in report_lines(task, node)]
    assert max(map(len, lines)) < 1000  # tasks' output keeps so many characters together
    lines += ["", "slurmstepd: a warning", "gpulaunch-node is a word", "gpulaunch-node a b c d"]
    random.Random(1).shuffle(lines)
    assert read_reports("\n".join(lines)) == NODES
    for broken in (report_lines(1, NODES[1])[1:], ["gpulaunch-node 1 0 1 QUJD"]):
        with pytest.raises(FailedError, match="the report of node 1 cannot be read") as caught:
            read_reports("\n".join(broken))
        assert caught.value.hint == "is the same version of gpulaunch installed on all nodes?"
