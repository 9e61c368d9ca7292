"""`gpulaunch simulate`: job files in three forms, their mistakes, and what is printed."""

import json
from pathlib import Path

import pytest
from conftest import DGX, Launcher
from toml_parser import tomllib

FILES = tomllib.loads(Path(__file__).with_name("job_files.toml").read_text(encoding="utf-8"))


def simulated(launcher: Launcher, jobs: Path, *options: str) -> dict:
    done = launcher.run("simulate", *DGX, "--jobs", str(jobs), *options, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize("form", FILES["form"])
def test_two_forms(launcher: Launcher, tmp_path: Path, form: str) -> None:
    """JSON lines and TOML mean the same."""
    (run,) = simulated(launcher, written(tmp_path, FILES["form"][form]["text"]))["runs"]
    found = (run["policy"], run["topology"], run["machines"], run["seed"])
    assert found == ("preserve", "dgx1-v100", 1, None)
    keys = ("id", "name", "sensitive", "submitted_s", "started_s", "ended_s")
    assert [tuple(one[key] for key in keys) for one in run["jobs"]] == [
        (0, "vgg16", True, 0, 0, 10),
        (1, FILES["form"][form]["name"], False, 2, 2, 7),
    ]
    want = {"gpus": [0, 2, 3], "effective_bandwidth_gb_per_s": 60.0, "slowdown": 1.0, "machine": 0}
    assert run["jobs"][0] | want == run["jobs"][0]
    assert (run["makespan_s"], run["throughput_jobs_per_hour"]) == (10, 720)


def test_same_seed_same_bytes(launcher: Launcher, tmp_path: Path) -> None:
    """A seed always makes the same file, and a file the same results, byte for byte."""
    generate = ("simulate", "--generate", "uniform", "--count", "20", "--seed")
    first, second, other = (launcher.run(*generate, seed).stdout for seed in "554")
    assert first == second != other
    path = written(tmp_path, first)
    command = ("simulate", *DGX, "--jobs", str(path), "--policy", "baseline,topo-aware", "--json")
    outputs = {
        launcher.run(*command, env={**launcher.environment, "PYTHONHASHSEED": seed}).stdout
        for seed in "12"
    }
    assert len(outputs) == 1
    assert len(json.loads(outputs.pop())["runs"]) == 2


def test_generated_jobs_bring_their_profiles(launcher: Launcher, tmp_path: Path) -> None:
    """Generated jobs of topo-aware-sc17 run as printed: on five machines, neighbours and all."""
    generate = ("simulate", "--generate", "poisson", "--seed", "2", "--count", "50")
    path = written(tmp_path, launcher.run(*generate).stdout)
    options = ("--machines", "5", "--time-model", "bandwidth,interference", "--topology")
    options += ("power8-minsky", "--policy", "topo-aware-p,best-fit")
    patient, packed = simulated(launcher, path, *options)["runs"]
    assert (patient["slo_violations"], len(patient["jobs"])) == (0, 50)
    assert packed["slo_violations"] > 0
    assert {job["machine"] for job in patient["jobs"]} <= set(range(5))


@pytest.mark.parametrize("mistake", FILES["wrong"])
def test_mistakes_in_a_job_file(launcher: Launcher, tmp_path: Path, mistake: str) -> None:
    """A mistake is one line with path, line and what was expected, status 2, and no simulation."""
    wrong = FILES["wrong"][mistake]
    path = written(tmp_path, f"{wrong['text']}\n")
    done = launcher.run("simulate", *DGX, "--jobs", str(path))
    first, *hints = done.stderr.splitlines()
    assert first.startswith(f"gpulaunch: error: {path}:{wrong['want']}")
    assert (done.returncode, done.stdout, len(hints) <= 1) == (2, "", True)
