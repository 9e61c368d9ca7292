"""A PyTorch loop that prints its progress as a training script does: a line ten times a second.

loop.py memory|compute SECONDS    memory adds tensors that no cache holds, compute multiplies
matrices

It prints "done N", the iterations so far, and at its end "rate R", iterations a second after the
first second.
"""

import sys
import time

import torch
from load import compute, memory

REPORT_S = 0.1
WARM_UP_S = 1.0


def main(kind: str, seconds: float) -> None:
    """Be the job."""
    step = {"memory": memory, "compute": compute}[kind]().step
    step()
    torch.cuda.synchronize()
    began = told = time.monotonic()
    done = warm = 0
    warm_at = began
    while (now := time.monotonic()) - began < seconds:
        for _ in range(8):
            step()
        torch.cuda.synchronize()
        done += 8
        if now - began < WARM_UP_S:
            warm, warm_at = done, time.monotonic()
        if now - told >= REPORT_S:
            print(f"done {done}", flush=True)
            told = now
    print(f"rate {(done - warm) / (time.monotonic() - warm_at)}", flush=True)


main(sys.argv[1], float(sys.argv[2]))
