"""Hold two GPUs of a described machine from Python, queueing if they are busy."""

import os

import gpulaunch

with gpulaunch.allocate(gpus=2, topology="dgx1-v100", wait=True) as lease:
    lease.apply()  # before anything starts CUDA
    print(
        f"lease {lease.id}: CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}, chosen by {lease.reason}"
    )
print("free again")
