"""The programs of MPS, and the directories of a user's daemons."""

import os
import re
from collections.abc import Mapping

from gpulaunch.leases.environment import MPS_VARIABLES
from gpulaunch.records import Record

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

PATIENCE_S = 30.0
"""Time that a server has to become ACTIVE.

It opens every GPU of the group, slowly without the persistence daemon.
"""

MEMBERS_FILE = "group.json"
"""File in the pipe directory of a share group that tells it from others."""


class MpsPlace(Record):
    """Where and how the MPS daemons of share groups are run.

    Attributes:
        base: directory of this user's groups.
        patience_s: the longest wait for a server.
        may_fork: whether this process may fork without exec; a Python program with threads may not.
    """

    base: str
    patience_s: float
    may_fork: bool = True


def base_directory(chosen: str | None) -> str:
    """Return the directory of this user's groups; it may not exist yet.

    It is not in the state directory, which may be a small tmpfs that logs would fill; nor in
    $XDG_RUNTIME_DIR or /dev/shm, which a user's last logout empties though jobs go on.
    """
    return os.path.realpath(chosen) if chosen else f"/tmp/gpulaunch.mps.{os.geteuid()}"  # noqa: S108  it is checked


def is_of_a_group(directory: str) -> bool:
    """Return whether a pipe directory is that of a share group."""
    return os.path.exists(os.path.join(directory, MEMBERS_FILE))


def inherited_variables(environment: Mapping[str, str] = os.environ) -> dict[str, None]:
    """Return variables that a job which shares has left in an environment, to be removed.

    The user's own MPS is left alone.
    """
    directory = environment.get(MPS_VARIABLES[0])
    if directory is None:
        return {}
    named_so = re.fullmatch(r".*/gpulaunch\.mps\.\d+/[0-9a-f]{8}", directory)
    return dict.fromkeys(MPS_VARIABLES) if named_so or is_of_a_group(directory) else {}
