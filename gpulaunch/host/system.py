"""Facts of the host: its users, its boot, its clock."""

import os
import pwd
import time


def user_name(user_id: int) -> str:
    """Login name of a user, or "uid N" if it has none here."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"uid {user_id}"


def owner_of(pid: int) -> str | None:
    """Login name of a process's user; None if the process is not visible here."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return None


def boot_id() -> str:
    """What tells this boot of the kernel from every other; empty if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.readline().strip()
    except OSError:
        return ""


def now() -> str:
    """The time as records and documents carry it: ISO 8601, UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
