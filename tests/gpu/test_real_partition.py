"""On an NVIDIA GPU with CUDA MPS and PyTorch only: what shares of the SMs bring two jobs.

Run: python -m pytest tests/gpu/test_real_partition.py -s. docs/results/sharing-measured.md tells
what is measured and how.
"""

import os
from collections.abc import Sequence
from datetime import date
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from real_gpu import KINDS, PROFILE, Bench, measured

from gpulaunch.leases.lease import Objective
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.records import replace
from gpulaunch.sharing.caps import Search, best_caps
from gpulaunch.sharing.speed import Capacity

pytest_plugins = ("real_gpu",)

REPORT = os.environ.get("GPULAUNCH_GPU_REPORT")
"""File for the figures, as Markdown. Read now: no test sees such a variable."""

UNITS = {"memory": ("GB/s", 1e9), "compute": ("TFLOP/s", 1e12)}
PERCENTAGES = (10, 20, 30, 40, 50, 60, 80, 100)
TRIED = ((58, 42), (25, 75), (19, 47), (20, 80), (50, 50), (100, 100))
"""Caps at which both kinds are measured, ROUNDS times each, in turn."""

ROUNDS, LAUNCHES = 3, 8
CURVE_S, PAIR_S = 2, 5
"""Seconds that a point of a curve, and jobs together, are measured for."""

CURVE = """
[sm_curve]
sm_percentage = {percentages}
throughput = {throughputs}
measured_on = "{gpu}"
source = "tests/gpu/test_real_partition.py: {unit}, alone under MPS, windows of {seconds} s"
"""


class Curves(NamedTuple):
    """What each kind of job does alone.

    Attributes:
        alone: without gpulaunch and MPS, by kind.
        shares: at each of PERCENTAGES under MPS, by kind.
    """

    alone: dict[str, dict[str, Any]]
    shares: dict[str, list[dict[str, Any]]]

    @property
    def sm_count(self) -> int:
        """SMs of the GPU."""
        return self.alone["memory"]["multiprocessors"]


@pytest.fixture(scope="module")
def curves(found: Bench) -> Curves:
    """Measure all jobs alone, one after the other."""
    alone = {kind: measured(found.plain(kind, PAIR_S))[0] for kind in KINDS}
    shares = {
        kind: [measured(found.share(kind, p, CURVE_S))[0] for p in PERCENTAGES] for kind in KINDS
    }
    return Curves(alone, shares)


def test_percentages(bench: Bench, curves: Curves) -> None:
    """A job sees its percentage of SMs, but one at least; all with 100 %, and all without MPS."""
    assert bench.gpu.uuid
    for kind in KINDS:
        assert curves.alone[kind]["multiprocessors"] == curves.sm_count
        counts = [facts["multiprocessors"] for facts in curves.shares[kind]]
        print(f"\n{kind}: SMs seen at {PERCENTAGES} %: {counts}")
        for percentage, facts in zip(PERCENTAGES, curves.shares[kind], strict=True):
            assert facts["variables"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percentage)
            assert 0 < facts["multiprocessors"] <= percentage * curves.sm_count / 100, facts
        assert counts[-1] == curves.sm_count


def divided(bench: Bench, curves: Curves) -> tuple[int, ...]:
    """Return the caps that gpulaunch predicts to be best, by profiles as a user has them."""
    demands = []
    for kind in KINDS:
        unit, scale = UNITS[kind]
        throughputs = [round(facts["amount_per_s"] / scale, 3) for facts in curves.shares[kind]]
        said = {"percentages": list(PERCENTAGES), "throughputs": throughputs, "gpu": bench.gpu.name}
        text = PROFILE.format(kind=kind) + CURVE.format(**said, unit=unit, seconds=CURVE_S)
        bench.profile(kind).write_text(text)
        demand = load_profile(str(bench.profile(kind))).demand
        demands.append(replace(demand, sm_utilization_percentage=100.0))  # as they truly are
    capacity = Capacity(bench.gpu.memory_mib << 20, len(KINDS), curves.sm_count)
    return best_caps(demands, capacity, Objective())


def together(
    bench: Bench, percentages: tuple[int, ...] = (), kinds: Sequence[str] = KINDS
) -> list[float]:
    """Measure two at once, by bytes or operations a second; without caps as plain processes."""
    if percentages:
        jobs = [bench.share(kind, p, PAIR_S) for kind, p in zip(kinds, percentages, strict=True)]
    else:
        jobs = [bench.plain(kind, PAIR_S) for kind in kinds]
    return [result["amount_per_s"] for result in measured(*jobs)]


def speeds(
    curves: Curves, amounts: Sequence[float], kinds: Sequence[str] = KINDS
) -> tuple[float, ...]:
    """Return the speed of each job, as a share of its speed alone without MPS."""
    alone = [curves.alone[kind]["amount_per_s"] for kind in kinds]
    return tuple(amount / one for amount, one in zip(amounts, alone, strict=True))


def test_the_speed_of_each(bench: Bench, curves: Curves) -> None:
    """The speed of each job is measured three times in turn: plain, at some caps, at the best.

    So are pairs alike. The curves are printed, too.
    """
    lines = [f"{bench.gpu.name}, driver {bench.gpu.driver}, {bench.torch}, {date.today()}"]  # noqa: DTZ011
    for kind in KINDS:
        unit, scale = UNITS[kind]
        amounts = [
            one["amount_per_s"] / scale for one in (curves.alone[kind], *curves.shares[kind])
        ]
        lines.append(
            f"{kind}, {unit}: alone, {PERCENTAGES} %: {[round(one, 1) for one in amounts]}"
        )
    ways = [*TRIED, divided(bench, curves)]
    if bench.gpu.compute_mode == "Default":  # else the second plain process would fail
        ways.append(())
    pairs = [(KINDS, ways)] * ROUNDS + [((kind, kind), [(50, 50), (100, 100)]) for kind in KINDS]
    for kinds, some in pairs:
        for caps in some:
            each = speeds(curves, together(bench, caps, kinds), kinds)
            shown = ", ".join(f"{kind} {one:.3f}" for kind, one in zip(kinds, each, strict=True))
            lines.append(f"{' + '.join(map(str, caps)) or 'without MPS'}: {shown}")
            assert min(each) > 0
    text = "\n".join(lines)
    print(f"\n\n{text}\n")
    if REPORT:
        Path(REPORT).write_text(f"{text}\n")


def test_the_search(bench: Bench, curves: Curves) -> None:
    """Eight launches from even shares end at no less than these."""
    trials: dict[tuple[int, ...], tuple[float, ...]] = {}
    caps: tuple[int, ...] | None = (50, 50)
    while caps and len(trials) < LAUNCHES:
        trials[caps] = speeds(curves, together(bench, caps))
        search = Search(("1", "2"), (), (True, False), trials, frozenset(trials), frozenset())
        caps = search.next_caps(lambda _: True)
    for tried, found in trials.items():
        print(f"\n{tried}: {' '.join(f'{one:.3f}' for one in found)}", end="")
    print(f"\nbest {search.most}")
    assert search.reached >= fsum(trials[50, 50])
