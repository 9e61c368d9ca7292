"""A batch: jobs launched one after the other, each by an ordinary launch, until all have ended.

No second scheduler: the launches wait in the queue and take GPUs as any others do. What is decided
here is only when the next one begins: as soon as the last has its GPUs. So at most one job of a
batch stands in the queue, and the order of starts is that of the file.
"""

import os
import time
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from signal import SIGCONT, SIGINT, SIGKILL, SIGTERM

from gpulaunch.batch.results_file import Header, Result, ResultsFile
from gpulaunch.batch.resume import look_back, processes_of
from gpulaunch.batch.tasks import Task
from gpulaunch.errors import FAILED, FailedError, GpulaunchError, UsageError
from gpulaunch.files.duration import format_duration
from gpulaunch.launch.children import Event, Launches, Over, Signalled, Told
from gpulaunch.launch.free import free
from gpulaunch.launch.open_table import open_table
from gpulaunch.leases.environment import BATCH_VARIABLE
from gpulaunch.leases.lease import Lease
from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.records import Record, replace
from gpulaunch.typing import Any


class Counts(Record):
    """Progress of a batch.

    Attributes:
        jobs: how many there are.
        done: how many have ended.
        failed: how many of these with another exit status than 0.
        running: how many have their GPUs.
        queued: name of the job that waits for its own, and why it waits; None if none does.
    """

    jobs: int
    done: int
    failed: int
    running: int
    queued: tuple[str, str] | None


class Listener(Record):
    """Functions that a batch calls on its way; none may raise.

    Attributes:
        say: given a kind of message ("info", "warning", "error"), and the message.
        ended: given the result of a job, and how far the batch has come.
        changed: given how far the batch has come.
    """

    say: Callable[[str, str], None]
    ended: Callable[[Result, Counts], None]
    changed: Callable[[Counts], None]


class Outcome(Record):
    """Result of a batch.

    Attributes:
        results: of jobs that have ended, by id, those of earlier runs of the batch included.
        signal: number of the last signal that was to end it; None if there was none.
        problem: why results could not be written, or None.
    """

    results: dict[int, Result]
    signal: int | None
    problem: FailedError | None


class Ways(Record):
    """How launches are made.

    Attributes:
        words: returns options, and variables, that say what settings say; the settings include the
            name of the job.
        common: settings of all launches.
        logs: directory of what each job prints; None for where the batch prints.
        apart: what they print to stdout goes to stderr, since stdout is not theirs.
        grace_s: seconds between TERM and KILL.
    """

    words: Callable[[Mapping[str, str]], tuple[list[str], dict[str, str]]]
    common: Mapping[str, str]
    logs: str | None
    apart: bool
    grace_s: float


class _Begun:
    """A job whose launch has begun."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.lease: str | None = None
        self.gpus: tuple[int, ...] = ()
        self.uuids: tuple[str, ...] = ()
        self.started_s: float | None = None
        self.why_waiting = ""
        self.told_to_end = False


def begin(path: str, file: str, warn: Callable[[str], None], *, resume: bool) -> ResultsFile:
    """Open the results of a batch, new or to be gone on with.

    Args:
        path: of the results.
        file: of the jobs.
        warn: where to say what is odd but no failure.
        resume: there may be some.

    Raises:
        UsageError: there are some, and there may not be.
        WouldWaitError: the batch runs.
        FailedError: they cannot be written.
    """
    results = ResultsFile(path, warn)
    if results.header is None:
        results.begin(Header(os.urandom(6).hex(), file, time.time()))
    elif not resume:
        hint = "--resume goes on with it; to begin anew, remove the file or give --results FILE"
        raise UsageError(f"{path}: here are the results of a batch already", hint)
    return results


def run(tasks: Sequence[Task], results: ResultsFile, ways: Ways, listener: Listener) -> Outcome:
    """Run all jobs that have no result yet.

    Args:
        tasks: in the order in which they are to start.
        results: of this batch so far; more are added.
        ways: how launches are made.
        listener: who is told what.

    Raises:
        WouldWaitError: a job still runs that is another now.
        FailedError: jobs of a batch that was killed cannot be taken over.
    """
    guarded = os.environ.get("CI", "").lower() in ("1", "true")
    with Launches(guarded=guarded) as launches:
        return _Batch(tasks, results, launches, ways, listener).run()


class _Batch:
    def __init__(
        self,
        tasks: Sequence[Task],
        results: ResultsFile,
        launches: Launches,
        ways: Ways,
        listener: Listener,
    ) -> None:
        assert results.header is not None  # noqa: S101  begin() has seen to that
        self._jobs = len(tasks)
        self._results, self._launches, self._ways, self._ears = results, launches, ways, listener
        self._began = time.monotonic() - max(0.0, time.time() - results.header.began_s)
        self._table = open_table(described=True, warn=lambda text: listener.say("warning", text))
        self._otherwise = results.opened_apart()
        self._done: dict[int, Result] = {}
        self._pending: list[Task] = []
        self._begun: dict[int, _Begun] = {}
        self._queued: _Begun | None = None
        self._unwritten: list[Result] = []
        self._problem: FailedError | None = None
        self._signal: int | None = None
        self._is_ending = False
        self._kill_at: float | None = None
        self._has_killed = False
        self._gives_up = False
        left = look_back(tasks, results, self._table, ways.grace_s)
        self._done |= left.done
        for task in tasks:
            if task.id in left.running:
                self._take_over(task, left.running[task.id])
            elif task.id not in left.done:
                self._pending.append(task)

    def _take_over(self, task: Task, lease: Lease) -> None:
        """Wait for a job that an earlier run of the batch has started."""
        begun = self._begun[task.id] = _Begun(task)
        begun.lease, begun.uuids, begun.started_s = lease.id, lease.uuids, 0.0
        self._ears.say("info", f"{_called(task)} still runs, under lease {lease.id}: taken over")
        if not self._launches.adopt(task.id, processes_of(self._mark(task), self._results)):
            self._take(Over(task.id, None))  # it has ended since we looked

    def _mark(self, task: Task) -> str:
        return self._results.mark(task.id, task.digest)

    def run(self) -> Outcome:
        """Run until nothing runs and nothing is left to start."""
        try:
            while True:
                self._begin_next()
                self._ears.changed(self._counts())
                if self._gives_up or not (self._begun or (self._pending and not self._stops)):
                    break
                for event in self._launches.wait(self._patience_s()):
                    self._take(event)
                if self._kill_at is not None and self._clock() >= self._kill_at:
                    self._kill()
        finally:
            os.close(self._otherwise)
        self._write_what_is_left()
        problem = self._problem if self._unwritten or self._pending else None
        return Outcome(self._done, self._signal, problem)

    @property
    def _stops(self) -> bool:
        return self._signal is not None or self._problem is not None

    def _clock(self) -> float:
        """Seconds since the batch began, which was before it was resumed."""
        return time.monotonic() - self._began

    def _counts(self) -> Counts:
        failed = sum(result.exit_status != 0 for result in self._done.values())
        queued = (self._queued.task.name, self._queued.why_waiting) if self._queued else None
        return Counts(self._jobs, len(self._done), failed, len(self._begun) - bool(queued), queued)

    def _patience_s(self) -> float | None:
        times = [self._kill_at] if self._kill_at is not None else []
        if self._pending and self._queued is None and not self._stops:
            times.append(self._pending[0].arrival_s)
        return min(times) - self._clock() if times else None

    def _begin_next(self) -> None:
        while (
            self._pending
            and self._queued is None
            and not self._stops
            and self._clock() >= self._pending[0].arrival_s
        ):
            self._launch(self._pending.pop(0))

    def _launch(self, task: Task) -> None:
        words, variables = self._ways.words({**self._ways.common, **task.settings, "wait": "true"})
        if task.label:
            words.append(f"--name={task.label}")
        variables = {**variables, BATCH_VARIABLE: self._mark(task)}
        begun = _Begun(task)
        try:
            with self._output(task) as output:
                self._launches.start(
                    task.id, [*words, "--", *task.command], variables, self._otherwise, output
                )
        except OSError as problem:  # no room for a process, or for its log
            reason = os.strerror(problem.errno or 0).lower()
            self._ears.say(
                "error", f"{_called(task)}: {problem.filename or 'cannot be launched'}: {reason}"
            )
            self._ended(begun, FAILED)
            return
        self._begun[task.id] = self._queued = begun

    @contextmanager
    def _output(self, task: Task) -> Iterator[tuple[int | None, int | None]]:
        """Stdout and stderr of a job's launch."""
        if self._ways.logs is None:
            yield (2 if self._ways.apart else None), None
            return
        path = os.path.join(self._ways.logs, f"{task.id}.log")
        log = out_of_the_way(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        )
        try:
            yield log, log
        finally:
            os.close(log)

    def _take(self, event: Event) -> None:
        if isinstance(event, Signalled):
            self._interrupt(event.number)
        elif isinstance(event, Told):
            self._hear(self._begun[event.key], event.document)
        else:
            self._see_off(self._begun.pop(event.key), event)

    def _hear(self, begun: _Begun, said: Mapping[str, Any]) -> None:
        if said["event"] == "waiting":
            begun.why_waiting = said["reason"]
        elif said["event"] == "started":
            begun.lease, begun.started_s = said["lease"], self._clock()
            begun.gpus, begun.uuids = tuple(said["gpus"]), tuple(said["uuids"])
            self._queued = None

    def _see_off(self, begun: _Begun, over: Over) -> None:
        if begun is self._queued:
            self._queued = None
        if over.exit_status is not None:
            if begun.started_s is not None or not begun.told_to_end:
                self._ended(begun, over.exit_status)
            else:
                insort(self._pending, begun.task, key=_order)
            return
        self._results.read()
        words = self._results.last_words_of(
            self._mark(begun.task), begun.task.name, begun.task.arrival_s
        )
        if words:
            self._keep(replace(words, interrupted=begun.told_to_end))
        else:  # its launcher was killed, so nobody knows how it ended
            insort(self._pending, begun.task, key=_order)

    def _ended(self, begun: _Begun, exit_status: int) -> None:
        task = begun.task
        self._keep(
            Result(
                id=task.id,
                name=task.name,
                digest=task.digest,
                exit_status=exit_status,
                gpus=begun.gpus,
                uuids=begun.uuids,
                lease=begun.lease,
                interrupted=begun.told_to_end,
                submitted_s=task.arrival_s,
                started_s=begun.started_s,
                ended_s=self._clock(),
            )
        )

    def _keep(self, result: Result) -> None:
        """Write a result down.

        Where that cannot be, no more jobs are started: who resumes would run them twice.
        """
        self._done[result.id] = result
        self._unwritten.append(result)
        self._write_what_is_left()
        self._ears.ended(result, self._counts())

    def _write_what_is_left(self) -> None:
        try:
            while self._unwritten:
                self._results.add(self._unwritten[0])
                del self._unwritten[0]
        except FailedError as problem:
            if self._problem is None:
                self._ears.say("error", f"{problem.message}: no more jobs are started")
                self._end(self._queued)
            self._problem = problem

    def _interrupt(self, number: int) -> None:
        first, self._signal = self._signal is None, number
        if self._has_killed:
            self._gives_up = True
        elif self._is_ending:
            self._kill_at = self._clock()
        elif first and number == SIGINT:
            self._end(self._queued)
            running = len(self._begun) - bool(self._queued)
            if running:
                rest = (
                    "the job that runs goes on to its end"
                    if running == 1
                    else f"{running} jobs go on to their ends"
                )
                self._ears.say(
                    "info", f"no more jobs are started, {rest}; Ctrl-C again ends {_them(running)}"
                )
        else:
            self._is_ending = True
            self._kill_at = self._clock() + self._ways.grace_s
            for begun in self._begun.values():
                self._end(begun)
            if self._begun:
                grace = format_duration(self._ways.grace_s)
                self._ears.say(
                    "info", f"ending {_jobs(len(self._begun))}: TERM now, KILL after {grace}"
                )

    def _end(self, begun: _Begun | None) -> None:
        """Send TERM to a launch: it leaves the queue by it, or passes it on to its job."""
        if begun:
            begun.told_to_end = True
            self._launches.signal(begun.task.id, SIGTERM)
            self._launches.signal(begun.task.id, SIGCONT)  # a stopped one would not hear it

    def _kill(self) -> None:
        """Send KILL to the jobs that TERM has not ended; their launchers end left-overs."""
        self._kill_at = None
        self._has_killed = True
        for begun in list(self._begun.values()):
            if begun.lease is None:
                self._launches.signal(begun.task.id, SIGKILL)
                continue
            try:
                free(self._table, begun.lease, 0.0)
            except UsageError:  # it has ended meanwhile
                pass
            except GpulaunchError as problem:
                self._ears.say("error", f"{_called(begun.task)}: {problem.message}")


def _order(task: Task) -> tuple[float, int]:
    return task.arrival_s, task.id


def _called(task: Task) -> str:
    return f"job {task.id} ({task.name})"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
