"""Sharing that `gpulaunch profile measure` measures through MPS."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomlkit
from conftest import Launcher
from fake_cuda import FakeCuda
from fake_mps import FakeMps
from toml_parser import tomllib

pytest_plugins = ("fake_mps", "fake_nvml", "fake_cuda")

BY_SMS = """\
import os, time
share = int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
for iteration in range(1, 10_000):
    time.sleep(2 / min(share, 50))
    print("done", iteration, flush=True)
"""


@pytest.mark.usefixtures("dgx1_v100")
def test_a_curve(launcher: Launcher, fake_mps: FakeMps, tmp_path: Path) -> None:
    """A job that can be cut has a curve: no faster from 50 % of the SMs on, it is memory-intensive.

    Each point has a daemon on the same GPU.
    """
    path = tmp_path / "job.toml"
    options = ("--iterations-from", r"done (\d+)", "--slice", "0.6s")
    job = (sys.executable, "-c", BY_SMS)
    done = launcher.run("profile", "measure", "-o", str(path), *options, "--", *job)
    assert (done.returncode, "; memory-intensive" in done.stderr) == (0, True), done.stderr
    curve = tomllib.loads(path.read_text())["sm_curve"]
    assert (curve["sm_percentage"], curve["unit"]) == ([20, 50, 100], "iterations/s")
    assert curve["throughput"] == [pytest.approx(rate, rel=0.3) for rate in (10, 25, 25)]
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
def test_a_curve_that_fails_leaves_what_the_job_uses(launcher: Launcher, tmp_path: Path) -> None:
    """A job that fails with few SMs has no curve, and why is said; its use is in its profile."""
    path = tmp_path / "job.toml"
    job = 'test "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" = 50 && exit 9; '
    job += "for i in 1 2 3; do echo done $i; sleep 0.1; done"
    options = ("-o", str(path), "--iterations-from", r"done (\d+)")
    done = launcher.run("profile", "measure", *options, "--", "sh", "-c", job)
    assert "no curve over its share of the SMs: it ended with status 9" in done.stderr
    document = tomllib.loads(path.read_text())
    assert (done.returncode, "resources" in document, "sm_curve" in document) == (0, True, False)


@pytest.mark.parametrize(
    ("job", "status", "loads", "forces"),
    [
        ("echo x >> n; test $(wc -l < n) -lt 3 || exit 9; sleep 0.1", 9, ["memory"], []),
        ("sleep 1.7", 0, ["memory", "link"], ["feels", "presses"]),
    ],
    ids=["it fails alone on half of the GPU", "it does not fail"],
)
@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
def test_beside_our_loads(
    launcher: Launcher,
    cuda: FakeCuda,
    tmp_path: Path,
    job: str,
    status: int,
    loads: list[str],
    forces: list[str],
) -> None:
    """How a job was beside each load is in its profile, and how it and the memory load press."""
    launcher.environment = cuda.environment(launcher.environment)
    options = ("-o", "job.toml", "--share", "--pair", "synthetic", "--runs", "1")
    done = launcher.run("profile", "measure", *options, "--", "sh", "-c", job, cwd=tmp_path)
    found = tomllib.loads((tmp_path / "job.toml").read_text())["shared_gpu"]
    assert done.returncode == status, done.stderr
    assert list(found["slowdown_percentage"]) == [f"synthetic-{load}" for load in loads]
    assert [force for force in ("feels", "presses") if force in found] == forces


@pytest.mark.usefixtures("dgx1_v100")
def test_a_client_that_ignores_term_is_taken_off_first(
    launcher: Launcher, fake_mps: FakeMps, tmp_path: Path
) -> None:
    """A measured job that ignores TERM leaves MPS before its KILL."""
    launcher.environment["GPULAUNCH_GRACE"] = "0.3s"
    job = "trap '' TERM; test -z \"$CUDA_MPS_PIPE_DIRECTORY\" || "
    job += "mps_client --deaf --stays </dev/null & "
    job += "i=0; while :; do echo step $((i += 1)); sleep 0.05; done"
    options = ("--iterations-from", r"step (\d+)", "--slice", "0.4s")
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


V100 = {"measured_on": "Tesla V100-SXM2-16GB"}


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
        r"1\.1 was predicted; from now on the measured slowdown counts",
        told,
    )
    document = tomllib.loads((folder / "job.toml").read_text())
    assert document["shared_gpu"]["slowdown_percentage"]["other"] > 100
    assert document["resources"]["duration_s"] == 0.4
    met = [done.stdout for done in (first, second, third)]
    assert met == ["GPU-v100-0\n", "GPU-v100-1\n", "GPU-v100-0\n"]


@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
def test_recorded_jobs_search_for_their_caps(launcher: Launcher) -> None:
    """Two recorded jobs that share again try the next caps, which profile show tells."""
    folder = own_profiles(launcher)
    share = ("--record", "--share", "--only", "0", "--no-wait")
    names, caps = ("other", "job"), []
    script = "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; read _"
    for _ in range(3):
        jobs, began_s = [], []
        for name in names:
            options = (*share, "-p", name)
            jobs.append(launcher.start(*options, "--", "sh", "-c", script, stdin=subprocess.PIPE))
            caps.append(int(jobs[-1].stdout.readline()))
            began_s.append(time.monotonic())
        time.sleep(1 + 3 * (began_s[1] - began_s[0]))  # together for longer than the first alone
        for name, job, at_s in zip(names, jobs, began_s, strict=True):
            path = folder / f"{name}.toml"  # nine tenths of its time is what it would take alone
            alone_s = f"duration_s = {0.9 * (time.monotonic() - at_s):.3f}"
            path.write_text(re.sub(r"duration_s = [\d.]+", alone_s, path.read_text()))
            job.communicate("\n")
    found = {name: tomllib.loads((folder / f"{name}.toml").read_text())["search"] for name in names}
    assert found["other"]["beside"] == ["job"]
    tried = [tuple(one) for one in found["other"]["caps"]]
    assert tried == [(caps[0], caps[1]), (caps[2], caps[3]), (caps[4], caps[5])]
    assert [tuple(one[::-1]) for one in found["job"]["caps"]] == tried
    assert (caps[2], caps[3]) in ((caps[0] - 10, caps[1] + 10), (caps[0] + 10, caps[1] - 10))
    shown = launcher.run("profile", "show", "other").stdout
    assert f"[{caps[2]}, {caps[3]}]" in shown


@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
@pytest.mark.parametrize(("partner", "want"), [("other", [20, 65]), ("third", [80, 80])])
def test_a_plan_leaves_caps_to_their_search(
    launcher: Launcher, tmp_path: Path, partner: str, want: list[int]
) -> None:
    """Recorded tasks of a plan take the next step of their search, if it is of that very group."""
    folder = own_profiles(launcher)
    for name, beside, caps in (("job", partner, [30, 55]), (partner, "job", [55, 30])):
        search = {"beside": [beside], "caps": [caps], "speed": [0.9], "source": "made up"}
        document = PROFILE.format(name=name) + tomlkit.dumps({"search": search | V100})
        (folder / f"{name}.toml").write_text(document)
    say = ["sh", "-c", "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE > $0; sleep 0.5"]
    jobs = [
        {"share": True, "only": "0", "profile": name, "command": [*say, name], "record": True}
        for name in ("job", "other")
    ]
    file = tmp_path / "jobs.toml"
    file.write_text(tomlkit.dumps({"job": jobs}))
    done = launcher.run("batch", str(file), "--plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [int((tmp_path / name).read_text()) for name in ("job", "other")] == want


@pytest.mark.usefixtures("dgx1_v100", "fake_mps")
def test_a_launch_inside_is_no_company(launcher: Launcher) -> None:
    """A recorded launch in the lease of another learns nothing of that one, whose part it is."""
    folder = own_profiles(launcher)
    inside = ("gpulaunch", "--share", "--record", "-p", "job", "--", "sleep", "0.5")
    done = launcher.run("--share", "--only", "0", "-p", "other", "--", *inside)
    assert (done.returncode, "its GPUs are shared" in done.stderr) == (0, True)
    assert not {"search", "shared_gpu"} & {*tomllib.loads((folder / "job.toml").read_text())}


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
    third = launcher.run(*share, "-p", "other", "--", "sleep", "1")
    assert (third.returncode, third.stderr) == (0, "")
    said = []
    for gate, job in reversed([*zip(gates, jobs, strict=True)]):
        gate.write_text("\n")
        said.append(job.communicate()[1])
    assert "profile job learns nothing from this run: its GPUs are shared" in said[0]
    assert "shared_gpu" not in tomllib.loads((folder / "job.toml").read_text())
