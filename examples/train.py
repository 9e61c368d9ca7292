"""A stand-in for a training script that prints its GPUs and its lease."""

import os

gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "all that there are")
lease = os.environ.get("GPULAUNCH_LEASE", "none")
print(f"training on GPUs {gpus} under lease {lease}")
