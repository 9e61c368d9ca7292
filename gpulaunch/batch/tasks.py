"""Tasks of a batch: its jobs, checked against the machine before anything starts."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from shutil import which

from gpulaunch.batch.job_file import Entry, JobFile
from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Refuse, State
from gpulaunch.errors import UsageError, quoted
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Options
from gpulaunch.launch.past import split_after
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.records import Record

_DIGEST_CHARACTERS = 12


class Task(Record):
    """One job to be launched.

    Attributes:
        id: place of the job in the file, from 0.
        name: name of the job, not necessarily unique.
        label: name for `gpulaunch status`, if the file gives one.
        digest: digest of what is run; the times in the file do not count.
        arrival_s: earliest launch, in seconds from the beginning of the batch.
        duration_s: seconds that the file says it takes, or None.
        settings: settings of its launch, as texts.
        command: argv of the job.
        launch: its launch, as read on the idle machine.
        after: ids of the jobs that must have ended before.
        after_ok: ids of those among them that must have ended with 0.
    """

    id: int
    name: str
    label: str | None
    digest: str
    arrival_s: float
    duration_s: float | None
    settings: Mapping[str, str]
    command: tuple[str, ...]
    launch: Launch
    after: tuple[int, ...] = ()
    after_ok: tuple[int, ...] = ()


def read_tasks(
    file: JobFile, common: Mapping[str, str], warn: Callable[[str], None], *, at_once: bool = False
) -> list[Task]:
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
    warned: set[str] = set()

    def warn_once(text: str) -> None:
        if text not in warned:
            warned.add(text)
            warn(text)

    launches: dict[object, Launch] = {}  # jobs that are alike are checked once
    ids: dict[str, int] = {}
    tasks = []
    for number, entry in enumerate(file.entries):
        command = _read_command(number, entry)
        label = entry.own.get("name") or None
        settings = sorted(entry.settings.items())
        same = label, command[0], tuple(settings)
        if same not in launches:
            launches[same] = _check(number, entry, common, warn_once)
        after = _read_after(entry, ids)
        what = json.dumps([label, command, settings])
        tasks.append(
            Task(
                id=number,
                name=entry.name,
                label=label,
                digest=sha256(what.encode()).hexdigest()[:_DIGEST_CHARACTERS],
                arrival_s=0.0 if at_once else float(entry.own.get("arrival_s", 0.0)),
                duration_s=entry.own.get("duration_s"),
                settings=entry.settings,
                command=command,
                launch=launches[same],
                after=tuple(after),
                after_ok=tuple(before for before, any_end in after.items() if not any_end),
            )
        )
        if label:
            ids[label] = number
    return sorted(tasks, key=lambda task: (task.arrival_s, task.id))


def _read_command(number: int, entry: Entry) -> tuple[str, ...]:
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
    return command


def _find_problem(word: str) -> str | None:
    if "\0" in word:
        return "has a NUL in it, which no program can be given"
    with suppress(UnicodeEncodeError):
        os.fsencode(word)
        return None
    return "is no text that a program can be given"


def _read_after(entry: Entry, ids: Mapping[str, int]) -> dict[int, bool]:
    """Return the ids of the jobs that a job comes after, and whether any end of them will do.

    Args:
        entry: the job.
        ids: ids of the jobs before it in the file, by name.

    Raises:
        UsageError: there is no such job.
    """
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
    """Return a job's launch, if the idle machine could take it.

    Raises:
        UsageError: it could not.
    """
    job = f"job {number} ({entry.name})"
    command, name = entry.own["command"], entry.own.get("name") or None
    given = {key: (key, text) for key, text in {**common, **entry.settings}.items()}
    try:
        launch = read_launch(Options(given, os.environ), command, name=name, warn=warn)
    except UsageError as problem:
        raise entry.where.error(None, f"{job}: {problem.message}", problem.hint) from None
    leases = [launch.within] if launch.within else []
    decision = decide(launch.request, State(launch.machine.topology, leases, within=launch.within))
    if isinstance(decision, Refuse):
        raise entry.where.error(None, f"{job} can never run: {decision.reason}")
    return launch
