"""gpulaunch: put one command in front of yours, and a shared multi-GPU machine behaves."""

__version__ = "0.1.0"
