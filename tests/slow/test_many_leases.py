"""Leases by the thousand with random kills, watched from outside (many_leases.py).

python tests/slow/many_leases.py --leases N takes more.
"""

import json
import os
import subprocess
import sys
import threading
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
    """Who waits for a flock until its owner lets go of it notes that the GPU has two owners."""
    other, beside = (many_leases.Flocks(tmp_path) for _ in range(2))
    other.take((2, 3))
    waiter = threading.Thread(target=beside.take, args=((3,),))
    waiter.start()
    until(lambda: waits_for_the_lock(os.getpid()))
    other.let_go()
    waiter.join()
    assert (tmp_path / "overlaps").read_text() == "GPU 3\n"
