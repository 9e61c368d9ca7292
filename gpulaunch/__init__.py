"""gpulaunch: put one command in front of yours, and a shared multi-GPU machine behaves.

From Python: `with gpulaunch.allocate(gpus=2) as lease:`, and `gpulaunch.Simulator("dgx1-v100")`.
The names in `__all__` are public, and nothing else is; docs/reference/python.md shows their use.
"""

TYPE_CHECKING = False  # as typing has it, whose import costs as much as bare Python
if TYPE_CHECKING:
    from gpulaunch.api.allocate import aallocate, allocate
    from gpulaunch.api.docker_sdk import docker, run_container
    from gpulaunch.api.held_lease import HeldLease
    from gpulaunch.errors import (
        FailedError,
        GpulaunchError,
        NoDriverError,
        RefusedError,
        TimedOutError,
        UsageError,
        WouldWaitError,
    )
    from gpulaunch.lab.simulate.measures import Replay, ReplayedJob
    from gpulaunch.lab.simulate.simulator import Simulator, Trace, generate_trace
    from gpulaunch.placement.policies import Placement
    from gpulaunch.placement.problem import Scores

    __version__: str

__all__ = [
    "FailedError",
    "GpulaunchError",
    "HeldLease",
    "NoDriverError",
    "Placement",
    "RefusedError",
    "Replay",
    "ReplayedJob",
    "Scores",
    "Simulator",
    "TimedOutError",
    "Trace",
    "UsageError",
    "WouldWaitError",
    "aallocate",
    "allocate",
    "docker",
    "generate_trace",
    "run_container",
]

_MODULES = {
    "HeldLease": "api.held_lease",
    "Placement": "placement.policies",
    "Replay": "lab.simulate.measures",
    "ReplayedJob": "lab.simulate.measures",
    "Scores": "placement.problem",
    "Simulator": "lab.simulate.simulator",
    "Trace": "lab.simulate.simulator",
    "aallocate": "api.allocate",
    "allocate": "api.allocate",
    "generate_trace": "lab.simulate.simulator",
    "docker": "api.docker_sdk",
    "run_container": "api.docker_sdk",
}
"""Module of each public name; those that are not here are errors."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used.

    The command imports this package, too, and needs none of them.
    """
    if name == "__version__":
        return _installed_version()
    if name in __all__:
        from importlib import import_module

        module = _MODULES.get(name, "errors")
        return getattr(import_module(f"gpulaunch.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _installed_version() -> str:
    """Return the version of pyproject.toml; 0.0 in a checkout that has never been installed.

    Source: the name of an installation's folder, packaging.python.org "Recording installed
    projects"; importlib.metadata reads it, too, in ten times the time.
    """
    import os
    import sys

    for place in filter(os.path.isdir, sys.path):
        for name in os.listdir(place):
            if name.startswith("gpulaunch-") and name.endswith(".dist-info"):
                return name.removeprefix("gpulaunch-").removesuffix(".dist-info")
    return "0.0"


def __dir__() -> list[str]:
    """Return the public names, for completion in an interpreter."""
    return sorted([*__all__, "__version__"])
