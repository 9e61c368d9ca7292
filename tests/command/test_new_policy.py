"""A made-up policy, one function and one row of POLICIES, is all that a new policy takes."""

import json
import subprocess
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from conftest import Launcher

from gpulaunch.placement.policies import POLICIES, Choice, Policy
from gpulaunch.placement.problem import PlacementProblem


def spread(problem: PlacementProblem) -> Choice:
    """Take one GPU of each socket in turn."""
    turns = zip_longest(*problem.split_by_socket(problem.admitted))
    gpus = [gpu for gpu in chain.from_iterable(turns) if gpu is not None]
    return tuple(gpus[: problem.count])


ROW = Policy(
    help="makes: one GPU of each socket in turn",
    source="made up",
    choose=spread,
    compares_machines_by=("fewest_free_gpus",),
)


@pytest.fixture
def spreader(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """Return a launcher that knows the policy: its forks have the row."""
    monkeypatch.setitem(POLICIES, "spread", ROW)
    return launcher


def output(done: subprocess.CompletedProcess[str]) -> str:
    """Return what was printed by a command that found nothing wrong."""
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_a_launch_goes_by_the_policy(spreader: Launcher) -> None:
    """--policy takes it, --dry-run decides by it and --explain names it."""
    options = ("--topology", "dgx1-v100", "--policy", "spread", "-n", "3", "--dry-run", "--explain")
    done = spreader.run(*options, "--json", "--", "true")
    found = json.loads(output(done))
    assert (found["policy"], found["bandwidth_model"]) == ("spread", "cut")
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 4]
    told = output(spreader.run(*options, "--", "true"))
    assert "0-1,4 is what policy spread makes; it compares no candidates" in told


JOBS = "".join(f'{{"gpus": {gpus}, "duration_s": 10}}\n' for gpus in (4, 6, 1))


def test_a_replay_goes_by_the_policy(spreader: Launcher, tmp_path: Path) -> None:
    """Machines of a cluster are compared by its row."""
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(JOBS)
    options = ("simulate", "--topology", "dgx1-v100", "--jobs", str(jobs), "--machines", "2")
    done = spreader.run(*options, "--policy", "spread,baseline", "--json")
    runs = json.loads(output(done))["runs"]
    assert {run["policy"]: [job["machine"] for job in run["jobs"]] for run in runs} == {
        "spread": [0, 1, 1],
        "baseline": [0, 1, 0],
    }
