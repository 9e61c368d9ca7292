"""`gpulaunch cluster map`: the installed command, its formats, and what it refuses."""

import json
import os
import pty
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from conftest import Launcher, complaint

from gpulaunch.cluster.scotch import find_gmap

SMALL = """\
name = "small"
source = "made up"

[[nodes]]
names = "n[1-2]"
machine = "dgx1-v100"
cores = ["0-1", "10-11"]
gb_per_s = 4.0

[network]
source = "made up"

[[network.switches]]
name = "top"
nodes = "n[1-2]"
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Write a cluster of two nodes with four cores each; return its path."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def mapped(launcher: Launcher, *arguments: str) -> str:
    """Return what a map prints on stdout."""
    done = launcher.run("cluster", "map", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


IN_ORDER = ("--policy", "default")


FILES = {
    "rankfile": "rank 0=n1 slot=0:0|rank 1=n1 slot=0:1|rank 2=n1 slot=1:0|rank 3=n1 slot=1:1|"
    "rank 4=n2 slot=0:0",
    "rankfile5": "rank 0=n1 slot=0|rank 1=n1 slot=1|rank 2=n1 slot=2|rank 3=n1 slot=3|"
    "rank 4=n2 slot=0",
    "hostfile": "n1 slots=4|n2 slots=1",
    "slurm_hosts": "n1|n1|n1|n1|n2",
}


def test_files_for_every_engine(launcher: Launcher, small: str, tmp_path: Path) -> None:
    """-o writes the map for each engine as that reads it."""
    directory = tmp_path / "map"
    mapped(launcher, "--cluster", small, "--ranks", "5", *IN_ORDER, "-o", str(directory))
    found = {path.name: path.read_text() for path in directory.iterdir()}
    assert len(json.loads(found.pop("map.json"))["ranks"]) == 5
    assert found == {name: text.replace("|", "\n") + "\n" for name, text in FILES.items()}


PATTERNS = ("--cpu-pattern", "2d", "--gpu-pattern", "col")


def test_each_policy_maps_every_rank(launcher: Launcher) -> None:
    """By every policy, each rank of the paper's cluster has a core and a GPU of its own."""
    listed = mapped(launcher, "--help")
    policies = re.search(r"--policy P\s+(.*?) \(default", listed, re.DOTALL)[1]
    for policy in re.sub(r"\s+", "", policies).split(","):
        if "scotch" in policy and not find_gmap():
            continue
        found = json.loads(
            mapped(launcher, "--cluster", "magc-b", *PATTERNS, "--policy", policy, "--json")
        )["ranks"]
        assert [rank["rank"] for rank in found] == list(range(64))
        assert set(Counter(rank["node"] for rank in found).values()) == {8}
        assert len({(rank["node"], rank["core"]) for rank in found}) == 64
        assert len({(rank["node"], rank["gpu"]) for rank in found}) == 64


def test_tables_fit(launcher: Launcher) -> None:
    """On a terminal of 40 columns the tables of ranks and loads fit."""
    controller, terminal = pty.openpty()
    environment = {**launcher.environment, "COLUMNS": "40", "TERM": "xterm"}
    command = [launcher.script, "cluster", "map", "--cluster", "magc-a", *PATTERNS, "--explain"]
    with subprocess.Popen(command, stdout=terminal, env=environment) as process:
        os.close(terminal)
        printed = b""
        try:
            while part := os.read(controller, 4096):
                printed += part
        except OSError:  # the terminal's other end is closed
            pass
        os.close(controller)
    assert process.returncode == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", printed.decode())
    lines = shown.replace("\r", "").split("\n")
    assert "64 ranks on 4 nodes of magc-a" in shown.replace("\r\n", " ")
    assert max(map(len, lines)) <= 40
    levels = [line for line in lines if re.search(r" (network|CPU|GPU): ", line)]
    assert len(levels) == 7
    assert not [line for line in levels if "…" in re.split("network|CPU|GPU", line)[0]]


def test_more_ranks_than_places(launcher: Launcher, tmp_path: Path) -> None:
    """What cannot be is one line with the numbers, and nothing is written."""
    directory = tmp_path / "out"
    given = ("--cluster", "magc-a", "--ranks", "65", "-o", str(directory))
    done = launcher.run("cluster", "map", *given)
    want = "65 ranks requested, each with a core and a GPU of its own: the 4 nodes of magc-a have "
    want += "64 GPUs and 96 cores, and take 64"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", complaint(want))
    assert not directory.exists()
