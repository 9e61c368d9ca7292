"""Launches, leases and hand-overs, beside flock(1) in one run.

Run: python tests/bench/beside.py [--rows ROW,...]

Launches by one or by eight processes at a time want one GPU of eight; flock has one lock for all.
Leases through the Python API stand beside flock(2) in Python. Waiters want the whole machine, or
the lock. A hand-over is the time from the end of a job to the start of the next, both of which are
`date`. --rows takes some of: rate, api, hand-over. Settings in the environment count, such as
GPULAUNCH_QUEUE=fifo.
"""

import argparse
import fcntl
import multiprocessing
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import gpulaunch

GPULAUNCH = str(Path(sysconfig.get_path("scripts")) / "gpulaunch")
MACHINE = "dgx1-v100"
BATCH = 16
"""Waiters that are started at a time."""

Rows = Iterator[tuple[str, list[str]]]


class Contender(NamedTuple):
    """What is compared.

    Attributes:
        one_of_many: how a launch begins that runs beside others.
        alone: how one does that has all, and waits for it.
        queued: returns how many wait.
    """

    one_of_many: list[str]
    alone: list[str]
    queued: Callable[[], int]


def contenders_in(home: Path) -> list[Contender]:
    """Return gpulaunch on a described machine, and flock(1) on a file."""
    launch = [GPULAUNCH, "--topology", MACHINE, "--wait", "-q", "-n"]
    lock = home / "lock"
    lock.touch()
    flock = ["flock", str(lock)]

    def tickets() -> int:
        return sum(name.startswith("gpulaunch.ticket.") for name in os.listdir(home))

    def waiting() -> int:
        lines = [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
        return sum(f":{lock.stat().st_ino} " in line for line in lines)

    return [
        Contender([*launch, "1", "--"], [*launch, "all", "--"], tickets),
        Contender(flock, flock, waiting),
    ]


def run(command: list[str]) -> None:
    """Run a command that must succeed."""
    pid = os.posix_spawnp(command[0], command, os.environ)
    if status := os.waitpid(pid, 0)[1]:
        sys.exit(f"{command}: wait status {status}")


def per_second(pair: Callable[[], object], processes: int, seconds: float) -> float:
    """Return the pairs per second of all processes together, once each has made one."""
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(processes)
    counts = fork.Array("q", processes)

    def work(own: int) -> None:
        pair()
        barrier.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pair()
            counts[own] += 1

    workers = [fork.Process(target=work, args=(own,)) for own in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds


def launch_rates(contenders: list[Contender]) -> Rows:
    """Yield launches per second."""
    for processes in (1, 8):
        pairs = [partial(run, [*contender.one_of_many, "true"]) for contender in contenders]
        rates = [per_second(pair, processes, 5.0) for pair in pairs]
        yield f"launches/s, {processes} at a time", [f"{rate:.1f}" for rate in rates]


def api_rates(_: list[Contender]) -> Rows:
    """Yield pairs per second of taking and giving back."""

    def allocate() -> None:
        gpulaunch.allocate(1, topology=MACHINE, wait=True).release()

    def flock() -> None:
        fd = os.open(os.environ["GPULAUNCH_STATE_DIR"], os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    for processes in (1, 8):
        rates = [per_second(pair, processes, 5.0) for pair in (allocate, flock)]
        yield f"API: pairs/s, {processes} at a time", [f"{rate:.0f}" for rate in rates]


def hand_overs_of(contender: Contender, waiters: int) -> list[float]:
    """Return the milliseconds of each hand-over in a queue."""
    with tempfile.TemporaryDirectory() as directory, tempfile.NamedTemporaryFile("ab") as log:
        gate = Path(directory, "gate")
        os.mkfifo(gate)
        script = ["sh", "-c", f"read line <{gate}; exec date +%s%N"]
        jobs = [subprocess.Popen([*contender.alone, *script], stdout=log)]
        with gate.open("wb", buffering=0) as word:  # opens when the job does
            while len(jobs) <= waiters:
                launch = [*contender.alone, "date", "+%s%N"]
                more = min(BATCH, waiters + 1 - len(jobs))
                jobs += [subprocess.Popen(launch, stdout=log) for _ in range(more)]
                while contender.queued() < len(jobs) - 1:
                    time.sleep(0.01)
            word.write(b"\n")
        for job in jobs:
            if job.wait():
                sys.exit(f"{job.args}: exit status {job.returncode}")
        times = sorted(map(int, Path(log.name).read_text().split()))
        return [(end - begin) / 1e6 for begin, end in pairwise(times)]


def hand_overs(contenders: list[Contender]) -> Rows:
    """Yield how long hand-overs take."""
    for waiters in (1, 64, 500):
        cells = []
        for contender in contenders:
            runs = [hand_overs_of(contender, waiters) for _ in range(-(-20 // waiters))]
            gaps = [gap for gaps in runs for gap in gaps]
            cells.append(f"{statistics.median(gaps):.1f} / {max(gaps):.1f}")
        yield f"hand-over, {waiters} waiting, median / max, ms", cells


ROWS = {"rate": launch_rates, "api": api_rates, "hand-over": hand_overs}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), metavar="ROW,...")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["GPULAUNCH_STATE_DIR"] = home
        # else every launch compiles the package anew
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        contenders = contenders_in(Path(home))
        print(f"| load {os.getloadavg()[0]:.1f} | gpulaunch | flock |\n|---|---|---|")
        for name in options.rows.split(","):
            for title, cells in ROWS[name](contenders):
                print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
