"""Setup of the common place of all users' histories, which root makes."""

import os

from gpulaunch.errors import UsageError, call_failed
from gpulaunch.history.line import COMMON


def set_up_history() -> None:
    """Make COMMON, owned by root, world-writable and sticky.

    It is on the disk, so it stays. Each user's directory is made by his next launch.

    Raises:
        UsageError: we are not root.
        FailedError: it cannot be made.
    """
    if os.geteuid() != 0:
        raise UsageError("setup needs root", "sudo gpulaunch setup --history")
    try:
        os.makedirs(COMMON, exist_ok=True)
        os.chmod(os.path.dirname(COMMON), 0o755)  # whatever root's umask  # noqa: S103
        os.chown(COMMON, 0, 0)
        # All users write here; sticky, so that none can remove another user's directory.
        os.chmod(COMMON, 0o1777)  # noqa: S103
    except OSError as problem:
        raise call_failed(COMMON, problem) from None
