"""Profiles that gpulaunch writes: a new file, or sections of one that is there."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from gpulaunch.errors import FailedError, UsageError, printable, quoted
from gpulaunch.files.data_files import config_directory
from gpulaunch.files.document import MAX_FILE_BYTES, parse_document, parsed, read_text
from gpulaunch.files.slow_lock import held
from gpulaunch.files.write import changed_text, check_writable, document_text, write_text
from gpulaunch.profiles.catalog import profile_names
from gpulaunch.profiles.profile import VERSION, check_profile, is_askable, parse_profile
from gpulaunch.typing import Any

LOCK_S = 3.0
_LOCK = "profiles.lock"
_FIRST = ("version", "name", "description", "base", "gpus", "command")


def is_own_name(name: str) -> bool:
    """Whether a profile of this user's own can have this name, and a file as well."""
    return is_askable(name) and bool(name.strip(".")) and not name.endswith(".toml")


def is_text(name: str) -> bool:
    """Whether it can stand in a file of UTF-8; arguments may have bytes that cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def own_profile_file(name: str) -> str:
    """Where a profile of this user's own is.

    Raises:
        UsageError: it is no name that one can have.
    """
    if "@" in name:
        raise UsageError(
            f"profile {quoted(name)} is a variant: only a whole profile can be written"
        )
    if not is_own_name(name):
        raise UsageError(f"{quoted(name)} is no name for a profile")
    return os.path.join(own_profiles(), f"{name}.toml")


def own_profiles() -> str:
    """The folder of this user's own."""
    return os.path.join(config_directory(), "profiles")


def read_profile_file(path: str) -> dict[str, Any]:
    """The document of a profile's file as it stands there; empty if there is no such file.

    Raises:
        UsageError: it is no profile.
    """
    text = _text_of(path)
    return _checked(path, text) if text else {}


def learned_from(path: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a profile says that is to learn: what it knows, and what a new file of it begins with.

    A profile of this name that others have written, such as those shipped, is the base of the
    user's own.

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
        sections: by name: a value, a whole table, or None for what is to go. A new file needs
            `name`.

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
        text = document_text(
            {name: given[name] for name in (*(n for n in _FIRST if n in given), *given)}
        )
    document = _checked(path, text)
    if "base" not in document:  # else another file has a part of it
        parsed(parse_document(path, text), parse_profile)
    write_text(path, text)


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this user's profiles: who reads one to change it must not be disturbed.

    Where there can be no lock, as without a home directory, nobody is kept out.

    Raises:
        FailedError: another one has it for longer than that takes.
    """
    directory = config_directory()
    with suppress(OSError):
        os.makedirs(directory, exist_ok=True)
    if not os.access(directory, os.W_OK):
        yield
        return
    lock = os.path.join(directory, _LOCK)
    with held(lock, LOCK_S) as got:
        if not got:
            raise FailedError(f"{lock}: could not be locked in {LOCK_S:g} s")
        yield


def check_profile_path(path: str) -> None:
    """Find out before long work whether a profile could be written there.

    Raises:
        UsageError: something else is there, or what is there is no profile.
        FailedError: it cannot be written.
    """
    if not path or (os.path.exists(path) and not os.path.isfile(path)):
        raise UsageError(f"{printable(path) or 'an empty path'}: a profile is a regular file")
    read_profile_file(path)
    check_writable(path)


def _text_of(path: str) -> str:
    return read_text(path, MAX_FILE_BYTES) if os.path.exists(path) else ""


def _checked(path: str, text: str) -> dict[str, Any]:
    document = parse_document(path, text)
    if not document.data:
        raise UsageError(f"{path}: there is nothing in it")
    parsed(document, check_profile)
    return document.data
