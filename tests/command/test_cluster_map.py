"""`gpulaunch cluster map`: its formats, what it refuses, and policies that ask Scotch's gmap."""

import json
from pathlib import Path

import pytest
from conftest import Launcher, complaint
from hypothesis import given
from mapping_problems import check_places, larger, maximum, problem, small_problems, switch
from ranks import write_cluster
from values import box

from gpulaunch.errors import UsageError
from gpulaunch.lab.cluster.cluster import Cluster, Node, Tree
from gpulaunch.lab.cluster.cluster_file import load_cluster
from gpulaunch.lab.cluster.mapping import MappingProblem
from gpulaunch.lab.cluster.policies import MAPPING_POLICIES
from gpulaunch.lab.cluster.scotch import find_gmap, map_by_scotch
from gpulaunch.lab.cluster.traffic import RankTraffic

FILES = {
    "rankfile": "rank 0=n1 slot=0:0|rank 1=n1 slot=0:1|rank 2=n1 slot=1:0|rank 3=n1 slot=1:1|"
    "rank 4=n2 slot=0:0",
    "rankfile5": "rank 0=n1 slot=0|rank 1=n1 slot=1|rank 2=n1 slot=2|rank 3=n1 slot=3|"
    "rank 4=n2 slot=0",
    "hostfile": "n1 slots=4|n2 slots=1",
    "slurm_hosts": "n1|n1|n1|n1|n2",
}


def test_files_for_every_engine(launcher: Launcher, tmp_path: Path) -> None:
    """-o writes the map for each engine as that reads it."""
    path, directory = write_cluster(tmp_path, "n[1-2]", ["0-1", "10-11"]), tmp_path / "map"
    options = ("--ranks", "5", "--policy", "default", "-o", str(directory))
    done = launcher.run("cluster", "map", "--cluster", path, *options)
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.name: path.read_text() for path in directory.iterdir()}
    assert len(json.loads(found.pop("map.json"))["ranks"]) == 5
    assert found == {name: text.replace("|", "\n") + "\n" for name, text in FILES.items()}


def test_more_ranks_than_places(launcher: Launcher, tmp_path: Path) -> None:
    """What cannot be is one line with the numbers, and nothing is written."""
    directory = tmp_path / "out"
    given = ("--cluster", "magc-a", "--ranks", "65", "-o", str(directory))
    done = launcher.run("cluster", "map", *given)
    want = "65 ranks requested, each with a core and a GPU of its own: the 4 nodes of magc-a have "
    want += "64 GPUs and 96 cores, and take 64"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", complaint(want))
    assert not directory.exists()


# Policies that ask Scotch

needs_scotch = pytest.mark.skipif(not find_gmap(), reason="Scotch's gmap is not installed")


@needs_scotch
@given(case=small_problems())
def test_auto_maps_every_problem(case: MappingProblem) -> None:
    """Where Scotch does not take a tree, auto has multisect's mapping; each rank has its place."""
    check_places(case, MAPPING_POLICIES["auto"](case))


@needs_scotch
def test_heuristic_and_scotch_reach_the_same_congestion() -> None:
    """On cluster A, MAGC's heuristic and Scotch have the same worst link (Figure 4)."""
    for pair in ("2D-3D", "COL-2D weighted", "3D-COL"):
        case = problem(load_cluster("magc-a"), pair)
        assert maximum("magc", case) == pytest.approx(maximum("magc_scotch", case))


@needs_scotch
def test_auto_takes_the_better_one() -> None:
    """With Scotch, auto has the least congestion of it and multisect, alike each time."""
    case = problem(larger((8, 8), (16.0, 4.0)), "2D-3D", 512, seed=1)
    assert maximum("magc_scotch", case) < maximum("multisect", case)
    assert maximum("auto", case) == maximum("magc_scotch", case)


CHAIN = RankTraffic(4, ((0, 1, 9.0), (1, 2, 1.0), (2, 3, 9.0)))


@needs_scotch
def test_trees_that_scotch_does_not_take() -> None:
    """A tree whose links differ is refused by name; one leaf has all ranks."""
    assert map_by_scotch(CHAIN, switch(1.0), 4) == [0, 0, 0, 0]
    first, *others = map_by_scotch(CHAIN, switch(1.0, 1.0), 2)
    assert others == [first, 1 - first, 1 - first]
    with pytest.raises(UsageError, match=r"^Scotch maps to even trees only"):
        map_by_scotch(CHAIN, switch(1.0, 2.0), 2)
    crossed = Tree((-1, 0, 0), (0.0, 1.0, 1.0), ("s", "a", "b"), (2, 1))
    with pytest.raises(UsageError, match=r"^Scotch maps to even trees only"):
        map_by_scotch(CHAIN, crossed, 2)


def test_without_scotch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gmap, auto is multisect, and the policy that needs it says what to install."""
    monkeypatch.setenv("PATH", "")
    case = MappingProblem(
        Cluster("c", "made up", (Node("n", box(2), ((0, 1),)),) * 2, switch(1.0, 1.0)), CHAIN, CHAIN
    )
    assert MAPPING_POLICIES["auto"](case) == MAPPING_POLICIES["multisect"](case)
    with pytest.raises(UsageError, match="Scotch's program gmap not found") as caught:
        MAPPING_POLICIES["magc_scotch"](case)
    assert caught.value.hint == "Debian has it in package scotch"
