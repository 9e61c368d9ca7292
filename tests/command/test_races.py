"""Launches that want GPUs at the same moment: a lost race sends nobody away while GPUs are free."""

import subprocess
import sys

import pytest
from conftest import Launcher

import gpulaunch

MACHINE = "dgx1-v100"


@pytest.mark.parametrize(("machine", "gpus", "launches"), [("nvl72", 8, 9), (MACHINE, 1, 8)])
def test_all_that_fit_start_at_once(
    launcher: Launcher, machine: str, gpus: int, launches: int
) -> None:
    """Launches that fit together all get their GPUs, none twice, though all choose the same."""
    script = 'echo "$CUDA_VISIBLE_DEVICES"; read line'
    words = ("--topology", machine, "-n", str(gpus), "--", "sh", "-c", script)
    crowd = [launcher.start(*words, stdin=subprocess.PIPE) for _ in range(launches)]
    taken = [one.stdout.readline().strip() for one in crowd]
    said = [one.communicate("\n")[1] for one in crowd]
    assert [one.returncode for one in crowd] == [0] * launches, said
    indices = [index for line in taken for index in line.split(",")]
    assert len(indices) == len(set(indices)) == gpus * launches


def test_workers_that_fit_never_queue(launcher: Launcher, caplog: pytest.LogCaptureFixture) -> None:
    """Eight workers that want one of eight GPUs each never find all of them in use."""
    caplog.set_level("INFO", "gpulaunch")

    def work() -> int:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(25):
            gpulaunch.allocate(1, topology=MACHINE, wait=True).release()
        print(caplog.messages)
        return 0

    workers = [launcher.call(work, stdin=subprocess.PIPE) for _ in range(8)]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 8
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    assert [worker.communicate()[0] for worker in workers] == ["[]\n"] * 8
