"""Log files of jobs, of any length."""

import os
from collections.abc import Iterator

from gpulaunch.errors import UsageError, printable


def log_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a log.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield from file
    except OSError as problem:
        raise UsageError(f"{printable(path)}: {os.strerror(problem.errno or 0).lower()}") from None
