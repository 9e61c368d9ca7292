"""A signal reaches the job once, whether the whole process group gets it or the launcher alone."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import DGX, Launcher, children, until
from test_api import waits_for_the_lock

from gpulaunch.process.ending import WITNESS
from gpulaunch.process.system import pending_signals, program_of, stat_fields

COUNTS = str(Path(__file__).parents[1] / "jobs" / "counts")
ONE = (*DGX, "-n", "1", "--")


class Counting:
    """A launch whose job counts signals.

    Args:
        launcher: the installed command.
        words: of tests/jobs/counts.
        before: command in front of gpulaunch.

    Attributes:
        process: the first process of the group: the launcher, unless there is one before it.
        pid: of the launcher.
        job: pid of the job.
    """

    def __init__(self, launcher: Launcher, *words: str, before: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, launcher.script, *ONE, COUNTS, *words],
            env=launcher.environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.job = int(self.process.stdout.readline().split()[0])
        self.pid = int(stat_fields(self.job)[1])

    def to_group(self, number: int) -> int:
        """Send a signal to the launcher's process group; return how many the job has got so far."""
        os.killpg(self.process.pid, number)
        return self.count()

    def to_launcher(self, number: int) -> int:
        """Send a signal to the launcher alone; return how many the job has got so far."""
        os.kill(self.pid, number)
        return self.count()

    def count(self) -> int:
        """Return how many signals the job has got, once the launcher has read all before."""
        os.kill(self.pid, signal.SIGRTMIN)
        return int(self.process.stdout.readline())

    @property
    def witness(self) -> int:
        """The pid of the launch's witness."""
        (found,) = (pid for pid in children(self.pid) if program_of(pid) == WITNESS)
        return found


@contextmanager
def counting(launcher: Launcher, *words: str, **options) -> Iterator[Counting]:
    """Run a launch that counts signals, and kill its group at the end of the block."""
    launch = Counting(launcher, *words, **options)
    try:
        yield launch
    finally:
        for pid in (launch.job, launch.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launch.process.communicate()


def test_a_signal_comes_once(launcher: Launcher) -> None:
    """A signal to the group reaches the job once, one to the launcher too, in any order."""
    with counting(launcher, "USR1") as launch:
        for at in range(30):
            send = launch.to_group if at % 2 or at % 5 == 0 else launch.to_launcher
            assert send(signal.SIGUSR1) == at + 1


@pytest.mark.parametrize("front", ["dumb-init", "tini -g --"])
def test_an_init_in_front(launcher: Launcher, front: str) -> None:
    """What passes a signal on to the whole group of its child does so to the job once."""
    program, *rest = front.split()
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    with counting(launcher, "TERM", before=(program, *rest)) as launch:
        for sent in range(1, 11):
            launch.process.terminate()
            until(lambda sent=sent: launch.count() >= sent)
            launch.count()  # what the launcher got of it has been dealt with
        assert launch.count() == 10


def test_many_inherited_descriptors(launcher: Launcher) -> None:
    """Descriptors above 1,024, which a launch inherits, do not stand in the witness's way."""
    opens = 'ulimit -n 2000; for i in $(seq 3 1250); do eval "exec $i</dev/null"; done; exec "$@"'
    with counting(launcher, "TERM", before=("bash", "-c", opens, "bash")) as launch:
        assert [launch.to_group(signal.SIGTERM), launch.to_launcher(signal.SIGTERM)] == [1, 2]


def test_before_the_job_starts(launcher: Launcher) -> None:
    """A signal to the group that comes while the job waits for its lease reaches it once."""
    directory = os.open(launcher.state, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # the launch inherits it
    process = subprocess.Popen(
        [launcher.script, *ONE, COUNTS, "USR1"],
        env=launcher.environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    until(lambda: waits_for_the_lock(process.pid))
    os.killpg(process.pid, signal.SIGUSR1)
    (job,) = children(process.pid)
    assert pending_signals(job) == {signal.SIGUSR1}
    os.close(directory)
    assert process.stdout.readline() == f"{job} ready\n"
    os.kill(process.pid, signal.SIGRTMIN)
    assert process.stdout.readline() == "1\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_job_with_a_group_of_its_own(launcher: Launcher) -> None:
    """A job that has left the launcher's group, as shells do, gets its signals from there."""
    with counting(launcher, "TERM", "group") as launch:
        assert [launch.to_group(signal.SIGTERM), launch.to_launcher(signal.SIGTERM)] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_witness_that_fails(launcher: Launcher, number: signal.Signals) -> None:
    """While the witness is stopped, and once it was killed and replaced, each signal comes once."""
    with counting(launcher, "TERM") as launch:
        first = launch.witness
        os.kill(first, number)
        if number == signal.SIGKILL:
            until(lambda: any(program_of(pid) == WITNESS for pid in children(launch.pid) - {first}))
        send = (launch.to_launcher, launch.to_group, launch.to_launcher, launch.to_group)
        assert [each(signal.SIGTERM) for each in send] == [1, 2, 3, 4]


def test_pkill(launcher: Launcher) -> None:
    """`pkill gpulaunch` reaches the job, and neither by its name nor by the job's the witness."""
    with counting(launcher, "TERM") as launch:
        witness = Path(f"/proc/{launch.witness}")
        shown = (witness / "comm").read_text() + (witness / "cmdline").read_text()
        assert not re.search("gpulaunch|counts|python", shown)
        pkill = ["pkill", "-TERM", "--session", str(launch.process.pid), "gpulaunch"]
        subprocess.run(pkill, check=True)
        assert launch.count() >= 1
