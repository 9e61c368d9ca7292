"""A PyTorch loop that prints its progress as a training script does: a line ten times a second.

loop.py memory|compute SECONDS    memory adds tensors that no cache holds, compute multiplies
matrices

It prints "done N", the iterations so far, and at its end "rate R", iterations a second after the
first second.
"""

import sys
import time
from collections.abc import Callable

import torch

ELEMENTS = 64 << 20  # 256 MiB of 32-bit numbers: twice the largest L2 of 2025 (B200: 126 MiB)
SIZE = 8192
REPORT_S = 0.1
WARM_UP_S = 1.0


def work(kind: str) -> Callable[[], object]:
    """Run one iteration without waiting for its end."""
    if kind == "memory":
        a, b, out = (torch.ones(ELEMENTS, device="cuda") for _ in range(3))
        return lambda: torch.add(a, b, out=out)
    dtype = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
    a, b, out = (torch.randn(SIZE, SIZE, dtype=dtype, device="cuda") for _ in range(3))
    return lambda: torch.matmul(a, b, out=out)


def main(kind: str, seconds: float) -> None:
    """Be the job."""
    step = work(kind)
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
