"""`gpulaunch profile measure` and --record, through a scripted driver."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Launcher, wait_for_end
from fake_nvml import FakeNvml
from toml_parser import tomllib

pytest_plugins = ("fake_nvml",)

TIMED = """\
import os, sys, time
now = time.monotonic() - {began}
points = "".join(f",{{now + at}}:{{mib}}" for at, mib in {memory})
with open(os.environ["FAKE_NVML_FILE"], "a") as file:
    file.write(f"script 0 used_mib 0:10{{points}}\\n")
time.sleep({seconds})
print(time.monotonic() - {began}, flush=True)
{ending}
"""
"""A job that takes memory of GPU 0, and tells when it ended by the script of what the GPUs do."""

MEMORY = ((0.5, 5010), (1.0, 9010))
"""After so many seconds GPU 0 has so many MiB in use."""


def timed(
    seconds: float,
    ending: str = "",
    began: float = 0.0,
    memory: tuple[tuple[float, int], ...] = MEMORY,
) -> tuple[str, ...]:
    """Return the command of a timed job."""
    program = TIMED.format(seconds=seconds, ending=ending, began=began, memory=memory)
    return (sys.executable, "-c", program)


def measured(
    launcher: Launcher, path: Path, options: str, *job: str
) -> subprocess.CompletedProcess[str]:
    """Measure a job into a profile, with these options."""
    line = ("profile", "measure", "-o", str(path), *shlex.split(options))
    return launcher.run(*line, "--", *job)


def resources(path: Path) -> dict[str, object]:
    """Return what a profile says about the use of a GPU."""
    return tomllib.loads(path.read_text())["resources"]


def near(value: object, points: float) -> object:
    """Match a value within 5 %, or within that many points."""
    return pytest.approx(value, rel=0.05, abs=points)


@pytest.fixture
def busy_h100(hgx_h100: FakeNvml) -> FakeNvml:
    """Give GPU 0 bursts of work, told by GPM and by all counters of a Hopper."""
    hgx_h100.change(0, gpm=1)
    hgx_h100.script(0, "sm", "0:90,0.3:10", period=0.4)
    hgx_h100.script(0, "occupancy", "0:40,0.3:4", period=0.4)
    hgx_h100.script(0, "dram", "0:30,0.1:60", period=0.2)
    hgx_h100.script(0, "active", "0:100,0.3:20", period=0.4)
    hgx_h100.script(0, "power", "0:350,0.2:610", period=0.5)
    hgx_h100.script(0, "memactive", "0:50")
    hgx_h100.begin_script()
    return hgx_h100


def test_a_true_profile_comes_out(launcher: Launcher, busy_h100: FakeNvml, tmp_path: Path) -> None:
    """A job whose use of the GPU is known comes out within 5 % of it.

    A profile that is there keeps what it says besides, comments and all.
    """
    began = busy_h100.begin_script()
    path = tmp_path / "job.toml"
    path.write_text('name = "mine" # my own\ngpus = 1\n\n[sharing]\nshare = false # never\n')
    done = measured(launcher, path, "--only 0", *timed(2, began=began))
    said = "gpulaunch: info: no curve over its share of the SMs: --iterations-from REGEX tells its "
    said += "progress, so that it can be cut\n"
    said += f"gpulaunch: info: written to {path}; to see it: gpulaunch profile show {path}\n"
    assert (done.returncode, done.stderr) == (0, said)
    text = path.read_text()
    assert text.startswith('name = "mine" # my own\ngpus = 1\n')
    assert "share = false # never\n" in text
    assert tomllib.loads(text)["command"][0] == sys.executable
    end = float(done.stdout)
    start = end - resources(path)["duration_s"]  # Python's own start takes its time

    def mean(key: str) -> float:
        return busy_h100.mean(0, key, start, end)

    got = resources(path)
    want = {
        "memory_mib": near(9000, 1),
        "sm_utilization_percentage": near(mean("sm"), 0),
        "sm_occupancy_percentage": near(mean("occupancy"), 0),
        "memory_bandwidth_utilization_percentage": near(mean("dram"), 0),
        "utilization": "share",
        # Read at moments, of which a busy machine gives few; the others are read as sums.
        "time_active_percentage": near(mean("active"), 15),
        "power_w": near(mean("power"), 0),
        "energy_j": near(busy_h100.integral(0, "power", start, end), 0),
        "measured_on": "NVIDIA H100 80GB HBM3",
        "source": "gpulaunch profile measure",
    }
    assert {key: got[key] for key in want} == want


@pytest.fixture
def busy_v100(dgx1_v100: FakeNvml) -> FakeNvml:
    """Have GPU 0 tell what a V100 tells: no GPM, no energy counter, power cap by its state now."""
    dgx1_v100.script(0, "active", "0:80")
    dgx1_v100.script(0, "memactive", "0:35")
    dgx1_v100.script(0, "power", "0:200")
    dgx1_v100.begin_script()
    return dgx1_v100


@pytest.mark.usefixtures("busy_v100")
def test_without_gpm_the_meaning_is_marked(launcher: Launcher, tmp_path: Path) -> None:
    """Where there is no GPM, utilization is time-active, and the profile says so."""
    path = tmp_path / "job.toml"
    assert measured(launcher, path, "--only 0", *timed(0.8)).returncode == 0
    got = resources(path)
    assert (got["utilization"], "sm_occupancy_percentage" in got) == ("time-active", False)
    assert got["sm_utilization_percentage"] == got["time_active_percentage"] == near(80, 0)
    assert got["memory_bandwidth_utilization_percentage"] == near(35, 0)


def test_one_figure_that_fails_is_left_out(
    launcher: Launcher, busy_h100: FakeNvml, tmp_path: Path
) -> None:
    """A GPM metric, call or counter that always fails is missing, and all else is there."""
    for failing in ("gpm:3", "nvmlDeviceGetTotalEnergyConsumption"):
        busy_h100.answer(failing, 3, 0)
    busy_h100.script(0, "power", 500)
    path = tmp_path / "job.toml"
    done = measured(launcher, path, "--only 0 -q", *timed(1))
    assert (done.returncode, done.stderr) == (0, "")
    got = resources(path)
    assert ("sm_occupancy_percentage" in got, "incomplete" in got) == (False, False)
    assert got["power_w"] == near(500, 0)  # of single looks, not of the counter


def test_a_lost_gpu_leaves_what_was_measured(
    launcher: Launcher, busy_h100: FakeNvml, tmp_path: Path
) -> None:
    """A GPU that falls off the bus leaves what it told before, marked incomplete; status stays."""
    path = tmp_path / "job.toml"
    job = ("--", "sh", "-c", "sleep 0.5; echo up; read x; exit 3")
    command = ("profile", "measure", "-o", str(path), "--only", "0", *job)
    with launcher.start(*command, stdin=subprocess.PIPE) as process:
        process.stdout.readline()
        busy_h100.answer("*", 15, 0)
        process.communicate("\n")
    got = resources(path)
    assert (process.returncode, got["incomplete"], got["power_w"] > 300) == (3, True, True)


def test_a_driver_that_hangs_holds_nobody_up(
    launcher: Launcher, busy_h100: FakeNvml, tmp_path: Path
) -> None:
    """A driver that hangs does not delay the job's end until it answers, and it is told."""
    path = tmp_path / "run.json"
    job = ("--", "sh", "-c", "echo up; read x; exit 4")
    command = ("-o", f"record_to={path}", "--only", "0", *job)
    with launcher.start(*command, stdin=subprocess.PIPE) as process:
        process.stdout.readline()
        busy_h100.slow("nvmlDeviceGetPowerUsage", 1000, 0)
        process.communicate("\n")
    document = json.loads(path.read_text())
    assert (process.returncode, document["exit_status"], document["complete"]) == (4, 4, False)
    assert "did not answer" in document["problems"][0]


@pytest.mark.usefixtures("busy_h100")
def test_a_job_that_dies_leaves_what_was_measured(launcher: Launcher, tmp_path: Path) -> None:
    """A job that dies half way leaves its profile marked as incomplete, and its own exit status.

    An incomplete run replaces no complete figures.
    """
    path = tmp_path / "job.toml"
    done = measured(launcher, path, "--only 0", *timed(0.5, "os.kill(os.getpid(), 9)"))
    warning = f"gpulaunch: warning: {path}: the run was not complete, and is marked so\n"
    assert (done.returncode, warning in done.stderr) == (137, True)
    got = resources(path)
    assert (got["incomplete"], got["sm_utilization_percentage"] > 50) == (True, True)
    before = path.read_text()
    path.write_text(before.replace("incomplete = true\n", ""))
    measured(launcher, path, "--only 0", "false")
    assert path.read_text() == before.replace("incomplete = true\n", "")


@pytest.mark.usefixtures("busy_h100")
def test_output_and_input_pass_through(launcher: Launcher, tmp_path: Path) -> None:
    """stdin, stdout and stderr are the job's, byte by byte; several runs have a spread."""
    path = tmp_path / "job.toml"
    script = "cat; printf '\\377\\0x'; echo oops >&2"
    line = ("profile", "measure", "-o", str(path), "--runs", "3", "--only", "0")
    done = launcher.run(*line, "--", "sh", "-c", script, input="in\n")
    assert done.stdout == "in\n" + "\udcff\0x" * 3
    told = [f"gpulaunch: info: run {n} of 3" for n in (1, 2, 3)]
    assert [said for said in done.stderr.splitlines() if " of 3" in said] == told
    assert done.stderr.count("oops\n") == 3
    runs = tomllib.loads(path.read_text())["runs"]
    assert runs["count"] == 3
    assert runs["spread"]["duration_s"] > 0


def test_sampling_costs_less_than_a_hundredth_of_a_cpu(
    launcher: Launcher, busy_h100: FakeNvml, tmp_path: Path
) -> None:
    """However dear a reading is, all of them together cost less than 1 % of one CPU."""
    busy_h100.cost("nvmlDeviceGetPowerUsage", 10_000, 0)
    path = tmp_path / "run.json"
    options = ("-o", f"record_to={path}", "--only", "0")
    assert launcher.run(*options, "--", "sleep", "2.5").returncode == 0
    document = json.loads(path.read_text())
    assert document["gpus"][0]["samples"] in (2, 3, 4)  # 10 ms each: a pause of 1 s


WRONG = tomllib.loads(Path(__file__).with_name("wrong_measurements.toml").read_text())


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.usefixtures("hgx_h100")
def test_wrong_input(launcher: Launcher, tmp_path: Path, message: str) -> None:
    """A mistake is one line, the right exit status, and nothing is run or written."""
    status, line = WRONG[message]
    done = launcher.run(*line.split(), cwd=tmp_path)
    first = done.stderr.splitlines()[0]
    assert (done.returncode, done.stdout, message in first) == (status, "", True), first
    assert first.startswith("gpulaunch: error: ")
    assert not (tmp_path / "x.toml").exists()


# --------------------------------------------------------------------------------------- in passing


def own(launcher: Launcher, name: str) -> dict[str, object]:
    """Return a profile of the user's own."""
    return tomllib.loads(
        Path(launcher.environment["XDG_CONFIG_HOME"], f"gpulaunch/profiles/{name}.toml").read_text()
    )


def test_launches_teach_a_profile(launcher: Launcher, busy_h100: FakeNvml) -> None:
    """--record adds each run to the named profile, without a word if it fits what is known.

    One far from that is told and not mixed in; the third in a row replaces them.
    """
    what = "average SM utilization 90 % instead of 42 %"
    misfit = f"gpulaunch: warning: profile mine does not fit this run: {what}\n"
    last = f"gpulaunch: warning: profile mine is replaced by this run: {what}\n"
    told = []
    for level in (40, 44, 90, 90, 90):
        busy_h100.script(0, "sm", f"0:{level}")
        name = ("-p", "mine") if told else ("--name", "mine")
        done = launcher.run("--record", *name, "--only", "0", "--", "sleep", "0.5")
        document = own(launcher, "mine")
        mean, runs = document["resources"]["sm_utilization_percentage"], document["runs"]
        told.append((done.stderr, mean, runs["count"], runs.get("misfits")))
    assert told == [
        ("", near(40, 0), 1, None),
        ("", near(42, 0), 2, None),
        (misfit, near(42, 0), 2, 1),
        (misfit, near(42, 0), 2, 2),
        (last, near(90, 0), 1, None),
    ]


def test_a_crowd_teaches_one_profile(launcher: Launcher, hgx_h100: FakeNvml) -> None:
    """Four launches recorded at the same time are four runs of the profile: none is lost."""
    for gpu in range(8):
        hgx_h100.script(gpu, "active", "0:50")
    jobs = [launcher.start("--record", "--name", "crowd", "--", "sleep", "0.5") for _ in range(4)]
    assert [job.communicate()[1] for job in jobs] == [""] * 4
    assert own(launcher, "crowd")["runs"]["count"] == 4


@pytest.mark.usefixtures("busy_h100")
def test_the_setting_is_for_jobs_with_a_profile(launcher: Launcher) -> None:
    """The setting record = true records the jobs that have a profile and go well, and no others.

    A shipped profile that learns becomes the user's own of that name, otherwise unchanged.
    """
    launcher.environment["GPULAUNCH_RECORD"] = "true"
    assert launcher.run("--only", "0", "--", "true").stderr == ""
    assert launcher.run("--topology", "dgx1-v100", "-p", "vgg16", "--", "true").stderr == ""
    assert launcher.run("--only", "0", "--name", "..", "--", "true").stderr == ""
    by_path = launcher.state.parent / "by_path.toml"
    by_path.write_text('name = "by_path"\n')
    assert launcher.run("--only", "0", "-p", str(by_path), "--", "true").stderr == ""
    learns = ("--only", "0", "-p", "vgg16", "-n", "1", "--")
    assert launcher.run(*learns, "false").stderr == ""
    folder = Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch/profiles")
    assert list(folder.glob("*.toml")) == []
    assert launcher.run(*learns, "sleep", "0.3").stderr == ""
    document = own(launcher, "vgg16")
    got = (document["runs"]["count"], document["resources"]["measured_on"])
    assert got == (1, "NVIDIA H100 80GB HBM3")
    document = json.loads(launcher.run("profile", "show", "vgg16", "--json").stdout)["document"]
    assert document["communication"]["pattern"] == "ring"


def test_a_reservation_is_flagged(launcher: Launcher, busy_h100: FakeNvml, tmp_path: Path) -> None:
    """Memory that stands at 3/4 of the card from when it is taken is marked, with what to do."""
    path = tmp_path / "job.toml"
    memory = ((0.1, round(81559 * 0.75)),)
    job = timed(1, memory=memory, began=busy_h100.begin_script())
    done = measured(launcher, path, "--only 0", *job)
    assert resources(path)["memory_is_reservation"] is True
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in done.stderr


# -------------------------------------------------------------------------------- who talks to whom


def talk(fake: FakeNvml, a: int, b: int, gb_per_s: str) -> None:
    """Let two GPUs exchange data by a script of GB/s, each way, over their first NVLink."""
    for gpu, peer in ((a, b), (b, a)):
        links = (line.split() for line in fake._lines if line.startswith(f"nvlink {gpu} "))
        link = next(words[2] for words in links if f"peer={peer}" in words)
        fake.script(gpu, f"link:{link}:tx", gb_per_s)
        fake.script(gpu, f"link:{link}:rx", gb_per_s)


def test_a_ring_is_seen(launcher: Launcher, dgx1_v100: FakeNvml, tmp_path: Path) -> None:
    """Four GPUs that exchange along a ring of NVLinks have its edges, with GB for each pair."""
    for gpu in range(8):
        for link in range(6):
            dgx1_v100.script(gpu, f"link:{link}:tx", "0:0")
            dgx1_v100.script(gpu, f"link:{link}:rx", "0:0")
    began = dgx1_v100.begin_script()
    path = tmp_path / "job.toml"
    script = "echo $CUDA_VISIBLE_DEVICES; sleep 1.4"
    options = ("-o", str(path), "--only", "0-3", "-n", "4")
    with launcher.start("profile", "measure", *options, "--", "sh", "-c", script) as process:
        order = [int(gpu) for gpu in process.stdout.readline().split(",")]
        start = time.monotonic() - began + 0.4  # all of it while the job runs, however busy this is
        for a, b in ((0, 1), (1, 2), (2, 3), (0, 3)):
            talk(dgx1_v100, a, b, f"0:0,{start}:10,{start + 0.5}:0")
        process.communicate()
    assert process.returncode == 0
    communication = tomllib.loads(path.read_text())["communication"]
    assert "pattern" not in communication
    pairs = {tuple(sorted((order[a], order[b]))) for a, b, _ in communication["edges"]}
    assert pairs == {(0, 1), (1, 2), (2, 3), (0, 3)}
    assert [gb for _, _, gb in communication["edges"]] == [near(2 * 10 * 0.5, 0)] * 4


# ----------------------------------------------------------------------- placement, shares, company


BY_LINKS = """\
import os, sys, time
fast = os.environ["CUDA_VISIBLE_DEVICES"] in \
("0,3", "0,4", "1,2", "1,5", "2,3", "4,7", "5,6", "6,7")
step_s = 0.02 if fast else {poor_s}
began_s = time.monotonic()
for iteration in range(1, {count} + 1):  # by the clock: a delay does not add up
    time.sleep(max(0, began_s + iteration * step_s - time.monotonic()))
    print("iteration", iteration, "of many", flush=True)
"""


@pytest.mark.usefixtures("dgx1_v100")
@pytest.mark.parametrize(("poor_s", "percentage"), [(0.03, 50), (0.02, 0)])
def test_a_sensitive_job(
    launcher: Launcher, tmp_path: Path, poor_s: float, percentage: int
) -> None:
    """A job that takes half as long again on poor links is sensitive; one that does not is not.

    A slice is enough to know.
    """
    path = tmp_path / "job.toml"
    options = r"--sensitivity --iterations-from 'iteration (\d+)' --slice 1s -n 2"
    job = (sys.executable, "-c", BY_LINKS.format(count=100_000, poor_s=poor_s))
    done = measured(launcher, path, options, *job)
    document = tomllib.loads(path.read_text())
    sensitivity = document["sensitivity"]
    assert sensitivity["slowdown_percentage"] == pytest.approx(percentage, abs=10)
    assert document["communication"]["bandwidth_sensitive"] is (percentage == 50)
    assert "iteration 1 of many" in done.stdout
    assert "s for an iteration at 40 GB/s" in done.stderr
    assert f" %, {'' if percentage else 'not '}bandwidth-sensitive" in done.stderr


def companion(path: Path, script: str, more: str = "") -> Path:
    """Write the profile of a job that is to run beside another."""
    path.write_text(f'name = "other"\ncommand = ["sh", "-c", "{script}"]\n{more}')
    return path


@pytest.mark.usefixtures("dgx1_v100")
def test_beside_another_job(launcher: Launcher, tmp_path: Path) -> None:
    """A job slowed by another one on its socket has its slowdown under the other's name.

    That is added to the slowdowns which are known. A companion whose profile was measured on two
    GPUs runs on two without being told.
    """
    marker, seen, path = (tmp_path / name for name in ("at-work", "seen", "job.toml"))
    script = f"echo $CUDA_VISIBLE_DEVICES > {seen}; touch {marker}; sleep 0.2; rm {marker}"
    other = companion(tmp_path / "other.toml", script, "[runs]\ncount = 1\ngpus = 2\n")
    known = '[collocation]\nsource = "made up"\nslowdown_percentage = { kripke-1x = 3 }\n'
    path.write_text(f'name = "job"\n{known}')
    job = f"if [ -e {marker} ]; then sleep 1; else sleep 0.3; fi"
    options = f"--pair {other} --runs 2 --only 0-3 -n 1"
    done = measured(launcher, path, options, "sh", "-c", job)
    assert done.returncode == 0, done.stderr
    slowdowns = tomllib.loads(path.read_text())["collocation"]["slowdown_percentage"]
    assert (sorted(slowdowns), slowdowns["other"] > 30) == (["kripke-1x", "other"], True)
    assert len(seen.read_text().split(",")) == 2
    assert launcher.records() == []


@pytest.mark.usefixtures("dgx1_v100")
def test_the_other_job_ends_with_the_measuring(launcher: Launcher, tmp_path: Path) -> None:
    """A kill of the measuring ends the job that ran beside, too."""
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    pair = ("--pair", str(companion(tmp_path / "other.toml", f"echo $$ > {fifo}; exec sleep 60")))
    measure = ("profile", "measure", "-o", str(tmp_path / "job.toml"))
    job = launcher.start(*measure, *pair, "--", "sleep", "0.2")
    pid = int(fifo.read_text())
    job.kill()
    job.communicate()
    wait_for_end(pid)
