"""Leases by the thousand with random kills, watched from outside (many_leases.py).

python tests/slow/many_leases.py --leases N takes more.
"""

import json
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import many_leases
import pytest
from conftest import until
from test_api import waits_for_the_lock

NOTHING = {"overlaps": 0, "lost": 0, "wrong": 0}


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=pytest.mark.long)])
def test_leases_through_the_api(count: int) -> None:
    """While processes take and release leases and SIGKILL hits some of them, in the queue, on the
    way and as owners, no GPU has two owners, and afterwards none is lost.
    """
    done = subprocess.run(
        [sys.executable, many_leases.__file__, f"--leases={count}"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert {name: found[name] for name in NOTHING} == NOTHING, done.stderr
    assert found["leases"] >= count
    assert found["kills"] > count / 20
    assert found["kills of owners"] > count / 200


def test_an_overlap_is_seen(tmp_path: Path) -> None:
    """Who has a flock that another one lets go of is told of it; of one that is killed, nobody."""
    mine, other = (many_leases.Flocks(tmp_path) for _ in range(2))
    owner = taking(mine, then=signal.pause)
    until(lambda: (tmp_path / "gpu-3").exists() and has_a_flock(owner.pid))
    owner.kill()
    other.take((2, 3))
    beside = taking(mine)
    until(lambda: waits_for_the_lock(beside.pid))
    other.let_go()
    beside.join()
    owner.join()
    assert (tmp_path / "overlaps").read_text() == "GPU 3\n"


def taking(flocks: many_leases.Flocks, then: Callable[[], object] = int) -> multiprocessing.Process:
    """Start a process that takes the flock of GPU 3, and then does something."""

    def take() -> None:
        flocks.take((3,))
        then()

    process = multiprocessing.get_context("fork").Process(target=take)
    process.start()
    return process


def has_a_flock(pid: int) -> bool:
    """Return whether a process has some flock."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any(f"FLOCK  ADVISORY  WRITE {pid} " in line and "->" not in line for line in lines)
