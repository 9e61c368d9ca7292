"""Slurm's texts about the network, and the expander of host lists."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import complaint

from gpulaunch.cluster.cluster import Tree
from gpulaunch.cluster.cluster_file import tree_of_file
from gpulaunch.cluster.hostlist import MOST_HOSTS, expand_hostlist
from gpulaunch.cluster.network import ASSUMED_NODE_GB_PER_S, network_tree, read_topology_conf


def above(tree: Tree) -> dict[str, str]:
    """Return the name of what is above each vertex."""
    pairs = zip(tree.names[1:], tree.parents[1:], strict=True)
    return {name: tree.names[parent] for name, parent in pairs}


def nodes(*names: str) -> dict[str, float]:
    return dict.fromkeys(names, ASSUMED_NODE_GB_PER_S)


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


@pytest.mark.parametrize("text", [TREE_CONF, SCONTROL])
def test_tree_of_switches(text: str) -> None:
    """topology.conf and what scontrol prints of it give the same tree.

    A switch's links upward are assumed to have half of what is below it.
    """
    tree = network_tree(read_topology_conf(text), nodes(*(f"n{i}" for i in range(12))))
    want = {f"n{i}": f"s{i // 4}" for i in range(12)}
    assert above(tree) == {**want, "s0": "s3", "s1": "s3", "s2": "top", "s3": "top"}
    assert [tree.names[leaf] for leaf in tree.leaves] == [f"n{i}" for i in range(12)]
    known = dict(zip(tree.names, tree.gb_per_s, strict=True))
    assert [known[name] for name in ("n0", "s0", "s3", "top")] == [12.5, 25.0, 25.0, 0.0]


def test_the_network_of_an_allocation() -> None:
    """Nodes that are not asked for, and switches above none, are left out; the order is kept."""
    tree = network_tree(read_topology_conf(TREE_CONF), nodes("n5", "n0"))
    assert above(tree) == {"s0": "s3", "s1": "s3", "s3": "top", "n0": "s0", "n5": "s1"}
    assert [tree.names[leaf] for leaf in tree.leaves] == ["n5", "n0"]


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


@pytest.mark.parametrize(
    ("name", "text"),
    [("topology.conf", BLOCK_CONF), ("scontrol.txt", BLOCK_SCONTROL)],
)
def test_blocks(name: str, text: str, tmp_path: Path) -> None:
    """Blocks are switches below one for all, in every form of the text."""
    path = tmp_path / name
    path.write_text(text)
    tree = tree_of_file(str(path), nodes("n01", "n02", "n03", "n04"))
    want = {"n01": "block1", "n02": "block1", "n03": "block2", "n04": "block2"}
    assert above(tree) == {**want, "block1": "all blocks", "block2": "all blocks"}


WRONG = [
    ("SwitchName=s1 Nodes=n[1-2\n", "1: 'n[1-2' is no list of hosts such as 'n[1-4,7],m0[01-12]'"),
    ("# nothing\n", " no SwitchName= and no BlockName= in it"),
    ("SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2\n", "2: switch 's1' stands twice"),
]


@pytest.mark.parametrize(("text", "want"), WRONG)
def test_mistakes_have_their_line(text: str, want: str, tmp_path: Path) -> None:
    """A wrong text, or one that is no tree, is refused in one line with file and line."""
    path = tmp_path / "topology.conf"
    path.write_text(text)
    assert complaint(lambda one: tree_of_file(one, nodes("n1", "n2")), str(path)) == want
