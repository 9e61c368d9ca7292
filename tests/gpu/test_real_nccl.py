"""On two NVIDIA GPUs only: what a measured launch reads of NCCL's own log.

Run: python -m pytest tests/gpu/test_real_nccl.py -s. It needs PyTorch with CUDA in the Python that
runs this, and two idle GPUs. Expected: the pattern is ring or ring+tree, from NCCL 2.22 on likely,
before a guess. With NCCL_P2P_DISABLE=1 two GPUs that NVLink joins give one line that begins with
"NCCL used SHM, not the"; others give none of that kind. Without it NVLink gives no such line.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from conftest import Launcher
from real_gpu import Bench

from gpulaunch.measure import all_reduce

TORCH = str(Path(all_reduce.__file__).with_name("torch_all_reduce.py"))
JOB = ("--", sys.executable, TORCH, "nccl", str(1 << 20), str(1 << 26), "2")


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """Return a launcher on a machine with two idle GPUs and PyTorch."""
    if not shutil.which("nvidia-smi"):
        pytest.skip("nvidia-smi is not on PATH")
    bench = Bench(tmp_path)
    reason = bench.find_gpu() or bench.find_torch()
    free = [gpu for gpu in bench.status()["gpus"] if gpu["state"] == "free"]
    if reason or len(free) < 2:
        pytest.skip(reason or f"{len(free)} GPUs are idle: 2 are needed")
    return bench.launcher


@pytest.mark.parametrize("variables", [{}, {"NCCL_P2P_DISABLE": "1"}], ids=["as it is", "no P2P"])
def test_the_log_of_a_real_job(
    launcher: Launcher, tmp_path: Path, variables: dict[str, str]
) -> None:
    """A real all-reduce gives a pattern, and a line where NVLink was not used."""
    run = tmp_path / "run.json"
    dry = json.loads(launcher.run("-n", "2", "--dry-run", "--json", *JOB).stdout)
    pair = sorted(gpu["index"] for gpu in dry["gpus"])
    links = json.loads(launcher.run("topo", "--json").stdout)["links"]
    nvlinks = next(link["nvlink_count"] for link in links if [link["a"], link["b"]] == pair)
    launcher.environment |= variables
    done = launcher.run("-n", "2", "-o", f"record_to={run}", *JOB, timeout=300)
    found = json.loads(run.read_text())
    print(f"\n{variables}: {found['nccl_pattern']}, {found['nccl_confidence']}: {done.stderr}")
    assert done.returncode == 0
    assert found["nccl_pattern"] in ("ring", "ring+tree")
    staged = "NCCL used SHM, not the" in done.stderr
    assert staged is bool(variables and nvlinks)
