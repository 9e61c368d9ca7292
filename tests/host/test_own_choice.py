"""Real launchers that set CUDA_VISIBLE_DEVICES, and so lead their job out of its lease."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Launcher, until
from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

_BUILT = Path(__file__).parents[2] / "build" / "torch" / "venv" / "bin"
TORCH = Path(os.environ.get("GPULAUNCH_TEST_TORCH") or _BUILT)
pytestmark = pytest.mark.skipif(
    not (TORCH / "deepspeed").exists(), reason="no submitit and no DeepSpeed: .ci/torch brings them"
)

# Each process of a job: what it sees, in a file of its own, and then its work until it may end.
WORK = """\
import json, os

def work(place):
    rank = int(os.environ.get("LOCAL_RANK", 0))
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    with open(f"{place}/{rank}.new", "w") as file:
        json.dump([os.getpid(), visible], file)
    os.rename(f"{place}/{rank}.new", f"{place}/{rank}.json")
    open(f"{place}/go").close()  # a FIFO, which the test opens at the end
"""
BY_SUBMITIT = """\
import sys
import submitit

executor = submitit.LocalExecutor(f"{sys.argv[1]}/log")
executor.update_parameters(gpus_per_node=2, timeout_min=10)
executor.submit(work, sys.argv[1]).result()
"""
BY_DEEPSPEED = """\
import sys
work(sys.argv[-1])
"""


@contextmanager
def at_work(
    launcher: Launcher, place: Path, count: int, *command: str
) -> Iterator[dict[int, tuple[int, str]]]:
    """Launch a job, its complaints in a file; yield by rank each process's pid and what it sees."""
    os.mkfifo(place / "go")
    with (
        (place / "stderr").open("w") as stderr,
        launcher.start(*command, str(place), stderr=stderr) as process,
    ):
        until(lambda: len(list(place.glob("*.json"))) == count or process.poll() is not None)
        found = {int(file.stem): json.loads(file.read_text()) for file in place.glob("*.json")}
        assert len(found) == count, (place / "stderr").read_text()
        try:
            yield found
        finally:
            go = os.open(place / "go", os.O_RDWR)  # all that wait for a writer go on
            process.wait()
            os.close(go)


def strays(launcher: Launcher) -> dict[int, list[int]]:
    """Return the pids of strays on each GPU that has any."""
    gpus = json.loads(launcher.run("status", "--json").stdout)["gpus"]
    return {gpu["index"]: [one["pid"] for one in gpu["strays"]] for gpu in gpus if gpu["strays"]}


def test_submitit(launcher: Launcher, dgx1_v100: FakeNvml, tmp_path: Path) -> None:
    """The local executor of submitit counts from 0 in any lease: the job is told of, as a stray."""
    launcher.environment["GPULAUNCH_IDLE_AFTER"] = "1s"
    script = tmp_path / "train.py"
    script.write_text(WORK + BY_SUBMITIT)
    command = ("--only", "3,5", "-n", "2", "--name", "trial", "--", str(TORCH / "python"))
    with at_work(launcher, tmp_path, 1, *command, str(script)) as seen:
        pid, visible = seen[0]
        dgx1_v100.add(*(f"process {gpu} {pid} 300" for gpu in visible.split(",")))
        until(lambda: "\n" in (tmp_path / "stderr").read_text())
        found = strays(launcher)
    assert (visible, found) == ("0,1", {0: [pid], 1: [pid]})
    first, last = (tmp_path / "stderr").read_text().splitlines()
    assert first.startswith("gpulaunch: warning: job trial computes on GPU")
    assert last.startswith("gpulaunch: warning: the job computed on GPU")


def test_deepspeed(launcher: Launcher, dgx1_v100: FakeNvml, tmp_path: Path) -> None:
    """DeepSpeed counts from 0 with --num_gpus, which is warned of; who has strayed is told of."""
    script = tmp_path / "train.py"
    script.write_text(WORK + BY_DEEPSPEED)
    job = (str(TORCH / "deepspeed"), "--num_gpus", "2", str(script))
    options = ("--only", "0,3", "-n", "2", "--name", "ds")
    with at_work(launcher, tmp_path, 2, *options, "--", *job) as seen:
        for rank, (pid, visible) in seen.items():
            dgx1_v100.add(f"process {visible.split(',')[rank]} {pid} 300")
        found = strays(launcher)
    assert (seen[0][1], found) == ("0,1", {1: [seen[1][0]]})
    told = (tmp_path / "stderr").read_text()
    assert told.startswith("gpulaunch: warning: deepspeed chooses GPUs by --num_gpus")
