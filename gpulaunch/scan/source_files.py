"""Reader of the source files of a program, for a scan."""

import os
import stat
from collections.abc import Iterator

from gpulaunch.errors import UsageError, printable
from gpulaunch.records import Record
from gpulaunch.scan.call import C_ENDINGS, PYTHON_ENDINGS, SourceFile

MAX_FILE_BYTES = 4 << 20
MAX_TOTAL_BYTES = 64 << 20
ENDINGS = PYTHON_ENDINGS + C_ENDINGS

_LEFT_OUT = {"build", "node_modules", "site-packages", "dist-packages", "__pycache__"}
_ENVIRONMENT_MARKS = {"pyvenv.cfg", "conda-meta"}  # names in the folder of a virtual environment


class Sources(Record):
    """The source files of a program.

    Attributes:
        files: files in the order of their paths.
        unread: a line for each file or folder that was left out although it may matter.
    """

    files: tuple[SourceFile, ...]
    unread: tuple[str, ...]


def read_sources(path: str) -> Sources:
    """Read a source file, or all source files below a folder.

    Hidden folders, build folders, installed packages, virtual environments, links to folders and
    files of other languages are left out. A file with several links is read once.

    Args:
        path: path of a file or a folder.

    Raises:
        UsageError: the file cannot be read, or there is no source file.
    """
    if not os.path.isdir(path):
        return Sources((_read_alone(path),), ())
    return _read_below(path)


def _read_alone(path: str) -> SourceFile:
    if not path.lower().endswith(ENDINGS) and os.path.exists(path):
        raise UsageError(f"{printable(path)}: no source file: known are {' '.join(ENDINGS)}")
    try:
        return SourceFile(path, _read_text(path))
    except OSError as problem:
        raise UsageError(f"{printable(path)}: {_reason(problem)}") from None
    except _UnfitError as problem:
        raise UsageError(f"{printable(path)}: {problem}") from None


def _read_below(folder: str) -> Sources:
    files, unread, total = list[SourceFile](), list[str](), 0
    seen: set[tuple[int, int]] = set()
    for path in _find_below(folder, unread):
        try:
            facts = os.stat(path)
            if (facts.st_dev, facts.st_ino) in seen:
                continue
            seen.add((facts.st_dev, facts.st_ino))
            if total >= MAX_TOTAL_BYTES:
                unread.append(
                    f"{printable(path)}: this and what follows is not read: over "
                    f"{MAX_TOTAL_BYTES >> 20} MiB"
                )
                break
            files.append(SourceFile(path, _read_text(path)))
            total += facts.st_size
        except OSError as problem:
            unread.append(f"{printable(path)}: {_reason(problem)}")
        except _UnfitError as problem:
            unread.append(f"{printable(path)}: {problem}")
    if not files and not unread:
        raise UsageError(
            f"{printable(folder)}: no source file below it: known are {' '.join(ENDINGS)}"
        )
    return Sources(tuple(files), tuple(unread))


def _find_below(folder: str, unread: list[str]) -> Iterator[str]:
    """Yield the paths of source files below a folder, in order."""

    def complain(problem: OSError) -> None:
        unread.append(f"{printable(str(problem.filename))}: {_reason(problem)}")

    for directory, folders, names in os.walk(folder, onerror=complain):
        if directory != folder and _ENVIRONMENT_MARKS & {*folders, *names}:
            folders.clear()
            continue
        folders[:] = sorted(
            name for name in folders if name not in _LEFT_OUT and not name.startswith(".")
        )
        yield from (
            os.path.join(directory, name)
            for name in sorted(names)
            if name.lower().endswith(ENDINGS)
        )


class _UnfitError(Exception):
    """A file that cannot be source code: too large, or a pipe or device."""


def _read_text(path: str) -> str:
    """Return the text of a regular file, with undecodable bytes as surrogates."""
    # O_NONBLOCK: opening a pipe or a device of that name must not block the scan.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _UnfitError("no regular file")
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise _UnfitError(f"larger than {MAX_FILE_BYTES >> 20} MiB")
    return raw.decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def _reason(problem: OSError) -> str:
    return os.strerror(problem.errno or 0).lower()
