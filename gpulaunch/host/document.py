"""TOML that people have written: read, parsed, and complained of by line."""

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from gpulaunch.errors import FieldError, UsageError

T = TypeVar("T")

MAX_FILE_BYTES = 4 << 20

_MOST_BITS = 63
_STATEMENT = r"\s*(\[|[^=]+=)"  # it may begin one, or be within a value


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
        before, after = 0, len(starts) - 1  # the value is not there at the one, and is there at the other
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
        UsageError: it cannot be read, is not UTF-8, or is larger than that.
    """
    try:
        with open(path, "rb") as file:
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


def parse_toml(origin: str, text: str) -> Document:
    """Parse TOML that comes from a file or elsewhere, such as an image's label.

    Raises:
        UsageError: it is no TOML.
    """
    try:
        document = Document(origin, text, tomllib.loads(text))
        large = _large(document.data)
    except tomllib.TOMLDecodeError as problem:
        raise UsageError(_located(origin, text, str(problem))) from None
    except (RecursionError, ValueError) as problem:  # lists in lists without end, numbers of thousands of digits
        raise UsageError(f"{origin}: beyond what can be read: {problem}") from None
    if large:
        raise document.error(FieldError(large, f"{large[-1]}: a number of more than 64 bits"))
    return document


def _large(value: object, path: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    """Where the first whole number stands that TOML does not have; None if there is none."""
    if isinstance(value, int):
        return path if value.bit_length() > _MOST_BITS else None
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for key, one in inner if (found := _large(one, (*path, key)))), None)


def _located(path: str, text: str, problem: str) -> str:
    message, _, place = problem.rpartition(" (at ")
    place = place.rstrip(")")
    line = place.partition(",")[0].removeprefix("line ") if place.startswith("line ") else str(text.count("\n") + 1)
    return f"{path}:{line}: {message[:1].lower()}{message[1:]}"


def parsed(document: Document, parse: Callable[[dict[str, Any]], T]) -> T:
    """What a parser makes of the document; its complaints get path and line."""
    try:
        return parse(document.data)
    except FieldError as problem:
        raise document.error(problem) from None
