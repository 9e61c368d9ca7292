"""Many detached jobs, and kills of everything around them in turn."""

import json
import os
import signal
from pathlib import Path

import pytest
from conftest import DGX, Launcher, companion_of, until, wait_for_end

KILLED = (
    *("nothing", "launcher", "job", "companion", "follower"),
    *("launcher and companion", "launcher and job"),
)
LINES = 400


def history(home: Path) -> dict[str, dict]:
    """Return the lines of the history, by name."""
    (path,) = home.glob(".local/state/gpulaunch/history/*.jsonl")
    return {line["name"]: line for line in map(json.loads, path.read_text().splitlines())}


def crowd(launcher: Launcher, home: Path, count: int) -> None:
    """Run detached jobs, kill something of each, and compare what is known with what happened."""
    for number in range(count):
        os.mkfifo(home / f"j{number}")
        script = f"echo $$; read line <j{number}; seq {LINES}; exit 7"
        options = ("-qd", *DGX, "-n", "1", "--name", f"j{number}")
        done = launcher.run(*options, "--", "sh", "-c", script, cwd=home)
        assert (done.returncode, done.stdout) == (0, f"j{number}\n"), done.stderr
    want = {}
    for first in range(0, count, 8):  # the machine has so many GPUs, and they start in order
        names = [f"j{number}" for number in range(first, min(first + 8, count))]
        logs = {}
        for name in names:
            (logs[name],) = home.glob(f".local/state/gpulaunch/logs/{name}-*.log")
            until(lambda log=logs[name]: log.read_text().endswith("\n"))
        for name in names:
            kind = KILLED[int(name[1:]) % len(KILLED)]
            pid = int(logs[name].read_text().split()[0])
            victim = history(home)[name]["launcher"][0]
            follower = launcher.start("logs", "-f", name)
            assert follower.stdout.readline() == f"{pid}\n"
            companion = companion_of(launcher, victim)
            victims = {
                "nothing": [],
                "launcher": [victim],
                "job": [pid],
                "companion": [companion],
                "follower": [follower.pid],
                "launcher and companion": [companion, victim],
                "launcher and job": [victim, pid],
            }[kind]
            for one in victims:
                os.kill(one, signal.SIGKILL)
            if kind not in ("job", "launcher and companion", "launcher and job"):
                (home / name).write_text("go\n")
            if kind == "launcher and companion":  # its job alone holds the lease now
                os.kill(pid, signal.SIGTERM)
            printed = "".join(f"{n}\n" for n in range(1, LINES + 1))
            want[name] = {
                "job": (137, ""),
                "launcher": (125, printed),
                "launcher and companion": (125, ""),
                "launcher and job": (125, ""),
            }.get(kind, (7, printed))
            assert launcher.run("wait", name).returncode == want[name][0], kind
            wait_for_end(pid)
            assert logs[name].read_text() == f"{pid}\n{want[name][1]}", kind
            follower.communicate()
    known = {name: line.get("exit_status", 125) for name, line in history(home).items()}
    assert known == {name: status for name, (status, _) in want.items()}
    until(lambda: json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"] == [])
    assert launcher.run(*DGX, "-n", "8", "--", "true").returncode == 0


def test_a_crowd_of_detached_jobs(launcher: Launcher, tmp_path: Path) -> None:
    """No output, no status and no GPU is lost; where the launcher was killed, that is said."""
    crowd(launcher, tmp_path, 14)


@pytest.mark.long
def test_a_hundred_detached_jobs(launcher: Launcher, tmp_path: Path) -> None:
    """The same with a hundred."""
    crowd(launcher, tmp_path, 100)
