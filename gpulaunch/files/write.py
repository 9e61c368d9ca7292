"""Files that a command writes where its user says: whole or not at all."""

import os
from collections.abc import Mapping
from contextlib import suppress

from gpulaunch.errors import FailedError
from gpulaunch.typing import Any


def check_writable(path: str) -> None:
    """Find out before long work whether its result could be written.

    Raises:
        FailedError: it could not.
    """
    if path != "-" and (not os.path.exists(path) or os.path.isfile(path)):
        probe = f"{os.path.realpath(path)}.{os.urandom(4).hex()}"
        try:
            write_text(probe, "")
        except FailedError as problem:
            raise FailedError(problem.message.replace(probe, path)) from None
        os.unlink(probe)


def make_directory(path: str) -> None:
    """Make a directory if there is none, and check that files can be written there.

    Raises:
        FailedError: they cannot, or the path is taken by something else.
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

    A path that is no regular file is written as it is.

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
    """Return a document as TOML."""
    import tomlkit  # late: few commands write TOML

    return _ended(tomlkit.dumps(_readable(document)))


def changed_text(text: str, sections: Mapping[str, Any]) -> str:
    """Return TOML with other values at its top or in its sections; what stands around them stays.

    Args:
        text: a TOML document that can be parsed.
        sections: by name at the top: a value, a table with all it is to have, or None for a
            section to remove.
    """
    import tomlkit

    document = tomlkit.parse(text)
    for name, value in sections.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(document.get(name), dict):
            _change(document[name], value)
        else:
            document[name] = _readable(value)
    return _ended(tomlkit.dumps(document))


def _readable(value: Any) -> Any:  # noqa: ANN401
    """Return the value with each list of lists on lines of its own."""
    if isinstance(value, Mapping):
        return {key: _readable(one) for key, one in value.items()}
    if not isinstance(value, list) or not any(isinstance(one, list) for one in value):
        return value
    from tomlkit import array

    lines = array().multiline(multiline=True)
    for one in value:
        lines.append(one)
    return lines


def _ended(text: str) -> str:
    """Return the text with its last line ended."""
    return text if text.endswith("\n") else text + "\n"


def _change(table: Any, values: Mapping[str, Any]) -> None:  # noqa: ANN401
    for key in [key for key in table if key not in values]:
        del table[key]
    for key, value in values.items():
        if key not in table or table[key] != value:
            table[key] = _readable(value)
