"""What cluster engines tell a process, by the tables in engines.toml."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from toml_parser import tomllib
from values import cases

from gpulaunch.launch.handed_over import explain_hand_over
from gpulaunch.launch.read_engine import ENGINES, EnginePlace, GpuGrant, read_place
from gpulaunch.launch.read_launch import _SIGNS

CASES = tomllib.loads(Path(__file__).with_name("engines.toml").read_text())


def place(names: Sequence[str], more: Mapping[str, str]) -> EnginePlace:
    """Return the place in the captured environments, the last one innermost."""
    environment: dict[str, str] = {}
    for name in names:
        environment |= CASES["environments"][name]
    found = read_place({**environment, **more})
    assert found is not None
    return found


@cases(CASES["place"], "names", "more", "title", "rank", "node")
def test_place(
    names: list[str], more: dict[str, str], title: str, rank: list[Any], node: str
) -> None:
    """Each engine tells its job, the rank and the node; the ranks are those of the innermost."""
    found = place(names, more)
    assert (found.job.title, found.job.node) == (title, node)
    got = (found.job.rank, found.job.local_rank, found.job.ranks)
    assert got == (tuple(rank[1:]) if rank else (None, 0, 1))


@cases(CASES["grant"], "names", "more", "want")
def test_grant(names: list[str], more: dict[str, str], want: dict[str, Any]) -> None:
    """Slurm and Ray tell which GPUs they granted here; the others grant none."""
    granted = want.get("names")
    fields = {**want, "names": None if granted is None else tuple(granted)}
    assert place(names, more).grant == (GpuGrant(**fields) if want else None)


@cases(CASES["local_size"], "names", "more", "want")
def test_ranks_on_this_node(names: list[str], more: dict[str, str], want: int) -> None:
    """The number of a step's tasks on a node is read from Slurm's list; odd ones tell no rank."""
    job = place(names, more).job
    assert (0 if job.rank is None else job.ranks) == want


def test_outside_of_engines() -> None:
    """A process has no place without an engine's sign, whatever else it has."""
    assert read_place({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "0", "PMI_RANK": "1"}) is None


def test_signs() -> None:
    """A launch looks for the signs of all engines, and of a map of ranks, before it reads more."""
    assert set(_SIGNS) == {engine.sign for engine in ENGINES} | {"GPULAUNCH_RANK_MAP"}


# --------------------------------------------------------------------------------- ranks elsewhere


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("mpirun --host here,there:4 ./prog", "there"),
        ("mpirun --mca plm ssh --hostfile hosts ./prog", "a, b, c, ..."),
        ("mpirun --bind-to none -np 8 --hostfile=hosts ./prog", "a, b, c, ..."),
        ("mpirun --host here,localhost,here.site ./prog", None),
        ("mpirun -np 8 ./prog --host there", None),
        ("mpirun --hostfile missing ./prog", None),
        ("mpirun --hostfile hosts gpulaunch -n 1 -- ./prog", None),
    ],
)
def test_ranks_of_mpirun_elsewhere(
    line: str, shown: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts other than this one are named, unless each rank has a launch of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "here.site", "", "", "")))
    Path("hosts").write_text("# all\nhere slots=2\na slots=2\n\nb\nb\nc # last\nd\n")
    told = explain_hand_over(line.split(), {})
    assert (told and told.partition("starts ranks on ")[2].partition(", too,")[0]) == shown


@pytest.mark.parametrize(
    ("line", "environment", "nodes"),
    [
        ("srun -N2 ./prog", {"SLURM_JOB_ID": "7"}, "2 nodes"),
        ("srun --nodes=2-4 ./prog", {"SLURM_JOB_ID": "7"}, "2 nodes"),
        ("srun ./prog", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}, "3 nodes"),
        ("srun -N 1 ./prog -N2", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}, None),
        ("srun ./prog", {}, "where it likes"),
        ("srun -N2 gpulaunch -- ./prog", {}, None),
    ],
)
def test_tasks_of_srun_elsewhere(line: str, environment: dict[str, str], nodes: str | None) -> None:
    """Tasks that srun starts on other nodes are told of with the number of nodes."""
    told = explain_hand_over(line.split(), environment)
    assert (told is None) if nodes is None else (told is not None and nodes in told)
