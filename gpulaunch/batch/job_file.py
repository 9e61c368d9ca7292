"""Files of jobs: TOML, JSON lines, plain lines, or the columns of mapa-sc21's simulator."""

import json
import re
import sys
from collections.abc import Iterator, Mapping

from gpulaunch.errors import FieldError, UsageError, quoted
from gpulaunch.files.document import Document, parse_document, read_text
from gpulaunch.files.fields import FieldTable, ListOf, Path, checked, unknown
from gpulaunch.launch.settings import SETTINGS
from gpulaunch.profiles.catalog import portable, profile_within
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record
from gpulaunch.typing import Any

SETTINGS_OF_A_JOB = (
    "profile",
    "gpus",
    "pattern",
    "bandwidth_sensitive",
    "memory",
    "gpu_model",
    "only",
    "exclude",
    "require",
    "nvlink",
    "min_bandwidth",
    "numa",
    "single_node",
    "one_per_node",
    "apart_from",
    "host_bandwidth",
    "min_utility",
    "utility_weights",
    "share",
    "sm",
    "memory_bandwidth",
    "sm_percentage",
    "share_with",
    "objective",
    "time_limit",
)
"""Settings of a launch that are also allowed for a job, with the same names and values."""

_FILE: FieldTable = {"job": list, "profile": dict}
_JOB: FieldTable = {
    "name": str,
    "command": list,
    "after": ListOf(str),
    "arrival_s": (0.0, 1e9),
    "duration_s": (1e-3, 1e9),
    "communication_percentage": (0.0, 100.0),
    "split_slowdown_percentage": (0.0, 1e4),
}
_MOST_BYTES = 64 << 20
STDIN = "-"
_COLUMNS = ("gpus", "pattern", "arrival", "time", "sensitive", "name")
_COLUMN_OF = {"arrival_s": "arrival", "duration_s": "time"}
_LONGEST_TITLE = 40

_NAMES = r"""([\w.-]|"[^"]*"|'[^']*')+"""
_OTHERS = (
    rf"\[\s*{_NAMES}\s*\]\s*(#.*)?|\[\[\s*{_NAMES}\s*\]\]\s*(#.*)?",  # a table of TOML
    rf"(job|profile)\s*=\s*[\[{{].*|profile\.{_NAMES}\s*=.*",
    r'\{\s*["}].*',  # JSON
    rf"{_COLUMNS[0]},.*|\d+(,[^,]*){{5}}",
)
_NO_COMMAND = re.compile("|".join(_OTHERS))
"""First lines of files of jobs that have no plain lines of commands."""


class Entry(Record):
    """One job, as the file describes it.

    Attributes:
        own: values that only a job has: the keys of _JOB, and the title of a plain line.
        settings: settings of its launch, as texts.
        where: place in the file.
    """

    own: Mapping[str, Any]
    settings: Mapping[str, str]
    where: "Where"

    @property
    def name(self) -> str:
        """Name of the job."""
        command = self.own.get("command") or ("job",)
        title = self.own.get("title") or self.settings.get("profile") or command[0]
        return str(self.own.get("name") or title)


class Where(Record):
    """The place of a job in its file, for messages.

    Attributes:
        path: path of the file.
        line: number of the line; None for TOML, where the document finds it.
        document: the TOML document; None for other formats.
        number: number of the job in the file.
        columns: whether the file has MAPA's columns.
    """

    path: str
    line: int | None
    document: Document | None
    number: int
    columns: bool = False

    def error(self, key: str | None, message: str, hint: str | None = None) -> UsageError:
        """Return an error about one key of the job, or about the whole job."""
        if self.document:
            where: Path = ("job", self.number, key) if key else ("job", self.number)
            if not self.document.text:  # a program gave the jobs: there is no line to name
                message = f"job {self.number}: {message}"
            return UsageError(self.document.error(FieldError(where, message)).message, hint)
        for own, column in _COLUMN_OF.items() if self.columns else ():
            message = message.replace(f"{own}:", f"{column}:", 1)
        return UsageError(f"{self.path}:{self.line}: {message}", hint)


class JobFile(Record):
    """A file of jobs, as it was read.

    Attributes:
        entries: jobs in order.
        profiles: profiles in the file, by name.
        tables: tables of these profiles, as they are in the file.
    """

    entries: tuple[Entry, ...]
    profiles: Mapping[str, Profile]
    tables: Mapping[str, Mapping[str, Any]]


def load_jobs(path: str, *, to_run: bool = False) -> JobFile:
    """Read a file of jobs; docs/guides/simulate.md and docs/guides/batch.md explain the keys.

    Args:
        path: path of the file; "-" for stdin.
        to_run: whether the jobs are to be run: then each line may be a command, and jobs may come
            after others. Stdin has commands, or JSON lines.

    Raises:
        UsageError: the file cannot be read, or is wrong; with path and line.
    """
    if to_run and path == STDIN:
        if sys.stdin is None:
            raise UsageError("stdin is closed, so there are no jobs to read")
        path, text = "stdin", sys.stdin.buffer.read().decode(errors="surrogateescape")
    else:
        text = read_text(path, _MOST_BYTES)
    text = text.removeprefix("\ufeff")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if to_run and are_commands(path, text):
        found = JobFile(tuple(_read_commands(path, text)), {}, {})
    elif first.startswith("{"):
        found = JobFile(tuple(_read_json_lines(path, text)), {}, {})
    elif first[:1].isdigit() or first.startswith(f"{_COLUMNS[0]},"):
        found = JobFile(tuple(_read_columns(path, text)), {}, {})
    else:
        found = _read_toml(parse_document(path, text))
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
    try:
        top = checked(document.data, _FILE)
        profiles = {
            name: _read_profile(document, name, table)
            for name, table in top.get("profile", {}).items()
        }
    except FieldError as problem:
        raise document.error(problem) from None
    entries = tuple(
        _read_entry(job, Where(document.path, None, document, n))
        for n, job in enumerate(top.get("job", []))
    )
    tables = {
        name: portable(table, document.path) for name, table in top.get("profile", {}).items()
    }
    return JobFile(entries, profiles, tables)


def _read_profile(document: Document, name: str, table: object) -> Profile:
    if not isinstance(table, Mapping):
        raise FieldError(("profile", name), f"{name}: {table!r} is not a table")
    return profile_within(
        Document(document.path, document.text, {"name": name, **table}, ("profile", name))
    )


def are_commands(path: str, text: str) -> bool:
    """Return whether a file of jobs has plain lines of commands, by its name and first line."""
    first = next((line for _, line in _command_lines(text)), "")
    return not (path.endswith((".toml", ".json", ".jsonl", ".csv")) or _NO_COMMAND.fullmatch(first))


def _command_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with a command, and their numbers: not blank ones, nor those from # on."""
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def _read_commands(path: str, text: str) -> list[Entry]:
    """Read a command for sh in each line, as xargs and simple_gpu_scheduler have them."""
    entries: list[Entry] = []
    for number, line in _command_lines(text):
        title = line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1]}…"
        own = {"command": ["sh", "-c", line], "title": title}
        entries.append(Entry(own, {}, Where(path, number, None, len(entries))))
    return entries


def _read_json_lines(path: str, text: str) -> list[Entry]:
    entries: list[Entry] = []
    for number, line in enumerate(
        text.split("\n"), 1
    ):  # only \n ends a line, not Unicode's other line ends
        if line.strip():
            where = Where(path, number, None, len(entries))
            try:
                job = json.loads(line, object_pairs_hook=_refuse_duplicates)
            except (ValueError, RecursionError) as problem:
                raise where.error(None, f"no JSON: {problem}") from None
            entries.append(_read_entry(job, where))
    return entries


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _read_columns(path: str, text: str) -> list[Entry]:
    """Read gpus,pattern,arrival,time,sensitive,name; times in cycles are taken for seconds."""
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or (number == 1 and line.startswith(f"{_COLUMNS[0]},")):
            continue
        where = Where(path, number, None, len(entries), columns=True)
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_COLUMNS):
            raise where.error(
                None, f"{len(values)} columns, {len(_COLUMNS)} are expected: {','.join(_COLUMNS)}"
            )
        row = dict(zip(_COLUMNS, values, strict=True))
        if row["sensitive"] not in ("0", "1"):
            raise where.error(None, f"sensitive: {quoted(row['sensitive'])} is neither 0 nor 1")
        job = {
            "name": row["name"].removesuffix(".sh"),
            "gpus": _read_number(where, row, "gpus", int),
            "pattern": row["pattern"],
            "arrival_s": _read_number(where, row, "arrival", float),
            "duration_s": _read_number(where, row, "time", float),
            "bandwidth_sensitive": row["sensitive"] == "1",
        }
        entries.append(_read_entry(job, where))
    return entries


def _read_number(where: Where, row: Mapping[str, str], column: str, kind: type) -> Any:  # noqa: ANN401
    try:
        return kind(row[column])
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise where.error(None, f"{column}: {quoted(row[column])} is not {wanted}") from None


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
            SETTINGS[key](settings[key])
        except UsageError as problem:
            raise where.error(key, f"{key}: {problem.message}", problem.hint) from None
    return Entry(own, settings, where)


def _as_text(value: object) -> str:
    """Return a value as it would be written on a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
