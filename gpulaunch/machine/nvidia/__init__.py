"""NVIDIA GPUs, read through NVML."""

LIBRARY = "libnvidia-ml.so.1"
"""File name of NVML."""
