"""On an NVIDIA GPU with CUDA MPS and PyTorch only: a recorded job learns what sharing costs it.

Run: python -m pytest tests/gpu/test_real_learning.py -s. docs/results/sharing-measured.md tells
what it must print.
"""

import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from real_gpu import MEMORY_MIB, Bench, Fixed, Job, fixed
from toml_parser import tomllib

from gpulaunch.lab.measure.update_profile import BROKEN_PROMISE

pytest_plugins = ("real_gpu",)

JOB_S, TIMES = 12.0, 4
"""Work of the job, alone. The other has so many times as much, and so outlasts it."""

PAUSE_S = 0.15
"""After each 0.1 s of work: then the GPU is busy for 40 % of the time."""

PROFILE = f"""\
name = "{{name}}"

[resources]
memory_mib = {MEMORY_MIB}
sm_utilization_percentage = {{busy}}
memory_bandwidth_utilization_percentage = {{busy}}
duration_s = {{seconds}}
source = "tests/gpu/test_real_learning.py: {{origin}}"
"""


def write_profile(bench: Bench, name: str, busy: float, seconds: float, origin: str) -> Path:
    """Write a profile that launches find by its name, and learn into."""
    folder = Path(bench.launcher.environment["XDG_CONFIG_HOME"], "gpulaunch", "profiles")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    values = {"name": name, "busy": round(busy, 1), "seconds": round(seconds, 3), "origin": origin}
    path.write_text(PROFILE.format(**values))
    return path


def recorded(bench: Bench, name: str) -> list[str]:
    """Return the options of a recorded launch that shares this GPU or none."""
    return ["--share", "--only", bench.gpu.uuid, "--no-wait", "--record", "--profile", name]


class Met(NamedTuple):
    """A recorded job that ran beside another one, which began before it and goes on.

    Attributes:
        told: the job's warnings about the other.
        promised: of the job, by its pace as status shows it: the time that it is to take more.
        slowdown: the same by the clock of this test.
        learned: the same in percent, as its profile has it afterwards.
    """

    other: Job
    told: list[str]
    promised: float
    slowdown: float
    learned: float


def meet(bench: Bench, job: Fixed, other: Fixed, path: Path) -> Met:
    """Run a recorded job, whose profile is given, beside another; both say what they do."""
    beside = bench.launch(recorded(bench, "other"), other.command(TIMES))
    beside.said()
    mine = bench.launch(recorded(bench, "job"), job.command())
    mine.said()
    lease = bench.lease_of(mine)
    (pace,) = (one["promised_pace"] for one in bench.status()["leases"] if one["id"] == lease)
    mine.said()
    assert mine.end() == 0, mine.errors
    slowdown = (time.monotonic() - mine.began) / job.alone_s - 1
    assert beside.process.poll() is None, "the other has ended before the job"
    learned = tomllib.loads(path.read_text())
    percentage = learned["shared_gpu"]["slowdown_percentage"]["other"]
    assert learned["resources"]["duration_s"] == round(job.alone_s, 3)
    print(f"\npromised {1 / pace - 1:.1%}, lost {slowdown:.1%}, learned {percentage} %")
    print("\n".join(mine.warnings) or "no warning")
    told = [line for line in mine.warnings if "beside other" in line]
    return Met(beside, told, 1 / pace - 1, slowdown, percentage)


def may_meet_again(bench: Bench) -> int:
    """Return the exit status of a launch of the job's profile beside the other."""
    return bench.launcher.run(*recorded(bench, "job"), "--", "true").returncode


def test_a_broken_promise(bench: Bench) -> None:
    """A job that loses more than promised is told so, has it in its profile, and then they part.

    Both move data all the time, but their profiles say 30 % busy and make promises of that. The
    other was alone when it began, so it learns nothing.
    """
    job = fixed(bench, "memory", JOB_S)
    path = write_profile(bench, "job", 30, job.alone_s, "made up, so that they meet")
    write_profile(bench, "other", 30, TIMES * job.alone_s, "made up, so that they meet")
    met = meet(bench, job, job, path)
    (line,) = met.told
    said = re.fullmatch(
        r"gpulaunch: warning: profile job: beside other it took (\S+) times as long as alone, "
        r"(\S+) was predicted; from now on the measured slowdown counts",
        line,
    )
    assert said, line
    assert said[2] == f"{1 + met.promised:.3g}"
    assert float(said[1]) - 1 == pytest.approx(met.slowdown, abs=0.1)
    assert met.learned == pytest.approx(100 * (float(said[1]) - 1), abs=1)
    assert met.learned > 25, "the two hardly hurt each other here: this shows no parting"
    assert may_meet_again(bench) == 75
    assert met.other.end() == 0, met.other.errors
    assert any("profile other learns nothing from this run" in one for one in met.other.warnings)


def test_a_promise_that_is_kept(bench: Bench) -> None:
    """Jobs that are at work for 40 % of the time lose what was promised: it is learned, not told.

    They may meet again.
    """
    job = fixed(bench, "memory", JOB_S, PAUSE_S)
    other = fixed(bench, "compute", JOB_S, PAUSE_S)
    origin = "measured by this test"
    path = write_profile(bench, "job", job.busy_percentage, job.alone_s, origin)
    write_profile(bench, "other", other.busy_percentage, TIMES * other.alone_s, origin)
    met = meet(bench, job, other, path)
    assert met.told == []
    assert met.learned / 100 <= met.promised + BROKEN_PROMISE
    assert met.learned / 100 == pytest.approx(max(0.0, met.slowdown), abs=0.1)
    assert may_meet_again(bench) == 0
    assert met.other.end() == 0, met.other.errors
