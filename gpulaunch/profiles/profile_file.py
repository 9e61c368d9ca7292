"""Writing of profiles: a new file, or sections of an existing one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from gpulaunch.errors import FailedError, UsageError, printable, quoted
from gpulaunch.files.document import (
    MAX_FILE_BYTES,
    config_directory,
    make_own,
    parse_document,
    parsed,
    read_text,
)
from gpulaunch.files.own_cache import slow_lock
from gpulaunch.files.write import changed_text, check_writable, document_text, write_text
from gpulaunch.profiles.catalog import find_profile, profile_names, read_layers
from gpulaunch.profiles.profile import VERSION, check_profile, is_askable

LOCK_S = 3.0
_LOCK = "profiles.lock"
_FIRST = ("version", "name", "description", "base", "gpus", "command")


def is_own_name(name: str) -> bool:
    """Return whether a user's own profile, and its file, can have this name."""
    return is_askable(name) and bool(name.strip(".")) and not name.endswith(".toml")


def is_text(name: str) -> bool:
    """Return whether a name can be encoded as UTF-8; arguments may contain bytes that cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def own_profile_file(name: str) -> str:
    """Return the path of a profile of the user's own.

    Raises:
        UsageError: the name is not allowed for a profile.
    """
    if "@" in name:
        raise UsageError(
            f"profile {quoted(name)} is a variant: only a whole profile can be written"
        )
    if not is_own_name(name):
        raise UsageError(f"{quoted(name)} is no name for a profile")
    return os.path.join(own_profiles(), f"{name}.toml")


def own_profiles() -> str:
    """Return the directory of the user's own profiles."""
    return os.path.join(config_directory(), "profiles")


def read_profile_file(path: str) -> dict[str, Any]:
    """Read a profile file without its base; return {} if there is no such file.

    Raises:
        UsageError: the file is no profile.
    """
    text = _read_if_there(path)
    return _parse_checked(path, text) if text else {}


def learned_from(path: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a profile file says, and the keys that a new file must begin with.

    A new file is based on an existing profile of the same name, such as a shipped one.

    Raises:
        UsageError: the file is no profile.
    """
    known = read_profile_file(path)
    if known:
        return known, {}
    begins = {"version": VERSION, "name": name}
    if name in profile_names() and "base" not in read_profile_file(find_profile(name)):
        begins["base"] = name
    return {}, begins


def write_sections(path: str, sections: Mapping[str, Any]) -> None:
    """Write sections of a profile; the rest of the file stays as it is.

    Args:
        path: path of the file, which need not exist; "-" is stdout.
        sections: by name: a value, a whole table, or None to remove it. A new file needs `name`.

    Raises:
        UsageError: the file exists and is no profile.
        FailedError: the file cannot be written.
    """
    known = None if path == "-" else _read_if_there(path)
    if known:
        _parse_checked(path, known)
        text = changed_text(known, sections)
    else:
        given = {name: value for name, value in sections.items() if value is not None}
        text = document_text(
            {name: given[name] for name in (*(n for n in _FIRST if n in given), *given)}
        )
    document = _parse_checked(path, text)
    if "base" not in document:  # else the rest of it is in another file
        read_layers(parse_document(path, text))
    write_text(path, text)


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock on the user's profiles, so that none changes between reading and writing it.

    Without a writable directory, such as without a home, there is no lock and no exclusion.

    Raises:
        FailedError: another process holds the lock for longer than LOCK_S.
    """
    directory = config_directory()
    with suppress(OSError):
        make_own(directory)
    if not os.access(directory, os.W_OK):
        yield
        return
    lock = os.path.join(directory, _LOCK)
    with slow_lock(lock, LOCK_S) as got:
        if not got:
            raise FailedError(f"{lock}: could not be locked in {LOCK_S:g} s")
        yield


def check_profile_path(path: str) -> None:
    """Check before long work whether a profile could be written to a path.

    Raises:
        UsageError: there is something other than a profile.
        FailedError: the file cannot be written.
    """
    if not path or (os.path.exists(path) and not os.path.isfile(path)):
        raise UsageError(f"{printable(path) or 'an empty path'}: a profile is a regular file")
    read_profile_file(path)
    check_writable(path)


def _read_if_there(path: str) -> str:
    return read_text(path, MAX_FILE_BYTES) if os.path.exists(path) else ""


def _parse_checked(path: str, text: str) -> dict[str, Any]:
    document = parse_document(path, text)
    if not document.data:
        raise UsageError(f"{path}: there is nothing in it")
    parsed(document, check_profile)
    return document.data
