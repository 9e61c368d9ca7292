"""On NVIDIA GPUs only: what `gpulaunch profile measure` makes of jobs whose nature is known.

Run: python -m pytest tests/gpu/test_real_profile.py -s. One job multiplies, the other moves data,
in PyTorch loops, so the Python that runs this needs PyTorch with CUDA. The GPU is one that nobody
uses, and no setting of it is changed.
"""

import json
import re
import statistics
from typing import Any

import pytest
from real_gpu import KINDS, Bench, load
from toml_parser import tomllib

from gpulaunch.profiles.demand import CurvePoint, saturates

pytest_plugins = ("real_gpu",)

PROGRESS = r"^done (\d+)"
"""What matches the loop's iterations so far."""

PERCENTAGES = tuple(range(10, 101, 10))
RUN_S, SLICE_S, OVERHEAD_S = 12, 4, 5
ROUNDS = 5
MOST_OVERHEAD = 0.01
"""Part of its speed that being recorded may cost a job."""


def measured(bench: Bench, kind: str, *options: str, seconds: float = RUN_S) -> dict[str, Any]:
    """Return the profile that `gpulaunch profile measure` writes of a job."""
    file = bench.home / f"{kind}-measured.toml"
    file.unlink(missing_ok=True)
    command = ("profile", "measure", "--only", bench.gpu.uuid, *options, "-o", str(file))
    done = bench.launcher.run(*command, "--", *load(kind, seconds, "--progress"))
    assert done.returncode == 0, done.stderr
    return tomllib.loads(file.read_text())


def test_profiles(idle: Bench) -> None:
    """A profile of a busy job shows that, with its GPU, and no impossible figure.

    Of the two jobs, the one that moves data uses more of the memory bandwidth.
    """
    bandwidth = {}
    for kind in KINDS:
        used = measured(idle, kind)["resources"]
        print(f"\n{kind} alone, {RUN_S} s: {json.dumps(used)}")
        assert used["measured_on"] == idle.gpu.name
        assert used["utilization"] in ("share", "time-active")
        assert 0 < used["memory_mib"] <= idle.gpu.memory_mib
        assert not used.get("incomplete", False)
        percentages = {key: value for key, value in used.items() if key.endswith("_percentage")}
        assert all(0 <= value <= 100 for value in percentages.values()), percentages
        bandwidth[kind] = used["memory_bandwidth_utilization_percentage"]
    assert bandwidth["memory"] > bandwidth["compute"], bandwidth


@pytest.mark.parametrize("kind", KINDS)
def test_class(found: Bench, kind: str) -> None:
    """The curve saturates for the job that moves data, is nearly linear for the other.

    Both are classed by that.
    """
    cut = ("--iterations-from", PROGRESS, "--slice", f"{SLICE_S}s")
    curve = measured(found, kind, *cut, seconds=600)["sm_curve"]
    each = zip(curve["sm_percentage"], curve["throughput"], strict=True)
    points = [CurvePoint(*point) for point in each]
    print(f"\n{kind} under MPS, {curve['unit']}, slices of {SLICE_S} s: {points}")
    assert saturates(points) is (kind == "memory")


@pytest.mark.parametrize("kind", KINDS)
def test_overhead(idle: Bench, kind: str) -> None:
    """Being recorded costs a job less than 1 % of its speed, by medians of alternating runs."""
    recorded = ("--record", "--name", f"overhead-{kind}")
    rates: dict[tuple[str, ...], list[float]] = {recorded: [], ("-o", "record=false"): []}
    for _ in range(ROUNDS):
        for options, mine in rates.items():
            command = ("--only", idle.gpu.uuid, *options, "--")
            done = idle.launcher.run(*command, *load(kind, OVERHEAD_S, "--progress"))
            assert done.returncode == 0, done.stderr
            mine += [float(re.findall(r"^rate (\S+)", done.stdout, re.MULTILINE)[-1])]
    with_it, without = map(statistics.median, rates.values())
    print(f"\n{kind}: being recorded costs {1 - with_it / without:.2%}; rates: {rates}")
    assert 1 - with_it / without < MOST_OVERHEAD
