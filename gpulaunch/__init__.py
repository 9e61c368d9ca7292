"""gpulaunch: put one command in front of yours, and a shared multi-GPU machine behaves.

From Python: `with gpulaunch.allocate(gpus=2) as lease:`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.api import HeldLease, allocate
    from gpulaunch.errors import (
        FailedError,
        GpulaunchError,
        TimedOutError,
        UsageError,
        WouldWaitError,
    )

__version__ = "0.1.0"

__all__ = [
    "FailedError",
    "GpulaunchError",
    "HeldLease",
    "TimedOutError",
    "UsageError",
    "WouldWaitError",
    "allocate",
]


def __getattr__(name: str) -> object:
    """What is exported, imported when it is first used: the command imports this package, too, and needs none of it."""
    if name in __all__:
        from importlib import import_module

        module = "gpulaunch.errors" if name.endswith("Error") else "gpulaunch.api"
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
