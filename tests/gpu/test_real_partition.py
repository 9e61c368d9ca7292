"""On an NVIDIA GPU with CUDA MPS and PyTorch only: what shares of the SMs bring two jobs.

Run: python -m pytest tests/gpu/test_real_partition.py -s. docs/results/sharing-measured.md tells
what is measured and how.
"""

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from real_gpu import KINDS, PROFILE, Bench, measured

from gpulaunch.profiles.catalog import load_profile
from gpulaunch.records import replace
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.partition import Partition, partition
from gpulaunch.sharing.prediction import normalized_turnaround, system_throughput

pytest_plugins = ("real_gpu",)

REPORT = os.environ.get("GPULAUNCH_GPU_REPORT")
"""File for the figures, as Markdown. Read now: no test sees such a variable."""

UNITS = {"memory": ("GB/s", 1e9), "compute": ("TFLOP/s", 1e12)}
PERCENTAGES = (10, 20, 30, 40, 50, 60, 80, 100)
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


class Row(NamedTuple):
    """Both jobs at the same time, KINDS in order.

    Attributes:
        way: how they shared.
        percentages: of the SMs; empty without MPS.
        amounts: bytes or operations a second.
    """

    way: str
    percentages: tuple[int, ...]
    amounts: tuple[float, ...]


def divided(bench: Bench, curves: Curves) -> Partition:
    """Return what gpulaunch's search makes of the curves, passed through profiles as by a user."""
    demands = []
    for kind in KINDS:
        unit, scale = UNITS[kind]
        throughputs = [round(facts["amount_per_s"] / scale, 3) for facts in curves.shares[kind]]
        said = {"percentages": list(PERCENTAGES), "throughputs": throughputs, "gpu": bench.gpu.name}
        text = PROFILE.format(kind=kind) + CURVE.format(**said, unit=unit, seconds=CURVE_S)
        bench.profile(kind).write_text(text)
        demand = load_profile(str(bench.profile(kind))).demand
        demands.append(replace(demand, sm_utilization_percentage=100.0))  # as they truly are
    return partition(demands, Capacity(bench.gpu.memory_mib << 20, len(KINDS), curves.sm_count))


def together(bench: Bench, way: str, percentages: tuple[int, ...] = ()) -> Row:
    """Measure both at once; without percentages as plain processes."""
    if percentages:
        jobs = [bench.share(kind, p, PAIR_S) for kind, p in zip(KINDS, percentages, strict=True)]
    else:
        jobs = [bench.plain(kind, PAIR_S) for kind in KINDS]
    return Row(way, percentages, tuple(result["amount_per_s"] for result in measured(*jobs)))


def report(bench: Bench, curves: Curves, found: Partition, rows: Sequence[Row]) -> str:
    """Return everything that was measured, as Markdown."""
    gpu, today = bench.gpu, datetime.now(timezone.utc).date()
    alone = [curves.alone[kind]["amount_per_s"] for kind in KINDS]
    lines = [
        f"{gpu.name}, {curves.sm_count} SMs, driver {gpu.driver}, mode {gpu.compute_mode}, ",
        f"{bench.torch}, {today}. Found by {found.mode}: {found.reason}.",
        "",
        "| way | % of SMs | memory, GB/s | compute, TFLOP/s | STP | ANTT |",
        "|---|---|---|---|---|---|",
        f"| each alone, without MPS | | {_amounts(alone)} | | |",
    ]
    for way, percentages, amounts in rows:
        times = [[1 / amount for amount in each] for each in (alone, amounts)]
        sums = f"{system_throughput(*times):.3f} | {normalized_turnaround(*times):.3f}"
        caps = " + ".join(map(str, percentages))
        lines.append(f"| {way} | {caps} | {_amounts(amounts)} | {sums} |")
    for percentage, *facts in zip(PERCENTAGES, *map(curves.shares.get, KINDS), strict=True):
        way = f"alone under MPS, {facts[0]['multiprocessors']} SMs seen"
        amounts = _amounts([one["amount_per_s"] for one in facts])
        lines.append(f"| {way} | {percentage} | {amounts} | | |")
    return "\n".join(lines)


def _amounts(amounts: Sequence[float]) -> str:
    scaled = [amount / UNITS[kind][1] for kind, amount in zip(KINDS, amounts, strict=True)]
    return " | ".join(f"{amount:.4g}" for amount in scaled)


def test_throughput(bench: Bench, curves: Curves) -> None:
    """Both jobs are measured time-sliced, and under MPS uncapped, evenly capped and as searched."""
    found = divided(bench, curves)
    rows = []
    if bench.gpu.compute_mode == "Default":  # else the second plain process would fail
        rows.append(together(bench, "time-sliced, without MPS"))
    rows.append(together(bench, "MPS, no caps", (100, 100)))
    rows.append(together(bench, "MPS, even", (50, 50)))
    rows.append(together(bench, "MPS, as predicted best", found.sm_percentages))
    text = report(bench, curves, found, rows)
    print(f"\n\n{text}\n")
    if REPORT:
        Path(REPORT).write_text(f"{text}\n")
    assert all(amount > 0 for row in rows for amount in row.amounts)
