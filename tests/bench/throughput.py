"""Acquire and release through the Python API, pairs per second, beside bare locks on the same disk.

Run: python tests/bench/throughput.py [SECONDS]
"""

import fcntl
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gpulaunch

PROCESSES = (1, 8, 32)
MACHINE = "dgx1-v100"


def allocate(_: str) -> None:
    """Take one GPU of eight and give it back, queueing if all are busy."""
    gpulaunch.allocate(1, topology=MACHINE, wait=True).release()


def flock_in_python(directory: str) -> None:
    """Do flock(2) on the directory and nothing else: open, lock, unlock, close."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def flock_command(directory: str) -> None:
    """Run flock(1) around the smallest program there is."""
    subprocess.run(["flock", directory, "true"], check=True)


def pairs_per_second(
    pair: Callable[[str], None], processes: int, seconds: float, directory: str
) -> float:
    """Return the pairs per second of all processes together, once each has made one."""
    barrier = multiprocessing.Barrier(processes)
    counts = multiprocessing.Array("q", processes)

    def work(own: int) -> None:
        pair(directory)
        barrier.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pair(directory)
            counts[own] += 1

    workers = [multiprocessing.Process(target=work, args=(own,)) for own in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    multiprocessing.set_start_method("fork")
    cases = {"gpulaunch.allocate + release": allocate, "flock(2) from Python": flock_in_python}
    if shutil.which("flock"):
        cases["flock(1) DIR true"] = flock_command
    rates: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        os.environ["GPULAUNCH_STATE_DIR"] = directory
        for processes in PROCESSES:
            for name, pair in cases.items():
                rates[name].append(pairs_per_second(pair, processes, seconds, directory))
    print(
        f"{'pairs per second, all processes together':42}",
        *(f"{n:>4} processes" for n in PROCESSES),
    )
    for name, values in rates.items():
        print(f"{name:42}", *(f"{value:14.0f}" for value in values))
    print(
        f"({seconds:g} s each, one run, {os.cpu_count()} CPUs; processes are started before the "
        "clock)"
    )


if __name__ == "__main__":
    main()
