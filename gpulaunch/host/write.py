"""Files that a command writes where its user says: whole or not at all."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FailedError


def check_writable(path: str) -> None:
    """Find out before long work whether its result could be written.

    Raises:
        FailedError: it could not.
    """
    if path != "-" and (not os.path.exists(path) or os.path.isfile(path)):
        probe = f"{os.path.realpath(path)}.{os.urandom(4).hex()}"
        write_text(probe, "")
        os.unlink(probe)


def make_directory(path: str) -> None:
    """Make a directory if there is none, and find out before long work whether files could be written there.

    Raises:
        FailedError: they could not, or the path is taken by something else.
    """
    from tempfile import mkstemp  # late: it costs 4 ms

    try:
        os.makedirs(path, exist_ok=True)
        fd, probe = mkstemp(prefix=".gpulaunch-", dir=path)
        os.close(fd)
        os.unlink(probe)
    except FileExistsError:
        raise FailedError(f"{path}: not a directory") from None
    except OSError as problem:
        raise FailedError(f"{path}: {os.strerror(problem.errno or 0).lower()}") from None


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; "-" is stdout, and what is no regular file is written as it comes.

    Raises:
        FailedError: it cannot be written.
    """
    if path == "-":
        print(text, end="")
    else:
        write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """Write a file whole or not at all; what is no regular file is written as it comes.

    Raises:
        FailedError: it cannot be written.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                file.write(content)
        else:
            _replace(os.path.realpath(path), content)
    except OSError as problem:
        raise FailedError(f"{path}: {os.strerror(problem.errno or 0).lower()}") from None


def _replace(path: str, content: bytes) -> None:
    """Put a file in the place of another, by a draft beside it that nobody can have made before."""
    from tempfile import mkstemp  # late: it costs 4 ms

    fd, draft = mkstemp(prefix=".gpulaunch-", dir=os.path.dirname(path))
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, _mode_of(path))
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _mode_of(path: str) -> int:
    """Permissions of a file, or those of a new one."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def document_text(document: Mapping[str, Any]) -> str:
    """A document as TOML, with lists of numbers on one line each."""
    import tomli_w

    return re.sub(r"\[\n\s*([\d.,\s]+),\s+\]", _one_line, tomli_w.dumps(document))


def _one_line(numbers: re.Match[str]) -> str:
    return f"[{' '.join(numbers[1].split())}]"
