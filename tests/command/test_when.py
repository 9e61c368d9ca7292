"""Predicted starts on the command line."""

import json
import os
import pty
import signal
from datetime import datetime, timezone

from conftest import DGX, Launcher, complaint, held

from gpulaunch.process.system import parse_time

ALL = (*DGX, "-n", "all")


def test_when(launcher: Launcher) -> None:
    """--when says now, a range, or (2) that it can never be, and takes nothing."""
    assert launcher.run(*DGX, "--when", "-n", "4").stdout == "now\n"
    never = launcher.run(*DGX, "--when", "-n", "9")
    assert (never.returncode, never.stdout) == (2, "")
    assert never.stderr == complaint("9 GPUs requested: dgx1-v100 has 8")
    with held(launcher, *ALL, "--time-limit", "10m"):
        done = launcher.run(*DGX, "--when", "-n", "4", "-p", "vgg16")
        assert (done.returncode, done.stderr) == (0, "")
        start, _, reason = done.stdout.partition(": ")
        assert start.startswith(("probably in ", "probably within "))
        assert reason == "4 GPUs requested: 0 of 8 are free, 8 are leased\n"
        document = json.loads(launcher.run(*DGX, "--when", "-n", "4", "--json").stdout)
        assert document["decision"] == "wait"
        until_limit = parse_time(document["predicted_start"]["to"]) - datetime.now(timezone.utc)
        assert 0 < until_limit.total_seconds() < 600
    assert launcher.records() == []


def test_those_who_wait_are_told(launcher: Launcher) -> None:
    """The waiter's line has a range at a terminal, and status --json has its times."""
    with held(launcher, *ALL):
        ours, theirs = pty.openpty()
        waiter = launcher.start(*DGX, "--wait", "--", "true", stderr=theirs)
        os.close(theirs)
        with open(ours) as terminal:
            line = terminal.readline()
        assert "waiting as number 1 in the queue: 1 GPU requested: 0 of 8 are free" in line
        assert "; starts probably " in line
        (entry,) = json.loads(launcher.run("status", *DGX, "--json").stdout)["queue"]
        start = entry["predicted_start"]
        assert parse_time(start["from"]) < parse_time(start["to"])
        waiter.send_signal(signal.SIGTERM)
        waiter.communicate()
