"""TOML that people have written: read, parsed, and complained of by line."""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, BinaryIO, NamedTuple, TypeVar

from gpulaunch.errors import FieldError, UsageError, quoted

T = TypeVar("T")

MAX_FILE_BYTES = 4 << 20

_MOST_BITS = 63
_BYTE_ORDER_MARK = "\ufeff"
_PASSED_IN = ("/dev/fd/", "/dev/stdin", "/proc/")
"""Pipes under these are open already, such as those of <(...); at any other one would wait for somebody to write."""

_STATEMENT = r"\s*(\[|[^=]+=)"  # it may begin one, or be within a value

_KEY = r"""\s*(\[+(?:"[^"]*"|'[^']*'|[^\[\],"'])+\]+(?=\s*(?:#|$))|(?:"[^"]*"|'[^']*'|[^=#"'])+?(?=\s*=))"""
"""The head of a table, or a key."""


class Document(NamedTuple):
    """A parsed TOML file, with what is needed to say where something in it is wrong.

    Attributes:
        path: of the file, or what else to call it.
        text: of the whole file.
        data: what it says, or one of its tables.
        place: of that table in the file.
    """

    path: str
    text: str
    data: dict[str, Any]
    place: tuple[str | int, ...] = ()

    def error(self, problem: FieldError) -> UsageError:
        """The problem with this file's path and the line where its value begins."""
        return UsageError(self.located(problem.path, problem.message))

    def located(self, path: tuple[str | int, ...], message: str) -> str:
        """What is to be said about a value, after the file's path and the line where the value begins."""
        line = self._line_of((*self.place, *path))
        return f"{self.path}:{line}: {message}" if line else f"{self.path}: {message}"

    def has(self, path: tuple[str | int, ...]) -> bool:
        """Whether there is a value."""
        return _has(self.data, path)

    def _line_of(self, path: tuple[str | int, ...]) -> int | None:
        """First line of a value: it is there once the lines up to its end are parsed, and not before.

        Halving finds it, among the places where a statement may begin; some of those are within values of several
        lines, and what ends there cannot be parsed.
        """
        lines = self.text.split("\n")
        starts = [i for i, line in enumerate(lines) if re.match(_STATEMENT, line)]
        starts = [*starts, len(lines)]
        if not path or not self._ends_with(lines, path):
            return None
        before, after = (
            0,
            len(starts) - 1,
        )  # the value is not there at the one, and is there at the other
        while after - before > 1:
            middle = (before + after) // 2
            found, at = None, middle
            while found is None and at < after:
                found = self._ends_with(lines[: starts[at]], path)
                at += found is None
            if found is None:
                starts[middle:after] = []
                after = middle
            elif found:
                after = at
            else:
                before = at
        return starts[before] + 1

    @staticmethod
    def _ends_with(lines: Sequence[str], path: tuple[str | int, ...]) -> bool | None:
        """Whether the value is there at the end of these lines; None if they end within another."""
        try:
            return _has(tomllib.loads("\n".join(lines) + "\n"), path)
        except ValueError:
            return None


def _has(data: Any, path: tuple[str | int, ...]) -> bool:  # noqa: ANN401
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def read_document(path: str) -> Document:
    """Read and parse a TOML file.

    Raises:
        UsageError: it cannot be read, is no TOML, or is larger than MAX_FILE_BYTES.
    """
    return parse_toml(path, read_text(path))


def read_text(path: str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Read a file of UTF-8.

    Raises:
        UsageError: it cannot be read, is not UTF-8, is larger than that, or a named pipe.
    """
    try:
        with _opened(path) as file:
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


def _opened(path: str) -> BinaryIO:
    """A file, open for reading; nobody waits here for somebody to write."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115  returned
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode) and not path.startswith(_PASSED_IN):
        file.close()
        raise UsageError(f"{path}: it is a named pipe, and a file is wanted")
    os.set_blocking(file.fileno(), True)
    return file


def parse_toml(origin: str, text: str) -> Document:
    """Parse TOML that comes from a file or elsewhere, such as an image's label; a key `date` holds text then.

    Raises:
        UsageError: it is no TOML.
    """
    if text.startswith(_BYTE_ORDER_MARK):
        raise UsageError(
            f"{origin}:1: it begins with a byte-order mark: save it as UTF-8 without one"
        )
    try:
        document = Document(origin, text, tomllib.loads(text))
        _dates_as_text(document.data)
        large = _large(document.data)
    except tomllib.TOMLDecodeError as problem:
        raise UsageError(_located(origin, text, str(problem))) from None
    except RecursionError:
        raise UsageError(
            f"{origin}: beyond what can be read: tables or lists in one another, too deep"
        ) from None
    except ValueError as problem:  # numbers of thousands of digits
        raise UsageError(f"{origin}: beyond what can be read: {problem}") from None
    if large:
        raise document.error(FieldError(large, f"{large[-1]}: a number of more than 64 bits"))
    return document


def _dates_as_text(value: Any) -> None:  # noqa: ANN401
    """Put ISO 8601 in place of TOML's own dates, wherever a key is called date."""
    for key, one in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        if key == "date" and isinstance(one, date):
            value[key] = one.isoformat().replace("+00:00", "Z")
        _dates_as_text(one)


def _large(value: object, path: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    """Where the first whole number stands that TOML does not have; None if there is none."""
    if isinstance(value, int):
        return path if value.bit_length() > _MOST_BITS else None
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return next((found for key, one in inner if (found := _large(one, (*path, key)))), None)


def _located(path: str, text: str, problem: str) -> str:
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


def parsed(document: Document, parse: Callable[[dict[str, Any]], T]) -> T:
    """What a parser makes of the document; its complaints get path and line."""
    try:
        return parse(document.data)
    except FieldError as problem:
        raise document.error(problem) from None
