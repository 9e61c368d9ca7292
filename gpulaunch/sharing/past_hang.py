"""A note of an MPS server that hung at its start, which costs only one launch its wait."""

import json
import os
from contextlib import suppress

from gpulaunch.files.duration import format_duration
from gpulaunch.process.system import boot_id, seconds_since_boot
from gpulaunch.sharing.mps_daemon import program

KEPT_S = 600.0
"""Time for which a note counts. Ours: a machine that was repaired should not wait much longer."""

DRIVER = "/sys/module/nvidia/version"
"""Version of the kernel driver that is loaded; another one may be so without a boot."""


def note_hang(path: str, reason: str, patience_s: float) -> None:
    """Write down that a server hung; without a note the next launch finds out by itself.

    Args:
        path: path of the note.
        reason: what was seen, as a clause.
        patience_s: time that the server had.
    """
    note = {"reason": reason, "patience_s": patience_s, "at_s": seconds_since_boot()}
    with suppress(OSError), open(path, "w") as file:
        json.dump({**note, "place": _place()}, file)


def recall_hang(path: str, patience_s: float) -> str | None:
    """Return what a note says about a server, and what makes it be tried again.

    A note counts for KEPT_S, until the machine boots or driver or MPS is another one, as after an
    update, and for launches that wait no longer than its own.

    Args:
        path: path of the note.
        patience_s: time that the server would have now.

    Returns:
        A clause for messages; None without a note that counts.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(path) as file:
            note = json.load(file)
        age_s = seconds_since_boot() - note["at_s"]
        if 0 <= age_s < KEPT_S and note["place"] == _place() and patience_s <= note["patience_s"]:
            ago, left = format_duration(int(age_s)), format_duration(int(KEPT_S - age_s))
            return f"{note['reason']}, {ago} ago; tried again in {left}, or after 'rm {path}'"
    return None


def _place() -> list[str | int]:
    """Return what identifies this boot, this kernel driver, and this MPS, which comes with it."""
    path = program() or ""
    place: list[str | int] = [boot_id(), path]
    with suppress(OSError), open(DRIVER) as file:
        place.append(file.read().strip())
    with suppress(OSError):
        status = os.stat(path)
        place += [status.st_mtime_ns, status.st_size]
    return place
