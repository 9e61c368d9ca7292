"""Sharing that `gpulaunch profile measure` measures through MPS."""

import os
import re
import sys
from pathlib import Path

import pytest
from conftest import Launcher
from fake_mps import FakeMps

from gpulaunch.files.toml import tomllib

pytest_plugins = ("fake_mps", "fake_nvml", "fake_cuda")

BY_SMS = """\
import os, time
share = int(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
for iteration in range(1, 10_000):
    time.sleep(0.8 / min(share, 20))
    print("done", iteration, flush=True)
"""


@pytest.mark.usefixtures("dgx1_v100")
def test_a_curve(launcher: Launcher, fake_mps: FakeMps, tmp_path: Path) -> None:
    """A job that gains nothing from 20 % of the SMs on is memory-intensive, and its curve says so.

    Each point has a daemon on the same GPU.
    """
    path = tmp_path / "job.toml"
    options = ("--sweep", "10,50,100", "--iterations-from", r"done (\d+)", "--slice", "0.6s")
    job = (sys.executable, "-c", BY_SMS)
    done = launcher.run("profile", "measure", "-o", str(path), *options, "--", *job)
    assert (done.returncode, "; memory-intensive" in done.stderr) == (0, True), done.stderr
    curve = tomllib.loads(path.read_text())["sm_curve"]
    assert (curve["sm_percentage"], curve["unit"]) == ([10, 50, 100], "iterations/s")
    assert curve["throughput"] == [pytest.approx(rate, rel=0.3) for rate in (12.5, 25, 25)]
    asked = [event.said["environment"] for event in fake_mps.events("started")]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in asked] == ["GPU-v100-0"] * 3
    assert launcher.records() == []


@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
def test_beside_another_on_one_gpu(launcher: Launcher, tmp_path: Path) -> None:
    """With --share the other job runs on the same GPU through MPS, and so its slowdown says."""
    marker, other, path = tmp_path / "at-work", tmp_path / "other.toml", tmp_path / "job.toml"
    script = f"echo $CUDA_VISIBLE_DEVICES > {marker}; sleep 0.2; rm {marker}"
    other.write_text(f'name = "other"\ncommand = ["sh", "-c", "{script}"]\n')
    job = f"if [ -e {marker} ]; then cat {marker}; sleep 0.9; else sleep 0.3; fi"
    options = ("-o", str(path), "--share", "--pair", str(other), "--runs", "2")
    done = launcher.run("profile", "measure", *options, "--", "sh", "-c", job)
    assert (done.returncode, "GPU-v100-0" in done.stdout) == (0, True), done.stderr
    document = tomllib.loads(path.read_text())
    assert document["shared_gpu"]["slowdown_percentage"]["other"] > 50
    assert "collocation" not in document
    assert launcher.records() == []


@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
def test_a_sweep_that_fails_half_way_keeps_its_points(launcher: Launcher, tmp_path: Path) -> None:
    """A job that fails at the third share leaves two points, and its status."""
    path = tmp_path / "job.toml"
    job = "test $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE -lt 50 || exit 9; sleep 0.2"
    options = ("-o", str(path), "--sweep", "10,20,50")
    done = launcher.run("profile", "measure", *options, "--", "sh", "-c", job)
    curve = tomllib.loads(path.read_text())["sm_curve"]
    assert (done.returncode, curve["sm_percentage"]) == (9, [10, 20])


@pytest.mark.usefixtures("dgx1_v100")
def test_a_client_that_ignores_term_is_taken_off_first(
    launcher: Launcher, fake_mps: FakeMps, tmp_path: Path
) -> None:
    """A measured job that ignores TERM leaves MPS before its KILL."""
    launcher.environment["GPULAUNCH_GRACE"] = "0.3s"
    job = "trap '' TERM; mps_client --deaf --stays </dev/null & "
    job += "i=0; while :; do echo step $((i += 1)); sleep 0.05; done"
    options = ("--sweep", "50,100", "--iterations-from", r"step (\d+)", "--slice", "0.4s")
    line = ("profile", "measure", "-o", str(tmp_path / "a"), *options)
    done = launcher.run(*line, "--", "sh", "-c", job)
    assert done.returncode == 0, done.stderr
    attached = {event.pid for event in fake_mps.events("attached")}
    assert attached
    assert {event.pid for event in fake_mps.events("terminated")} == attached
    assert fake_mps.events("died") == []


PROFILE = """\
name = "{name}"
[resources]
sm_utilization_percentage = 30
memory_bandwidth_utilization_percentage = 10
memory_mib = 1000
duration_s = 0.4
source = "made up"
"""


def own_profiles(launcher: Launcher) -> Path:
    """Write two profiles of the user's own; return their folder."""
    folder = Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch", "profiles")
    folder.mkdir(parents=True)
    for name in ("job", "other"):
        (folder / f"{name}.toml").write_text(PROFILE.format(name=name))
    return folder


@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
def test_a_recorded_launch_learns_what_sharing_costs(launcher: Launcher, tmp_path: Path) -> None:
    """A job that loses more beside another than promised is told so, and they part next time.

    A known slowdown keeps no run away from the other job that is to measure it.
    """
    folder = own_profiles(launcher)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    share = ("--share", "--only", "0,1", "--no-wait")
    other = launcher.start(*share, "-p", "other", "--", "sh", "-c", f"echo; read _ < {gate}")
    other.stdout.readline()
    job = ("--record", "-p", "job", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 0.9")
    first, second = launcher.run(*share, *job), launcher.run(*share, *job)
    third = launcher.run(*share, "-o", f"record_to={tmp_path / 'run.json'}", *job[1:])
    gate.write_text("\n")
    other.communicate()
    (told,) = (line for line in first.stderr.splitlines() if "beside other" in line)
    assert re.fullmatch(
        r"gpulaunch: warning: profile job: beside other it took \d\.\d+ times as long as alone, "
        r"1\.09 was predicted; from now on the measured slowdown counts",
        told,
    )
    document = tomllib.loads((folder / "job.toml").read_text())
    assert document["shared_gpu"]["slowdown_percentage"]["other"] > 100
    assert document["resources"]["duration_s"] == 0.4
    met = [done.stdout for done in (first, second, third)]
    assert met == ["GPU-v100-0\n", "GPU-v100-1\n", "GPU-v100-0\n"]


@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
def test_a_third_job_that_came_and_went_is_noticed(launcher: Launcher, tmp_path: Path) -> None:
    """A recorded job learns nothing of the one beside it if a third shared the GPU for a while."""
    folder = own_profiles(launcher)
    share = ("--share", "--only", "0", "--no-wait", "-o", "utilization=5,5")
    gates = [tmp_path / "other-gate", tmp_path / "job-gate"]
    jobs = []
    for gate, options in zip(gates, (("-p", "other"), ("--record", "-p", "job")), strict=True):
        os.mkfifo(gate)
        wait = ("--", "sh", "-c", f"echo; read _ < {gate}")
        jobs.append(launcher.start(*share, *options, *wait))
        jobs[-1].stdout.readline()
    third = launcher.run(*share, "-p", "other", "--", "true")
    assert (third.returncode, third.stderr) == (0, "")
    said = []
    for gate, job in reversed([*zip(gates, jobs, strict=True)]):
        gate.write_text("\n")
        said.append(job.communicate()[1])
    assert "profile job learns nothing from this run: its GPUs are shared" in said[0]
    assert "shared_gpu" not in tomllib.loads((folder / "job.toml").read_text())
