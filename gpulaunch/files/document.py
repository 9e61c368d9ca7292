"""Documents that people have written, most of them in TOML, and messages with the line at fault.

And where they are: shipped ones and the user's own, by name or path.
"""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

from gpulaunch.errors import FieldError, UsageError, call_failed, did_you_mean, printable, quoted
from gpulaunch.records import Record

T = TypeVar("T")

MAX_FILE_BYTES = 1 << 20
"""Largest file unless its reader says otherwise: TOML of that size is parsed in about a second."""

_PASSED_IN = ("/dev/fd/", "/dev/stdin", "/proc/")
"""Pipes under these paths are open already, such as those of <(...); others may have no writer."""


class Document(Record):
    """A parsed TOML file, with what is needed to locate a mistake in it."""

    path: str
    text: str
    data: dict[str, Any]
    place: tuple[str | int, ...] = ()

    def error(self, problem: FieldError) -> UsageError:
        """Return the problem as an error with this file's path and the line of the value."""
        return UsageError(self.located(problem.path, problem.message))

    def located(self, path: tuple[str | int, ...], message: str) -> str:
        """Put this file's path and the line of a value before a message."""
        line = line_of(self.text, (*self.place, *path))
        return f"{self.path}:{line}: {message}" if line else f"{self.path}: {message}"


def read_document(path: str) -> Document:
    """Read and parse a TOML file.

    Raises:
        UsageError: the file cannot be read, is no TOML, or is larger than MAX_FILE_BYTES.
    """
    return parse_document(path, read_text(path))


def parse_document(path: str, text: str) -> Document:
    """Parse the text of a TOML file.

    Raises:
        UsageError: the text is no TOML.
    """
    return Document(path, text, parse_toml(path, text))


def read_text(path: str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Read a UTF-8 file.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, is larger than most_bytes, or a named
            pipe.
    """
    try:
        with _open_file(path) as file:
            raw = file.read(most_bytes + 1)
    except OSError as problem:
        raise UsageError(f"{path}: {os.strerror(problem.errno or 0).lower()}") from None
    if len(raw) > most_bytes:
        raise UsageError(f"{path}: larger than {most_bytes >> 20} MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise UsageError(f"{path}:{line}: byte 0x{raw[problem.start]:02x} is not UTF-8") from None


def _open_file(path: str) -> BinaryIO:
    """Open a file for reading without waiting for a writer."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115  returned
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode) and not path.startswith(_PASSED_IN):
        file.close()
        raise UsageError(f"{path}: it is a named pipe, and a file is wanted")
    os.set_blocking(file.fileno(), True)
    return file


def parsed(document: Document, parse: Callable[[dict[str, Any]], T]) -> T:
    """Parse a document; errors of the parser get the file's path and line."""
    try:
        return parse(document.data)
    except FieldError as problem:
        raise document.error(problem) from None


def log_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a log.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield from file
    except OSError as problem:
        raise UsageError(f"{printable(path)}: {os.strerror(problem.errno or 0).lower()}") from None


EXTRAS = {
    "mcp": ("mcp>=2.0",),
    "scan": ("tree-sitter>=0.22", "tree-sitter-cuda>=0.21"),
}
"""Requirements of each extra, as in pyproject.toml."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra's packages beside gpulaunch, wherever that is.

    It names the packages, because gpulaunch itself may be on no index that pip knows.
    """
    from importlib.util import find_spec
    from shlex import join

    command = ["sudo"] if not os.access(sys.prefix, os.W_OK) else []
    if find_spec("pip"):
        command += [sys.executable, "-m", "pip", "install"]
    else:  # uv makes environments without pip
        command += ["uv", "pip", "install", "--python", sys.executable]
    return join([*command, *EXTRAS[extra]])


_BYTE_ORDER_MARK = "\ufeff"

_STATEMENT = r"\s*(\[|[^=]+=)"  # may begin a statement, or be within a value

_QUOTED = """"[^"]*"|'[^']*'"""
_KEY = rf"""\s*(\[+(?:{_QUOTED}|[^\[\],"'])+\]+(?=\s*(?:#|$))|(?:{_QUOTED}|[^=#"'])+?(?=\s*=))"""
"""The head of a table, or a key."""


def _tomllib() -> Any:  # noqa: ANN401
    """Return Python's parser of TOML, which takes 4 ms to load: many launches read no such file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # it is not in the standard library of Python 3.10
        import tomli as tomllib

    return tomllib


def line_of(text: str, path: tuple[str | int, ...]) -> int | None:
    """Return the first line of a value; None if there is no such value.

    A value is present once the lines up to its end are parsed, and not before. A binary search
    finds it among the places where a statement may begin. Some of those are inside a value of
    several lines: text that ends there cannot be parsed, and the next place is tried.
    """
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if re.match(_STATEMENT, line)]
    starts = [*starts, len(lines)]
    if not path or not _ends_with(lines, path):
        return None
    # The value is absent from the lines up to `before`, and present in those up to `after`.
    before, after = 0, len(starts) - 1
    while after - before > 1:
        middle = (before + after) // 2
        found, at = None, middle
        while found is None and at < after:
            found = _ends_with(lines[: starts[at]], path)
            at += found is None
        if found is None:
            starts[middle:after] = []
            after = middle
        elif found:
            after = at
        else:
            before = at
    return starts[before] + 1


def _ends_with(lines: Sequence[str], path: tuple[str | int, ...]) -> bool | None:
    """Return whether the value is in these lines; None if they end inside a statement."""
    try:
        data: Any = _tomllib().loads("\n".join(lines) + "\n")
    except ValueError:
        return None
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def parse_toml(origin: str, text: str) -> dict[str, Any]:
    """Parse TOML from a file or elsewhere.

    Raises:
        UsageError: the text is no TOML.
    """
    if text.startswith(_BYTE_ORDER_MARK):
        raise UsageError(
            f"{origin}:1: it begins with a byte-order mark: save it as UTF-8 without one"
        )
    parser = _tomllib()
    try:
        return dict(parser.loads(text))
    except parser.TOMLDecodeError as problem:
        raise UsageError(_locate(origin, text, str(problem))) from None
    except RecursionError:
        raise UsageError(
            f"{origin}: beyond what can be read: tables or lists in one another, too deep"
        ) from None
    except ValueError as problem:  # numbers of thousands of digits
        raise UsageError(f"{origin}: beyond what can be read: {problem}") from None


def _locate(path: str, text: str, problem: str) -> str:
    message, _, place = problem.rpartition(" (at ")
    place = place.rstrip(")")
    line = (
        int(place.partition(",")[0].removeprefix("line "))
        if place.startswith("line ")
        else text.count("\n") + 1
    )
    if message == "Cannot overwrite a value" or message.startswith("Cannot declare"):
        found = [(n, re.match(_KEY, one)) for n, one in enumerate(text.split("\n")[:line], 1)]
        line, head = next((n, head[1]) for n, head in reversed(found) if head)
        message = f"{quoted(head)} stands twice"
    return f"{path}:{line}: {message[:1].lower()}{message[1:]}"


def config_directory() -> str:
    """Return the directory of this user's settings and profiles."""
    return own_directory("XDG_CONFIG_HOME", ".config")


def own_directory(variable: str, below_home: str) -> str:
    """Return gpulaunch's directory in $XDG_STATE_HOME or the like, else in ~/.local/state or so.

    What root makes in another user's home, as under sudo -E, that user could not write to: there it
    is the one in root's own home.
    """
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):  # the specification says to ignore relative ones
        base = os.path.join(os.path.expanduser("~"), below_home)
    if os.geteuid() == 0:
        names = base.split("/")
        above = ["/".join(names[:count]) for count in range(2, len(names) + 1)]
        owners = {os.stat(one).st_uid for one in above if os.path.exists(one)}
        if owners - {0, 65534}:  # which is nobody, in a user namespace
            base = os.path.join("/root", os.path.expanduser("~root"), below_home)
    return os.path.join(base, "gpulaunch")


def make_own(directory: str) -> None:
    """Make a directory, and those above it, for this user alone, whatever the umask.

    Raises:
        OSError: it cannot be made.
    """
    if directory and not os.path.lexists(directory):
        make_own(os.path.dirname(directory))
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)


def shipped_directory(kind: str) -> str:
    """Return the directory of shipped files of a kind: in a wheel, or in the repository."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "_profiles", kind)
    return (
        inside
        if os.path.isdir(inside)
        else os.path.join(os.path.dirname(package), "profiles", kind)
    )


def is_path(name: str) -> bool:
    """Return whether a name is the path of a data file, and not the name of one."""
    return os.sep in name or name.endswith(".toml")


def find_file(name: str, directories: list[str], subject: str, hint: str) -> str:
    """Return the path of a data file by name or path.

    Args:
        name: a path, or the name of NAME.toml in one of the directories.

    Raises:
        UsageError: there is no file of that name.
    """
    if is_path(name):
        return name
    for directory in directories:
        path = os.path.join(directory, f"{name}.toml")
        if os.path.isfile(path):
            return path
    meant = did_you_mean(name, file_names(directories))
    raise UsageError(f"unknown {subject} {quoted(name)}{meant}", hint)


def file_names(directories: list[str]) -> list[str]:
    """Return the names of all TOML files in these directories, sorted, without the suffix.

    Raises:
        FailedError: a directory cannot be listed.
    """
    found: set[str] = set()
    for directory in filter(os.path.isdir, directories):
        try:
            files = [
                entry.name
                for entry in os.scandir(directory)
                if entry.name.endswith(".toml") and entry.is_file()
            ]
        except OSError as problem:
            raise call_failed(f"{directory}: cannot list the files there", problem) from None
        found.update(name.removesuffix(".toml") for name in files)
    return sorted(found)
