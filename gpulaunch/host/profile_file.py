"""Profiles that gpulaunch writes: a new file, or sections of one that is there."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpulaunch.core.workload.profile import VERSION, parse_profile
from gpulaunch.errors import FailedError, UsageError, quoted
from gpulaunch.host.catalog import config_directory, profile_names
from gpulaunch.host.document import MAX_FILE_BYTES, parse_toml, parsed, read_text
from gpulaunch.host.slow_lock import held
from gpulaunch.host.write import changed_text, document_text, write_text

LOCK_S = 10.0
_LOCK = ".lock"
_FIRST = ("version", "name", "description", "base", "gpus", "command")


def own_profile_file(name: str) -> str:
    """Where a profile is that gpulaunch is to write: a path as it is, a name among this user's own.

    Raises:
        UsageError: it is no name that a file can have, or that of a variant.
    """
    if "@" in name:
        raise UsageError(f"profile {quoted(name)} is a variant: only a whole profile can be written")
    if os.sep in name or name.endswith(".toml"):
        return os.path.abspath(name)
    if not name.strip(".") or not name.isprintable():
        raise UsageError(f"{quoted(name)} is no name for a profile")
    return os.path.join(config_directory(), "profiles", f"{name}.toml")


def read_profile_file(path: str) -> dict[str, Any]:
    """The document of a profile's file as it stands there; empty if there is no such file.

    Raises:
        UsageError: it is no profile.
    """
    text = _text_of(path)
    return _checked(path, text) if text else {}


def learned_from(path: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a profile says that is to learn: what it knows, and what a new file of it begins with.

    A profile of this name that others have written, such as those shipped, is the base of the user's own.

    Args:
        path: of the user's file.
        name: of the profile.

    Raises:
        UsageError: the file is no profile.
    """
    known = read_profile_file(path)
    if known:
        return known, {}
    base = {"base": name} if name in profile_names() else {}
    return {}, {"version": VERSION, "name": name, **base}


def write_sections(path: str, sections: Mapping[str, Any]) -> None:
    """Write sections of a profile; what else its file says stays.

    Args:
        path: of the file, which need not be there yet; "-" is stdout.
        sections: by name: a value, a whole table, or None for what is to go. A new file needs `name`.

    Raises:
        UsageError: the file is there and is no profile.
        FailedError: it cannot be written.
    """
    known = None if path == "-" else _text_of(path)
    if known:
        _checked(path, known)
        text = changed_text(known, sections)
    else:
        given = {name: value for name, value in sections.items() if value is not None}
        text = document_text({name: given[name] for name in (*(n for n in _FIRST if n in given), *given)})
    _checked(path, text)
    write_text(path, text)


@contextmanager
def alone_with(path: str) -> Iterator[None]:
    """Hold the lock of a folder of profiles: who reads one of them to change it must not be disturbed.

    Args:
        path: of a profile in it.

    Raises:
        FailedError: it cannot be had.
    """
    lock = os.path.join(os.path.dirname(path), _LOCK)
    with held(lock, LOCK_S) as got:
        if not got:
            raise FailedError(f"{lock}: could not be locked in {LOCK_S:g} s")
        yield


def _text_of(path: str) -> str:
    return read_text(path, MAX_FILE_BYTES) if os.path.exists(path) else ""


def _checked(path: str, text: str) -> dict[str, Any]:
    document = parse_toml(path, text)
    if not document.data:
        raise UsageError(f"{path}: there is nothing in it")
    parsed(document, parse_profile)
    return document.data
