"""Leases by the thousand with random kills, watched from outside (many_leases.py), and the queue.

python tests/slow/many_leases.py --leases N takes more.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import gpu_flocks
import many_leases
import pytest
from conftest import DGX, Launcher, held, until

LONG = pytest.mark.long
NOTHING = {"overlaps": 0, "lost": 0, "wrong": 0}


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=LONG)])
def test_leases_through_the_api(count: int) -> None:
    """While processes take and release leases and SIGKILL hits some of them, in the queue, on the
    way and as owners, no GPU has two owners, and afterwards none is lost.
    """
    done = subprocess.run(
        [sys.executable, many_leases.__file__, "--json", f"--leases={count}"],
        capture_output=True,
        text=True,
        check=False,
    )
    row = json.loads(done.stdout)
    assert {name: row[name] for name in NOTHING} == NOTHING, done.stderr
    assert row["leases"] >= count
    assert row["kills"] > count / 20
    assert row["kills of owners"] > count / 200


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=LONG)])
def test_served_in_order(launcher: Launcher, tmp_path: Path, count: int) -> None:
    """Whole-machine jobs that joined the queue one after the other run in that order, but for those
    whose launchers are killed in the queue, which do not run.
    """
    log = tmp_path / "log"
    waiting: list[subprocess.Popen[str]] = []
    with held(launcher, *DGX, "-n", "all"):
        for number in range(count):
            script = ("--", "sh", "-c", f"echo {number} >> {log}")
            waiting.append(launcher.start(*DGX, "-n", "all", "--wait", *script))
            while len(queue(launcher)) <= number:
                assert waiting[-1].poll() is None, waiting[-1].stderr.read()
        assert queue(launcher) == [process.pid for process in waiting]
        for process in waiting[::5]:
            process.kill()
            process.wait()
    statuses = []
    for process in waiting:
        with process:
            process.communicate()
        statuses.append(process.returncode)
    assert statuses == [0 if number % 5 else -signal.SIGKILL for number in range(count)]
    assert log.read_text().split() == [str(number) for number in range(count) if number % 5]


def queue(launcher: Launcher) -> list[int]:
    """Return the pids of the launchers that wait, in the queue's order."""
    return [
        one["pid"] for one in json.loads(launcher.run("status", *DGX, "--json").stdout)["queue"]
    ]


def test_an_overlap_is_seen(tmp_path: Path) -> None:
    """The flocks tell who takes a GPU while another owner lives, and nobody else."""
    mine, theirs = (gpu_flocks.Flocks(str(tmp_path)) for _ in range(2))
    other = multiprocessing.get_context("fork").Process(target=own, args=(theirs,))
    other.start()
    until((tmp_path / "owns").exists)
    mine.take((2, 3))
    other.kill()
    other.join()
    mine.let_go()
    mine.take((2, 3))
    assert (tmp_path / "overlaps").read_text() == f"GPU 3: pid {os.getpid()}\n"


def own(flocks: gpu_flocks.Flocks) -> None:
    """Own GPU 3 to the end of the process."""
    flocks.take((3,))
    Path(flocks.directory, "owns").touch()
    signal.pause()
