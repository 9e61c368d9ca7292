"""Reading the history's files."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from gpulaunch.errors import FieldError
from gpulaunch.history.line import SUFFIX, history_directory, is_own_file, month_of, own_directory
from gpulaunch.history.past_launch import PastLaunch, parse_past_launch
from gpulaunch.typing import Any

_TRIES = 3
_MAX_BYTES = 64 << 20
RECENT_S = 60 * 86400.0
"""How far back what looks for recent launches reads the history: a year of them takes a second."""


def read_history(*, everyone: bool = False, within_s: float | None = None) -> list[PastLaunch]:
    """Return the launches in the history, in the order of their beginning.

    Args:
        everyone: whether to read the files of all users, where they are in one place.
        within_s: seconds before now from which on all launches are needed; None for all that are
            there. Files of earlier months are not read.
    """
    found: dict[tuple[int, str], PastLaunch] = {}
    for path, user_id in _files(everyone=everyone, within_s=within_s):
        for document in _lines(path, user_id):
            with suppress(FieldError):
                launch = parse_past_launch(document, user_id)
                found[user_id, launch.key] = launch  # the last line of a launch counts
    return sorted(found.values(), key=lambda launch: (launch.submitted_s, launch.key))


def read_dependent() -> list[PastLaunch]:
    """Return the user's launches that come after others and have neither GPUs nor an end.

    Screens ask for them every few seconds, so only lines that may be such are parsed, and none that
    are older than RECENT_S.
    """
    found: dict[str, PastLaunch] = {}
    for path, user_id in _files(everyone=False, within_s=RECENT_S):
        for document in _lines(path, user_id, having=b'"after"'):
            with suppress(FieldError):
                launch = parse_past_launch(document, user_id)
                found[launch.key] = launch
    return [one for one in found.values() if not one.id and one.exit_status is None]


def _files(*, everyone: bool, within_s: float | None) -> Iterator[tuple[str, int]]:
    """Yield the paths of the history's files, and the user that each has to belong to."""
    first = "" if within_s is None else month_of(time.time() - within_s)
    # What ran before there was a common place stands in the user's own.
    for directory in dict.fromkeys((own_directory(), history_directory())):
        with suppress(OSError):
            for name in sorted(os.listdir(directory)):
                user, dash, month = name.removesuffix(SUFFIX).partition("-")
                if not (name.endswith(SUFFIX) and dash and user.isascii() and user.isdecimal()):
                    continue
                if month >= first and (everyone or int(user) == os.geteuid()):
                    yield os.path.join(directory, name), int(user)


def _lines(path: str, user_id: int, having: bytes = b"") -> list[Any]:
    """Return the documents of a file, without lines that are damaged or of another user's file.

    Args:
        path: path of the file.
        user_id: user that it has to belong to.
        having: what a line has to contain.
    """
    for left in reversed(range(_TRIES)):
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                if not is_own_file(fd, user_id):
                    return []
                content = file.read(_MAX_BYTES)
            documents, damaged = _documents(content, having)
            if not damaged or not left:  # a line may be read while it is rewritten: once more
                return documents
    return []


def _documents(content: bytes, having: bytes) -> tuple[list[Any], bool]:
    documents, damaged = [], False
    for line in content.split(b"\n"):
        if having in line and line.strip():
            try:
                documents.append(json.loads(line))
            except (ValueError, RecursionError):
                damaged = True
    return documents, damaged
