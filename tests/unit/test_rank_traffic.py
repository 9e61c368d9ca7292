"""Traffic between ranks: named shapes, sizes of parallelism, files."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toml_parser import tomllib
from values import cases

from gpulaunch.errors import UsageError
from gpulaunch.lab.cluster.cluster_file import read_traffic, read_traffic_file
from gpulaunch.lab.cluster.traffic import DEFAULT_VOLUMES, parallel_traffic, shape_traffic

_TEXTS = tomllib.loads(Path(__file__).with_name("cluster_files.toml").read_text())
MISTAKES = _TEXTS["mistakes_in_traffic"]


def test_shapes() -> None:
    """2d:3 weighs the messages along the first dimension, the one with the largest stride.

    Col is an all-to-all within the lines along the first dimension of a 3D grid.
    """
    assert shape_traffic("2d:3", 6).edges == (  # 3 rows of 2
        (0, 1, 1.0),
        (0, 2, 3.0),
        (1, 3, 3.0),
        (2, 3, 1.0),
        (2, 4, 3.0),
        (3, 5, 3.0),
        (4, 5, 1.0),
    )
    weights = Counter(weight for _, _, weight in shape_traffic("3d:3", 64).edges)
    assert weights == {3.0: 48, 1.0: 96}
    assert (0, 16, 3.0) in shape_traffic("3d:3", 64).edges
    columns = shape_traffic("col", 64).edges
    assert (len(columns), {(b - a) % 16 for a, b, _ in columns}) == (16 * 6, {0})


def test_order_of_ranks() -> None:
    """Ranks are numbered as by Megatron: tp fastest, then dp, then pp.

    A missing dp is what is left of the ranks; missing volumes are the assumed ones.
    """
    traffic = parallel_traffic("pp=2:1,tp=2:100,dp=2:10", 8)
    volumes = {1: 200.0, 2: 20.0, 4: 1.0}  # of ranks that are so far apart
    want = [
        (a, a | bit, volume) for a in range(8) for bit, volume in volumes.items() if not a & bit
    ]
    assert traffic.edges == tuple(want)
    assert parallel_traffic("tp=4", 8) == parallel_traffic("tp=4,dp=2", 8)
    assert parallel_traffic("tp=4", 4).edges[0] == (0, 1, DEFAULT_VOLUMES["tp"])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_each_kind_sends_its_volume(tp: int, cp: int, dp: int, pp: int) -> None:
    """All traffic is what each rank sends for each kind, and a chain has one link less."""
    ranks = tp * cp * dp * pp
    traffic = parallel_traffic(f"tp={tp}:1,cp={cp}:10,dp={dp}:100,pp={pp}:1000", ranks)
    sizes = ((tp, 1), (cp, 10), (dp, 100))
    want = sum(ranks * volume for size, volume in sizes if size > 1) + ranks // pp * (pp - 1) * 1000
    assert sum(weight for _, _, weight in traffic.edges) == pytest.approx(want)


def test_files(tmp_path: Path) -> None:
    """A matrix says what each rank sends to each; directions add up, the diagonal is nothing.

    An edge list may leave ranks alone, and have more of them than one machine.
    """
    path = tmp_path / "m.csv"
    path.write_text("# from / to\n9,1,0,0\n2.5,9,0,1e3\n\n0,0,9,0\n0,0,0,9\n")
    assert read_traffic_file(str(path), 4).edges == ((0, 1, 3.5), (1, 3, 1000.0))
    path.write_text("0 1 0 0\n0 0 0 0\n0 0 0 0\n0 0 0 0\n")
    assert read_traffic("--gpu-pattern", str(path), 4).edges == ((0, 1, 1.0),)
    path.write_text("0 1 2\n1 0 3\n4000 7\n")
    assert read_traffic_file(str(path), 4096).edges == ((0, 1, 5.0), (7, 4000, 1.0))


@cases(MISTAKES, "text", "want")
def test_mistakes(text: str, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern, sizes or a file that cannot be are one line, with the line in the file."""
    monkeypatch.chdir(tmp_path)
    name, _, content = text.partition(" ")
    if name == "m.txt":
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as caught:
        read_traffic("--gpu-pattern", name, 4)
    assert caught.value.message.startswith(f"--gpu-pattern: {want}")


def test_patterns_of_profiles(tmp_path: Path) -> None:
    """A profile gives its measured graph, for its number of ranks, or else its pattern."""
    path = tmp_path / "p.toml"
    text = 'name = "p"\n[communication]\nsource = "made up"\npattern = "ring"\n'
    path.write_text(text)
    assert read_traffic("--gpu-pattern", str(path), 8) == shape_traffic("ring", 8)
    path.write_text(f"{text}edges = [[0, 1, 2.0]]\n")
    assert read_traffic("--gpu-pattern", f"profile:{path}", 2).edges == ((0, 1, 2.0),)
    with pytest.raises(UsageError, match="profile p has 2 ranks, and 4 are mapped"):
        read_traffic("--gpu-pattern", str(path), 4)
