"""PyTorch's torchrun inside a launch: each worker's LOCAL_RANK is the position of its GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher

_BUILT = Path(__file__).parent.parent.parent / "build" / "torch" / "venv" / "bin"
TORCH = Path(os.environ.get("GPULAUNCH_TEST_TORCH") or _BUILT)
pytestmark = pytest.mark.skipif(
    not (TORCH / "torchrun").exists(), reason="no torchrun: .ci/torch brings one"
)

# What each worker sees, and the sum of all workers' numbers from 1 on, by gloo.
WORKER = """\
import json, os, sys
import torch
import torch.distributed

torch.distributed.init_process_group("gloo")
total = torch.tensor([torch.distributed.get_rank() + 1])
torch.distributed.all_reduce(total)
names = ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "GPULAUNCH_LEASE")
seen = [os.environ[name] for name in names] + [total.item()]
os.write(1, (json.dumps(seen) + "\\n").encode())
torch.distributed.destroy_process_group()
"""


EXAMPLES = Path(__file__).parents[2] / "examples"


def workers(output: str) -> list[list[object]]:
    """Return what the workers saw, by LOCAL_RANK."""
    return sorted(json.loads(line) for line in output.splitlines() if line.startswith("["))


def test_around_torchrun(launcher: Launcher, tmp_path: Path) -> None:
    """All workers have one lease, and its GPUs in rank order: worker i uses the i-th of them."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    launch = [*DGX, "-n", "2", "--pattern", "chain"]
    torchrun = [str(TORCH / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    planned = json.loads(launcher.run(*launch, "--dry-run", "--json", "--", "true").stdout)
    done = launcher.run(*launch, "--", *torchrun, str(worker))
    assert done.returncode == 0, done.stderr
    seen = workers(done.stdout)
    gpus = ",".join(str(gpu["index"]) for gpu in planned["gpus"])
    assert [(rank, visible, total) for rank, visible, _, total in seen] == [
        (str(rank), gpus, 3) for rank in range(2)
    ]
    assert len({lease for _, _, lease, _ in seen}) == 1
    assert launcher.records() == []


def test_a_launch_for_each_worker(launcher: Launcher, tmp_path: Path) -> None:
    """With a launch around each worker, LOCAL_RANK is the position of its GPU as well."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    torchrun = [str(TORCH / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python"]
    launch = [launcher.script, *DGX, "-n", "1", "--", str(TORCH / "python"), str(worker)]
    planned = json.loads(launcher.run(*DGX, "-n", "2", "--dry-run", "--json", "--", "true").stdout)
    done = subprocess.run(
        [*torchrun, *launch],
        env=launcher.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = workers(done.stdout)
    gpus = ",".join(str(gpu["index"]) for gpu in planned["gpus"])
    assert [(rank, visible, total) for rank, visible, _, total in seen] == [
        (str(rank), gpus, 3) for rank in range(2)
    ]
    assert len({lease for _, _, lease, _ in seen}) == 2
    assert launcher.records() == []


def test_example_of_a_training(launcher: Launcher) -> None:
    """With PyTorch, examples/train.py comes to the same cubic as without."""
    done = launcher.run(*DGX, "--", str(TORCH / "python"), str(EXAMPLES / "train.py"))
    assert done.stdout == (
        "training on GPUs 0\nloss 0.003744 at learning rate 0.5 after 500 steps\n"
    )
