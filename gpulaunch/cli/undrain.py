"""`gpulaunch undrain GPU`: put GPUs into service again."""

from gpulaunch.cli.drain import undrain as main

__all__ = ["main"]
