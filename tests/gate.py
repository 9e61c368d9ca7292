"""Jobs that hold their GPUs until a gate opens, and notice if another job has one of them."""

import os
from pathlib import Path

from conftest import until

HOLD = """\
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do mkdir gpu-$gpu || exit 9; done
read line <go
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do rmdir gpu-$gpu; done
"""
"""A job for sh in the gate's directory, which ends with 9 if one of its GPUs is had twice."""


class Gate:
    """A closed gate.

    Args:
        directory: working directory of the jobs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        os.mkfifo(directory / "go")
        self._fd = os.open(directory / "go", os.O_RDWR)  # a job's read ends when this is closed

    def held(self) -> int:
        """Return the number of GPUs that jobs hold."""
        return len(list(self._directory.glob("gpu-*")))

    def open_at(self, count: int) -> None:
        """Open the gate for good as soon as so many GPUs are held, or that does not come."""
        try:
            until(lambda: self.held() == count)
        finally:
            (self._directory / "open").touch()
            (self._directory / "open").rename(self._directory / "go")  # for jobs that start later
            os.close(self._fd)
