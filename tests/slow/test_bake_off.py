"""The bake-off, small; docs/results/bake-off.md has the whole."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from bake_off import compared

LONG = pytest.mark.long
MACHINES = ("dgx1-v100", "summit", "pcie-8gpu-workstation")


@pytest.mark.parametrize(
    ("machine", "traces", "jobs"),
    [("dgx1-v100", 8, 50), *(pytest.param(one, 24, 100, marks=LONG) for one in MACHINES)],
)
def test_no_policy_serves_jobs_better_than_the_default(
    machine: str, traces: int, jobs: int
) -> None:
    """With 1-5 GPUs no policy clearly beats the default; baseline is clearly worse."""
    found = compared(machine, "uniform 1-5", traces, jobs)
    clear = [gain for gains in found.values() for gain in gains if gain.counts]
    better = [gain for gain in clear if gain.percent < 0]
    assert better == []
    assert found["baseline"][0].percent > 0
    assert found["baseline"][0].errors > 2
