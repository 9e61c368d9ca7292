"""Parsing of TOML, with the line of each mistake."""

import re
import sys
from collections.abc import Sequence
from typing import Any

from gpulaunch.errors import UsageError, quoted
from gpulaunch.files.fields import has_value

if sys.version_info >= (3, 11):
    import tomllib
else:  # it is not in the standard library of Python 3.10
    import tomli as tomllib

_BYTE_ORDER_MARK = "\ufeff"

_STATEMENT = r"\s*(\[|[^=]+=)"  # may begin a statement, or be within a value

_MOST_LEVELS = 16
"""Parts of a dotted key; the parser's time grows with the square of their number."""

_QUOTED = """"[^"]*"|'[^']*'"""
_KEY = rf"""\s*(\[+(?:{_QUOTED}|[^\[\],"'])+\]+(?=\s*(?:#|$))|(?:{_QUOTED}|[^=#"'])+?(?=\s*=))"""
"""The head of a table, or a key."""

_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_DEEP_KEY = rf"(?m:^|[\[{{,])[ \t]*(?:{_PART}){{{_MOST_LEVELS}}}"


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
        return has_value(tomllib.loads("\n".join(lines) + "\n"), path)
    except ValueError:
        return None


def parse_toml(origin: str, text: str) -> dict[str, Any]:
    """Parse TOML from a file or elsewhere, such as an image's label.

    Raises:
        UsageError: the text is no TOML, or a key in it has more than 16 levels.
    """
    if text.startswith(_BYTE_ORDER_MARK):
        raise UsageError(
            f"{origin}:1: it begins with a byte-order mark: save it as UTF-8 without one"
        )
    deep = re.search(_DEEP_KEY, text)
    if deep:
        before = text.count("\n", 0, deep.end())
        raise UsageError(f"{origin}:{before + 1}: a key of more than {_MOST_LEVELS} levels")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
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
