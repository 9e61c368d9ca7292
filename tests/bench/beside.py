"""Launches, leases, hand-overs and waiting, beside flock(1) and task-spooler's tsp in one run.

Run: python tests/bench/beside.py [--rows ROW,...] [--waiters N,...] [--quick]
         [--launch-option OPTION]...

What is not installed has no column. Launches one after the other, or by eight processes at a time,
want one GPU of eight; flock has one lock for all, tsp eight slots. Leases through the Python API
stand beside flock(2) in Python. Waiters want the whole machine, the lock, or the only slot. A
hand-over is the time from the end of a job to the start of the next, both of which are `date`, less
the time that a shell takes from one `date` to the next. The CPU and memory of tsp's server are left
out. --rows takes some of: one, rate, api, hand-over, idle.
--launch-option is passed on to gpulaunch, such as --launch-option=--time-limit=1h; so are settings
in the environment, such as GPULAUNCH_QUEUE=backfill.
"""

import argparse
import fcntl
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import gpulaunch

GPULAUNCH = str(Path(sysconfig.get_path("scripts")) / "gpulaunch")
MACHINE = "dgx1-v100"
SLOTS = 8
PROCESSES = (1, 8, 32)
WAITERS = (1, 64, 500)
BATCH = 16
"""Waiters that are started at a time."""


class Scale(NamedTuple):
    """How long all is measured.

    Attributes:
        runs: of one launch.
        seconds: of each rate.
        waiters: lengths of the queue.
        hand_overs: the fewest of a length.
        idle: lengths of a queue that idles.
        idle_s: for so long.
    """

    runs: int = 50
    seconds: float = 5.0
    waiters: tuple[int, ...] = WAITERS
    hand_overs: int = 20
    idle: tuple[int, ...] = (2, 64)
    idle_s: float = 10.0


QUICK = Scale(runs=10, seconds=1.0, waiters=(1, 8), hand_overs=8, idle=(2,), idle_s=2.0)


class Contender(Protocol):
    """A program that puts jobs one after the other.

    Attributes:
        title: of its column.
    """

    title: str

    def one_of_many(self, *command: str) -> list[str]:
        """Return a launch that runs beside others."""

    def alone(self, *command: str) -> list[str]:
        """Return a launch that has all, and waits for it."""

    def queued(self) -> int:
        """Return how many wait."""

    def close(self) -> None:
        """End what has been started."""


class Gpulaunch:
    """gpulaunch on a described machine.

    Args:
        home: an empty directory.
        options: further ones.
    """

    title = "gpulaunch"

    def __init__(self, home: Path, options: list[str]) -> None:
        self._state = home / "state"
        self._state.mkdir()
        self._launch = [GPULAUNCH, "--topology", MACHINE, "--wait", "-q", *options]
        os.environ["GPULAUNCH_STATE_DIR"] = str(self._state)
        # else every launch compiles the package anew
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def one_of_many(self, *command: str) -> list[str]:
        return [*self._launch, "-n", "1", "--", *command]

    def alone(self, *command: str) -> list[str]:
        return [*self._launch, "-n", "all", "--", *command]

    def queued(self) -> int:
        return sum(name.startswith("gpulaunch.ticket.") for name in os.listdir(self._state))

    def close(self) -> None:
        pass


class Flock:
    """flock(1) on a file."""

    title = "flock(1)"

    def __init__(self, home: Path) -> None:
        self._file = home / "lock"
        self._file.touch()

    def one_of_many(self, *command: str) -> list[str]:
        return ["flock", str(self._file), *command]

    alone = one_of_many

    def queued(self) -> int:
        waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
        return sum(f":{self._file.stat().st_ino} " in line for line in waiting)

    def close(self) -> None:
        pass


class TaskSpooler:
    """tsp, whose client is in the foreground and runs the job."""

    title = "tsp"

    def __init__(self, home: Path) -> None:
        os.environ["TS_SOCKET"] = str(home / "tsp")
        self._slots = 0

    def one_of_many(self, *command: str) -> list[str]:
        return self._launch(SLOTS, command)

    def alone(self, *command: str) -> list[str]:
        return self._launch(1, command)

    def queued(self) -> int:
        lines = subprocess.run(["tsp"], stdout=subprocess.PIPE, text=True, check=True).stdout
        return sum(line.split()[1] == "queued" for line in lines.splitlines())

    def close(self) -> None:
        subprocess.run(["tsp", "-K"], check=True)

    def _launch(self, slots: int, command: tuple[str, ...]) -> list[str]:
        if slots != self._slots:
            subprocess.run(["tsp", "-S", str(slots)], check=True)
            self._slots = slots
        return ["tsp", "-nf", *command]


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(0, -int(-len(values) * percent // 100) - 1)]


def spawn(command: list[str]) -> tuple[float, float]:
    """Run a command to its end; return its seconds of wall time and of CPU."""
    begin = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{command}: wait status {status}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime


Rows = Iterator[tuple[str, list[str]]]


def one_launch(contenders: list[Contender], scale: Scale) -> Rows:
    """Yield what one launch takes, in turns."""
    launches = [contender.one_of_many("true") for contender in contenders]
    launches.append([sys.executable, "-c", "pass"])
    runs = [[spawn(launch) for launch in launches] for _ in range(scale.runs + 1)][1:]
    columns = list(zip(*runs, strict=True))
    walls = [[1000 * wall for wall, _ in column] for column in columns]
    cells = [f"{statistics.median(wall):.1f} ({percentile(wall, 90):.1f})" for wall in walls]
    *own, bare = cells
    yield f"one `true`, wall, median (p90), ms; python -c pass: {bare}", own
    cells = [f"{1000 * statistics.mean(cpu for _, cpu in column):.1f}" for column in columns]
    *own, bare = cells
    yield f"CPU of it, ms; python -c pass: {bare}", own


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


def launch_rates(contenders: list[Contender], scale: Scale) -> Rows:
    """Yield launches per second."""
    for processes in PROCESSES[:2]:
        pairs = [partial(spawn, contender.one_of_many("true")) for contender in contenders]
        rates = [per_second(pair, processes, scale.seconds) for pair in pairs]
        yield f"launches/s, {processes} at a time", [f"{rate:.1f}" for rate in rates]


def api_rates(contenders: list[Contender], scale: Scale) -> Rows:
    """Yield pairs per second of taking and giving back."""

    def allocate() -> None:
        gpulaunch.allocate(1, topology=MACHINE, wait=True).release()

    def flock() -> None:
        fd = os.open(os.environ["GPULAUNCH_STATE_DIR"], os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    pairs = {"gpulaunch": allocate, "flock(1)": flock}
    for processes in PROCESSES:
        yield (
            f"API: allocate + release/s (flock(2) in Python), {processes} at a time",
            [
                f"{per_second(pairs[one.title], processes, scale.seconds):.0f}"
                if one.title in pairs
                else "-"
                for one in contenders
            ],
        )


@contextmanager
def queue(contender: Contender, waiters: int, *, stdout: int = subprocess.DEVNULL):
    """Yield jobs that wait behind one that ends with the block, the first in the queue first."""
    with tempfile.TemporaryDirectory() as directory:
        gate = Path(directory, "gate")
        os.mkfifo(gate)
        script = ("sh", "-c", f"read line <{gate}; exec date +%s%N")
        jobs = [subprocess.Popen(contender.alone(*script), stdout=stdout)]
        with gate.open("wb", buffering=0) as word:  # opens when the job does
            while len(jobs) <= waiters:
                left = waiters + 1 - len(jobs)
                # the first two one by one, so that it is known which is which
                for _ in range(min(left, BATCH if len(jobs) > 2 else 1)):
                    launch = contender.alone("date", "+%s%N")
                    jobs.append(subprocess.Popen(launch, stdout=stdout))
                while contender.queued() < len(jobs) - 1:
                    time.sleep(0.01)
            yield jobs
            word.write(b"\n")
        for job in jobs:
            if job.wait():
                sys.exit(f"{job.args}: exit status {job.returncode}")


def processes_of(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for one in found:
        with suppress(FileNotFoundError):
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process and its descendants have used."""
    return sum(
        int(thread.read_text().split()[0]) / 1e9
        for one in processes_of(pid)
        for thread in Path(f"/proc/{one}/task").glob("*/schedstat")
    )


def memory_mib(pid: int) -> float:
    """Return the proportional set size of a process and its descendants."""
    rollups = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in processes_of(pid)]
    return sum(int(rollup.partition("\nPss:")[2].split()[0]) for rollup in rollups) / 1024


def children_s() -> float:
    """Return the CPU seconds of all children that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def stamps(path: Path) -> list[float]:
    """Return the milliseconds between the times that jobs have written, in the order of time."""
    times = sorted(map(int, path.read_text().split()))
    return [(end - begin) / 1e6 for begin, end in pairwise(times)]


def hand_overs_of(contender: Contender, waiters: int) -> tuple[list[float], float]:
    """Return the milliseconds of each hand-over, and the CPU milliseconds of one.

    Children's time is counted when they end: all that they used, less what they had used before.
    """
    with tempfile.NamedTemporaryFile("ab") as log:
        with queue(contender, waiters, stdout=log.fileno()) as jobs:
            begin_s = children_s() + sum(cpu_s(job.pid) for job in jobs)
        used_s = children_s() - begin_s
        return stamps(Path(log.name)), 1000 * used_s / waiters


def hand_overs(contenders: list[Contender], scale: Scale) -> Rows:
    """Yield how long hand-overs take."""
    with tempfile.NamedTemporaryFile("ab") as log:
        script = "for i in $(seq 50); do date +%s%N; done"
        subprocess.run(["sh", "-c", script], stdout=log, check=True)
        start_ms = statistics.median(stamps(Path(log.name)))
    for waiters in scale.waiters:
        cells, cpu = [], []
        for contender in contenders:
            repeats = range(-(-scale.hand_overs // waiters))
            runs = [hand_overs_of(contender, waiters) for _ in repeats]
            gaps = [max(0.0, gap - start_ms) for run, _ in runs for gap in run]
            worst = (statistics.median(gaps), percentile(gaps, 95), max(gaps))
            cells.append(" / ".join(f"{gap:.1f}" for gap in worst))
            cpu.append(f"{statistics.median(used for _, used in runs):.1f}")
        yield f"hand-over, {waiters} waiting, median / p95 / max, ms", cells
        yield "CPU of a hand-over, ms", cpu


def idle_waiters(contenders: list[Contender], scale: Scale) -> Rows:
    """Yield what waiters take while they wait: the first two of a queue, and all together."""
    for length in scale.idle:
        memory, cpu = [], []
        for contender in contenders:
            with queue(contender, length) as (_, *waiting):
                time.sleep(1)  # they have looked, and sleep
                before = [cpu_s(waiter.pid) for waiter in waiting]
                time.sleep(scale.idle_s)
                after = [cpu_s(waiter.pid) for waiter in waiting]
                sizes = [memory_mib(waiter.pid) for waiter in waiting]
            used = [1000 * (now - was) for now, was in zip(after, before, strict=True)]
            memory.append(" / ".join(f"{size:.1f}" for size in (*sizes[:2], sum(sizes))))
            cpu.append(" / ".join(f"{ms:.1f}" for ms in (*used[:2], sum(used))))
        yield f"{length} waiting, memory (PSS) of the first / second / all, MiB", memory
        yield f"{length} waiting, CPU of these in {scale.idle_s:g} s, ms", cpu


ROWS = {
    "one": one_launch,
    "rate": launch_rates,
    "api": api_rates,
    "hand-over": hand_overs,
    "idle": idle_waiters,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), metavar="ROW,...")
    parser.add_argument("--waiters", metavar="N,...", help="lengths of the queue")
    parser.add_argument("--quick", action="store_true", help="a minute, for a rough idea")
    parser.add_argument("--launch-option", action="append", default=[], metavar="OPTION")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    if options.waiters:
        scale = scale._replace(waiters=tuple(map(int, options.waiters.split(","))))
    chosen = [ROWS[name] for name in options.rows.split(",")]
    with tempfile.TemporaryDirectory() as home:
        contenders: list[Contender] = [Gpulaunch(Path(home), options.launch_option)]
        for program, contender in {"flock": Flock, "tsp": TaskSpooler}.items():
            if shutil.which(program):
                contenders.append(contender(Path(home)))
            else:
                print(f"{program} is not installed")
        try:
            load = os.getloadavg()[0]
            title = " ".join(["gpulaunch", *options.launch_option])
            print(f"{title}; {os.cpu_count()} CPUs, load {load:.1f} at the start; one run")
            print(f"{'':66}", *(f"{contender.title:>22}" for contender in contenders))
            for rows in chosen:
                for name, cells in rows(contenders, scale):
                    print(f"{name:66}", *(f"{cell:>22}" for cell in cells), flush=True)
        finally:
            for contender in contenders:
                contender.close()


if __name__ == "__main__":
    main()
