"""Slurm's texts about the network, the expander of host lists, and NVLink domains."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import complaint

from gpulaunch.cluster.hostlist import MOST_HOSTS, expand_hostlist
from gpulaunch.cluster.network import ASSUMED_NODE_GB_PER_S, Switch, network_tree
from gpulaunch.cluster.network_text import tree_of_file
from gpulaunch.cluster.nvlink_domains import nvlink_domain, with_domains
from gpulaunch.cluster.slurm_topology import (
    read_topology_conf,
    split_address,
    switches_of_addresses,
)
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FieldError


def above(tree: Tree) -> dict[str, str]:
    """Return the name of what is above each vertex."""
    pairs = zip(tree.names[1:], tree.parents[1:], strict=True)
    return {name: tree.names[parent] for name, parent in pairs}


def nodes(*names: str) -> dict[str, float]:
    return dict.fromkeys(names, ASSUMED_NODE_GB_PER_S)


# ------------------------------------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("n1", "n1"),
        ("n[1-4,7],m0[01-12]", "n1 n2 n3 n4 n7 " + " ".join(f"m0{i:02}" for i in range(1, 13))),
        (
            "rack[1-2]n[08-10]-ib",
            "rack1n08-ib rack1n09-ib rack1n10-ib rack2n08-ib rack2n09-ib rack2n10-ib",
        ),
        ("[1-2]", "1 2"),
        ("n[009-010]", "n009 n010"),
        ("a-b.example,n[3]", "a-b.example n3"),
    ],
)
def test_host_lists_are_expanded(text: str, want: str) -> None:
    """Ranges are expanded in order, with leading zeros, also several in one name."""
    assert expand_hostlist(text) == tuple(want.split())


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "the list of hosts is empty"),
        ("n[1-4", "'n[1-4' is no list of hosts such as 'n[1-4,7],m0[01-12]'"),
        ("n1,", "'n1,' is no list of hosts such as 'n[1-4,7],m0[01-12]'"),
        (",n1", "',n1' is no list of hosts such as 'n[1-4,7],m0[01-12]'"),
        ("n1 n2", "'n1 n2' is no list of hosts such as 'n[1-4,7],m0[01-12]'"),
        ("n[4-1]", "'n[4-1]': '4-1' is no range such as 1-4"),
        ("n[]", "'n[]': '' is no range such as 1-4"),
        ("n[a]", "'n[a]': 'a' is no range such as 1-4"),
        ("n[1-2],n2", "'n2' stands twice in 'n[1-2],n2'"),
        ("n[1-99999]", "'n[1-99999]' gives more than 65536 names"),
        ("n[1-999][1-999]", "'n[1-999][1-999]' gives more than 65536 names"),
        ("n[1-65536],m", "'m' gives more than 65536 names"),
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


# --------------------------------------------------------------------------------- topology.conf

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
    """topology.conf and what scontrol prints of it give the same tree."""
    tree = network_tree(read_topology_conf(text), nodes(*(f"n{i}" for i in range(12))))
    want = {f"n{i}": f"s{i // 4}" for i in range(12)}
    assert above(tree) == {**want, "s0": "s3", "s1": "s3", "s2": "top", "s3": "top"}
    assert [tree.names[leaf] for leaf in tree.leaves] == [f"n{i}" for i in range(12)]


def test_bandwidths_of_switches_are_assumed() -> None:
    """A switch's links upward have half of what is below it."""
    tree = network_tree(read_topology_conf(TREE_CONF), nodes(*(f"n{i}" for i in range(12))))
    known = dict(zip(tree.names, tree.gb_per_s, strict=True))
    assert [known[name] for name in ("n0", "s0", "s3", "top")] == [12.5, 25.0, 25.0, 0.0]


def test_the_network_of_an_allocation() -> None:
    """Nodes that are not asked for, and switches above none, are left out; the order is kept."""
    tree = network_tree(read_topology_conf(TREE_CONF), nodes("n5", "n0"))
    assert above(tree) == {"s0": "s3", "s1": "s3", "n0": "s0", "n5": "s1"}
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
    assert above(tree) == {**want, "block1": "blocks", "block2": "blocks"}


WRONG = [
    (
        "t.conf",
        "SwitchName=s1 Nodes=n[1-2\n",
        "1: 'n[1-2' is no list of hosts such as 'n[1-4,7],m0[01-12]'",
    ),
    ("t.conf", "\nSwitchName=s1 Node=n1\n", "2: unknown key 'Node' in a topology"),
    ("t.conf", "SwitchName=s1 Nodes\n", "1: 'Nodes' is no KEY=VALUE of a topology"),
    ("t.conf", "Nodes=n1\n", "1: unknown key 'Nodes' in a topology"),
    ("t.conf", "# nothing\n", " no SwitchName= and no BlockName= in it"),
    (
        "t.conf",
        "SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n1,n2\n",
        "2: the network is no tree: node 'n1' is below 's1' and 's2'",
    ),
    (
        "t.conf",
        "SwitchName=s1 Switches=s2\nSwitchName=s2 Switches=s1 Nodes=n1,n2\n",
        "1: the network is no tree: switch 's1' is above itself",
    ),
    (
        "t.conf",
        "SwitchName=s1 Nodes=n1,n2\nSwitchName=top Switches=s[1-2]\n",
        "2: switch 'top' has unknown switch 's2' below it",
    ),
    (
        "t.conf",
        "SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n2\n",
        "2: the network is no tree: nodes 'n1' and 'n2' have no switch above both",
    ),
    ("t.conf", "SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2\n", "2: switch 's1' stands twice"),
    ("t.conf", "SwitchName=s1 Nodes=n1\n", " node 'n2' is on no switch of the network"),
]


@pytest.mark.parametrize(("name", "text", "want"), WRONG)
def test_mistakes_have_their_line(name: str, text: str, want: str, tmp_path: Path) -> None:
    """A wrong text, or one that is no tree, is refused in one line with file and line."""
    path = tmp_path / name
    path.write_text(text)
    assert complaint(lambda one: tree_of_file(one, nodes("n1", "n2")), str(path)) == want


# --------------------------------------------------------------------------- addresses of nodes


def test_addresses_make_the_tree() -> None:
    """The addresses that Slurm gives the tasks of a job are the part of the tree that it has."""
    addresses = {
        name: split_address(address, "switch.switch.node")
        for name, address in (("n2", "top.s2.n2"), ("n1", "top.s1.n1"), ("n3", "top.s1.n3"))
    }
    tree = network_tree(switches_of_addresses(addresses), nodes(*addresses))
    assert above(tree) == {"n1": "s1", "n3": "s1", "n2": "s2", "s1": "top", "s2": "top"}
    assert [tree.names[leaf] for leaf in tree.leaves] == ["n2", "n1", "n3"]


def test_without_switches_there_is_one() -> None:
    """Slurm without a topology gives addresses without switches: one switch joins all nodes."""
    addresses = {name: split_address(name, "node") for name in ("n1", "n2")}
    tree = network_tree(switches_of_addresses(addresses), nodes(*addresses))
    assert above(tree) == {"n1": "network", "n2": "network"}


def test_a_node_may_have_dots_in_its_name() -> None:
    """The pattern says how many parts the switches are; the rest is the node."""
    assert split_address("top.s1.n1.example.org", "switch.switch.node") == ("top", "s1")
    with pytest.raises(ValueError, match=r"^address 'n1' does not fit its pattern 'switch\.node'$"):
        split_address("n1", "switch.node")


# ------------------------------------------------------------------------------- NVLink domains

FABRIC = """\
GPU 00000008:01:00.0
    Product Name                          : NVIDIA GB200
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : 1a2b3c4d-0000-4000-8000-00000000000{}
        Health
            Bandwidth                     : N/A
"""


def test_the_domain_of_a_node() -> None:
    """ClusterUUID and CliqueId in nvidia-smi -q name the domain; zeros and N/A are none."""
    first = FABRIC.format(1)
    assert nvlink_domain(first) == "1a2b3c4d-0000-4000-8000-000000000001.32766"
    assert nvlink_domain(first + FABRIC.format(2)) == nvlink_domain(first)
    assert nvlink_domain("    ClusterUUID : N/A\n    CliqueId : N/A\n") is None
    zero = "    ClusterUUID : 00000000-0000-0000-0000-000000000000\n    CliqueId : 0\n"
    assert nvlink_domain(zero) is None


def test_nodes_of_a_domain_are_on_a_switch_of_their_own() -> None:
    """A domain is a switch with NVLink below and its nodes' own links to the network above."""
    switches = (Switch("leaf", ("n1", "n2", "n3"), (), ()),)
    domains = {"n1": "d", "n3": "d", "n2": "e"}
    found, gb_per_s = with_domains(switches, nodes("n1", "n2", "n3"), domains, 3600.0)
    tree = network_tree(found, gb_per_s)
    assert above(tree) == {"n2": "leaf", "d": "leaf", "n1": "d", "n3": "d"}
    known = dict(zip(tree.names, tree.gb_per_s, strict=True))
    assert known == {"leaf": 0.0, "n2": 12.5, "d": 25.0, "n1": 3600.0, "n3": 3600.0}


def test_a_block_may_be_a_domain() -> None:
    """Where a block has exactly the nodes of a domain, it is the domain's switch."""
    names = ("n01", "n02", "n03", "n04")
    domains = {"n01": "d", "n02": "d", "n03": "e", "n04": "e"}
    blocks = read_topology_conf(BLOCK_CONF)
    found, gb_per_s = with_domains(blocks, nodes(*names), domains, 3600.0)
    tree = network_tree(found, gb_per_s)
    assert above(tree)["n01"] == "block1"
    assert tree.gb_per_s[tree.names.index("block1")] == 25.0


def test_a_domain_on_two_switches_is_no_tree() -> None:
    """Nodes of one domain on different switches are refused."""
    switches = read_topology_conf(TREE_CONF)
    with pytest.raises(FieldError) as caught:
        with_domains(switches, nodes("n0", "n4"), {"n0": "d", "n4": "d"}, 3600.0)
    assert caught.value.message == (
        "the network is no tree: NVLink domain d has nodes on 's0' and 's1'"
    )
    assert caught.value.path == (3,)
