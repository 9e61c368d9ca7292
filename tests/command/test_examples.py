"""The programs and files in examples/ do what they say.

Others are tested where their subject is: demo.sh in test_demo.py, Snakefile in test_workflows.py,
ddp.py in tests/host/test_torchrun.py, compose.yaml in tests/host/test_compose.py, and so on.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import Launcher

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _described(launcher: Launcher) -> None:
    """Describe a DGX-1 to all that a test runs."""
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"


def do(launcher: Launcher, *command: str | Path) -> str:
    """Run a command that must succeed, and return what it printed."""
    directory = launcher.state.parent
    done = subprocess.run(
        command,
        cwd=directory,
        env=launcher.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert launcher.records() == []
    return done.stdout


def results(path: Path) -> list[tuple[str, int, int]]:
    """Return the name, the exit status and the number of GPUs of each job of a batch."""
    _, *lines = path.read_text().splitlines()
    jobs = map(json.loads, lines)
    return sorted((job["name"], job["exit_status"], len(job["gpus"])) for job in jobs)


def test_draw_machine(launcher: Launcher, tmp_path: Path) -> None:
    """The picture has the GPUs and NVLinks of the machine that to_networkx tells of."""
    picture = tmp_path / "summit.svg"
    printed = do(launcher, sys.executable, EXAMPLES / "draw_machine.py", "summit", picture)
    assert printed == f"{picture}: 6 GPUs, 6 pairs with NVLinks\n"
    assert picture.read_text().count("<!-- 2 x NVLink, 50 GB/s -->") == 6


def test_sweep(launcher: Launcher, tmp_path: Path) -> None:
    """The sweep runs 20 jobs with a GPU each, names the best, and is not run again."""
    printed = [do(launcher, "sh", EXAMPLES / "sweep.sh", "a sweep") for _ in range(2)]
    jobs = results(tmp_path / "a sweep" / "results.jsonl")
    assert [ended for _, *ended in jobs] == [[0, 1]] * 20
    losses = re.findall(r"^loss (\S+)", printed[0], re.MULTILINE)
    every = [path.read_text().split("\nloss ")[1].split()[0] for path in tmp_path.rglob("*.log")]
    assert losses == sorted(every, key=float)[:3]
    assert printed[0] == printed[1]


def test_jobs(launcher: Launcher, tmp_path: Path) -> None:
    """The file of jobs is a batch, in which each job gets the GPUs that it asks for.

    Nobody waits for their `sleep` here.
    """
    (tmp_path / "sleep").symlink_to("/bin/true")
    launcher.environment["PATH"] = f"{tmp_path}:{launcher.environment['PATH']}"
    do(launcher, launcher.script, "batch", "--at-once", EXAMPLES / "jobs.toml")
    assert results(tmp_path / "jobs.toml.results.jsonl") == [
        ("evaluate", 0, 2),
        ("preprocess", 0, 1),
        ("pretrain", 0, 8),
        ("train", 0, 3),
    ]


def test_allocate(launcher: Launcher) -> None:
    """The Python program holds two GPUs, applies them, and frees them."""
    printed = do(launcher, sys.executable, EXAMPLES / "allocate.py")
    assert re.fullmatch(r"CUDA_VISIBLE_DEVICES=0,3: 40 GB/s .*\nfree again\n", printed), printed


def steps(name: str) -> list[str]:
    """Return the commands of a CI service's file."""
    document = yaml.safe_load((EXAMPLES / name).read_text())
    if name == "gitlab.yml":
        return document["gpu-tests"]["script"]
    (job,) = document["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_ci(launcher: Launcher, tmp_path: Path, name: str) -> None:
    """The step that tests has two GPUs, and its log says which and why."""
    (tmp_path / "pytest").write_text('#!/bin/sh\necho "pytest $* on $CUDA_VISIBLE_DEVICES"\n')
    (tmp_path / "pytest").chmod(0o755)
    launcher.environment["PATH"] = f"{tmp_path}:{launcher.environment['PATH']}"
    launcher.environment["CI"] = "true"
    (command,) = steps(name)
    said, printed = do(launcher, "bash", "-e", "-c", command).splitlines()
    assert re.search("GPUs 0,3 of dgx1-v100", said), said
    assert printed == "pytest tests/gpu on 0,3"
