"""The bake-off's harness, small; docs/results/bake-off.md has the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from bake_off import Unit, policies_compared, replayed
from bake_off_compare import FEWEST, FIGURES, Cell, gain_of, losses_of
from bake_off_page import write_page

from gpulaunch.decide.placement.policies import DEFAULT_POLICY

BENCH = Path(__file__).parents[1] / "bench"
COMPARED = ("dgx1-v100", "summit", "pcie-8gpu-workstation")
CELL = Cell("summit", "2 and 4", 0.8, "fifo", "cut")


@pytest.mark.parametrize("machine", COMPARED)
@pytest.mark.parametrize(("seeds", "jobs"), [(FEWEST, 50)])
def test_no_policy_serves_sensitive_jobs_better_than_the_default(
    machine: str, seeds: int, jobs: int
) -> None:
    """With 1-5 GPUs no other policy clearly beats the default in any figure; baseline is worse."""
    cell = CELL._replace(machine=machine, mix="uniform 1-5")
    by_policy = {
        policy: replayed(Unit(cell, policy, tuple(range(seeds)), jobs))[1]
        for policy in policies_compared()
    }
    assert losses_of({cell: by_policy}, DEFAULT_POLICY) == []
    gain = gain_of(by_policy[DEFAULT_POLICY], by_policy["baseline"], FIGURES.index("slowdown"))
    assert gain.percent > 0
    assert gain.errors > 2


def test_jobs_pass_others_in_backfill() -> None:
    """In backfill, where jobs have time limits, they complete earlier than first in, first out."""
    found = [
        replayed(Unit(CELL._replace(mix="1, 2, 4", queue=queue), "preserve", (0, 1), 100))[1]
        for queue in ("fifo", "backfill")
    ]
    assert all(found[0][seed][1] > 1.1 * found[1][seed][1] for seed in (0, 1))


def test_one_command_writes_the_page_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Results are kept: a second run replays only what is missing, and writes the same page."""
    command = [
        *(sys.executable, str(BENCH / "bake_off.py"), "--minutes", "2", "--jobs", "1"),
        *(
            "--machines",
            "power8-minsky",
            "--mixes",
            "1, 2, 4",
            "--policies",
            f"{DEFAULT_POLICY},greedy",
        ),
        *("--results", str(tmp_path / "results"), "--docs", str(tmp_path)),
    ]

    def run() -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stderr.splitlines()[-1]

    assert run().split()[0] != "0"
    page, lines = (tmp_path / "bake-off.md").read_text(), (tmp_path / "results").read_text()
    assert "| power8-minsky |" in page
    assert run().split()[0] == "0"
    assert (tmp_path / "bake-off.md").read_text() == page
    kept = lines.splitlines(keepends=True)
    (tmp_path / "results").write_text("".join(kept[1:]))
    assert int(run().split()[0]) > 0
    assert (tmp_path / "bake-off.md").read_text() == page


def test_the_page_says_where_the_default_loses(tmp_path: Path) -> None:
    """A cell in which another policy is clearly better is in the first sentences."""
    own = {seed: (1.10 + seed / 1000, 100.0 + seed, 20.0) for seed in range(FEWEST)}
    other = {seed: (one[0] / (1.02 + seed / 10_000), *one[1:]) for seed, one in own.items()}
    even = CELL._replace(mix="1, 2, 4")
    results = {CELL: {"preserve": own, "greedy": other}, even: {"preserve": own, "greedy": own}}
    write_page(results, "preserve", tmp_path)
    page = (tmp_path / "bake-off.md").read_text()
    assert "In 1 of 2 cells no other policy is better than `preserve`" in page
    assert "- summit: 1 of 2 cells, by at most 2.0 % (slowdown); better is mostly greedy" in page
    write_page({even: results[even]}, "preserve", tmp_path)
    assert "No other policy is better" in (tmp_path / "bake-off.md").read_text()


def test_a_difference_counts_if_it_is_sure_and_large_and_seen_often() -> None:
    """It takes three standard errors, 0.1 % and eight traces; gains are ratios, by trace."""
    own = dict.fromkeys(range(FEWEST), (1.0, 10.0, 40.0))

    def against(*slowdowns: float):
        return gain_of(own, {seed: (one, 10.0, 20.0) for seed, one in enumerate(slowdowns)}, 0)

    assert against(*[1.1, 1.2] * 4).counts
    assert against(*[1.1, 1.2] * 4).percent == pytest.approx(100 * ((1.1 * 1.2) ** 0.5 - 1))
    assert not against(*[0.9, 1.2] * 4).counts
    assert not against(*[1.0001, 1.0002] * 4).counts
    assert not against(*[1.1, 1.2] * 3).counts
