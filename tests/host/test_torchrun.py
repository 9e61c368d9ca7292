"""PyTorch's torchrun inside a launch: each worker's LOCAL_RANK is the position of its GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher

ROOT = Path(__file__).parents[2]
TORCH = Path(os.environ.get("GPULAUNCH_TEST_TORCH") or ROOT / "build" / "torch" / "venv" / "bin")
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


def test_a_launch_for_each_worker(launcher: Launcher, tmp_path: Path) -> None:
    """With a launch around each worker, LOCAL_RANK is the position of its GPU, in rank order."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    chain = (*DGX, "--pattern", "chain", "-n")
    planned = json.loads(launcher.run(*chain, "2", "--dry-run", "--json", "--", "true").stdout)
    torchrun = [str(TORCH / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python"]
    launch = [launcher.script, *chain, "1", "--", str(TORCH / "python"), str(worker)]
    options = {"env": launcher.environment, "capture_output": True, "text": True}
    done = subprocess.run([*torchrun, *launch], check=False, **options)
    assert done.returncode == 0, done.stderr
    seen = sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    gpus = ",".join(str(gpu["index"]) for gpu in planned["gpus"])
    shown = [(rank, visible, total) for rank, visible, _, total in seen]
    assert shown == [("0", gpus, 3), ("1", gpus, 3)]
    assert len({lease for _, _, lease, _ in seen}) == 2
    assert launcher.records() == []


def test_example_of_a_training(launcher: Launcher) -> None:
    """With PyTorch, examples/train.py comes to the same cubic as without."""
    done = launcher.run(*DGX, "--", str(TORCH / "python"), str(ROOT / "examples" / "train.py"))
    assert done.stdout == (
        "training on GPUs 0\nloss 0.003744 at learning rate 0.5 after 500 steps\n"
    )
