"""Matplotlib for commands that draw files, or one line on why it cannot be had."""

import logging
import os
from shutil import rmtree

from gpulaunch.errors import FailedError


def load_matplotlib(purpose: str) -> None:
    """Import matplotlib.

    Where it may not keep its list of fonts it makes a directory for that, which would stay: our
    commands end too quickly for what modules do at the end. So remove that directory here.

    Args:
        purpose: what is to be drawn, for the error.

    Raises:
        FailedError: it is not installed, or does not start.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else it tells of that directory
    before = os.environ.get("MPLCONFIGDIR")
    try:
        from gpulaunch.show.report import canvas  # noqa: F401
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] == "gpulaunch":
            raise
        hint = "pip install 'gpulaunch[report]'"
        raise FailedError(f"{purpose} needs matplotlib: {problem}", hint) from None
    except ValueError as problem:  # it does not know MPLBACKEND
        raise FailedError(f"matplotlib: {problem}") from None
    made = os.environ.get("MPLCONFIGDIR")
    if made and made != before:
        rmtree(made, ignore_errors=True)
