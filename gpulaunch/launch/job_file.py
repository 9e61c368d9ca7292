"""Jobs to run or to simulate: TOML, JSON lines, or on stdin plain lines; and the tasks of a batch.

The tasks are jobs that are checked against the machine before anything starts. With --plan they
come in the groups and on the GPUs that a plan has.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from shutil import which
from typing import Any

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Refuse, Sharing, State
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import FieldError, UsageError, counted, quoted
from gpulaunch.files.document import Document, parse_document, read_text
from gpulaunch.files.fields import FieldTable, ListOf, Path, checked, unknown
from gpulaunch.files.units import format_duration
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import OPTIONS, Options
from gpulaunch.launch.past import split_after
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.profiles.catalog import load_profile, portable, read_layers
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record, replace
from gpulaunch.sharing.plan import Plan, PlannedJob, PlanSite, make_plan
from gpulaunch.sharing.speed import least_of

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


_DIGEST_CHARACTERS = 12


class Task(Record):
    """One job to be launched.

    Attributes:
        id: place of the job in the file, from 0.
        digest: digest of what is run; the times in the file do not count.
        arrival_s: earliest launch, in seconds from the beginning of the batch.
        after: ids of the jobs that must have ended before, and whether any end of them will do.
    """

    id: int
    entry: Entry
    digest: str
    arrival_s: float
    launch: Launch
    after: Mapping[int, bool]

    def __str__(self) -> str:
        """Return what messages call it."""
        return f"job {self.id} ({self.entry.name})"


def read_tasks(
    file: JobFile, common: Mapping[str, str], warn: Callable[[str], None], *, at_once: bool = False
) -> list[Task]:
    """Return the jobs of a file in the order of their start: by arrival, then by place in the file.

    Each is read as its launch will read it, and decided on for the idle machine, so that no mistake
    shows only after hours.

    Args:
        warn: called with the text of a warning, once for each text.

    Raises:
        UsageError: a job has no command, or can never run; with path and line.
        FailedError: the machine cannot be read.
    """
    warned: set[str] = set()

    def warn_once(text: str) -> None:
        if text not in warned:
            warned.add(text)
            warn(text)

    launches: dict[object, Launch] = {}  # jobs that are alike are checked once
    ids: dict[str, int] = {}
    tasks = []
    for number, entry in enumerate(file.entries):
        _check_command(number, entry)
        command, settings = entry.own["command"], sorted(entry.settings.items())
        same = entry.label, command[0], tuple(settings)
        if same not in launches:
            launches[same] = _check(number, entry, common, warn_once)
        what = json.dumps([entry.label, command, settings])
        digest = sha256(what.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        arrival_s = 0.0 if at_once else float(entry.own.get("arrival_s", 0.0))
        after = _read_after(entry, ids)
        tasks.append(Task(number, entry, digest, arrival_s, launches[same], after))
        if entry.label:
            ids[entry.label] = number
    return sorted(tasks, key=lambda task: (task.arrival_s, task.id))


def _check_command(number: int, entry: Entry) -> None:
    """Check that a job's command could be run."""
    if "command" not in entry.own:
        raise entry.where.error(
            None,
            f"job {number} ({entry.name}) has no command",
            "only 'gpulaunch simulate' needs none",
        )
    command = entry.own["command"]
    for word in command:
        if not _is_argument(word):
            message = f"command: {quoted(word)} is no text that a program can be given"
            raise entry.where.error("command", message)
    if which(command[0]) is None:
        raise entry.where.error(
            "command", f"command: {quoted(command[0])} is not found, or cannot be executed"
        )


def _is_argument(word: str) -> bool:
    """Return whether a program can be given a text: not with a NUL, or half a character of JSON."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _read_after(entry: Entry, ids: Mapping[str, int]) -> dict[int, bool]:
    """Return the ids of the jobs that a job comes after, and whether any end of them will do."""
    after: dict[int, bool] = {}
    for text in entry.own.get("after", ()):
        try:
            names = split_after(text, ids)
        except UsageError as problem:
            raise entry.where.error("after", f"after: {problem.message}") from None
        for name, any_end in names:
            if name not in ids:
                raise entry.where.error(
                    "after", f"after: no job before this one in the file is called {name!r}"
                )
            after[ids[name]] = any_end
    return after


def _check(
    number: int, entry: Entry, common: Mapping[str, str], warn: Callable[[str], None]
) -> Launch:
    """Return a job's launch, if the idle machine could take it."""
    job = f"job {number} ({entry.name})"
    command = entry.own["command"]
    given = {key: (key, text) for key, text in {**common, **entry.settings}.items()}
    try:
        launch = read_launch(Options(given, os.environ), command, name=entry.label, warn=warn)
    except UsageError as problem:
        raise entry.where.error(None, f"{job}: {problem.message}", problem.hint) from None
    leases = [launch.within] if launch.within else []
    decision = decide(launch.request, State(launch.machine.topology, leases, within=launch.within))
    if isinstance(decision, Refuse):
        raise entry.where.error(None, f"{job} can never run: {decision.reason}")
    return launch


def plan_tasks(tasks: Sequence[Task]) -> tuple[list[Task], str]:
    """Return the jobs of a batch with the GPU, the cap and the predecessors that a plan gives them.

    Planned are jobs that share, want one GPU, leave their share of it open, are there from the
    beginning, and whose duration is known; on the GPUs that all of them may have. All others come
    after them, in their order.

    Returns:
        All jobs in the order of their start, and what the plan predicts, in a line.

    Raises:
        UsageError: none can be planned, or there is no GPU that all may have.
    """
    jobs: list[PlannedJob] = []
    planned: dict[str, tuple[Task, Sharing]] = {}
    others = []
    for one in tasks:
        sharing, duration_s = one.launch.request.sharing, _planned_duration(one)
        if sharing and duration_s:
            jobs.append(PlannedJob(str(one.id), sharing.client, duration_s))
            planned[jobs[-1].name] = one, sharing
        else:
            others.append(one)
    if not planned:
        raise UsageError(
            "no job can be planned: none shares one GPU from the beginning and has a duration_s",
            "write share = true and duration_s, or a profile that has its duration",
        )
    uuids = _common_gpus(list(planned.values()))
    _, sharing = planned[jobs[0].name]
    capacity = least_of(sharing.capacities, uuids)
    site = PlanSite(capacity, len(uuids), sharing.client.objective)
    plan = make_plan(jobs, site)
    ordered = _in_order(plan, planned, uuids)
    ends = {task.id: True for task in ordered}
    for one in others:
        ordered.append(replace(one, after={**ends, **one.after}))
    return ordered, _message(plan, len(jobs), len(others))


def _common_gpus(planned: Sequence[tuple[Task, Sharing]]) -> list[str]:
    """Return the UUIDs of the GPUs that all jobs may have and share."""
    gpus = list(planned[0][0].launch.machine.topology.gpus)
    for task, sharing in planned:
        launch = task.launch
        admitted = admitted_gpus(launch.request, launch.machine.topology, launch.within)
        gpus = [gpu for gpu in gpus if gpu in admitted and gpu.uuid in sharing.capacities]
    if not gpus:
        raise UsageError("no job can be planned: there is no GPU that all may have and share")
    return [gpu.uuid for gpu in gpus]


def _planned_duration(one: Task) -> float | None:
    """Return how long a job takes alone, in seconds; None if it is not to be planned."""
    request, entry = one.launch.request, one.entry
    if request.sharing is None or request.gpus != 1 or one.arrival_s or one.after:
        return None
    if request.sharing.sm_percentage is not None:
        return None
    name = entry.settings.get("profile") or request.profile
    duration_s: float | None = entry.own.get("duration_s")
    if duration_s is None and name:
        duration_s = load_profile(name).resources.duration_s
    return duration_s or None


def _in_order(
    plan: Plan, planned: Mapping[str, tuple[Task, Sharing]], uuids: Sequence[str]
) -> list[Task]:
    """Return tasks, group after group; a group waits for the one before it on its GPU."""
    ordered: list[Task] = []
    before: dict[int, dict[int, bool]] = {}
    for group in plan.groups:
        terms = [planned[member.job.name][1] for member in group.members]
        names = tuple(sorted(sharing.client.demand.name for sharing in terms))
        is_searching = all(
            sharing.tries and sharing.search and sharing.search.names == names for sharing in terms
        )
        after = before.get(group.gpu, {})
        before[group.gpu] = {}
        for member in group.members:
            task, _ = planned[member.job.name]
            settings = {**task.entry.settings, "only": uuids[group.gpu]}
            # What is recorded searches for its caps, one step a task, from those of the plan.
            if member.sm_percentage is not None and not is_searching:
                settings["sm_percentage"] = str(member.sm_percentage)
            entry = replace(task.entry, settings=settings)
            ordered.append(replace(task, entry=entry, after=after))
            before[group.gpu][task.id] = True
    return ordered


def _message(plan: Plan, planned: int, others: int) -> str:
    what = counted(planned, "job")
    groups = counted(len(plan.groups), "group")
    where = counted(len({group.gpu for group in plan.groups}), "GPU")
    taken, alone = (format_duration(cost.time_s) for cost in (plan.cost, plan.sequential))
    rest = f"; {others} not planned" if others else ""
    return (
        f"planned: {what} in {groups} on {where}, predicted to take {taken}, "
        f"{alone} without sharing{rest}"
    )
