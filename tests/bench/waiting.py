"""The time from the end of a job to the start of the next in the queue, and the cost of waiting.

Run: python tests/bench/waiting.py [IDLE_SECONDS]
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from itertools import pairwise
from pathlib import Path

GPULAUNCH = str(Path(sysconfig.get_path("scripts")) / "gpulaunch")
LENGTHS = (1, 10, 100)
ALL = ("--topology", "dgx1-v100", "-n", "all", "--wait", "-q")


def launch(environment: dict[str, str], *command: str, **options) -> subprocess.Popen:
    """Start a launcher that wants the whole machine."""
    return subprocess.Popen([GPULAUNCH, *ALL, "--", *command], env=environment, **options)


def await_tickets(state: Path, count: int) -> None:
    """Return when so many wait."""
    while sum(name.startswith("gpulaunch.ticket.") for name in os.listdir(state)) < count:
        time.sleep(0.01)


def hand_overs(waiters: int) -> tuple[list[float], float]:
    """Return the milliseconds from a job's end to the next one's start, and each one's CPU time.

    The job is `date`: what it prints is both its start and, but for its own exit, its end.
    """
    with tempfile.TemporaryDirectory() as directory:
        state, log = Path(directory, "state"), Path(directory, "log")
        state.mkdir()
        environment = os.environ | {"GPULAUNCH_STATE_DIR": str(state)}
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # else every launch compiles the package anew
        holder = launch(
            environment, "sh", "-c", f"read line; date +%s%N >>{log}", stdin=subprocess.PIPE
        )
        await_tickets_or_lease(state)
        queue = []
        for place in range(1, waiters + 1):
            queue.append(launch(environment, "sh", "-c", f"date +%s%N >>{log}"))
            await_tickets(state, place)
        before_s = sum(cpu_s(process.pid) for process in (holder, *queue))
        children = os.times()
        holder.communicate(b"\n")
        for waiter in queue:
            waiter.wait()
        after = os.times()
        # children's time is counted when they end: all that they used, less what they had used
        # before
        used_s = (
            after.children_user
            - children.children_user
            + after.children_system
            - children.children_system
        )
        times = [int(line) for line in log.read_text().split()]
    gaps = [(end - begin) / 1e6 for begin, end in pairwise(times)]
    return gaps, 1000 * (used_s - before_s) / waiters


def await_tickets_or_lease(state: Path) -> None:
    """Return when somebody has the machine."""
    while not os.listdir(state):
        time.sleep(0.01)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def idle(seconds: float) -> list[tuple[str, float, int]]:
    """Return the CPU seconds and KiB that the first two of a queue take while they wait."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {"GPULAUNCH_STATE_DIR": directory}
        holder = launch(environment, "sh", "-c", "read line", stdin=subprocess.PIPE)
        await_tickets_or_lease(Path(directory))
        waiters = {}
        for place, name in enumerate(("the first in the queue", "the second"), 1):
            waiters[name] = launch(environment, "true")
            await_tickets(Path(directory), place)
        time.sleep(1)  # they have looked, and sleep
        before = {name: cpu_s(waiter.pid) for name, waiter in waiters.items()}
        time.sleep(seconds)
        rows = []
        for name, waiter in waiters.items():
            status = Path(f"/proc/{waiter.pid}/status").read_text()
            resident = next(
                int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")
            )
            rows.append((name, cpu_s(waiter.pid) - before[name], resident))
        holder.communicate(b"\n")
        for waiter in waiters.values():
            waiter.wait()
    return rows


def main() -> None:
    """Print the tables."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    print(
        "end of a job to start of the next, ms               median    min    max   CPU ms a "
        "hand-over"
    )
    for waiters in LENGTHS:
        runs = [hand_overs(waiters) for _ in range(max(1, 20 // waiters))]
        gaps = [gap for run, _ in runs for gap in run]
        cpu_ms = statistics.median(used for _, used in runs)
        print(
            f"{waiters:4} waiting, {len(gaps):3} hand-overs {statistics.median(gaps):29.1f}", end=""
        )
        print(f" {min(gaps):6.1f} {max(gaps):6.1f} {cpu_ms:14.1f}")
    print(f"idle for {seconds:g} s")
    for name, used_s, resident in idle(seconds):
        print(f"{name:24} {used_s:6.4f} s of CPU, {resident / 1024:5.1f} MiB resident")


if __name__ == "__main__":
    main()
