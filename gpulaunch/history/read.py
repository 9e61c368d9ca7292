"""Reading the history's files."""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress

from gpulaunch.errors import FieldError
from gpulaunch.history.line import (
    COMMON,
    SUFFIX,
    has_common,
    is_directory_of,
    is_own_file,
    month_of,
    private_directory,
)
from gpulaunch.history.past_launch import PastLaunch, parse_past_launch

_MOST_BYTES = 64 << 20
"""Most that is read of each user's lines, the newest first: some 80,000 of them."""

_LONGEST_LINE = 1 << 20
_LEAST_BYTES = 512  # of a line or a file, however short: any user can make as many as he likes
RECENT_S = 60 * 86400.0
"""How far back what looks for recent launches reads the history: a year of them takes a second."""


def read_history(*, everyone: bool = False, within_s: float | None = None) -> list[PastLaunch]:
    """Return the launches in the history, in the order of their beginning.

    Args:
        everyone: whether to read the files of all users, where they are in one place.
        within_s: seconds before now from which on all launches are needed; None for all that are
            there. Files of earlier months are not read.
    """
    found = _read(everyone=everyone, within_s=within_s)
    return sorted(found, key=lambda launch: (launch.submitted_s, launch.key))


def read_dependent() -> list[PastLaunch]:
    """Return the user's launches that come after others and have neither GPUs nor an end.

    Screens ask for them every few seconds, so only lines that may be such are parsed, and none that
    are older than RECENT_S.
    """
    found = _read(everyone=False, within_s=RECENT_S, having=b'"after"')
    return [one for one in found if not one.id and one.exit_status is None]


def _read(*, everyone: bool, within_s: float | None, having: bytes = b"") -> Iterable[PastLaunch]:
    """Return the launches of the lines that contain a text; damaged lines are left out."""
    found: dict[tuple[int, str], PastLaunch] = {}
    read: dict[int, int] = {}
    for path, user_id in _files(everyone=everyone, within_s=within_s):
        with suppress(OSError):
            # Anybody can make files with another user's name: they are not even opened.
            if os.lstat(path).st_uid != user_id or read.get(user_id, 0) >= _MOST_BYTES:
                continue
            read[user_id] = read.get(user_id, 0) + _LEAST_BYTES
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                if not is_own_file(fd, user_id):
                    continue
                while read[user_id] < _MOST_BYTES and (line := file.readline(_LONGEST_LINE)):
                    read[user_id] += max(len(line), _LEAST_BYTES)
                    if not line.startswith(b"{") or having not in line:
                        continue
                    # It may be being rewritten: then it is read once more.
                    launch = _parse(line, user_id) or _parse(
                        os.pread(fd, len(line), file.tell() - len(line)), user_id
                    )
                    if launch:
                        found[user_id, launch.key] = launch  # the last line of a launch counts
    return found.values()


def _parse(line: bytes, user_id: int) -> PastLaunch | None:
    with suppress(ValueError, RecursionError, FieldError):
        return parse_past_launch(json.loads(line), user_id)
    return None


def _files(*, everyone: bool, within_s: float | None) -> list[tuple[str, int]]:
    """Return the history's files, the newest first, and the user that each has to belong to.

    What ran before there was a common place is in the user's private one. What is of everyone is
    the same for all.
    """
    first = "" if within_s is None else month_of(time.time() - within_s)
    own = os.geteuid()
    directories = [] if everyone and has_common() else [(own, private_directory())]
    if has_common():
        for name in os.listdir(COMMON) if everyone else [str(own)]:
            path = f"{COMMON}/{name}"
            if name.isascii() and name.isdecimal() and is_directory_of(path, int(name)):
                directories.append((int(name), path))
    found = []
    for user_id, directory in directories:
        with suppress(OSError):
            for name in os.listdir(directory):
                month = name.removesuffix(SUFFIX).partition("-")[2]
                if name.endswith(SUFFIX) and month >= first:
                    found.append((month, os.path.join(directory, name), user_id))
    return [(path, user_id) for _, path, user_id in sorted(found, reverse=True)]
