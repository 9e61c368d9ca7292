"""Cluster files: shipped ones, mistakes with their lines, and clusters as one topology."""

from collections import Counter
from pathlib import Path

import pytest
from values import complaint

from gpulaunch.cluster.cluster_file import load_cluster

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
    path = directory / name
    path.write_text(text)
    return str(path)


def test_a_cluster_is_its_nodes_and_their_network(tmp_path: Path) -> None:
    """Nodes have the machine, cores and links that the file says; the network is its switches."""
    cluster = load_cluster(written(tmp_path))
    got = [(node.name, node.topology.name, node.slots) for node in cluster.nodes]
    assert got == [("n1", "power8-minsky", 4), ("n2", "power8-minsky", 4), ("m1", "dgx1-v100", 8)]
    assert cluster.nodes[0].sockets == (tuple(range(8)), tuple(range(64, 72)))
    tree = cluster.network
    links = {
        name: (tree.names[parent], gb_per_s)
        for name, parent, gb_per_s in zip(
            tree.names[1:], tree.parents[1:], tree.gb_per_s[1:], strict=True
        )
    }
    assert links == {
        "leaf1": ("top", 2.0),
        "leaf2": ("top", 8.0),
        "n1": ("leaf1", 6.0),
        "n2": ("leaf1", 6.0),
        "m1": ("leaf2", 5.0),
    }
    assert [tree.names[leaf] for leaf in tree.leaves] == ["n1", "n2", "m1"]
    assert cluster.source == "made up; made up, too"


@pytest.mark.parametrize(
    ("name", "count", "model", "sockets", "levels"),
    [
        ("magc-a", 4, "Tesla K80", 12, {"PIX": 8, "PXB": 16, "NODE": 32, "SYS": 64}),
        ("magc-b", 8, "Tesla K20m", 10, {"PIX": 4, "NODE": 8, "SYS": 16}),
    ],
)
def test_nodes_of_the_paper(
    name: str, count: int, model: str, sockets: int, levels: dict[str, int]
) -> None:
    """The paper's nodes have its GPUs, on PCIe alone, and two sockets of its cores."""
    (node, *others) = load_cluster(name).nodes
    assert len(others) == count - 1
    assert {gpu.model for gpu in node.topology.gpus} == {model}
    assert [len(cores) for cores in node.sockets] == [sockets, sockets]
    assert Counter(link.path for link in node.topology.links) == levels


def test_own_clusters_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the user's own directory is found by its name, before a shipped one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gpulaunch" / "clusters").mkdir(parents=True)
    written(tmp_path / "gpulaunch" / "clusters", name="magc-a.toml")
    assert load_cluster("magc-a").name == "two"


MISTAKES = {
    'names = "m1"': ('names = "n2"', "11: names: node 'n2' stands twice"),
    'cores = ["0-7", "64-71"]': ('cores = ["0-7", "7-9"]', "7: cores: core 7 is in two sockets"),
    "gb_per_s = 5.0": (
        "gb_per_s = nan",
        "13: gb_per_s: nan is no number above 0, 1e+09 at most",
    ),
    'nodes = "m1"': ('nodes = "m[1-2]"', "29: nodes: unknown node 'm2'"),
    'switches = "leaf[1-2]"': (
        'switches = "leaf[1-3]"',
        "18: switch 'top' has unknown switch 'leaf3' below it",
    ),
    'name = "leaf2"\nnodes = "m1"': (
        'name = "leaf2"\nnodes = "m1,n2"',
        "27: the network is no tree: node 'n2' is below 'leaf1' and 'leaf2'",
    ),
    'nodes = "m1"\n': (
        'nodes = "m1"\nswitches = "top"\n',
        "18: the network is no tree: switch 'top' is above itself",
    ),
    'switches = "leaf[1-2]"\n': (
        "",
        "26: the network is no tree: nodes 'n1' and 'm1' have no switch above both",
    ),
    'nodes = "n[1-2]"': ('nodes = "n1"', " node 'n2' is on no switch of the network"),
}


@pytest.mark.parametrize("right", MISTAKES)
def test_mistakes_have_their_line(right: str, tmp_path: Path) -> None:
    """A wrong value, or a network that is no tree, is one line with the file and its line."""
    wrong, want = MISTAKES[right]
    assert right in FILE
    path = written(tmp_path, FILE.replace(right, wrong))
    assert complaint(load_cluster, path) == want


def test_networks_from_slurm(tmp_path: Path) -> None:
    """A cluster file may name Slurm's file: what that leaves open is assumed, and said to be."""
    head, _, _ = FILE.partition("[[network.switches]]")
    (tmp_path / "topology.conf").write_text(
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=m1,other\nSwitchName=top Switches=s[1-2]\n"
    )
    path = written(tmp_path, f'{head}file = "topology.conf"\n')
    cluster = load_cluster(path)
    tree = cluster.network
    assert dict(zip(tree.names, tree.gb_per_s, strict=True)) == {
        "top": 0.0,
        "s1": 6.0,  # half of two nodes with 6 GB/s
        "s2": 2.5,
        "n1": 6.0,
        "n2": 6.0,
        "m1": 5.0,
    }
    assert cluster.source.endswith("0.5 of what is below a switch for its links upward")
