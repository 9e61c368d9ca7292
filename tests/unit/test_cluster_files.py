"""Cluster files, Slurm's texts about the network, lists of hosts, and reports of nodes."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import complaint, machine

from gpulaunch.cluster.cluster import Node, Tree
from gpulaunch.cluster.cluster_file import load_cluster, tree_of_file
from gpulaunch.cluster.hostlist import MOST_HOSTS, expand_hostlist
from gpulaunch.cluster.network import ASSUMED_NODE_GB_PER_S, network_tree, read_topology_conf
from gpulaunch.cluster.node import read_reports, report_lines
from gpulaunch.errors import FailedError
from gpulaunch.records import replace

FILE = """\
name = "two"
source = "made up"

[[nodes]]
names = "n[1-2]"
machine = "power8-minsky"
cores = ["0-7", "64-71"]
gb_per_s = 6.0

[[nodes]]
names = "m1"
machine = "dgx1-v100"
gb_per_s = 5.0

[network]
source = "made up, too"

[[network.switches]]
name = "top"
switches = "leaf[1-2]"

[[network.switches]]
name = "leaf1"
nodes = "n[1-2]"
gb_per_s = 2.0

[[network.switches]]
name = "leaf2"
nodes = "m1"
gb_per_s = 8.0
"""


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


TREE = "the network is no tree"
MISTAKES = [
    ('names = "m1"', 'names = "n2"', "11: names: node 'n2' stands twice"),
    (', "64-71"]', ', "7-9"]', "7: cores: core 7 is in two sockets"),
    ("s = 5.0", "s = nan", "13: gb_per_s: nan is no number above 0, 1e+09 at most"),
    ('nodes = "m1"', 'nodes = "m[1-2]"', "29: nodes: unknown node 'm2'"),
    ('leaf[1-2]"', 'leaf[1-3]"', "18: switch 'top' has unknown switch 'leaf3' below it"),
    (
        '"m1"\ngb_per_s = 8',
        '"m1,n2"\ngb_per_s = 8',
        f"27: {TREE}: node 'n2' is below 'leaf1' and 'leaf2'",
    ),
    (
        '"m1"\ngb_per_s = 8',
        '"m1"\nswitches = "top"\ngb_per_s = 8',
        f"18: {TREE}: switch 'top' is above itself",
    ),
    ('switches = "leaf[1-2]"\n', "", f"26: {TREE}: nodes 'n1' and 'm1' have no switch above both"),
    ('nodes = "n[1-2]"', 'nodes = "n1"', " node 'n2' is on no switch of the network"),
]


@pytest.mark.parametrize(("right", "wrong", "want"), MISTAKES)
def test_mistakes_have_their_line(right: str, wrong: str, want: str, tmp_path: Path) -> None:
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


TREE_CONF = """\
# a tree of three leaf switches
SwitchName=s0 Nodes=n[0-3] LinkSpeed=100
switchname=s1 \\
    nodes=n[4-7]
SwitchName=s2 Nodes=n[8-11]  # the last
SwitchName=s3 Switches=s[0-1]
SwitchName=top Switches=s[2-3]
"""

SCONTROL = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-3]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[4-7]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[8-11]
SwitchName=s3 Level=1 LinkSpeed=1 Nodes=n[0-7] Switches=s[0-1]
SwitchName=top Level=2 LinkSpeed=1 Nodes=n[0-11] Switches=s[2-3]
"""


def test_tree_of_switches() -> None:
    """topology.conf and what scontrol prints of it give the same tree.

    A switch's links upward are assumed to have half of what is below it. Nodes that are not asked
    for, and switches above none, are left out; the order is kept.
    """
    want = {f"n{i}": (f"s{i // 4}", 12.5) for i in range(12)}
    want |= {"s0": ("s3", 25.0), "s1": ("s3", 25.0), "s2": ("top", 25.0), "s3": ("top", 25.0)}
    for text in (TREE_CONF, SCONTROL):
        tree = network_tree(read_topology_conf(text), nodes(*(f"n{i}" for i in range(12))))
        assert links(tree) == want
        assert leaves(tree) == [f"n{i}" for i in range(12)]
    tree = network_tree(read_topology_conf(TREE_CONF), nodes("n5", "n0"))
    above = {name: parent for name, (parent, _) in links(tree).items()}
    assert above == {"s0": "s3", "s1": "s3", "s3": "top", "n0": "s0", "n5": "s1"}
    assert leaves(tree) == ["n5", "n0"]


BLOCK_CONF = """\
BlockName=block1 Nodes=n[01-02]
BlockName=block2 Nodes=n[03-04]
BlockSizes=2,4
"""

BLOCK_SCONTROL = """\
BlockName=block1 BlockIndex=0 Nodes=n[01-02] BlockSize=2
BlockName=block2 BlockIndex=1 Nodes=n[03-04] BlockSize=2
AggregatedBlock=block[1-2] BlockIndex=2 Nodes=n[01-04] BlockSize=4
"""


def test_blocks(tmp_path: Path) -> None:
    """Blocks are switches below one for all, in every form of the text."""
    want = {"n01": "block1", "n02": "block1", "n03": "block2", "n04": "block2"}
    want |= {"block1": "all blocks", "block2": "all blocks"}
    for name, text in (("topology.conf", BLOCK_CONF), ("scontrol.txt", BLOCK_SCONTROL)):
        tree = tree_of_file(written(tmp_path, text, name), nodes("n01", "n02", "n03", "n04"))
        assert {name: parent for name, (parent, _) in links(tree).items()} == want


def test_mistakes_in_slurms_file(tmp_path: Path) -> None:
    """A wrong text is refused in one line with file and line."""
    for text, want in (
        ("SwitchName=s1 Nodes=n[1-2\n", "1: 'n[1-2' is no list of hosts such as"),
        ("# nothing\n", " no SwitchName= and no BlockName= in it"),
        ("SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2\n", "2: switch 's1' stands twice"),
    ):
        path = written(tmp_path, text, "topology.conf")
        said = complaint(lambda path: tree_of_file(path, nodes("n1", "n2")), path)
        assert said.startswith(want)


# Lists of hosts


def test_host_lists_are_expanded() -> None:
    """Ranges are expanded in order, with leading zeros, also several in one name."""
    want = "a-b.example rack1n08-ib rack1n09-ib rack1n12-ib rack2n08-ib rack2n09-ib rack2n12-ib n3"
    assert expand_hostlist("a-b.example,rack[1-2]n[08-09,12]-ib,n[3]") == tuple(want.split())


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("n[1-4", "'n[1-4' is no list of hosts such as 'n[1-4,7],m0[01-12]'"),
        ("n[4-1]", "'n[4-1]': '4-1' is no range such as 1-4"),
        ("n[1-2],n2", "'n2' stands twice in 'n[1-2],n2'"),
        ("n[1-99999]", "'n[1-99999]' gives more than 65536 names"),
        ("n" + 9 * "[1]", f"'n{9 * '[1]'}' has more than 8 brackets"),
    ],
)
def test_wrong_host_lists_are_refused(text: str, want: str) -> None:
    """What is no list of hosts, or one without an end, is refused with the part at fault."""
    with pytest.raises(ValueError, match=f"^{re.escape(want)}$"):
        expand_hostlist(text)


@given(st.text("n1[]-,09", max_size=12))
def test_host_lists_of_any_text(text: str) -> None:
    """Any text is expanded to different names, or refused."""
    try:
        names = expand_hostlist(text)
    except ValueError:
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
