"""Output for people: one line each on stderr, since stdout belongs to the job."""

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

from gpulaunch.errors import GpulaunchError, call_failed, printable

Document = dict[str, Any]
"""A value that is printed as JSON."""


def say(kind: str, text: str) -> None:
    """Write one line to stderr; if that fails, the line is lost, and the launch goes on."""
    with suppress(OSError):
        os.write(2, os.fsencode(f"gpulaunch: {kind}: {printable(text)}\n"))


def warn(text: str) -> None:
    """Print a warning."""
    say("warning", text)


def report(problem: GpulaunchError) -> None:
    """Print an error, its notes, and its hint if there is one."""
    say("error", problem.message)
    for note in getattr(problem, "__notes__", ()):
        say("info", note)
    if problem.hint:
        say("hint", problem.hint)


def print_json(document: Mapping[str, Any] | list[Any]) -> None:
    """Print one JSON document to stdout; NaN and infinity cannot appear."""
    import json  # late: --version and the way to docker's client do without

    print(json.dumps(document, indent=2, allow_nan=False))


def rounded(value: float | None) -> float | None:
    """Return a figure as documents have it, without the last digits of floating point."""
    return None if value is None else round(value, 6)


_UNITS = ((2 * 86400, 86400, "d"), (2 * 3600, 3600, "h"), (120, 60, "min"), (0, 1, "s"))
"""Least seconds of a range's end for which a unit is taken, its seconds, and its name."""


def format_start(first_s: float, last_s: float) -> str:
    """Return the time in which a job starts, in words: "in 1.5 to 29 h", or "within 5 min"."""
    unit_s, unit = next(row[1:] for row in _UNITS if last_s >= row[0])
    first, last = _rounded(first_s / unit_s), _rounded(last_s / unit_s)
    if first_s < unit_s:
        return f"within {last} {unit}"
    return f"in {last} {unit}" if first == last else f"in {first} to {last} {unit}"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{round(number, 1):g}"


class _Stdout(FileIO):
    """Stdout, which says in its errors that it is: print() and rich do not know."""

    def write(self, data: Any) -> int:  # noqa: ANN401
        try:
            return super().write(data)
        except OSError as problem:
            raise call_failed("cannot write to stdout", problem) from None


def name_stdout() -> None:
    """Let print() raise FailedError where it cannot write, and escape unencodable characters."""
    if sys.stdout is not None:
        sys.stdout = TextIOWrapper(
            BufferedWriter(_Stdout(1, "w", closefd=False)),
            sys.stdout.encoding,
            "backslashreplace",
            line_buffering=sys.stdout.isatty(),
        )


def flush_stdout() -> None:
    """Write what was printed to stdout, if that is open."""
    if sys.stdout is not None:
        sys.stdout.flush()


def prepare_stdout() -> None:
    """End quietly at a broken pipe (`gpulaunch topo | head -1`)."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
