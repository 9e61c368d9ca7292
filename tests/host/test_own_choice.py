"""A real launcher that sets CUDA_VISIBLE_DEVICES, and so leads its job out of its lease."""

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
    not (TORCH / "python").exists(), reason="no submitit: .ci/torch brings it"
)

# What it sees, in a file, and then its work until it may end.
WORK = """\
import json, os, sys
import submitit

def work(place):
    with open(f"{place}/new", "w") as file:
        json.dump([os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]], file)
    os.rename(f"{place}/new", f"{place}/seen")
    open(f"{place}/go").close()  # a FIFO, which the test opens at the end

executor = submitit.LocalExecutor(f"{sys.argv[1]}/log")
executor.update_parameters(gpus_per_node=2, timeout_min=10)
executor.submit(work, sys.argv[1]).result()
"""


@contextmanager
def at_work(launcher: Launcher, place: Path, *command: str) -> Iterator[tuple[int, str]]:
    """Launch a job, its complaints in a file; yield the process's pid and what it sees."""
    os.mkfifo(place / "go")
    with (
        (place / "stderr").open("w") as stderr,
        launcher.start(*command, str(place), stderr=stderr) as process,
    ):
        until(lambda: (place / "seen").exists() or process.poll() is not None)
        assert (place / "seen").exists(), (place / "stderr").read_text()
        try:
            yield json.loads((place / "seen").read_text())
        finally:
            go = os.open(place / "go", os.O_RDWR)  # all that wait for a writer go on
            process.wait()
            os.close(go)


def test_submitit(launcher: Launcher, dgx1_v100: FakeNvml, tmp_path: Path) -> None:
    """The local executor of submitit counts from 0 in any lease: the job is told of, as a stray."""
    launcher.environment["GPULAUNCH_IDLE_AFTER"] = "1s"
    script = tmp_path / "train.py"
    script.write_text(WORK)
    command = ("--only", "3,5", "-n", "2", "--name", "trial", "--", str(TORCH / "python"))
    with at_work(launcher, tmp_path, *command, str(script)) as (pid, visible):
        dgx1_v100.add(*(f"process {gpu} {pid} 300" for gpu in visible.split(",")))
        until(lambda: "\n" in (tmp_path / "stderr").read_text())
        gpus = json.loads(launcher.run("status", "--json").stdout)["gpus"]
    found = {gpu["index"]: [one["pid"] for one in gpu["strays"]] for gpu in gpus if gpu["strays"]}
    assert (visible, found) == ("0,1", {0: [pid], 1: [pid]})
    first, last = (tmp_path / "stderr").read_text().splitlines()
    assert first.startswith("gpulaunch: warning: job trial computes on GPU")
    assert last.startswith("gpulaunch: warning: the job computed on GPU")
