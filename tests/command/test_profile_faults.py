"""`gpulaunch profile measure` and --record in trouble: nothing is held up, lost or left behind."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from conftest import Launcher, until, wait_for_end
from fake_cuda import FakeCuda
from fake_nvml import FakeNvml
from filelock import FileLock
from test_profile import companion, measured
from test_transparency import Terminal
from toml_parser import tomllib

pytest_plugins = ("fake_nvml", "fake_cuda")

STEPS = (
    "import time\nfor step in range(1, {count}):\n    print('step', step, flush=True)\n    "
    "time.sleep(0.02)\n"
)
PROGRESS = r"--iterations-from 'step (\d+)'"


@pytest.fixture(autouse=True)
def box(dgx1_v100: FakeNvml) -> FakeNvml:
    """Make GPUs busy, with counters of what goes over their links."""
    for gpu in range(8):
        dgx1_v100.script(gpu, "active", 60)
        for link in range(6):
            dgx1_v100.script(gpu, f"link:{link}:tx", 5)
            dgx1_v100.script(gpu, f"link:{link}:rx", 5)
    dgx1_v100.begin_script()
    return dgx1_v100


MEASURE = ("profile", "measure", "-o")


def read(path: Path) -> dict:
    return tomllib.loads(path.read_text())


def test_a_driver_that_hangs_does_not_keep_the_job(
    launcher: Launcher, box: FakeNvml, tmp_path: Path
) -> None:
    """A driver that hangs when measuring begins keeps the job for two seconds and no longer."""
    box.script(0, "power", 100)
    box.slow("nvmlDeviceGetPowerUsage", 1000, 0)  # far longer than a test may take
    path = tmp_path / "run.json"
    line = ("-o", f"record_to={path}", "--only", "0", "--", "sh", "-c", "exit 6")
    assert launcher.run(*line).returncode == 6
    assert "before the job's start" in json.loads(path.read_text())["problems"][0]


def test_time_stopped_is_no_time_of_the_job(launcher: Launcher, tmp_path: Path) -> None:
    """A job that Ctrl-Z stopped for a while is told of, and its measurement is incomplete."""
    path = tmp_path / "job.toml"
    command = f"gpulaunch profile measure --only 0 -o {path} -- sh -c 'echo up; sleep 1.5'"
    steps = (f"$ {command}", "< up", "~", "^Z", "$ sleep 0.5", "$ fg", "? marked so")
    assert Terminal(launcher, tmp_path).hold(steps, "").status == 0
    assert read(path)["resources"]["incomplete"] is True


# -------------------------------------------------------------------------------------- what is cut


def test_a_slice_is_a_whole_measurement(launcher: Launcher, tmp_path: Path) -> None:
    """A job that is ended for having run long enough went well: status 0 and complete figures.

    A pattern that nothing fits is told of, and the job runs to its end.
    """
    path = tmp_path / "job.toml"
    job = (sys.executable, "-c", STEPS.format(count=100_000))
    done = measured(launcher, path, f"--only 0 {PROGRESS} --slice 0.5s", *job)
    assert (done.returncode, "incomplete" in read(path)["resources"]) == (0, False), done.stderr
    options = r"--only 0 --iterations-from 'stop (\d+)'"
    done = measured(launcher, path, options, "echo", "step 1")
    assert (done.returncode, "nothing that the job printed fits" in done.stderr) == (0, True)


def test_a_reader_that_goes_ends_the_job(launcher: Launcher, tmp_path: Path) -> None:
    """A reader that goes away ends the job, also where its progress is read on the way."""
    line = ("-o", str(tmp_path / "job.toml"), "--only", "0", *shlex.split(PROGRESS))
    with launcher.start(*MEASURE[:2], *line, "--", "yes", "step 1") as job:
        assert job.stdout.readline() == "step 1\n"
        job.stdout.close()
        job.stdout = None
        job.communicate()
    assert job.returncode == 141


# ----------------------------------------------------------------------------------- who interrupts


def test_an_interrupted_run_is_the_last(launcher: Launcher, tmp_path: Path) -> None:
    """An interrupted run is the last and incomplete, even if the job takes that for success."""
    path = tmp_path / "job.toml"
    script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
    line = (str(path), "--only", "0", "--runs", "3", "--", "sh", "-c", script)
    job = launcher.start(*MEASURE, *line)
    assert job.stdout.readline() == "up\n"
    job.terminate()
    output, _ = job.communicate()
    assert (output, job.returncode, read(path)["resources"]["incomplete"]) == ("", 0, True)
    assert launcher.records() == []


@pytest.mark.parametrize("guarded", [True, False], ids=["CI", "no CI"])
def test_killed_while_measuring(launcher: Launcher, tmp_path: Path, guarded: bool) -> None:
    """A killed measurement takes its job along where CI is set, as a launch does; else not."""
    launcher.environment["CI"] = "true" if guarded else ""
    command = ("--", "sh", "-c", "echo $$; exec sleep 60")
    job = launcher.start(*MEASURE, str(tmp_path / "job.toml"), "--only", "0", *command)
    pid = int(job.stdout.readline())
    job.kill()
    job.wait()
    if not guarded:
        assert json.loads(launcher.run("status", "--json").stdout)["leases"][0]["job_pid"] == pid
        os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def test_what_ran_beside_leaves_nothing(launcher: Launcher, tmp_path: Path) -> None:
    """The other job ends with all that it has started, and unread output never holds it up."""
    beats, pids = tmp_path / "beats", tmp_path / "pids"
    script = f"while :; do echo >> {beats}; head -c 4096 /dev/zero; sleep 0.01; done & "
    script += f"echo $$ $! >> {pids}; sleep 60"
    other = companion(tmp_path / "other.toml", script)
    options = f"--pair {other} --runs 1 --only 0-3 -n 1"
    done = measured(launcher, tmp_path / "job.toml", options, "sleep", "1")
    assert done.returncode == 0, done.stderr
    assert len(beats.read_text()) > 40  # of 4 KiB each: a pipe has 64
    for pid in pids.read_text().split():
        wait_for_end(int(pid))
    assert launcher.records() == []


def test_a_job_that_cannot_be_cut(launcher: Launcher, tmp_path: Path) -> None:
    """A job that ignores TERM is killed after the grace with all it started: no GPU stays held."""
    deaf = "trap '' TERM; (trap '' TERM; exec sleep 60) & "
    script = deaf + "i=0; while :; do i=$((i+1)); echo step $i; sleep 0.05; done"
    options = "--sensitivity --iterations-from 'step ([0-9]+)' --slice 0.3s -n 2"
    launcher.environment["GPULAUNCH_GRACE"] = "0.5s"
    done = measured(launcher, tmp_path / "job.toml", options, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert json.loads(launcher.run("status", "--json").stdout)["leases"] == []


def test_without_mps_there_is_no_curve(launcher: Launcher, tmp_path: Path) -> None:
    """Where GPUs cannot be shared nothing bounds the SMs: that is told, and no curve is written."""
    path = tmp_path / "job.toml"
    job = "for i in 1 2 3; do echo step $i; sleep 0.05; done"
    done = measured(launcher, path, "--iterations-from 'step ([0-9]+)'", "sh", "-c", job)
    assert (done.returncode, "[sm_curve]" in path.read_text()) == (0, False)
    why = "no GPU can be shared: nvidia-cuda-mps-control is not on PATH"
    assert f"no curve over its share of the SMs: {why}" in done.stderr


def test_a_load_that_fails_is_told(launcher: Launcher, cuda: FakeCuda, tmp_path: Path) -> None:
    """A load that cannot run ends the measuring with one line, and nothing is written."""
    cuda.settings["FAKE_CUDA_FAIL"] = "cuInit:999"
    launcher.environment = cuda.environment(launcher.environment)
    path = tmp_path / "job.toml"
    done = measured(launcher, path, "--pair synthetic --runs 1", "true")
    assert (done.returncode, path.exists()) == (125, False)
    assert (
        "synthetic-memory ended with status 125 before it could run beside the job" in done.stderr
    )
    assert launcher.records() == []


def test_a_pair_that_fails_half_way_keeps_its_figures(
    launcher: Launcher, cuda: FakeCuda, tmp_path: Path
) -> None:
    """A job that fails beside the second load leaves one slowdown, and its status."""
    launcher.environment = cuda.environment(launcher.environment)
    path, count = tmp_path / "job.toml", tmp_path / "count"
    job = f"echo x >> {count}; test $(wc -l < {count}) -lt 3 || exit 9; sleep 0.1"
    done = measured(launcher, path, "--pair synthetic --runs 1", "sh", "-c", job)
    found = read(path)["collocation"]
    want = (9, ["synthetic-memory"])
    assert (done.returncode, [*found["slowdown_percentage"]]) == want, done.stderr


# ---------------------------------------------------------------------------------- what is written


def test_what_is_no_profile(launcher: Launcher, tmp_path: Path) -> None:
    """What is no profile, or never can be one, is told before the job runs, and stays as it is."""
    path = tmp_path / "job.toml"
    for content in ("name = ", 'name = "x"\ngpus = 0\n'):
        path.write_text(content)
        done = measured(launcher, path, "--only 0", "echo", "ran")
        assert (done.returncode, done.stdout, path.read_text()) == (2, "", content)
        assert done.stderr.startswith(f"gpulaunch: error: {path}")
    for name in ("", "/dev/full", "caf\udce9.toml"):
        done = measured(launcher, name, "--only 0", "echo", "ran")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith("gpulaunch: error: ")


def test_arguments_that_are_no_text(launcher: Launcher, tmp_path: Path) -> None:
    """A job whose arguments are no UTF-8 is measured; its command is left out of the profile."""
    path = tmp_path / "job.toml"
    done = measured(launcher, path, "--only 0", "echo", "caf\udce9")
    got = (done.returncode, done.stdout, "command" in read(path))
    assert got == (0, "caf\udce9\n", False), done.stderr


def test_a_full_disk(launcher: Launcher) -> None:
    """On a full disk the job's status stays, and the user is told of the profile."""
    done = launcher.run("-o", "record_to=/dev/full", "--only", "0", "--", "sh", "-c", "exit 3")
    assert (done.returncode, "what was measured is lost" in done.stderr) == (3, True)


def test_learning_holds_no_gpu(launcher: Launcher) -> None:
    """A launch frees its GPUs before it waits for a profile that is being written."""
    folder = Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch")
    folder.mkdir(parents=True)
    with FileLock(folder / "profiles.lock"):
        job = launcher.start("--record", "--name", "mine", "--only", "0", "--", "true")
        until(lambda: launcher.records() == [] and (folder / "profiles").exists())
        assert job.poll() is None
    assert job.communicate()[1] == ""
    assert read(folder / "profiles" / "mine.toml")["runs"]["count"] == 1


def test_two_jobs_in_one_profile(launcher: Launcher, tmp_path: Path) -> None:
    """A profile that is given figures of another command is told of.

    With record = true the runs of a measurement teach no other profile. Without progress whole
    runs are timed.
    """
    launcher.environment["GPULAUNCH_RECORD"] = "true"
    path = tmp_path / "job.toml"
    assert measured(launcher, path, "--only 0", "sleep", "0.1").returncode == 0
    done = measured(launcher, path, "--sensitivity -p vgg16 -n 2", "sleep", "0.2")
    assert "slowdown_percentage" in read(path)["sensitivity"]
    assert f"{path}: its other figures are of another command: sleep 0.1" in done.stderr
    assert not Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch", "profiles").exists()
