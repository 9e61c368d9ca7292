"""Hold two GPUs of a described machine from Python, queueing if they are busy."""

import os

import gpulaunch

with gpulaunch.allocate(gpus=2, topology="dgx1-v100", wait=True) as lease:
    lease.apply()  # before anything starts CUDA
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    print(f"CUDA_VISIBLE_DEVICES={visible}: {lease.reason}")
print("free again")
