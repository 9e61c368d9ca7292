"""On an NVIDIA GPU with CUDA MPS and PyTorch only: a plan takes as long as it says.

Run: python -m pytest tests/gpu/test_real_plan.py -s. docs/results/sharing-measured.md tells what it
must print.
"""

import re
import time
from pathlib import Path

import pytest
import tomlkit
from real_gpu import KINDS, MEMORY_MIB, Bench, Fixed, fixed

from gpulaunch.files.units import parse_duration

pytest_plugins = ("real_gpu",)

JOB_S, PAUSE_S = 18.0, 0.15
"""Of a job alone. The pause after each 0.1 s of work leaves 60 % of the time to others."""

WITHIN = 0.15
"""Part of the predicted time that the plan may take more or less."""

PLANNED = re.compile(
    r"gpulaunch: info: planned: 4 jobs in 2 groups on 1 GPU, predicted to take (.+), "
    r"(.+) without sharing"
)


def write_jobs(path: Path, works: dict[str, Fixed]) -> None:
    """Write a batch of two jobs of each kind, whose figures have just been measured.

    How much bandwidth the GPU's memory has in use while they are at work is not known: all of it.
    """
    jobs = [
        {
            "name": f"{kind}-{number}",
            "command": work.command(),
            "share": True,
            "utilization": 2 * [round(work.busy_percentage, 1)],
            "memory": f"{MEMORY_MIB}MiB",
            "duration_s": round(work.alone_s, 3),
        }
        for kind, work in works.items()
        for number in (1, 2)
    ]
    path.write_text(tomlkit.dumps({"job": jobs}))


def test_a_plan_takes_as_long_as_predicted(bench: Bench, tmp_path: Path) -> None:
    """A batch by plan ends within 15 % of its predicted time, and sooner than one by one."""
    works = {kind: fixed(bench, kind, JOB_S, PAUSE_S) for kind in KINDS}
    file = tmp_path / "jobs.toml"
    write_jobs(file, works)
    only = bench.launcher.environment | {"GPULAUNCH_ONLY": bench.gpu.uuid}
    began = time.monotonic()
    command = ("batch", file.name, "--plan")
    done = bench.launcher.run(*command, cwd=tmp_path, env=only)
    took_s = time.monotonic() - began
    print(f"\n{done.stderr}took {took_s:.1f} s")
    assert done.returncode == 0, done.stderr
    said = PLANNED.fullmatch(done.stderr.splitlines()[0])
    assert said, done.stderr
    predicted_s, alone_s = map(parse_duration, said.groups())
    assert alone_s == pytest.approx(2 * sum(work.alone_s for work in works.values()), abs=1)
    print(f"predicted {predicted_s:g} s, {took_s / predicted_s - 1:+.1%}; {alone_s:g} s alone")
    assert took_s == pytest.approx(predicted_s, rel=WITHIN)
    assert took_s < alone_s
