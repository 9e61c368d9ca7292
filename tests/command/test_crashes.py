"""Death at any moment: whatever is killed, stopped, damaged or misdated, the table stays right."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, held, some_of, wait_for_end
from test_table import put
from values import cases

from gpulaunch.process.system import identify
from gpulaunch.records import as_list

AT_STEP = Path(__file__).parents[1] / "jobs" / "at_step"
WAIT = ("--wait",)
ALL = (*DGX, "-n", "all")
LEASE, TICKET = "gpulaunch.lease.aaaaaaaaaaaa", "gpulaunch.ticket.00000001.aaaaaaaaaaaa"

# The job: makes a file for each of its GPUs, which must not be there yet, tells its GPUs, and runs
# until it is told to end. Two owners at one time would show, whatever the table says.
OWN = """
set -C; IFS=,
for gpu in $CUDA_VISIBLE_DEVICES; do \
true 2>/dev/null > "$OWNED/$gpu" || echo "two owners of $gpu"; done
echo "$CUDA_VISIBLE_DEVICES"
read line
cd "$OWNED" && rm $CUDA_VISIBLE_DEVICES
"""
OWNING = ("--", "sh", "-c", OWN)


def launcher_in(directory: Path) -> Launcher:
    """Return a launcher with a table of its own."""
    (directory / "owned").mkdir(parents=True)
    launcher = Launcher(directory)
    launcher.environment |= {"OWNED": str(directory / "owned"), "GPULAUNCH_GRACE": "0.1s"}
    return launcher


started: set[subprocess.Popen[str]] = set()
"""What threads wait for, to be killed if the test fails meanwhile."""


@contextmanager
def start(launcher: Launcher, *command: str, before: Sequence[str] = (), **options):
    """Run a launcher whose job can be told to end through stdin; kill it when the block ends.

    Args:
        launcher: where.
        command: arguments of gpulaunch.
        before: what to run instead of gpulaunch, which gets the arguments after its own.
        options: of Popen.
    """
    command = (*(before or [launcher.script]), *command)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, env=launcher.environment, text=True, **pipes, **options)
    started.add(process)
    try:
        yield process
    finally:
        started.remove(process)
        process.kill()
        with suppress(BrokenPipeError, ValueError):  # told to end already
            process.communicate()


def at_step(action: str, step: str) -> list[str]:
    """Return what to run instead of gpulaunch so that it is hit at a step."""
    return [str(AT_STEP), action, step]


def patched(patch: str) -> list[str]:
    """Return what to run instead of gpulaunch so that a patch comes first."""
    return [sys.executable, "-c", f"{patch}\nfrom gpulaunch.__main__ import main; main()"]


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Let its job end if it has not yet; return its status and the rest of stdout and stderr."""
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def wait_for_stop(pid: int) -> None:
    """Block until a child has stopped."""
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert found.si_code == os.CLD_STOPPED, "it ended before the step where it was to stop"


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """Return a real lease of all GPUs and a ticket for three, with the ids of LEASE and TICKET."""
    launcher = launcher_in(tmp_path_factory.mktemp("real"))
    with held(launcher, *ALL), start(launcher, *VGG, *WAIT, *SHOW) as waiter:
        queue_up(waiter, 1)
        lease, ticket = (
            json.loads((launcher.state / name).read_bytes()) for name in launcher.records()
        )
    return lease | {"id": LEASE[-12:]}, ticket | {"id": TICKET[-12:]}


def all_free(launcher: Launcher) -> tuple[str, str, list[str]]:
    """Return what a launch of all GPUs prints now, and which records it leaves."""
    done = launcher.run(*ALL, "--", "echo", "all")
    return done.stdout, done.stderr, launcher.records()


ALL_FREE = ("all\n", "", [])


def leases(launcher: Launcher) -> list[dict]:
    """Return the leases of the described machine."""
    return json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"]


EVERY = pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.long)])
"""A launcher is killed at every sixteenth of its steps; in the long form at each one."""

IN_WAIT = "process.job.Job.wait:signal.sigtimedwait#1"

Scene = Callable[[Launcher, Sequence[str]], int]
"""Plays a launcher's life, in which it is killed or not, asserts that the table is right, and tells
its status.
"""


def traced(
    directory: Path, scene: Scene, certain: Sequence[str], since: str = "", until: str = ""
) -> list[str]:
    """Return the steps of a scene without a kill; of a repeated step, the first and the last.

    Args:
        directory: for the traces.
        scene: what is played, again if it went by so fast that nobody had to wait.
        certain: some of the steps.
        since: what the first step's name begins with.
        until: the last step, if the launcher's end is not meant.
    """
    for attempt in "12345":
        trace, launcher = directory / f"trace {attempt}", launcher_in(directory / attempt)
        assert scene(launcher, at_step("trace", str(trace))) == 0
        steps = trace.read_text().split()
        if set(certain) < set(steps):
            break
    else:
        pytest.fail(f"{certain} are not all among {steps}")
    begin = next(i for i, step in enumerate(steps) if step.startswith(since))
    end = steps.index(until) if until else len(steps)
    first_and_last: dict[str, list[str]] = {}
    for step in steps[begin : end + 1]:
        first_and_last.setdefault(step.partition("#")[0], []).append(step)
    return [step for same in first_and_last.values() for step in dict.fromkeys((same[0], same[-1]))]


def at_once(play: Callable[[str], None], steps: list[str]) -> None:
    """Play several steps at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            list(pool.map(play, steps))
        except BaseException:
            for process in [*started]:
                process.kill()
            raise


def sweep(directory: Path, scene: Scene, steps: list[str]) -> None:
    """Play a scene once for each step, with a launcher that is killed there.

    A step at which it would wait may not come, if what it waits for was there before. So a first
    time is given more chances; of the last times, whose number varies, most must come.
    """
    wrong: dict[str, str] = {}
    missed: list[str] = []

    def play(step: str) -> None:
        for attempt in "123":
            if len(wrong) > 2:  # enough to see that something is wrong
                return
            try:
                status = scene(launcher_in(directory / f"{step} {attempt}"), at_step("KILL", step))
            except AssertionError as problem:
                wrong[step] = str(problem)
                return
            if status == killed(step):
                return
            if not step.endswith("#1"):
                break
        missed.append(step)

    at_once(play, steps)
    assert wrong == {}
    assert [step for step in missed if step.endswith("#1")] == []
    assert len(missed) <= len(steps) / 5, missed


def killed(step: str) -> int:
    """Return the launcher's status when it is killed there; a kill of the child kills the job."""
    if step.startswith("companion:"):
        return 0
    return 128 + signal.SIGKILL if step.startswith("child:") else -signal.SIGKILL


def queue_up(waiter: subprocess.Popen[str], *places: int) -> None:
    """Block until a launcher is in the queue, at one of these places."""
    first_word, _, _ = select.select([waiter.stdout, waiter.stderr], [], [])
    line = waiter.stderr.readline() if waiter.stderr in first_word else "it did not queue"
    assert line.startswith(
        tuple(f"gpulaunch: info: waiting as number {place} in the queue: " for place in places)
    ), line


def served(waiter: subprocess.Popen[str], launcher: Launcher) -> None:
    """Check that a launcher gets all GPUs, which are unused, and leaves no record."""
    got = waiter.stdout.readline()
    status, rest, errors = ends(waiter)
    assert (sorted(got.rstrip().split(",")), status, rest) == (list("01234567"), 0, ""), errors
    assert launcher.records() == []


def launch_from_the_queue(launcher: Launcher, victim: Sequence[str], lease: dict) -> int:
    """Queue two launches behind a holder; end it, and check that both are served in order."""
    holder = put(launcher, LEASE, json.dumps(lease).encode(), live=True)
    with start(launcher, *VGG, *WAIT, *OWNING, before=victim) as first:
        first.stderr.readline()
        with start(launcher, *ALL, *WAIT, *OWNING) as second:
            queue_up(second, 1, 2)
            os.close(holder)
            began = first.stdout.readline()
            assert began in ("0,2,3\n", "")
            status, _, _ = ends(first)
            served(second, launcher)
    return status


@EVERY
def test_killed_at_every_step_of_waiting(
    tmp_path: Path, documents: tuple[dict, dict], every: int
) -> None:
    """Wherever a launcher is killed, in the queue or with a job, the job keeps its GPUs until it
    ends, the next is served, and no record stays.
    """

    def scene(launcher: Launcher, victim: Sequence[str]) -> int:
        return launch_from_the_queue(launcher, victim, documents[0])

    certain = [
        "leases.record_file.Draft.publish:os.link#2",
        "launch.place_in_queue.PlaceInQueue._poll:select.poll#1",
        "child:process.system.execute:os.exec#1",
        IN_WAIT,
    ]
    steps = traced(tmp_path, scene, certain)
    sweep(tmp_path, scene, some_of(steps, every, certain))


def launch_with_a_straggler(launcher: Launcher, victim: Sequence[str]) -> int:
    """Leave a process behind that ignores TERM; launch all GPUs once it has ended."""
    job = 'trap "" TERM; sleep 600 >/dev/null 2>&1 & echo $!'
    launcher.environment["GPULAUNCH_LEFTOVERS"] = "end"
    with start(launcher, *VGG, "--", "sh", "-c", job, before=victim) as first:
        straggler = os.pidfd_open(int(first.stdout.readline()))
        status, _, _ = ends(first)
        with start(launcher, *ALL, *WAIT, *OWNING) as second:
            first_word, _, _ = select.select([second.stdout, second.stderr], [], [])
            if first_word == [second.stderr]:
                queue_up(second, 1)
                assert status == -signal.SIGKILL, "a launcher that lives leaves no straggler"
                with suppress(ProcessLookupError):  # the companion may be faster
                    signal.pidfd_send_signal(straggler, signal.SIGKILL)
            select.select([straggler], [], [])  # else its GPUs were given away
            served(second, launcher)
    os.close(straggler)
    return status


@EVERY
def test_killed_at_every_step_of_a_release_with_a_straggler(tmp_path: Path, every: int) -> None:
    """A straggler keeps the GPUs until it ends, wherever the launcher that ends it is killed."""
    certain = ["process.ending._send:os.kill#1", "leases.table.LockedTable.remove:os.remove#1"]
    steps = traced(tmp_path, launch_with_a_straggler, certain, since="process.ending.descendants")
    sweep(tmp_path, launch_with_a_straggler, some_of(steps, every, certain))


def launch_in_ci(launcher: Launcher, victim: Sequence[str], job: str) -> int:
    """Launch as a CI runner does, then on all GPUs, and do not end the first job."""
    launcher.environment["CI"] = "true"
    with start(launcher, *VGG, "--", *job.split(), before=victim) as first:
        status = first.wait()
        with start(launcher, *ALL, *WAIT, *OWNING) as second:
            served(second, launcher)
    return status


@EVERY
def test_killed_at_every_step_of_a_launch_in_ci(tmp_path: Path, every: int) -> None:
    """With CI=true a launcher killed anywhere takes its job with it, and the GPUs are free."""
    certain = ["process.ending.fork_orphan:os.fork#1", "process.job.Job._reap:os.waitpid#1"]
    steps = traced(
        tmp_path, lambda *scene: launch_in_ci(*scene, job="true"), certain, until=certain[-1]
    )
    own = [
        step for step in steps if not step.startswith(("child:", "companion:"))
    ]  # the guard's death leaves a launcher as it is
    sweep(
        tmp_path,
        lambda *scene: launch_in_ci(*scene, job="sleep 600"),
        some_of([*own, IN_WAIT], every, certain),
    )


def test_who_reads_a_record_does_not_hold_it(tmp_path: Path) -> None:
    """Freeing a lease that a left-over process holds ends it, but no mere readers of the record."""
    launcher = launcher_in(tmp_path)
    job = "sleep 600 >/dev/null 2>&1 & echo $!; read line"
    with start(launcher, *VGG, "--", "sh", "-c", job) as process:
        left_over = int(process.stdout.readline())
        process.kill()
    (name,) = launcher.records()
    reads = f'exec 9<"{launcher.state / name}"; echo reads; read line; exit 3'
    with start(launcher, before=["sh", "-c", reads]) as reader:
        reader.stdout.readline()
        (lease,) = json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"]
        assert lease["left_over_pids"] == [left_over]
        assert launcher.run("free", *DGX, lease["id"]).returncode == 0
        wait_for_end(left_over)
        assert ends(reader)[0] == 3
    assert all_free(launcher) == ALL_FREE


STOPPED = {
    "after it has looked": ("leases.record_file.Draft.__init__:open#1", "0,2,3", "4,6,7"),
    "before the host-wide lock": ("leases.directory.lock_in_time:fcntl.flock#1", "0,2,3", "4,6,7"),
    "once it has published": ("leases.table.Table.locked:libc.change_mask#3", "4,6,7", "0,2,3"),
    "when the job has ended": ("process.ending.descendants:os.waitpid#1", "4,6,7", "0,2,3"),
}


@cases(STOPPED, "step", "others", "own")
def test_a_stopped_launcher(tmp_path: Path, step: str, others: str, own: str) -> None:
    """A stopped launcher keeps only what it has published; woken, it goes on with what is there."""
    launcher = launcher_in(tmp_path)
    with start(launcher, *VGG, *SHOW, before=at_step("STOP", step)) as stopped:
        wait_for_stop(stopped.pid)
        with held(launcher, *VGG) as other:
            stopped.send_signal(signal.SIGCONT)
            assert (other.gpus, ends(stopped)) == (others, (0, f"{own}\n", ""))
    assert all_free(launcher) == ALL_FREE


STOPPED_WAITERS = {
    "when its turn has come": ("leases.record_file.Draft.__init__:open#3",),
    "with a child that is to be the job": ("process.job.Job.__init__:os.close#1",),
}


@cases(STOPPED_WAITERS, "step")
def test_a_stopped_waiter(tmp_path: Path, documents: tuple[dict, dict], step: str) -> None:
    """A waiter that is stopped as it takes its turn lets those behind it pass, and is served then.

    test_waiting.py has one that is stopped while it waits.
    """
    launcher = launcher_in(tmp_path)
    holder = put(launcher, LEASE, json.dumps(documents[0]).encode(), live=True)
    with start(launcher, *VGG, *WAIT, *OWNING, before=at_step("STOP", step)) as stopped:
        queue_up(stopped, 1)
        with start(launcher, *ALL, *WAIT, *OWNING) as behind:
            queue_up(behind, 2)
            os.close(holder)
            wait_for_stop(stopped.pid)
            assert sorted(behind.stdout.readline().rstrip().split(",")) == list("01234567")
            stopped.send_signal(signal.SIGCONT)
            assert ends(behind)[:2] == (0, "")
        assert stopped.stdout.readline() == "0,2,3\n"
        assert ends(stopped)[:2] == (0, "")
    assert all_free(launcher) == ALL_FREE


@EVERY
def test_each_call_may_fail(tmp_path: Path, every: int) -> None:
    """Wherever a call of a launch fails, one line says what was to be done; no GPU stays leased."""
    trace, launcher = tmp_path / "trace", launcher_in(tmp_path / "traced")
    command = (*VGG, "--", "true")
    with start(launcher, *command, before=at_step("trace", str(trace))) as process:
        assert ends(process) == (0, "", "")
    real = [
        step for step in trace.read_text().split() if not step.endswith(("_exit#1", ".signal#1"))
    ]
    wrong: dict[str, object] = {}

    def play(step: str) -> None:
        launcher = launcher_in(tmp_path / step)
        with start(launcher, *command, before=at_step("EIO", step)) as process:
            status, _, said = ends(process)
        expected = r"(gpulaunch: (error|warning): .+: input/output error\n)" + "?" * (status == 0)
        # A machine's file that cannot be read is a mistake in the command line.
        wanted = (2,) if re.search(r"\.document\.(_open|read_)", step) else (0, 125)
        # What a launcher could not release, its companion does a moment later.
        with start(launcher, *ALL, *WAIT, "--", "echo", "all") as process:
            free = ends(process)[:2], launcher.records()
        if status not in wanted or not re.fullmatch(expected, said) or free != ((0, "all\n"), []):
            wrong[step] = (status, said, free)

    at_once(play, some_of(real, every))
    assert wrong == {}


def test_a_module_that_cannot_be_loaded(tmp_path: Path) -> None:
    """An import that fails, before or after the first lines, is one that names it, and 125."""
    launcher = launcher_in(tmp_path)
    for module in ("json", "gpulaunch.leases.wake"):
        patch = f"import sys; sys.modules[{module!r}] = None"
        with (
            held(launcher, *ALL),
            start(launcher, *ALL, *WAIT, *SHOW, before=patched(patch)) as process,
        ):
            status, stdout, stderr = ends(process)
        assert (status, stdout, stderr.count("\n")) == (125, "", 1)
        error = "gpulaunch: error: cannot load gpulaunch or Python's own library: "
        assert (stderr.startswith(error), module in stderr) == (True, True), stderr


def test_a_removed_record_is_noticed_at_the_end(tmp_path: Path) -> None:
    """The removal of its record is said once by the launcher that held it, and ends no job."""
    launcher = launcher_in(tmp_path)
    with start(launcher, *VGG, *OWNING) as process:
        assert process.stdout.readline() == "0,2,3\n"
        (record,) = launcher.records()
        (launcher.state / record).unlink()
        removed = f"lease {record.removeprefix('gpulaunch.lease.')} was removed by someone else"
        line = f"gpulaunch: warning: {launcher.state}: {removed}\n"
        assert ends(process) == (0, "", line)


FUTURE = 4_070_908_800  # 2099
WRONG_CLOCK = (
    "import time; time.time = lambda: {0}; real = time.gmtime; time.gmtime = lambda at={0}: "
    "real(at)"
)


def test_leases_and_backfill_go_by_the_time_since_boot(tmp_path: Path) -> None:
    """What is held and who may pass depends on no clock, of what runs, waits or passes."""
    launcher = launcher_in(tmp_path)
    wrong = patched(WRONG_CLOCK.format(FUTURE))
    limited = ("--time-limit", "10m")
    with start(launcher, *VGG, *limited, *OWNING, before=wrong) as running:
        assert running.stdout.readline() == "0,2,3\n"
        (shown,) = leases(launcher)
        assert (shown["gpus"], shown["started_at"][:4]) == ([0, 2, 3], "2099")
        with start(launcher, *ALL, *WAIT, *OWNING, before=wrong) as head:
            queue_up(head, 1)
            for before in ([], wrong):
                with start(launcher, *VGG, "--time-limit", "9m", *SHOW, before=before) as smaller:
                    assert ends(smaller)[:2] == (0, "4,6,7\n")
                with start(launcher, *VGG, "--time-limit", "11m", *SHOW, before=before) as longer:
                    assert ends(longer)[0] == 75


def test_a_ticket_counts_unless_its_own_launcher_is_stopped(
    tmp_path: Path, documents: tuple[dict, dict]
) -> None:
    """A ticket counts though its pid is now another stopped process, but not a stopped launcher."""
    launcher = launcher_in(tmp_path)
    with start(launcher, before=["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for_stop(process.pid)
        pid, start_time = as_list(identify(process.pid))
        for started, status in ((start_time + 1, 75), (start_time, 0)):
            content = json.dumps(documents[1] | {"launcher": [pid, started]}).encode()
            waiter = put(launcher, TICKET, content, live=True)
            done = launcher.run(*VGG, *SHOW)
            bars = "but an earlier request for 3 GPUs waits" in done.stderr
            assert (done.returncode, bars) == (status, status == 75)
            os.close(waiter)
            assert all_free(launcher) == ALL_FREE


def test_things_that_are_no_records_are_ignored(tmp_path: Path) -> None:
    """A symbolic link, a FIFO or a directory under a record's name blocks nothing, and stays."""
    launcher = launcher_in(tmp_path)
    (launcher.state / "gpulaunch.lease.directory").mkdir()
    os.symlink("/dev/zero", launcher.state / "gpulaunch.lease.link")
    os.mkfifo(launcher.state / "gpulaunch.ticket.00000001.aaaaaaaaaaaa")
    os.symlink("nowhere", launcher.state / "gpulaunch.ticket.00000002.aaaaaaaaaaaa")
    names = launcher.records()
    with held(launcher, *VGG), start(launcher, *VGG, *WAIT, *OWNING) as second:
        assert second.stdout.readline() == "4,6,7\n"
        with start(launcher, *VGG, *WAIT, *SHOW) as waiter:
            queue_up(waiter, 1)
            assert ends(second)[:2] == (0, "")
            assert ends(waiter)[:2] == (0, "4,6,7\n")
    assert (launcher.run(*ALL, "--", "true").returncode, launcher.records()) == (0, names)
