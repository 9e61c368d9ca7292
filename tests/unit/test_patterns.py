"""Communication patterns: built-in shapes against second constructions; graphs from outside."""

import importlib
import sys
from itertools import combinations, product
from math import nan, prod
from pathlib import Path
from types import ModuleType

import pytest
from toml_parser import tomllib
from values import cases, complaint

from gpulaunch.errors import UsageError
from gpulaunch.profiles.pattern import MAX_RANKS, PATTERNS, Pattern, dimensions, graph_pattern
from gpulaunch.profiles.pattern_file import GRAPH_ENDINGS, MOST_BYTES, load_pattern

Pair = tuple[int, int]
FILES = tomllib.loads(Path(__file__).with_name("pattern_files.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def nx() -> ModuleType:
    """Import networkx late: each fork of this process copies what it holds."""
    return importlib.import_module("networkx")


def pairs(name: str, ranks: int) -> list[Pair]:
    """Return the edges of a built-in shape without their weights."""
    return [(a, b) for a, b, _ in PATTERNS[name].edges(ranks)]


# Built-in shapes

SHAPES = {
    "a ring closes": ("ring", 4, "0-1 0-3 1-2 2-3"),
    "a ring of two shares one edge": ("ring", 2, "0-1"),
    "a chain stays open": ("chain", 4, "0-1 1-2 2-3"),
    "all to all is every pair": ("all_to_all", 3, "0-1 0-2 1-2"),
    "a star has rank 0 in its middle": ("star", 4, "0-1 0-2 0-3"),
    "nobody talks": ("none", 4, ""),
    # The drawings above ncclGetDtree in NCCL's trees.cc: the first tree, then the second.
    "the second tree of an even number of ranks is mirrored": (
        *("tree", 12),
        (
            "0-8 8-4 8-10 4-2 4-6 10-9 10-11 2-1 2-3 6-5 6-7 "
            "11-3 3-1 3-7 1-0 1-2 7-5 7-9 5-4 5-6 9-8 9-10"
        ),
    ),
    "that of an odd one is shifted": (
        *("tree", 13),
        (
            "0-8 8-4 8-12 4-2 4-6 12-10 2-1 2-3 6-5 6-7 10-9 10-11 "
            "1-9 9-5 9-0 5-3 5-7 0-11 3-2 3-4 7-6 7-8 11-10 11-12"
        ),
    ),
}


@cases(SHAPES, "name", "ranks", "drawn")
def test_shapes(name: str, ranks: int, drawn: str) -> None:
    edges = [sorted(map(int, edge.split("-"))) for edge in drawn.split()]
    assert pairs(name, ranks) == sorted({(a, b) for a, b in edges})


@pytest.mark.parametrize("name", PATTERNS)
def test_edges_of_shapes(nx: ModuleType, name: str) -> None:
    """Edges are sorted, lower rank first, unique, of weight 1, connect all; one rank has none."""
    assert PATTERNS[name].edges(1) == ()
    for ranks in range(2, 40):
        edges = PATTERNS[name].edges(ranks)
        assert list(edges) == sorted(set(edges))
        assert all(a < b and weight == 1.0 for a, b, weight in edges)
        if name != "none":
            graph = nx.Graph([(a, b) for a, b, _ in edges])
            assert set(graph) == set(range(ranks))
            assert nx.is_connected(graph)


@pytest.mark.parametrize("axes", [2, 3])
def test_grids_are_even(axes: int) -> None:
    """No grid of as many ranks has a smaller difference or sum of sizes."""
    for ranks in (*range(1, 65), 96, 120, 128, 210, 256):
        sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
        grids = [grid for grid in product(sizes, repeat=axes) if prod(grid) == ranks]
        got = dimensions(ranks, axes)
        assert got[0] - got[-1] == min(max(grid) - min(grid) for grid in grids)
        assert sum(got) == min(sum(grid) for grid in grids)
        assert sorted(got, reverse=True) == list(got)


@pytest.mark.parametrize(("name", "axes"), [("stencil_2d", 2), ("stencil_3d", 3)])
def test_stencils_by_coordinates(name: str, axes: int) -> None:
    """Two ranks of a stencil talk if and only if their coordinates differ by one on one axis."""
    for ranks in range(1, 33):
        places = list(product(*map(range, dimensions(ranks, axes))))
        want = [
            (a, b)
            for a, b in combinations(range(ranks), 2)
            if sum(abs(one - other) for one, other in zip(places[a], places[b], strict=True)) == 1
        ]
        assert pairs(name, ranks) == want


def test_collectives() -> None:
    """NCCL's shapes, and what is assumed of an unknown job, are collectives; the others are not."""
    collectives = [name for name, pattern in PATTERNS.items() if pattern.collective]
    assert collectives == ["ring", "tree", "ring+tree", "all_to_all"]


# Graphs from networkx


def test_graph_of_every_kind(nx: ModuleType) -> None:
    """Weights of directed and parallel edges add up; a missing one is 1; text nodes are ranks."""
    simple = nx.Graph([(2, 0, {"weight": 3}), (1, 2)])
    directed = nx.DiGraph([("0", "2", {"weight": 2}), ("2", "0"), ("1", "2", {"weight": 1})])
    parallel = nx.MultiGraph([(0, 2), (2, 0), (0, 2), (1, 2)])
    both = nx.MultiDiGraph(
        [(0, 2, {"weight": 2.5}), (2, 0, {"weight": 0.25}), (0, 2, {"weight": 0.25}), (2, 1)]
    )
    want = Pattern("mine", collective=False, ranks=3, given=((0, 2, 3.0), (1, 2, 1.0)))
    assert [graph_pattern(graph, "mine") for graph in (simple, directed, parallel, both)] == [
        want
    ] * 4
    assert want.edges(3) == ((0, 2, 3.0), (1, 2, 1.0))


def test_graph_of_numpy(nx: ModuleType) -> None:
    """Nodes and weights may be numbers of numpy; the pattern's are Python's own."""
    np = importlib.import_module("numpy")
    graph = nx.Graph()
    graph.add_edge(np.int64(0), np.int32(1), weight=np.float32(0.5))
    edges = graph_pattern(graph, "mine").edges(2)
    assert (edges, [type(value) for value in edges[0]]) == (((0, 1, 0.5),), [int, int, float])


WRONG_GRAPHS = [
    ([], "no edge: a pattern has at least two ranks that talk"),
    ([("a", 1)], "node 'a': it must be a rank: 0, 1, 2 ..."),
    ([("a\n" * 50, 0)], "node '" + "a\\n" * 12 + "a\\…: it must be a rank: 0, 1, 2 ..."),
    ([("1", 1), (1, 0)], "two of its nodes are the same rank"),
    (
        [(0, 5)],
        "rank 1 and 3 more are missing: ranks are 0, 1, 2 ... up to the largest, here 5",
    ),
    ([(0, 0), (0, 1)], "edge 0-0: it joins a rank to itself"),
    ([(0, MAX_RANKS)], "rank 1024: a pattern has at most 1024 ranks, 0 to 1023"),
    ([(0, 1, {"weight": 0})], "edge 0-1: weight: 0 is not within 1e-09 to 1e+18"),
    ([(0, 1, {"weight": nan})], "edge 0-1: weight: nan is not within 1e-09 to 1e+18"),
    ([(0, 1, {"weight": "2"})], "edge 0-1: weight: '2' is not a number"),
    ([(0, 1, {"weight": 10**5000})], "a weight has more digits than can be read"),
    ([(0, 1), (2, 3)], "ranks 0 and 2 are not joined, not even over other ranks"),
]


@pytest.mark.parametrize(("edges", "want"), WRONG_GRAPHS, ids=[row[1][:40] for row in WRONG_GRAPHS])
def test_wrong_graphs(nx: ModuleType, edges: list[tuple], want: str) -> None:
    """What is no pattern is refused in one line that begins with its name."""
    if "digits" in want and not hasattr(sys, "get_int_max_str_digits"):
        pytest.skip("Python before 3.10.7 writes numbers of any length")
    with pytest.raises(UsageError) as caught:
        graph_pattern(nx.Graph(edges), "mine")
    assert caught.value.message == f"pattern mine: {want}"


def test_graph_has_its_own_size(nx: ModuleType) -> None:
    """A graph is no pattern for another number of ranks; the hint names the option for its own."""
    with pytest.raises(UsageError) as caught:
        graph_pattern(nx.path_graph(3), "my\njob").edges(2)
    assert (caught.value.message, caught.value.hint) == (
        "2 GPUs requested: pattern my\\x0ajob has 3 ranks",
        "-n 3",
    )


# Files


def test_names_of_edge_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that ends as edge lists do is a file, in whatever case, and names the pattern.

    A file whose name looks like none is refused, and the hint says how to give it.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("./job", *(f"Job{ending.upper()}" for ending in GRAPH_ENDINGS)):
        Path(name).write_text("0 1\n")
        want = Pattern(Path(name).name, collective=False, ranks=2, given=((0, 1, 1.0),))
        assert load_pattern(name) == want
    with pytest.raises(UsageError) as caught:
        load_pattern("job")
    assert str(caught.value.hint).endswith("or give ./job")


@pytest.mark.parametrize("text", FILES["same"])
def test_edge_lists(text: str, tmp_path: Path) -> None:
    """Blanks, tabs, commas, comments, directions and line ends do not change the graph."""
    path = tmp_path / "job.edges"
    path.write_bytes(text.encode())
    assert load_pattern(str(path)).given == ((0, 1, 2.5), (1, 2, 1.0))


@pytest.mark.parametrize(("name", "text", "want"), FILES["wrong"])
def test_wrong_files(name: str, text: str, want: str, tmp_path: Path) -> None:
    """A wrong file is refused in one line, with its path and the faulty line, if it is one."""
    if text:
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert complaint(load_pattern, f"{tmp_path}/{name}") == want


def test_files_that_are_not_read(tmp_path: Path) -> None:
    """So is a file that is no text, or a large one."""
    path = tmp_path / "job.edges"
    path.write_bytes(b"0 1\n\xff")
    assert complaint(load_pattern, str(path)) == "2: byte 0xff is not UTF-8"
    path.write_bytes(b" " * (MOST_BYTES + 1))
    assert complaint(load_pattern, str(path)) == " larger than 4 MiB"
