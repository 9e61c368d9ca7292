"""The public Python API: its examples, and the simulator beside `gpulaunch simulate`."""

import doctest
import json
from pathlib import Path

import pytest
from conftest import DGX, Launcher

import gpulaunch

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
DOCUMENTED = [name for name in gpulaunch.__all__ if not name.endswith("Error")]

JOBS = [
    {"name": "big", "gpus": 8, "arrival_s": 0.0, "duration_s": 60.0},
    {"name": "pair", "gpus": 2, "pattern": "ring", "arrival_s": 10.0, "duration_s": 30.0},
    {"name": "three", "gpus": 3, "pattern": "ring", "arrival_s": 11.0, "duration_s": 20.0},
]


@pytest.fixture(autouse=True)
def table_here(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process use the test's own table, not the host's."""
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))


@pytest.fixture(scope="module")
def simulator() -> gpulaunch.Simulator:
    return gpulaunch.Simulator("dgx1-v100")


def test_examples_in_docstrings() -> None:
    """Every public name has a docstring, and the examples in it are right."""
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for name in DOCUMENTED:
        public = getattr(gpulaunch, name)
        assert public.__doc__
        for one in doctest.DocTestFinder().find(public, name, globs={"gpulaunch": gpulaunch}):
            runner.run(one)
    assert runner.summarize(verbose=False).failed == 0


def test_examples_on_the_page() -> None:
    """The examples of docs/reference/python.md are right."""
    found = doctest.testfile(str(PAGE), module_relative=False, globs={"gpulaunch": gpulaunch})
    assert (found.failed, found.attempted > 10) == (0, True)


def test_a_replay_is_what_the_command_says(
    launcher: Launcher, simulator: gpulaunch.Simulator, tmp_path: Path
) -> None:
    """From Python a trace comes to what `gpulaunch simulate` makes of the same jobs in a file."""
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(json.dumps(job) + "\n" for job in JOBS))
    for policy, traces in {
        "baseline": [str(path)],
        "preserve-paper": [path, {"job": JOBS}],
    }.items():
        options = ("--policy", policy, "--machines", "2", "--time-model", "bandwidth,interference")
        done = launcher.run("simulate", *DGX, "--jobs", str(path), *options, "--json")
        (want,) = json.loads(done.stdout)["runs"]
        for trace in traces:
            replay = simulator.replay(
                simulator.read_trace(trace),
                policy,
                machines=2,
                time_models=["bandwidth", "interference"],
            )
            assert replay.makespan_s == want["makespan_s"]
            assert replay.rules.model == want["bandwidth_model"]
            got = [(job.id, job.machine, list(job.gpus), job.ended_s) for job in replay.jobs]
            keys = ("id", "machine", "gpus", "ended_s")
            assert got == [tuple(job[key] for key in keys) for job in want["jobs"]]


def test_a_generated_trace_is_what_the_command_prints(
    launcher: Launcher, simulator: gpulaunch.Simulator, tmp_path: Path
) -> None:
    """generate_trace draws the jobs that `simulate --generate` prints, with their profiles."""
    path = tmp_path / "jobs.toml"
    path.write_text(
        launcher.run("simulate", "--generate", "poisson", "--seed", "3", "--count", "20").stdout
    )
    trace = simulator.read_trace(gpulaunch.generate_trace("poisson", 3, 20))
    assert trace.jobs == simulator.read_trace(path).jobs
    assert all(job.split_slowdown for job in trace.jobs if job.name == "alexnet-b1-n2")
