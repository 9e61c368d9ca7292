"""`gpulaunch profile measure --sweep` and `--pair` over a scripted driver, without MPS."""

import json
from pathlib import Path

import pytest
from conftest import Launcher
from fake_cuda import FakeCuda
from test_profile import measured

from gpulaunch.files.toml import tomllib

pytest_plugins = ("fake_nvml", "fake_cuda")


@pytest.mark.usefixtures("dgx1_v100")
def test_a_job_that_cannot_be_cut(launcher: Launcher, tmp_path: Path) -> None:
    """A job that ignores TERM is killed after the grace with all it started: no GPU stays held."""
    deaf = "trap '' TERM; (trap '' TERM; exec sleep 60) & "
    script = deaf + "i=0; while :; do i=$((i+1)); echo step $i; sleep 0.05; done"
    options = "--sensitivity --iterations-from 'step ([0-9]+)' --slice 0.3s -n 2"
    launcher.environment["GPULAUNCH_GRACE"] = "0.5s"
    done = measured(launcher, tmp_path / "job.toml", options, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert json.loads(launcher.run("status", "--json").stdout)["leases"] == []


@pytest.mark.usefixtures("dgx1_v100")
def test_without_mps_there_is_no_curve(launcher: Launcher, tmp_path: Path) -> None:
    """Where GPUs cannot be shared nothing bounds the SMs: that is told, and no curve is written."""
    path = tmp_path / "job.toml"
    done = measured(launcher, path, "--sweep 10,100", "true")
    assert (done.returncode, path.exists()) == (125, False)
    assert "--sweep: no GPU can be shared: nvidia-cuda-mps-control is not on PATH" in done.stderr


@pytest.mark.usefixtures("dgx1_v100")
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


@pytest.mark.usefixtures("dgx1_v100")
def test_a_pair_that_fails_half_way_keeps_its_figures(
    launcher: Launcher, cuda: FakeCuda, tmp_path: Path
) -> None:
    """A job that fails beside the second load leaves one slowdown, and its status."""
    launcher.environment = cuda.environment(launcher.environment)
    path, count = tmp_path / "job.toml", tmp_path / "count"
    job = f"echo x >> {count}; test $(wc -l < {count}) -lt 3 || exit 9; sleep 0.1"
    done = measured(launcher, path, "--pair synthetic --runs 1", "sh", "-c", job)
    found = tomllib.loads(path.read_text())["collocation"]
    want = (9, ["synthetic-memory"])
    assert (done.returncode, [*found["slowdown_percentage"]]) == want, done.stderr
