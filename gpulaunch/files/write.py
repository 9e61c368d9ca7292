"""Files written where the user says: whole or not at all."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FailedError


def check_writable(path: str) -> None:
    """Check before long work whether its result could be written.

    Raises:
        FailedError: the file cannot be written.
    """
    if path != "-" and (not os.path.exists(path) or os.path.isfile(path)):
        probe = f"{os.path.realpath(path)}.{os.urandom(4).hex()}"
        try:
            write_text(probe, "")
        except FailedError as problem:
            raise FailedError(problem.message.replace(probe, path)) from None
        os.unlink(probe)


def make_directory(path: str) -> None:
    """Make a directory if it is missing, and check that files can be written there.

    Raises:
        FailedError: files cannot be written there, or the path is no directory.
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
    """Write a file whole or not at all; "-" is stdout.

    A path that is no regular file, such as a device, is written in place.

    Raises:
        FailedError: the file cannot be written.
    """
    if path == "-":
        print(text, end="")
        return
    content = text.encode()
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                file.write(content)
        else:
            _replace(os.path.realpath(path), content)
    except OSError as problem:
        raise FailedError(f"{path}: {os.strerror(problem.errno or 0).lower()}") from None


def _replace(path: str, content: bytes) -> None:
    """Replace a file by a draft beside it, whose name no other user can have created before."""
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
    """Return the permissions of a file, or those of a new one."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def document_text(document: Mapping[str, Any]) -> str:
    """Return a document as TOML."""
    import tomlkit  # late: few commands write TOML

    return _end_line(tomlkit.dumps(_make_readable(document)))


def changed_text(text: str, sections: Mapping[str, Any]) -> str:
    """Return valid TOML with other values at its top or in its sections; the rest is kept.

    Args:
        sections: by name at the top: a value, a table with its new content, or None for a section
            to remove.
    """
    import tomlkit

    document = tomlkit.parse(text)
    for name, value in sections.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(document.get(name), dict):
            _change(document[name], value)
        else:
            document[name] = _make_readable(value)
    return _end_line(tomlkit.dumps(document))


def _make_readable(value: Any) -> Any:  # noqa: ANN401
    """Return the value with each list of lists on lines of its own."""
    if isinstance(value, Mapping):
        return {key: _make_readable(one) for key, one in value.items()}
    if not isinstance(value, list) or not any(isinstance(one, list) for one in value):
        return value
    from tomlkit import array

    lines = array().multiline(multiline=True)
    for one in value:
        lines.append(one)
    return lines


def _end_line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _change(table: Any, values: Mapping[str, Any]) -> None:  # noqa: ANN401
    for key in [key for key in table if key not in values]:
        del table[key]
    for key, value in values.items():
        if key not in table or table[key] != value:
            table[key] = _make_readable(value)
