"""`gpulaunch undrain GPU`: put GPUs into service again."""

from gpulaunch.cli.drain import make_undrain_parser as make_parser
from gpulaunch.cli.drain import undrain as main

__all__ = ["main", "make_parser"]
