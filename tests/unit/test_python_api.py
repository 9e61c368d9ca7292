"""The public Python API: what it names, what examples/ import of it, and the simulator."""

import ast
from pathlib import Path

import pytest

import gpulaunch

ROOT = Path(__file__).parents[2]

PAIR = {"name": "pair", "gpus": 2, "pattern": "ring", "duration_s": 30.0}
NO_GPU = {"gpus": 0, "duration_s": 1.0}


@pytest.fixture(scope="module")
def simulator() -> gpulaunch.Simulator:
    return gpulaunch.Simulator("dgx1-v100")


def test_the_repositorys_examples_use_what_is_public() -> None:
    """The programs in examples/ import nothing of gpulaunch but its public names."""
    for path in (ROOT / "examples").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
                assert not any(name.startswith("gpulaunch.") for name in imported), path
            elif isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("gpulaunch"), path
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gpulaunch":
                assert node.attr in gpulaunch.__all__, path


def test_scores_of_the_paper(simulator: gpulaunch.Simulator) -> None:
    """On a DGX-1 V100 GPUs 0, 1 and 4 have 87 GB/s of links, the best three 125 (mapa-sc21 2.2)."""
    found = [simulator.scores(gpus, bandwidth_model="mapa") for gpus in ([0, 1, 4], [0, 2, 3])]
    assert [one.aggregate_bandwidth for one in found] == [87.0, 125.0]
    assert round(found[1].effective_bandwidth, 2) == 57.86
    assert simulator.scores([5]).effective_bandwidth is None


MISTAKES = {
    "unknown queue 'lifo'": lambda s: s.replay(s.read_trace({"job": [PAIR]}), queue="lifo"),
    "busy: '8' is no GPU of dgx1-v100, which has": lambda s: s.place({"gpus": 1}, busy=[8]),
    "gpus: [0, 0] are not one GPU or several different ones": lambda s: s.scores([0, 0]),
    "trace: job 1: gpus: 0 GPUs requested": lambda s: s.read_trace({"job": [PAIR, NO_GPU]}),
    "trace: job 0: job 'x': nobody says": lambda s: s.read_trace({"job": [{"name": "x"}]}),
    "job 0 (job) can never run: 9 GPUs requested: dgx1-v100 has 8": lambda s: s.replay(
        s.read_trace({"job": [{"gpus": 9, "duration_s": 1.0}]})
    ),
    "0 machines requested": lambda s: s.replay(s.read_trace({"job": [PAIR]}), machines=0),
    "unknown generator 'bursts'": lambda _: gpulaunch.generate_trace("bursts"),
}


@pytest.mark.parametrize(("message", "call"), MISTAKES.items(), ids=MISTAKES)
def test_mistakes(simulator: gpulaunch.Simulator, message: str, call) -> None:
    """What can never be is a UsageError that names it."""
    with pytest.raises(gpulaunch.UsageError) as problem:
        call(simulator)
    assert problem.value.message.startswith(message)


def test_too_few_gpus_are_left(simulator: gpulaunch.Simulator) -> None:
    """A job that would fit on the idle machine would have to wait."""
    with pytest.raises(gpulaunch.WouldWaitError, match="3 GPUs requested: 2 of 8 are free"):
        simulator.place({"gpus": 3}, busy=range(6))
