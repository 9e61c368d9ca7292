"""On NVIDIA GPUs only: what `gpulaunch profile measure` makes of jobs whose nature is known.

Run: python -m pytest tests/gpu/test_real_profile.py -s. One job multiplies, the other moves data,
in PyTorch loops, so the Python that runs this needs PyTorch with CUDA. The GPU is one that nobody
uses, and no setting of it is changed. With GPULAUNCH_GPU_REPORT=FILE the figures go, as Markdown,
into FILE.profile.md.
"""

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from real_gpu import CONTROL, Bench

from gpulaunch.files.toml import tomllib
from gpulaunch.profiles.demand import CurvePoint
from gpulaunch.sharing.curve import saturates

REPORT = os.environ.get("GPULAUNCH_GPU_REPORT")
"""Read now: no test sees such a variable."""

LOOP = str(Path(__file__).with_name("jobs") / "loop.py")
KINDS = ("memory", "compute")
PROGRESS = r"^done (\d+)"
"""What matches the loop's iterations so far."""

PERCENTAGES = tuple(range(10, 101, 10))
RUN_S, SLICE_S, OVERHEAD_S = 12, 4, 5
ROUNDS = 5
MOST_OVERHEAD = 0.01
"""Part of its speed that being recorded may cost a job."""


class Profiler(Bench):
    """A Bench that profiles jobs.

    Attributes:
        lines: of the report.
    """

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.home = home
        self.lines: list[str] = []

    @property
    def title(self) -> str:
        """Where and when all this was measured."""
        today = datetime.now(timezone.utc).date()
        return f"{self.gpu.name}, driver {self.gpu.driver}, {self.torch}, {today}."

    def job(self, kind: str, seconds: float) -> list[str]:
        """Return the argv of a job."""
        return [sys.executable, LOOP, kind, str(seconds)]

    def rate(self, printed: str) -> float:
        """Return the speed that a job prints at its end."""
        return float(re.findall(r"^rate (\S+)", printed, re.MULTILINE)[-1])

    def measured(self, kind: str, *options: str, seconds: float = RUN_S) -> dict[str, Any]:
        """Return the profile that `gpulaunch profile measure` writes of a job."""
        file = self.home / f"{kind}-measured.toml"
        file.unlink(missing_ok=True)
        command = [
            "profile",
            "measure",
            "--only",
            self.gpu.uuid,
            *options,
            "-o",
            str(file),
            "--",
            *self.job(kind, seconds),
        ]
        done = self.launcher.run(*command)
        assert done.returncode == 0, done.stderr
        return tomllib.loads(file.read_text())


@pytest.fixture(scope="module")
def found() -> Iterator[Profiler]:
    """Return an idle GPU, or the reason why there is none."""
    if not shutil.which("nvidia-smi"):
        pytest.skip("nvidia-smi is not on PATH")
    home = Path(
        tempfile.mkdtemp(prefix="gl", dir="/tmp")
    )  # short: the address of a socket has 107 bytes at most
    profiler = Profiler(home)
    try:
        reason = profiler.find_gpu() or profiler.find_torch()
        if reason:
            pytest.skip(reason)
        yield profiler
        text = "\n".join([profiler.title, "", *profiler.lines, ""])
        print(f"\n\n{text}")
        if REPORT:
            Path(f"{REPORT}.profile.md").write_text(text)
    finally:
        profiler.end_all()
        shutil.rmtree(home)


@pytest.mark.parametrize("kind", KINDS)
def test_profile(found: Profiler, kind: str) -> None:
    """A profile of a busy job shows that, with its GPU, and no impossible figure."""
    profile = found.measured(kind)
    used = profile["resources"]
    found.lines += [f"`{kind}` alone, {RUN_S} s: {json.dumps(used)}", ""]
    assert used["measured_on"] == found.gpu.name
    assert used["utilization"] in ("share", "time-active")
    assert 0 < used["memory_mib"] <= found.gpu.memory_mib
    assert not used.get("incomplete", False)
    percentages = {key: value for key, value in used.items() if key.endswith("_percentage")}
    assert all(0 <= value <= 100 for value in percentages.values()), percentages


def test_which_one_moves_data(found: Profiler) -> None:
    """Of the two jobs, the one that moves data uses more of the memory bandwidth."""
    used = {
        kind: found.measured(kind)["resources"]["memory_bandwidth_utilization_percentage"]
        for kind in KINDS
    }
    assert used["memory"] > used["compute"], used


@pytest.mark.parametrize("kind", KINDS)
def test_class(found: Profiler, kind: str) -> None:
    """The sweep's curve saturates for the job that moves data, is nearly linear for the other.

    Both are classed by that.
    """
    if not shutil.which(CONTROL):
        pytest.skip(f"{CONTROL} is not on PATH")
    reason = found.why_not_shared()
    if reason:
        pytest.skip(reason)
    options = (
        "--sweep",
        ",".join(map(str, PERCENTAGES)),
        "--iterations-from",
        PROGRESS,
        "--slice",
        f"{SLICE_S}s",
    )
    profile = found.measured(kind, *options, seconds=600)
    curve = profile["sm_curve"]
    shown = [f"{throughput:.4g}" for throughput in curve["throughput"]]
    found.lines += [
        (f"`{kind}` under MPS, {curve['unit']}, slices of {SLICE_S} s:"),
        "",
        f"| % of SMs | {' | '.join(map(str, curve['sm_percentage']))} |",
        f"|{'---|' * (1 + len(shown))}",
        f"| {kind} | {' | '.join(shown)} |",
        "",
    ]
    print("\n" + "\n".join(found.lines[-6:]))
    assert curve["sm_percentage"] == list(PERCENTAGES)
    points = [CurvePoint(*point) for point in zip(PERCENTAGES, curve["throughput"], strict=True)]
    assert saturates(points) is (kind == "memory")


@pytest.mark.parametrize("kind", KINDS)
def test_overhead(found: Profiler, kind: str) -> None:
    """Being recorded costs a job less than 1 % of its speed, by medians of alternating runs."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for recorded, mine in rates.items():
            options = (
                ["--record", "--name", f"overhead-{kind}"] if recorded else ["-o", "record=false"]
            )
            command = ["--only", found.gpu.uuid, *options, "--", *found.job(kind, OVERHEAD_S)]
            done = found.launcher.run(*command)
            assert done.returncode == 0, done.stderr
            mine.append(found.rate(done.stdout))
    with_it, without = (statistics.median(rates[recorded]) for recorded in (True, False))
    cost = 1 - with_it / without
    spread = max(rates[False]) / min(rates[False]) - 1
    found.lines += [
        f"`{kind}`: being recorded costs {cost:.2%} ({ROUNDS} runs each of {OVERHEAD_S} s;"
    ]
    found.lines[-1] += f" runs without it differ by {spread:.2%})."
    print(f"\n{found.lines[-1]}")
    assert cost < MOST_OVERHEAD
