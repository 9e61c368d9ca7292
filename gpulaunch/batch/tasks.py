"""Tasks of a batch: its jobs, checked against the machine before anything starts."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from shutil import which
from typing import Any

from gpulaunch.batch.job_file import Entry, JobFile
from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Refuse, Situation
from gpulaunch.errors import UsageError, quoted
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import OPTIONS, Options
from gpulaunch.launch.predecessors import split_after
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.records import Record, replace

_DIGEST_CHARACTERS = 12


class Task(Record):
    """One job to be launched.

    Attributes:
        id: place of the job in the file, from 0.
        name: name of the job, not necessarily unique.
        label: name for `gpulaunch status`, if the file gives one.
        digest: digest of what is run; the times in the file do not count.
        arrival_s: earliest launch, in seconds from the beginning of the batch.
        settings: settings of its launch, as texts.
        command: argv of the job.
        after: ids of the jobs that must have ended before.
        after_ok: ids of those among them that must have ended with 0.
    """

    id: int
    name: str
    label: str | None
    digest: str
    arrival_s: float
    settings: Mapping[str, str]
    command: tuple[str, ...]
    after: tuple[int, ...] = ()
    after_ok: tuple[int, ...] = ()


class CheckedTask(Record):
    """A task that the machine could take.

    Attributes:
        task: the task.
        launch: its launch, as read on the idle machine.
        duration_s: seconds that the file says it takes, or None.
    """

    task: Task
    launch: Launch
    duration_s: float | None


def read_tasks(
    file: JobFile, common: Mapping[str, str], warn: Callable[[str], None], *, at_once: bool = False
) -> list[CheckedTask]:
    """Return the jobs of a file in the order of their start: by arrival, then by place in the file.

    Each is read as its launch will read it, and decided on for the idle machine, so that no mistake
    shows only after hours.

    Args:
        file: the jobs.
        common: settings of all launches.
        warn: called with the text of a warning, once for each text.
        at_once: whether all jobs arrive at the beginning.

    Raises:
        UsageError: a job has no command, or can never run; with path and line.
        FailedError: the machine cannot be read.
    """
    tasks = [
        _make_task(number, entry, at_once=at_once) for number, entry in enumerate(file.entries)
    ]
    tasks = _with_order(tasks, file.entries)
    check = _Check(common, warn)
    checked = [
        CheckedTask(task, check(task, entry), entry.own.get("duration_s"))
        for task, entry in zip(tasks, file.entries, strict=True)
    ]
    return sorted(checked, key=lambda one: (one.task.arrival_s, one.task.id))


def _with_order(tasks: Sequence[Task], entries: Sequence[Entry]) -> list[Task]:
    """Return tasks with the ids of those that they come after.

    Raises:
        UsageError: there is no such job earlier in the file.
    """
    ids: dict[str, int] = {}
    found = []
    for task, entry in zip(tasks, entries, strict=True):
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
        ok = tuple(number for number, any_end in after.items() if not any_end)
        found.append(replace(task, after=tuple(after), after_ok=ok))
        if task.label:
            ids[task.label] = task.id
    return found


def _make_task(number: int, entry: Entry, *, at_once: bool) -> Task:
    if "command" not in entry.own:
        raise entry.where.error(
            None,
            f"job {number} ({entry.name}) has no command",
            "only 'gpulaunch simulate' needs none",
        )
    command = tuple(entry.own["command"])
    for word in command:
        problem = _find_problem(word)
        if problem:
            raise entry.where.error("command", f"command: {quoted(word)} {problem}")
    if which(command[0]) is None:
        raise entry.where.error(
            "command", f"command: {quoted(command[0])} is not found, or cannot be executed"
        )
    settings = {key: _normalise(key, text) for key, text in entry.settings.items()}
    label = entry.own.get("name") or None
    what = json.dumps([label, command, sorted(settings.items())])
    return Task(
        id=number,
        name=entry.name,
        label=label,
        digest=sha256(what.encode()).hexdigest()[:_DIGEST_CHARACTERS],
        arrival_s=0.0 if at_once else float(entry.own.get("arrival_s", 0.0)),
        settings=settings,
        command=command,
    )


def _find_problem(word: str) -> str | None:
    if "\0" in word:
        return "has a NUL in it, which no program can be given"
    with suppress(UnicodeEncodeError):
        os.fsencode(word)
        return None
    return "is no text that a program can be given"


def _normalise(key: str, text: str) -> str:
    """Return a switch as "true" or "false", however it is written, and any other text unchanged."""
    value: Any = OPTIONS[key].parse(text)
    return ("true" if value else "false") if isinstance(value, bool) else text


class _Check:
    """A check of jobs that skips those identical to an earlier one."""

    def __init__(self, common: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._common = common
        self._warn_of = warn
        self._warned: set[str] = set()
        self._known: dict[object, Launch] = {}

    def __call__(self, task: Task, entry: Entry) -> Launch:
        same = task.label, task.command[0], tuple(sorted(task.settings.items()))
        if same in self._known:
            return self._known[same]
        given = {key: (key, text) for key, text in {**self._common, **task.settings}.items()}
        try:
            launch = read_launch(
                Options(given, os.environ), task.command, name=task.label, warn=self._warn
            )
        except UsageError as problem:
            raise entry.where.error(
                None, f"job {task.id} ({task.name}): {problem.message}", problem.hint
            ) from None
        leases = [launch.within] if launch.within else []
        decision = decide(
            launch.request, Situation(launch.machine.topology, leases, within=launch.within)
        )
        if isinstance(decision, Refuse):
            raise entry.where.error(
                None, f"job {task.id} ({task.name}) can never run: {decision.reason}"
            )
        self._known[same] = launch
        return launch

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn_of(text)
