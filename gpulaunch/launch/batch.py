"""A batch at work: its jobs are launched one after the other, until all have ended.

This is no second scheduler: the launches wait in the queue and take GPUs like any others. It only
decides when the next one begins: as soon as the last one has its GPUs. So at most one job of a
batch is in the queue, and jobs start in the order of the file.

Its results are a file of JSON lines, one for each ended job, never changed; the first line names
the batch. A line is written by one call, and taken back if it does not fit on the disk, so that the
lines before it stay intact; a torn line is skipped when the file is read.

Each launch is an ordinary command line of gpulaunch in a session of its own, so that Ctrl-C at the
terminal reaches this process alone. docs/decisions/batch.md gives the reasons.
"""

import errno
import fcntl
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from gpulaunch.errors import (
    FAILED,
    FailedError,
    GpulaunchError,
    UsageError,
    WouldWaitError,
    call_failed,
    counted,
)
from gpulaunch.files.units import format_duration
from gpulaunch.history.line import is_own_file
from gpulaunch.launch.free import free
from gpulaunch.launch.job_file import Task
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.environment import BATCH_VARIABLE
from gpulaunch.process.libc import ENDING_SIGNALS, end_with_parent, out_of_the_way
from gpulaunch.process.system import clean_environment, iso, own_command, parse_time
from gpulaunch.records import Record, as_dict, field_names

_DIGITS = 3  # of seconds


class Result(Record):
    """The result of a job.

    Attributes:
        id: place of the job in the file of jobs, from 0.
        digest: digest of what was run; a changed job at this place has another one.
        gpus: indices of its GPUs, in rank order; empty if it never started.
        uuids: UUIDs of its GPUs, in rank order.
        lease: id of the lease; None if it never started.
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


class ResultsFile:
    """The results of one batch, locked against other batches.

    Args:
        resume: whether there may be results already.

    Attributes:
        began_s: beginning of the batch, in seconds since 1970.
        results: last result written of each job, by id.
        lock: descriptor of the file; it stays locked until all copies of the descriptor are closed.

    Raises:
        FailedError: the file cannot be written.
        UsageError: the file has other content; or there are results, and resume is not set.
        WouldWaitError: another batch has locked it, or jobs of a killed batch are still ending.
    """

    def __init__(self, path: str, warn: Callable[[str], None], *, resume: bool) -> None:
        self.path = path
        self.batch = ""
        self.began_s = 0.0
        self.results: dict[int, Result] = {}
        try:
            self.lock = out_of_the_way(
                os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
            )
            if not is_own_file(self.lock, os.geteuid()):  # else somebody could change results
                raise UsageError(f"{path}: is no regular file of your own")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WouldWaitError(
                f"{path}: another batch is writing there, or its jobs are still ending"
            ) from None
        except OSError as problem:
            raise call_failed(self.path, problem) from None
        self._read(warn)
        if not self.batch:
            self._begin()
        elif not resume:
            hint = "--resume continues them; to begin anew, remove the file or give --results FILE"
            raise UsageError(f"{path} already holds results of a batch", hint)

    def _begin(self) -> None:
        """Write the first line; if that fails, remove the file again."""
        self.batch, self.began_s = os.urandom(6).hex(), time.time()
        try:
            self._append({"batch": self.batch, "began_at": iso(self.began_s)})
        except FailedError:
            os.unlink(self.path)
            raise

    def add(self, result: Result) -> None:
        """Write the result of a job.

        Raises:
            FailedError: the result cannot be written; the file is unchanged.
        """
        self._append(as_dict(result))
        self.results[result.id] = result

    def _append(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document).encode() + b"\n"
        status = os.fstat(self.lock)
        size = status.st_size
        if not status.st_nlink:  # it was removed, so the line could never be read
            raise FailedError(f"{self.path}: no such file or directory")
        # A torn line must not tear this one, too.
        if size and os.pread(self.lock, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = 0
        try:
            while written < len(line):
                written += os.write(self.lock, line[written:])
            os.fsync(self.lock)
        except OSError as problem:
            with suppress(OSError):
                if os.fstat(self.lock).st_size == size + written:
                    os.ftruncate(self.lock, size)
            raise call_failed(self.path, problem) from None

    def _read(self, warn: Callable[[str], None]) -> None:
        with open(f"/proc/self/fd/{self.lock}", "rb") as file:  # even if it was renamed
            lines = file.readlines()
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    self._take(dict(json.loads(line)))
            except (TypeError, ValueError, LookupError):
                if not self.batch:
                    break
                warn(f"{self.path}:{number}: passed over: this line is torn, or not a batch's")
        if lines and not self.batch:
            raise UsageError(f"{self.path} holds something other than results of a batch")

    def _take(self, document: dict[str, Any]) -> None:
        if not self.batch:
            self.began_s = parse_time(document["began_at"]).timestamp()
            self.batch = str(document["batch"])
        else:
            document["gpus"], document["uuids"] = tuple(document["gpus"]), tuple(document["uuids"])
            fields = {name: document[name] for name in field_names(Result)}
            self.results[document["id"]] = Result(**fields)


_PIPE_BYTES = 1 << 16
_LONGEST_S = 86400.0  # the kernel does not take centuries


class _Begun:
    """A job, and its launch once that has begun.

    Attributes:
        said: descriptor from which its status lines are read.
        is_silent: whether it has closed its end of that.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.lease: str | None = None
        self.gpus: tuple[int, ...] = ()
        self.uuids: tuple[str, ...] = ()
        self.started_s: float | None = None
        self.told_to_end = self.is_silent = False
        self._rest = b""

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[bytes, bytes],
        lock: int,
        output: int | None,
    ) -> None:
        """Start the launch, which gets TERM if this process is killed, and ends its job.

        Args:
            lock: descriptor of a locked file, which it keeps open until its job has ended.
            output: its stdout and stderr; None for this process's own.

        Raises:
            OSError: there are too few resources to start a process.
        """
        # If stderr is closed, an end of the pipe could become descriptor 2: move both away.
        self.said, write_end = (out_of_the_way(fd) for fd in os.pipe())
        os.set_blocking(self.said, False)
        try:
            # The command comes from the user's own job file.
            self._process = subprocess.Popen(  # noqa: S603
                [*own_command(), "-o", f"json_status_fd={write_end},{lock}", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(write_end, lock),
                start_new_session=True,
                # A preexec_fn is safe, since this process has no threads.
                preexec_fn=end_with_parent(os.getpid(), signal.SIGTERM),  # noqa: PLW1509
            )
        except BaseException:
            os.close(self.said)
            raise
        finally:
            os.close(write_end)
        self.pidfd = os.pidfd_open(self._process.pid)

    def heard(self) -> list[Mapping[str, Any]]:
        """Return the status lines since the last call."""
        with suppress(BlockingIOError):
            while part := os.read(self.said, _PIPE_BYTES):
                self._rest += part
            self.is_silent = True
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def signal(self, number: int) -> None:
        """Send a signal to the launch, which passes it on to its job."""
        with suppress(ProcessLookupError):  # it has just ended
            signal.pidfd_send_signal(self.pidfd, number)

    def over(self) -> int:
        """Return the exit status of a launch that has ended, as a shell shows it, 0-255."""
        status = self._process.wait()
        os.close(self.pidfd)
        os.close(self.said)
        return 128 - status if status < 0 else status


class Batch:
    """A batch that runs all jobs that have no result yet.

    Args:
        say: called with a kind, "info", "warning" or "error", and the text of a message; it must
            not raise.
        ended: called with the result of a job, and how many have ended; it must not raise.
        logs: directory for the output of jobs; None for the batch's own output.

    Attributes:
        done: results of ended jobs, by id, including those of earlier runs of the batch.
        signal: number of the last signal that was to end it; None if there was none.
        problem: reason why results could not be written, or None.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        results: ResultsFile,
        say: Callable[[str, str], None],
        ended: Callable[[Result, int], None],
        common: Mapping[str, str],
        logs: str | None,
        grace_s: float,
    ) -> None:
        self._results = results
        self._environment = clean_environment()
        self._selector = selectors.DefaultSelector()
        self._say, self._tell_end = say, ended
        self._common, self._logs, self._grace_s = common, logs, grace_s
        self._began = time.monotonic() - max(0.0, time.time() - results.began_s)
        self._table = open_table(private=True, warn=lambda text: say("warning", text))
        self.done = {task.id: result for task in tasks if (result := _ended(task, results))}
        self._pending = [task for task in tasks if task.id not in self.done]
        self._begun: list[_Begun] = []
        self._queued: _Begun | None = None
        self._unwritten: list[Result] = []
        self.problem: FailedError | None = None
        self.signal: int | None = None
        self._kill_at: float | None = None

    def run(self) -> None:
        """Run until nothing runs and nothing is left to start."""
        with self._hearing_signals():
            self._begin_next()
            while self._begun or (self._pending and not self._stops):
                self._wait(self._longest_wait_s())
                if self._kill_at is not None and self._clock() >= self._kill_at:
                    self._kill()
                self._begin_next()
            self._write_what_is_left()
        if not (self._unwritten or self._pending):
            self.problem = None

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """Let signals to this process have no other effect than that _wait() hears of them."""
        self._signals, write_end = (out_of_the_way(fd) for fd in os.pipe())
        for fd in (self._signals, write_end):
            os.set_blocking(fd, False)
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        before = {}
        for number in ENDING_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets SIGHUP
                before[number] = signal.signal(number, lambda *_: None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            for fd in (self._signals, write_end):
                os.close(fd)

    def _wait(self, timeout_s: float | None) -> None:
        """Sleep until something has happened, or the time is up, and take what that is."""
        if timeout_s is not None:
            timeout_s = min(max(0.0, timeout_s), _LONGEST_S)
        spoken: dict[_Begun, bool] = {}  # and whether it has ended
        for ready, _ in self._selector.select(timeout_s):
            begun = ready.data
            if begun is not None:
                spoken[begun] = spoken.get(begun, False) or ready.fd == begun.pidfd
                continue
            with suppress(BlockingIOError):
                for number in os.read(self._signals, _PIPE_BYTES):
                    self._interrupt(number)
        for begun, has_ended in spoken.items():
            for said in begun.heard():
                self._take_status(begun, said)
            if (begun.is_silent or has_ended) and begun.said in self._selector.get_map():
                self._selector.unregister(begun.said)
            if has_ended:
                self._selector.unregister(begun.pidfd)
                self._take_end(begun, begun.over())

    @property
    def _stops(self) -> bool:
        return self.signal is not None or self.problem is not None

    def _clock(self) -> float:
        """Return the seconds since the batch began, which was before it was resumed."""
        return time.monotonic() - self._began

    def _longest_wait_s(self) -> float | None:
        times = [] if self._kill_at in (None, inf) else [self._kill_at]
        coming = self._next_task()
        if coming and self._queued is None and not self._stops:
            times.append(coming.arrival_s)
        return min(times) - self._clock() if times else None

    def _next_task(self) -> Task | None:
        """Return the first job that waits for none that has not ended."""
        ended = self.done.keys()
        return next((task for task in self._pending if task.after.keys() <= ended), None)

    def _begin_next(self) -> None:
        while self._queued is None and not self._stops:
            task = self._next_task()
            if task is None or self._clock() < task.arrival_s:
                return
            self._pending.remove(task)
            failed = self._failed_before(task)
            if failed is None:
                self._launch(task)
            else:
                how = f"job {failed.id} ({failed.name}) has ended with {failed.exit_status}"
                self._say("error", f"{task} is not run: {how}")
                self._add_result(_Begun(task), FAILED)

    def _failed_before(self, task: Task) -> Result | None:
        """Return a job before this one that should have ended with 0, and did not."""
        for before, any_end in task.after.items():
            if self.done[before].exit_status and not any_end:
                return self.done[before]
        return None

    def _launch(self, task: Task) -> None:
        words = []
        for name, text in {**self._common, **task.entry.settings, "wait": "true"}.items():
            words += ["-o", f"{name}={text}"]
        if task.entry.label:
            words.append(f"--name={task.entry.label}")
        words += ["--", *task.entry.own["command"]]
        batch = f"{self._results.batch}.{task.id}"
        environment = self._environment | {BATCH_VARIABLE.encode(): batch.encode()}
        begun = _Begun(task)
        try:
            with self._open_output(task) as output:
                begun.start(words, environment, self._results.lock, output)
        except OSError as problem:  # no room for a process, or for its log
            reason = str(problem.strerror).lower()
            self._say("error", f"{task}: {problem.filename or 'cannot be launched'}: {reason}")
            self._add_result(begun, FAILED)
            return
        self._selector.register(begun.pidfd, selectors.EVENT_READ, begun)
        self._selector.register(begun.said, selectors.EVENT_READ, begun)
        self._begun.append(begun)
        self._queued = begun

    @contextmanager
    def _open_output(self, task: Task) -> Iterator[int | None]:
        """Open stdout and stderr of a job's launch."""
        if self._logs is None:
            yield None
            return
        path = os.path.join(self._logs, f"{task.id}.log")
        # In a shared directory another user may have made a link, a pipe or a file of this name.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        log = out_of_the_way(os.open(path, flags, 0o666))
        try:
            if not is_own_file(log, os.geteuid()):
                raise PermissionError(errno.EPERM, "is not a file of your own", path)
            os.ftruncate(log, 0)
            os.set_blocking(log, True)
            yield log
        finally:
            os.close(log)

    def _take_status(self, begun: _Begun, said: Mapping[str, Any]) -> None:
        if said["event"] == "started":
            begun.lease, begun.started_s = said["lease"], round(self._clock(), _DIGITS)
            begun.gpus, begun.uuids = tuple(said["gpus"]), tuple(said["uuids"])
            self._queued = None

    def _take_end(self, begun: _Begun, exit_status: int) -> None:
        self._begun.remove(begun)
        if begun is self._queued:
            self._queued = None
        if begun.started_s is not None or not begun.told_to_end:
            self._add_result(begun, exit_status)
        else:
            self._pending.append(begun.task)  # none is begun any more, so the order is no matter

    def _add_result(self, begun: _Begun, exit_status: int) -> None:
        """Write the result of a job.

        If that fails, no more jobs are started: a resumed batch would run them twice.
        """
        task = begun.task
        result = Result(
            id=task.id,
            name=task.entry.name,
            digest=task.digest,
            exit_status=exit_status,
            gpus=begun.gpus,
            uuids=begun.uuids,
            lease=begun.lease,
            interrupted=begun.told_to_end,
            submitted_s=task.arrival_s,
            started_s=begun.started_s,
            ended_s=round(self._clock(), _DIGITS),
        )
        self.done[result.id] = result
        self._unwritten.append(result)
        self._write_what_is_left()
        self._tell_end(result, len(self.done))

    def _write_what_is_left(self) -> None:
        try:
            while self._unwritten:
                self._results.add(self._unwritten[0])
                del self._unwritten[0]
        except FailedError as problem:
            if self.problem is None:
                self._say("error", f"{problem.message}: no more jobs are started")
                self._end(self._queued)
            self.problem = problem

    def _interrupt(self, number: int) -> None:
        first, self.signal = self.signal is None, number
        running = len(self._begun)
        if first and number == signal.SIGINT:
            self._end(self._queued)
            running -= bool(self._queued)
            if running:
                jobs = "the job that runs goes on to its end"
                if running > 1:
                    jobs = f"{running} jobs go on to their ends"
                again = f"Ctrl-C again ends {'it' if running == 1 else 'them'}"
                self._say("info", f"no more jobs are started, {jobs}; {again}")
        elif self._kill_at is None:
            self._kill_at = self._clock() + self._grace_s
            for begun in self._begun:
                self._end(begun)
            if running:
                grace = format_duration(self._grace_s)
                self._say("info", f"ending {counted(running, 'job')}: TERM now, KILL after {grace}")
        else:
            self._kill_at = self._clock()

    def _end(self, begun: _Begun | None) -> None:
        """Send TERM to a launch, which leaves the queue, or passes it on to its job."""
        if begun:
            begun.told_to_end = True
            begun.signal(signal.SIGTERM)
            # A stopped one would not receive TERM.
            begun.signal(signal.SIGCONT)

    def _kill(self) -> None:
        """Send KILL to the jobs that TERM has not ended; their launchers end left-overs."""
        self._kill_at = inf
        for begun in self._begun:
            if begun.lease is None:
                begun.signal(signal.SIGKILL)
                continue
            try:
                free(self._table, begun.lease, 0.0)
            except UsageError:  # it has ended meanwhile
                pass
            except GpulaunchError as problem:
                self._say("error", f"{begun.task}: {problem.message}")


def _ended(task: Task, results: ResultsFile) -> Result | None:
    """Return the result of a task that has run to its own end, by an earlier run of the batch."""
    result = results.results.get(task.id)
    if result is None or result.digest != task.digest:
        return None
    return result if result.started_s is not None and not result.interrupted else None
