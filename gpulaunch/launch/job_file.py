"""Jobs to run or to simulate: TOML, JSON lines, or on stdin plain lines."""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.document import Document, parse_document, read_text
from gpulaunch.files.fields import FieldTable, ListOf, Path, checked, unknown
from gpulaunch.launch.options import OPTIONS
from gpulaunch.profiles.catalog import portable, read_layers
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record

SETTINGS_OF_A_JOB = (
    "profile",
    "gpus",
    "pattern",
    "bandwidth_sensitive",
    "memory",
    "gpu_model",
    "only",
    "exclude",
    "nvlink",
    "min_bandwidth",
    "numa",
    "min_utility",
    "utility_weights",
    "share",
    "utilization",
    "objective",
    "time_limit",
    "record",
)
"""Settings of a launch that are also allowed for a job, with the same names and values."""

_FILE: FieldTable = {"job": list, "profile": dict}
_JOB: FieldTable = {
    "name": str,
    "command": list,
    "after": ListOf(str),
    "arrival_s": (0.0, 1e9),
    "duration_s": (1e-3, 1e9),
}
_MOST_BYTES = 64 << 20
_LOOKS_LIKE_A_FILE = re.compile(r'^(\s*(#.*)?\n)*\s*(\[\[job|\[profile\.|\{\s*")')
STDIN = "-"
_LONGEST_TITLE = 40


class Entry(Record):
    """One job, as the file describes it.

    Attributes:
        own: values that only a job has: the keys of _JOB, and the title of a plain line.
    """

    own: Mapping[str, Any]
    settings: Mapping[str, str]
    where: "Where"

    @property
    def label(self) -> str | None:
        """Name that the file gives the job."""
        return self.own.get("name") or None

    @property
    def name(self) -> str:
        """Name of the job, not necessarily unique."""
        command = self.own.get("command") or ("job",)
        title = self.own.get("title") or self.settings.get("profile") or command[0]
        return str(self.label or title)


class Where(Record):
    """The place of a job in its file, for messages.

    Attributes:
        place: file and line, or of TOML that a program has given the number of the job.
        document: the TOML file, in which the line is found; None for other formats.
    """

    place: str
    document: Document | None = None
    path: Path = ()

    def error(self, key: str | None, message: str, hint: str | None = None) -> UsageError:
        """Return an error about one key of the job, or about the whole job."""
        if self.document:
            path = (*self.path, key) if key else self.path
            return UsageError(self.document.located(path, message), hint)
        return UsageError(f"{self.place}: {message}", hint)


class JobFile(Record):
    """A file of jobs, as it was read."""

    entries: tuple[Entry, ...]
    profiles: Mapping[str, Profile]
    tables: Mapping[str, Mapping[str, Any]]


def load_jobs(path: str, *, to_run: bool = False) -> JobFile:
    """Read a file of jobs; docs/guides/simulate.md and docs/guides/batch.md explain the keys.

    Args:
        path: path of the file; "-" for stdin, where each line is a command, if they are to be run.
        to_run: whether the jobs are to be run: then they may come after others.

    Raises:
        UsageError: the file cannot be read, or is wrong; with path and line.
    """
    if to_run and path == STDIN:
        if sys.stdin is None:
            raise UsageError("stdin is closed, so there are no jobs to read")
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
        if _LOOKS_LIKE_A_FILE.search(text):
            raise UsageError("stdin holds a file of jobs, not commands: give it as a file")
        return _refuse_empty("stdin", JobFile(tuple(_read_commands(text)), {}, {}))
    text = read_text(path, _MOST_BYTES).removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        found = JobFile(tuple(_read_json_lines(path, text)), {}, {})
    else:
        try:
            document = parse_document(path, text)
        except UsageError as problem:
            if not to_run or path.endswith(".toml") or _LOOKS_LIKE_A_FILE.search(text):
                raise
            hint = f"commands, one a line, are read from stdin: gpulaunch batch - <{path}"
            raise UsageError(problem.message, hint) from None
        found = _read_toml(document)
    for entry in () if to_run else found.entries:
        if "after" in entry.own:
            raise entry.where.error("after", "after: the simulator knows no order but arrival_s")
    return _refuse_empty(path, found)


def read_jobs(data: Mapping[str, Any]) -> JobFile:
    """Read jobs that a program gives instead of a file.

    Args:
        data: the content of such a file in TOML, as tomllib reads it.

    Raises:
        UsageError: the data are wrong; the message has the number of the job.
    """
    return _refuse_empty("trace", _read_toml(Document("trace", "", dict(data))))


def _refuse_empty(origin: str, found: JobFile) -> JobFile:
    if not found.entries:
        raise UsageError(
            f"{origin}: there is no job in it", "docs/guides/simulate.md has an example"
        )
    return found


def _read_toml(document: Document) -> JobFile:
    path, text = document.path, document.text
    try:
        top = checked(document.data, _FILE)
    except FieldError as problem:
        raise document.error(problem) from None
    profiles, tables = {}, {}
    for name, table in top.get("profile", {}).items():
        where: Path = ("profile", name)
        if not isinstance(table, Mapping):
            raise UsageError(document.located(where, f"{name}: {table!r} is not a table"))
        profiles[name] = read_layers(Document(path, text, {"name": name, **table}, where))
        tables[name] = portable(table, path)
    entries = []
    for number, job in enumerate(top.get("job", [])):
        place = Where(f"{path}: job {number}", document if text else None, ("job", number))
        entries.append(_read_entry(job, place))
    return JobFile(tuple(entries), profiles, tables)


def _read_commands(text: str) -> list[Entry]:
    """Read a command for sh in each line, as xargs and simple_gpu_scheduler have them.

    Blank lines, and those from # on, are none.
    """
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        command = line.strip()
        if not command or command.startswith("#"):
            continue
        title = command
        if len(command) > _LONGEST_TITLE:
            title = f"{command[: _LONGEST_TITLE - 1]}…"
        own = {"command": ["sh", "-c", command], "title": title}
        entries.append(Entry(own, {}, Where(f"stdin:{number}")))
    return entries


def _read_json_lines(path: str, text: str) -> list[Entry]:
    entries = []
    lines = text.split("\n")  # no other of Unicode's line ends ends one
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = Where(f"{path}:{number}")
            try:
                job = json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise where.error(None, f"no JSON: {problem}") from None
            entries.append(_read_entry(job, where))
    return entries


def _read_entry(job: object, where: Where) -> Entry:
    """Read one job, and check every value by itself."""
    if not isinstance(job, Mapping):
        raise where.error(None, f"{job!r} is not a table of keys and values")
    own = {key: value for key, value in job.items() if key in _JOB}
    try:
        checked(own, _JOB)
    except FieldError as problem:
        raise where.error(str(problem.path[0]), problem.message) from None
    command = own.get("command", ["-"])
    if not command or any(not isinstance(word, str) for word in command):
        raise where.error(
            "command", f'command: {command!r} is not a list of texts such as ["python", "train.py"]'
        )
    settings = {}
    for key, value in job.items():
        if key in _JOB:
            continue
        if key not in SETTINGS_OF_A_JOB:
            raise where.error(key, unknown(key, (*_JOB, *SETTINGS_OF_A_JOB)))
        settings[key] = _as_text(value)
        try:
            OPTIONS[key].parse(settings[key])
        except UsageError as problem:
            raise where.error(key, f"{key}: {problem.message}", problem.hint) from None
    return Entry(own, settings, where)


def _as_text(value: object) -> str:
    """Return a value as it would be written on a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
