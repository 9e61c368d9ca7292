"""The store of this user's Podman: whether it has containers, found out without running Podman."""

import os
import re
from contextlib import suppress
from itertools import starmap

_SYSTEM_FILES = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")


def has_containers() -> bool:
    """Return whether this user's store has containers, running or not; every launch asks this."""
    root = _find_root()
    with suppress(OSError):
        for name in os.listdir(root):  # the list is in a folder of the storage driver's
            for part in ("containers", "volatile-containers"):  # those of run --rm are volatile
                path = f"{root}/{name}/{part}.json"
                if os.path.exists(path) and os.path.getsize(path) > len("[]"):
                    return True
    return False


def _find_root() -> str:
    """Return the directory of the store. Source: containers/storage, types/options.go."""
    is_root, own = os.geteuid() == 0, os.environ.get("CONTAINERS_STORAGE_CONF")
    key = "graphroot" if is_root else "rootless_storage_path"
    rows = [] if own else [(file, key) for file in _SYSTEM_FILES]
    if own or not is_root:
        file = own or f"{_directory('XDG_CONFIG_HOME', '~/.config')}/containers/storage.conf"
        rows = [(file, key), (file, "graphroot"), *rows]
    usual = "/var/lib" if is_root else _directory("XDG_DATA_HOME", "~/.local/share")
    return next(filter(None, starmap(_read_setting, rows)), f"{usual}/containers/storage")


def _directory(variable: str, usual: str) -> str:
    return os.environ.get(variable) or os.path.expanduser(usual)


def _read_setting(file: str, key: str) -> str:
    """Return the value of a key in a file of Podman's settings; "" if it is not there."""
    try:
        with open(file, errors="replace") as settings:
            found = re.search(rf'^\s*{key}\s*=\s*"(.+?)"', settings.read(1 << 16), re.MULTILINE)
    except OSError:
        return ""
    return os.path.expandvars(found[1].replace("$UID", str(os.geteuid()))) if found else ""
