"""The bake-off, small; docs/results/bake-off.md has the whole."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from bake_off import Gain, compared, gain_of, lines

COMPARED = ("dgx1-v100", "summit", "pcie-8gpu-workstation")


@pytest.mark.parametrize("machine", COMPARED)
@pytest.mark.parametrize(("traces", "jobs"), [(8, 50)])
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


def test_a_difference_counts_if_it_is_sure_and_large() -> None:
    """It takes three standard errors and 0.1 %; gains are ratios, trace by trace."""
    own = [1.0, 2.0] * 4
    assert gain_of(own, [1.1, 2.4] * 4).percent == pytest.approx(100 * ((1.1 * 1.2) ** 0.5 - 1))
    assert [Gain(1.0, 3.1).counts, Gain(1.0, 2.9).counts, Gain(-0.09, 9.0).counts] == [
        True,
        False,
        False,
    ]


def test_the_tables() -> None:
    """There is a row for each machine and mix in each of two tables."""
    rows = [line for line in lines(["power8-minsky"], ["1, 2, 4"], 2, 20) if line.startswith("| p")]
    assert [row.split(" | ")[:2] for row in rows] == [["| power8-minsky", "1, 2, 4"]] * 2
