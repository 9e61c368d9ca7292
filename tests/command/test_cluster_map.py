"""`gpulaunch cluster map`: its formats, what it refuses, and how well it maps beside Scotch."""

import json
from pathlib import Path

import pytest
from conftest import Launcher, complaint
from mapping_problems import maximum, problem
from ranks import write_cluster
from rivals import GMAP, map_by_scotch

from gpulaunch.lab.cluster.cluster_file import load_cluster
from gpulaunch.lab.cluster.mapping import judge

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


@pytest.mark.skipif(not GMAP, reason="Scotch's gmap is not installed")
@pytest.mark.parametrize("pair", ["2D-3D", "COL-2D weighted", "3D-COL"])
def test_the_same_congestion_as_by_scotch(pair: str) -> None:
    """On cluster A, MAGC's heuristic, Scotch (Figure 4) and multisect have the same worst link."""
    case = problem(load_cluster("magc-a"), pair)
    by_scotch = judge(case, map_by_scotch(case)).maximum
    for policy in ("magc", "multisect"):
        assert maximum(policy, case) == pytest.approx(by_scotch)
