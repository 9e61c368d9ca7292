"""Results of a batch: a file of JSON lines, one for each ended job, never changed.

The first line names the batch. A line is written by one call, and taken back if it does not fit on
the disk, so that the lines before it stay intact; a torn line is skipped when the file is read.
"""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gpulaunch.errors import FailedError, FieldError, UsageError, WouldWaitError
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.history.line import is_own_file
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import iso, parse_time
from gpulaunch.records import Record, as_dict, field_names, replace

_SECONDS = (-1e12, 1e12)
_FIELDS: FieldTable = {
    "id": (0, 1 << 31),
    "name": str,
    "digest": str,
    "exit_status": (0, 255),
    "gpus": list,
    "uuids": list,
    "lease": str,
    "interrupted": bool,
    "submitted_s": _SECONDS,
    "started_s": _SECONDS,
    "ended_s": _SECONDS,
}
_ALWAYS = ("id", "name", "digest", "exit_status", "gpus", "uuids", "interrupted", "submitted_s")
_DIGITS = 3  # of seconds


class Result(Record):
    """The result of a job.

    Attributes:
        id: place of the job in the file of jobs, from 0.
        name: name of the job.
        digest: digest of what was run; a changed job at this place has another one.
        exit_status: exit status of the launch.
        gpus: indices of its GPUs, in rank order; empty if it never started.
        uuids: UUIDs of its GPUs, in rank order.
        lease: id of the lease; None if it never started.
        interrupted: whether the batch has ended it.
        submitted_s: its arrival, in seconds from the beginning of the batch.
        started_s: when it got its GPUs, on the same clock; None if it never started.
        ended_s: when its launch ended, on the same clock.
    """

    id: int
    name: str
    digest: str
    exit_status: int
    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    lease: str | None
    interrupted: bool
    submitted_s: float
    started_s: float | None
    ended_s: float | None

    @property
    def is_final(self) -> bool:
        """True if the job has run to its own end."""
        return self.started_s is not None and not self.interrupted


class Header(Record):
    """The first line of a file of results.

    Attributes:
        batch: id of the batch.
        file: path of the file of jobs.
        began_s: beginning of the batch, in seconds since 1970.
    """

    batch: str
    file: str
    began_s: float


def _seconds_of(text: str) -> float:
    """Return a time in ISO 8601 as seconds since 1970."""
    return parse_time(text).timestamp()


def _result_document(result: Result, began_s: float) -> dict[str, Any]:
    """Return the document of a result, as it is written."""
    document = as_dict(result) | {"gpus": list(result.gpus), "uuids": list(result.uuids)}
    for name in ("submitted", "started", "ended"):
        seconds = document.pop(f"{name}_s")
        document[f"{name}_at"] = None if seconds is None else iso(began_s + seconds)
        document[f"{name}_s"] = None if seconds is None else round(seconds, _DIGITS)
    waited_s = None
    if result.started_s is not None:
        waited_s = round(result.started_s - result.submitted_s, _DIGITS)
    return document | {"wait_s": waited_s}


def _read_result(document: Mapping[str, Any]) -> Result:
    """Read a document from _result_document.

    Raises:
        FieldError: the document has another form.
    """
    fields = {name: document.get(name) for name in field_names(Result)}
    known = {name: value for name, value in fields.items() if value is not None}
    checked(known, _FIELDS, required=_ALWAYS)
    return Result(**fields | {"gpus": tuple(known["gpus"]), "uuids": tuple(known["uuids"])})


def _read_words(document: Mapping[str, Any], began_s: float) -> Result:
    """Read the last words of a launch, which knows neither its job's name nor its arrival."""
    _, job_id, digest = document["batch"].rsplit(".", 2)
    times = {"submitted_s": 0.0}
    for name in ("started", "ended"):
        times[f"{name}_s"] = _seconds_of(document[f"{name}_at"]) - began_s
    own = {"id": int(job_id), "name": "", "digest": digest, "interrupted": False}
    return _read_result({**document, **own, **times})


class ResultsFile:
    """The results of one batch, locked against other batches.

    Args:
        path: path of the file.
        warn: called with the text of a warning.

    Attributes:
        header: header of the batch; None as long as there is none.
        results: last result written of each job, by id.
        last_words: by their mark, what launches whose batch was killed have written at their end,
            until that becomes a result.

    Raises:
        FailedError: the file cannot be written.
        UsageError: the file has other content.
        WouldWaitError: another batch has locked it.
    """

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self._read_to = 0
        self._line = 0
        self.header: Header | None = None
        self.results: dict[int, Result] = {}
        self.last_words: dict[str, Result] = {}
        try:
            self._fd = out_of_the_way(
                os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
            )
        except OSError as problem:
            raise self._write_error(problem) from None
        if not is_own_file(self._fd, os.geteuid()):  # else somebody could change results
            raise UsageError(f"{path}: is no regular file of your own")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WouldWaitError(f"{path}: another batch is writing its results there") from None
        except OSError as problem:
            raise self._write_error(problem) from None
        self.read()
        if self.header is None and self._read_to:
            raise UsageError(f"{path} holds something other than results of a batch")

    def begin(self, header: Header) -> None:
        """Write the first line.

        Raises:
            FailedError: the line cannot be written; the file is removed again.
        """
        document = {"batch": header.batch, "file": header.file, "began_at": iso(header.began_s)}
        try:
            self._append(document)
        except OSError as problem:
            os.unlink(self.path)
            raise self._write_error(problem) from None
        self.header = header

    def add(self, result: Result) -> None:
        """Write the result of a job.

        Raises:
            FailedError: the result cannot be written; the file is unchanged.
        """
        try:
            self._append(_result_document(result, self.header.began_s if self.header else 0.0))
        except OSError as problem:
            raise self._write_error(problem) from None
        self._keep(result)

    def mark(self, job_id: int, digest: str) -> str:
        """Return a job's GPULAUNCH_BATCH, by which it is found if the batch crashes."""
        return f"{self.header.batch if self.header else ''}.{job_id}.{digest}"

    def last_words_of(self, mark: str, name: str, submitted_s: float) -> Result | None:
        """Return the result that a job's launch wrote after its batch was killed, or None.

        Args:
            mark: mark of the job.
            name: name of the job.
            submitted_s: its arrival, in seconds from the beginning of the batch.
        """
        said = self.last_words.get(mark)
        return said and replace(said, name=name, submitted_s=submitted_s)

    def _keep(self, result: Result) -> None:
        self.results[result.id] = result
        self.last_words.pop(self.mark(result.id, result.digest), None)

    def opened_apart(self) -> int:
        """Return a descriptor for launches to append by, which does not lock the file."""
        return out_of_the_way(os.open(self.path, os.O_WRONLY | os.O_APPEND))

    def _append(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document).encode() + b"\n"
        status = os.fstat(self._fd)
        size = status.st_size
        if not status.st_nlink:  # the file was removed, so the line could never be read
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        # A torn line must not tear this one, too.
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
            os.fsync(self._fd)
        except OSError:
            with suppress(OSError):
                if os.fstat(self._fd).st_size == size + written:
                    os.ftruncate(self._fd, size)
            raise

    def read(self) -> None:
        """Read the lines since the last call."""
        with open(f"/proc/self/fd/{self._fd}", "rb") as file:  # even if it was renamed
            file.seek(self._read_to)
            for line in file:
                self._read_to += len(line)
                self._line += 1
                if line.strip():
                    self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        try:
            document: dict[str, Any] = dict(json.loads(line))
            if self.header is None:
                began_s = _seconds_of(document["began_at"])
                self.header = Header(document["batch"], document["file"], began_s)
            elif "event" not in document:
                self._keep(_read_result(document))
            elif document["event"] == "ended":
                self.last_words[document["batch"]] = _read_words(document, self.header.began_s)
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError, FieldError):
            if self.header:
                self._warn(
                    f"{self.path}:{self._line}: passed over: this line is torn, or not a batch's"
                )

    def _write_error(self, problem: OSError) -> FailedError:
        return FailedError(f"{self.path}: {os.strerror(problem.errno or 0).lower()}")
