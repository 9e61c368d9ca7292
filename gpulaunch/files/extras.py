"""The optional packages, and how to add them to this installation of gpulaunch."""

import os
import sys

EXTRAS = {
    "mcp": ("mcp>=2.0",),
    "measure": ("numpy>=1.26",),
    "report": ("matplotlib>=3.10",),
    "scan": ("tree-sitter>=0.22", "tree-sitter-cuda>=0.21"),
}
"""Requirements of each extra, as in pyproject.toml."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra's packages beside gpulaunch, wherever that is.

    It names the packages, because gpulaunch itself may be on no index that pip knows.
    """
    from importlib.util import find_spec
    from shlex import join

    command = ["sudo"] if not os.access(sys.prefix, os.W_OK) else []
    if find_spec("pip"):
        command += [sys.executable, "-m", "pip", "install"]
    else:  # uv makes environments without pip
        command += ["uv", "pip", "install", "--python", sys.executable]
    return join([*command, *EXTRAS[extra]])
