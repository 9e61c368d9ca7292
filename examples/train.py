"""Stands in for a training script: says which GPUs it was given, and by which lease."""

import os

gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "all that there are")
lease = os.environ.get("GPULAUNCH_LEASE", "none")
print(f"training on GPUs {gpus} under lease {lease}")
