"""The public Python API: what it names, what examples/ import of it, and the simulator."""

import ast
from pathlib import Path

import pytest

import gpulaunch

ROOT = Path(__file__).parents[2]

PAIR = {"name": "pair", "gpus": 2, "pattern": "ring", "duration_s": 30.0}


@pytest.fixture(scope="module")
def simulator() -> gpulaunch.Simulator:
    return gpulaunch.Simulator("dgx1-v100")


def test_the_page_names_all_that_is_public() -> None:
    """docs/reference/python.md names every public name that a program uses."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    shown = set(page.replace("gpulaunch.", "").replace("`", " ").replace("(", " ").split())
    assert set(gpulaunch.__all__) - {"HeldLease", "Trace"} - shown == set()


def public_uses(path: Path) -> set[str]:
    """Return what a program uses of gpulaunch, by name; "import X" for a module below it."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {
                f"import {alias.name}"
                for alias in node.names
                if alias.name.startswith("gpulaunch.")
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            top, _, below = node.module.partition(".")
            if top == "gpulaunch":
                found |= {f"import {below}" if below else alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gpulaunch":
            found.add(node.attr)
    return found


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.stem
)
def test_the_repositorys_examples_use_what_is_public(path: Path) -> None:
    """The programs in examples/ import nothing of gpulaunch but its public names."""
    assert public_uses(path) - set(gpulaunch.__all__) == set()


def test_what_is_not_public_is_found(tmp_path: Path) -> None:
    """The test before this one sees each way in which a program can reach below the public API."""
    program = tmp_path / "program.py"
    program.write_text(
        "import gpulaunch.errors\n"
        "from gpulaunch.simulate import engine\n"
        "from gpulaunch import errors\n"
        "import gpulaunch\n"
        "gpulaunch.api.allocate()\n"
    )
    assert public_uses(program) == {"import gpulaunch.errors", "import simulate", "errors", "api"}


def test_backfill(simulator: gpulaunch.Simulator) -> None:
    """A job with a time limit passes those that it does not delay; in order it waits."""
    jobs = [{"gpus": gpus, "arrival_s": gpus, "duration_s": 50.0} for gpus in (5, 6, 7)]
    small = {"gpus": 1, "arrival_s": 9.0, "duration_s": 50.0, "time_limit": "1m"}
    trace = simulator.read_trace({"job": [*jobs, small]})
    in_order = [job.id for job in simulator.replay(trace, queue="fifo").jobs]
    passing = [job.id for job in simulator.replay(trace).jobs]
    assert (in_order, passing) == ([0, 1, 2, 3], [0, 3, 1, 2])
    with pytest.raises(gpulaunch.UsageError, match="unknown queue 'lifo'"):
        simulator.replay(trace, queue="lifo")


def test_scores_of_the_paper(simulator: gpulaunch.Simulator) -> None:
    """On a DGX-1 V100 GPUs 0, 1 and 4 have 87 GB/s of links, the best three 125 (mapa-sc21 2.2)."""
    found = [simulator.scores(gpus, bandwidth_model="mapa") for gpus in ([0, 1, 4], [0, 2, 3])]
    assert [one.aggregate_bandwidth for one in found] == [87.0, 125.0]
    assert round(found[1].effective_bandwidth, 2) == 57.86
    assert simulator.scores([5]).effective_bandwidth is None


MISTAKES = [
    (lambda s: s.place({"gpus": 9}), "9 GPUs requested: dgx1-v100 has 8"),
    (lambda s: s.place({"gpus": 1}, busy=[8]), "busy: '8' is no GPU of dgx1-v100, which has"),
    (lambda s: s.place({"gpus": 1}, "best"), "unknown policy 'best'"),
    (lambda s: s.scores([0, 0]), "gpus: [0, 0] are not one GPU or several different ones"),
    (lambda s: s.scores([]), "gpus: [] are not one GPU or several different ones"),
    (lambda s: s.scores([0, 1], bandwidth_model="measured"), "unknown bandwidth model 'measured'"),
    (lambda s: s.read_trace({"job": []}), "trace: there is no job in it"),
    (
        lambda s: s.read_trace({"job": [PAIR, {"gpus": 0, "duration_s": 1.0}]}),
        "trace: job 1: gpus: 0 GPUs requested: at least 1 is needed",
    ),
    (
        lambda s: s.read_trace({"job": [{"name": "x", "gpus": 1}]}),
        "trace: job 0: job 'x': nobody says its duration_s",
    ),
    (
        lambda s: s.replay(s.read_trace({"job": [{"gpus": 9, "duration_s": 1.0}]})),
        "job 0 (job) can never run: 9 GPUs requested: dgx1-v100 has 8",
    ),
    (
        lambda s: s.replay(s.read_trace({"job": [PAIR]}), time_models=["fixed"]),
        "unknown time model 'fixed'",
    ),
    (
        lambda s: s.replay(s.read_trace({"job": [PAIR]}), machines=0),
        "0 machines requested: at least 1 is needed",
    ),
    (lambda _: gpulaunch.generate_trace("bursts"), "unknown generator 'bursts'"),
    (lambda _: gpulaunch.Simulator("dgx9"), "unknown topology 'dgx9'"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes(simulator: gpulaunch.Simulator, call, message: str) -> None:
    """What can never be is a UsageError that names it."""
    with pytest.raises(gpulaunch.UsageError) as problem:
        call(simulator)
    assert problem.value.message.startswith(message)


def test_too_few_gpus_are_left(simulator: gpulaunch.Simulator) -> None:
    """A job that would fit on the idle machine would have to wait."""
    with pytest.raises(gpulaunch.WouldWaitError, match="3 GPUs requested: 2 of 8 are free"):
        simulator.place({"gpus": 3}, busy=range(6))
