"""A hundred detached jobs, while everything around them is killed in turn."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import DGX, Launcher, companion_of, ending_in_time, until, wait_for_end

from gpulaunch.process.ending import marked_by
from gpulaunch.records import Record

JOBS = 100
SCRIPT = 'echo "begun $$"; read line <go.$N; echo "got $line"; exit $((N % 50))'


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """Fail a test that hangs."""
    with ending_in_time(150):
        yield


class Job(Record):
    """One job of the crowd.

    Attributes:
        number: its number; its name and its exit status come from it.
        home: directory of its FIFO, and of all logs and histories.
        launcher: what it was started with.
    """

    number: int
    home: Path
    launcher: Launcher

    @property
    def log(self) -> str:
        """What it has printed so far."""
        (path,) = self.home.glob(f".local/state/gpulaunch/logs/job{self.number}-*.log")
        return path.read_text()

    @property
    def past(self) -> dict:
        """Its line in the history."""
        return past(self.home)[f"job{self.number}"]

    def detach(self) -> None:
        """Detach it."""
        os.mkfifo(self.home / f"go.{self.number}")
        done = self.launcher.run(
            *("-qd", *DGX, "--name", f"job{self.number}", "--", "sh", "-c", SCRIPT),
            cwd=self.home,
            env=self.launcher.environment | {"N": str(self.number)},
        )
        assert (done.returncode, done.stdout) == (0, f"job{self.number}\n"), done.stderr

    def begun(self) -> int:
        """Return its pid once it runs."""
        until(lambda: "begun" in self.log)
        return int(self.log.split()[1])

    def go_on(self) -> None:
        """Give it the word, so that it ends."""
        (self.home / f"go.{self.number}").write_text("word\n")


def past(home: Path) -> dict[str, dict]:
    """Return the lines of the history, by name."""
    (path,) = home.glob(".local/state/gpulaunch/history/*.jsonl")
    return {line["name"]: line for line in map(json.loads, path.read_text().splitlines())}


def nothing(job: Job) -> None:
    """Kill nothing."""
    job.begun()
    job.go_on()


def the_job(job: Job) -> None:
    """Kill the job."""
    os.kill(job.begun(), signal.SIGKILL)


def the_launcher(job: Job) -> None:
    """Kill the launcher; the job goes on."""
    job.begun()
    launcher = job.past["launcher"][0]
    os.kill(launcher, signal.SIGKILL)
    wait_for_end(launcher)
    job.go_on()


def the_companion(job: Job) -> None:
    """Kill what would keep the lease if the launcher were killed."""
    job.begun()
    os.kill(companion_of(job.launcher, job.past["launcher"][0]), signal.SIGKILL)
    job.go_on()


def both(job: Job) -> None:
    """Kill launcher and companion; the job goes on, and has the lease's record open."""
    job.begun()
    launcher = job.past["launcher"][0]
    for pid in (companion_of(job.launcher, launcher), launcher):
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
    job.go_on()


def the_session(job: Job) -> None:
    """Kill all processes in the session that launcher and job have."""
    pid = job.begun()
    os.killpg(os.getpgid(pid), signal.SIGKILL)


def freed(job: Job) -> None:
    """End it as its user would."""
    job.begun()
    done = job.launcher.run("free", f"job{job.number}")
    assert done.returncode == 0, done.stderr


UNKNOWN = 125
KILLS: list[tuple[Callable[[Job], None], bool, int | None]] = [
    (nothing, True, None),
    (the_job, False, 137),
    (the_launcher, True, UNKNOWN),
    (the_companion, True, None),
    (both, True, UNKNOWN),
    (the_session, False, UNKNOWN),
    (freed, False, 143),
]
"""What is killed; whether the job gets to its end; what `wait` says, None for the job's own."""


def test_a_hundred_jobs_and_everything_killed_in_turn(launcher: Launcher, tmp_path: Path) -> None:
    """No output and no status is lost or made up, no lease stays, and no process is left."""
    jobs = [Job(number, tmp_path, launcher) for number in range(JOBS)]
    with ThreadPoolExecutor(1) as pool:
        detaching = pool.submit(lambda: [job.detach() for job in jobs])
        for job in jobs:
            until(lambda job=job: any(tmp_path.glob(f"**/logs/job{job.number}-*.log")))
            KILLS[job.number % len(KILLS)][0](job)
        detaching.result()
    until(lambda: launcher.records() == [])
    until(lambda: str(launcher.state) not in marked_by("GPULAUNCH_STATE_DIR"))
    for kill, to_its_end, status in KILLS:
        some = [job for job in jobs if KILLS[job.number % len(KILLS)][0] is kill]
        for job in some:
            own = job.number % 50
            want = None if status == UNKNOWN else own if status is None else status
            assert (kill.__name__, job.past.get("exit_status")) == (kill.__name__, want)
            got = "got word\n" if to_its_end else ""
            assert job.log.partition("\n")[2] == got
        last = some[-1]
        answer = launcher.run("wait", f"job{last.number}").returncode
        assert answer == (last.number % 50 if status is None else status)
    assert len(past(tmp_path)) == JOBS
