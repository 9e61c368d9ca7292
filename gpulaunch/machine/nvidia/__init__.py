"""NVIDIA GPUs: what NVML tells of them."""
