"""A PyTorch job whose throughput and whose view of its GPU a test wants to know.

It prints JSON, a line each time; with --progress it prints as a training script does.

load.py memory|compute SECONDS [--deaf]    prints what it sees when it is ready, waits for a line on
    stdin, works for so long, and prints what it has done
load.py memory|compute BATCHES --fixed STEPS [--pause S]    prints what it sees when it is ready,
    does so many batches of so many steps, with a pause after each, and prints how long that took
load.py memory|compute SECONDS --progress    prints "done N", the iterations so far, ten times a
    second, and at its end "rate R", iterations a second after the first second
load.py allocate MIB    prints what it sees, and whether it gets so much device memory

memory   adds tensors that no cache holds
compute  multiplies matrices
--deaf   ignores INT and TERM, and stays when CUDA fails: only KILL ends it
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

MIB = 1 << 20
ELEMENTS = 64 * MIB
"""Of a tensor of 32-bit numbers: 256 MiB, twice the largest L2 of 2025 (B200: 126 MiB)."""

SIZE = 8192
"""Rows and columns of a matrix: some 2000 tiles, so that whole waves fill any number of SMs."""

BATCH_S = 0.02
"""Between two synchronisations: many times the cost of one, a tenth of the shortest time of use."""

WARM_UP_S = 0.5
_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT of cuda.h


class Work(NamedTuple):
    """What is done again and again.

    Attributes:
        step: does it once, without waiting for its end.
        amount: bytes moved, or operations done, by a step.
    """

    step: Callable[[], object]
    amount: int

    def run(self, steps: int) -> None:
        """Do so many steps, and wait for their end."""
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()


def memory() -> Work:
    """Move device memory: two reads and a write."""
    a, b, out = (torch.ones(ELEMENTS, dtype=torch.float32, device="cuda") for _ in range(3))
    return Work(lambda: torch.add(a, b, out=out), 3 * 4 * ELEMENTS)


def compute() -> Work:
    """Multiply matrices on tensor cores."""
    dtype = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
    a, b, out = (torch.randn(SIZE, SIZE, dtype=dtype, device="cuda") for _ in range(3))
    return Work(lambda: torch.matmul(a, b, out=out), 2 * SIZE**3)


def seen(kind: str) -> dict[str, Any]:
    """Return what this process sees of its GPU; MPS caps the multiprocessors by its percentage."""
    torch.zeros(1, device="cuda")  # now there is a context
    return {
        "kind": kind,
        "pid": os.getpid(),
        "multiprocessors": _attribute(_MULTIPROCESSOR_COUNT),
        "variables": {name: text for name, text in os.environ.items() if "CUDA_MPS_" in name},
    }


def _attribute(number: int) -> int:
    """Return an attribute of the first visible GPU, as the driver itself tells this process."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, value = ctypes.c_int(), ctypes.c_int()
    status = cuda.cuDeviceGet(ctypes.byref(device), 0)
    status = status or cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    if status:
        raise RuntimeError(f"libcuda.so.1 answers with error {status}")
    return value.value


def calibrated(work: Work) -> int:
    """Return how many steps take about BATCH_S; one at least."""
    work.run(2)  # libraries choose their kernels
    began = time.monotonic()
    work.run(3)
    return max(1, round(3 * BATCH_S / (time.monotonic() - began)))


def measured(work: Work, batch: int, seconds: float) -> dict[str, Any]:
    """Return the throughput over a window, and in each half of it."""
    marks = [(0.0, 0)]
    began = time.monotonic()
    while marks[-1][0] < seconds:
        work.run(batch)
        marks.append((time.monotonic() - began, marks[-1][1] + batch))
    end_s, steps = marks[-1]
    middle_s, first = min(marks[1:], key=lambda mark: abs(mark[0] - end_s / 2))
    later = (steps - first) / (end_s - middle_s) if end_s > middle_s else first / middle_s
    return {
        "iterations_per_s": steps / end_s,
        "iterations_per_s_of_halves": [first / middle_s, later],
        "amount_per_s": work.amount * steps / end_s,
    }


def timed(work: Work, batches: int, steps: int, pause_s: float) -> dict[str, Any]:
    """Return how long a fixed amount of work took without its pauses."""
    busy_s = 0.0
    for _ in range(batches):
        began = time.monotonic()
        work.run(steps)
        busy_s += time.monotonic() - began
        time.sleep(pause_s)
    return {"busy_s": busy_s}


def progress(work: Work, seconds: float) -> None:
    """Print progress for so many seconds, and the rate at the end."""
    work.run(1)
    began = told = warm_at = time.monotonic()
    done = warm = 0
    while (now := time.monotonic()) - began < seconds:
        work.run(8)
        done += 8
        if now - began < 1:
            warm, warm_at = done, time.monotonic()
        if now - told >= 0.1:
            print(f"done {done}", flush=True)
            told = now
    print(f"rate {(done - warm) / (time.monotonic() - warm_at)}", flush=True)


def allocate(mib: int) -> dict[str, Any]:
    """Return whether so much device memory can be had; it is written to."""
    try:
        torch.empty(mib * MIB, dtype=torch.uint8, device="cuda").fill_(1)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as problem:
        return {"allocated": False, "problem": str(problem)}
    return {"allocated": True}


def tell(document: dict[str, Any]) -> None:
    """Print a line."""
    print(json.dumps(document), flush=True)


def load(work: Work, kind: str, seconds: float) -> None:
    """Get ready, wait for the word, warm up, measure."""
    batch = calibrated(work)
    facts = seen(kind)
    tell(facts)
    if sys.stdin.readline():  # at its end nobody waits for us any more
        measured(work, batch, WARM_UP_S)
        tell(facts | measured(work, batch, seconds))


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("memory", "compute", "allocate"))
    parser.add_argument("amount", type=float)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--fixed", type=int, metavar="STEPS")
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    if options.deaf:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.kind == "allocate":
        tell(seen(options.kind) | allocate(int(options.amount)))
        return
    try:
        work = {"memory": memory, "compute": compute}[options.kind]()
        if options.progress:
            progress(work, options.amount)
        elif options.fixed:
            facts = seen(options.kind)
            tell(facts)
            tell(facts | timed(work, int(options.amount), options.fixed, options.pause))
        else:
            load(work, options.kind, options.amount)
    except RuntimeError as problem:  # CUDA's
        if not options.deaf:
            raise
        tell({"problem": str(problem)})
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
