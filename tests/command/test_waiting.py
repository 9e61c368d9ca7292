"""Waiting for GPUs: what is told, what wakes a waiter, how it ends; test_model.py: who is next.

Of launches at the same moment a lost race sends nobody away while GPUs are free.
"""

import json
import os
import pty
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pexpect
import pytest
from conftest import DGX, SHOW, Held, Launcher, held, until

import gpulaunch
from gpulaunch.launch import place_in_queue
from gpulaunch.process.system import parse_time

pytest_plugins = ("fake_nvml",)

USER = pwd.getpwuid(os.getuid()).pw_name
ALL = (*DGX, "-n", "8")
BUSY = "8 GPUs requested: 0 of 8 are free, 8 are leased"
AGE = r"\d+ s"
EIGHT = "0,1,2,3,4,5,6,7"


class Waiter:
    """A launch that has joined the queue; its job, once it runs, ends when it is told to.

    Attributes:
        process: the launcher.
        pid: of the launcher.
        said: the first line that it wrote to stderr, on joining the queue.
        others: the lines after it: who has the GPUs, and who is earlier in the queue.

    Args:
        launcher: of the table.
        options: before the command.
        variables: to add to the environment.
        users: how many have GPUs; None if it is to say nothing.
        before: what to run instead of gpulaunch, with its arguments in front of the options.
    """

    def __init__(
        self,
        launcher: Launcher,
        *options: str,
        variables: dict[str, str] | None = None,
        users: int | None = 1,
        before: tuple[str, ...] = (),
    ) -> None:
        job = ("--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $$"; read line; exit 7')
        how = {"env": launcher.environment | (variables or {}), "stdin": subprocess.PIPE}
        how |= {"executable": before[0]} if before else {}
        self.process = launcher.start(*before[1:], *options, *job, **how)
        self.pid = self.process.pid
        if users is not None:
            self.said = self.line()
            earlier = "as number 1 " not in self.said
            self.others = [self.line() for _ in range(users + earlier)]

    def line(self) -> str:
        """Return the next line of stderr."""
        return self.process.stderr.readline().removesuffix("\n")

    def gpus(self) -> str:
        """Return the job's GPUs, as soon as it has been served."""
        return self.process.stdout.readline().partition(" ")[0]

    def end(self) -> tuple[int, str]:
        """Let the job end; return its exit status, and what is left of stderr."""
        _, rest = self.process.communicate("\n")
        return self.process.returncode, rest

    def clear_away(self) -> None:
        """Kill the launcher, and let its job read the end of its input."""
        with self.process:
            self.process.kill()


@pytest.fixture
def wait(launcher: Launcher) -> Iterator[Callable[..., Waiter]]:
    """Yield a function that starts waiting launches; clear them away after the test."""
    waiters: list[Waiter] = []

    def start(*options: str, **more: Any) -> Waiter:
        waiters.append(Waiter(launcher, *options, **more))
        return waiters[-1]

    yield start
    for waiter in waiters:
        waiter.clear_away()


def status(launcher: Launcher) -> dict:
    return json.loads(launcher.run("status", *DGX, "--json").stdout)


def waiting(launcher: Launcher) -> list[int]:
    """Return the pids of the launchers that wait, in the order of the queue."""
    return [ticket["pid"] for ticket in status(launcher)["queue"]]


def number(place: int, reason: str) -> str:
    return f"gpulaunch: info: waiting as number {place} in the queue: {reason}"


def told_by_kernel(pid: int, pattern: str) -> list[str]:
    """Return the parts of a process's fdinfo whose lines begin with a pattern."""
    found: list[str] = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += re.findall(f"^{pattern}", path.read_text(), re.MULTILINE)
    return found


def watched_files(launcher: Launcher, pid: int) -> set[int]:
    """Return the inodes of the records whose events a process waits for."""
    watched = {int(inode, 16) for inode in told_by_kernel(pid, r"inotify wd:\S+ ino:(\S+)")}
    return watched - inodes(launcher, ".")


def inodes(launcher: Launcher, *names: str) -> set[int]:
    return {os.stat(launcher.state / name).st_ino for name in names}


def test_waiting_for_gpus(launcher: Launcher, wait) -> None:
    """--wait says once what it waits for and who has it, gets freed GPUs, and leaves nothing."""
    with (
        held(launcher, *DGX, "-n", "6", "--name", "big") as big,
        held(launcher, *DGX, "-n", "2", "-p", "vgg16") as small,
    ):
        waiter = wait(*ALL, "--wait")
        quiet = wait(*ALL, "--wait", "-q", users=None)
        assert waiter.said == number(1, BUSY)
        holders = (
            rf"gpulaunch: info: {USER} has GPUs 0-7 "
            rf"\((big for {AGE}, vgg16 for {AGE}|vgg16 .*, big .*)\)"
        )
        assert [bool(re.fullmatch(holders, line)) for line in waiter.others] == [True]
        assert small.end() == 7  # which wakes it, for too few GPUs
        assert big.end() == 7
        assert waiter.gpus() == EIGHT
        status_, last = waiter.end()
        started = rf"gpulaunch: info: started after {AGE} on GPUs 0-7 of dgx1-v100\n"
        assert (status_, bool(re.fullmatch(started, last))) == (7, True)
        quiet.gpus()
        assert quiet.end() == (7, "")
    assert launcher.records() == []


def test_each_is_told_when_it_is_first(launcher: Launcher, wait) -> None:
    """Who becomes the first in the queue is told so by the one before it, however that ends."""
    with held(launcher, *ALL) as job:
        first, second, third = [wait(*ALL, "--wait") for _ in range(3)]
        assert third.others[1:] == [
            f"gpulaunch: info: earlier in the queue: {USER} for 8 GPUs, {USER} for 8 GPUs"
        ]
        first.process.kill()
        told = rf"gpulaunch: info: first in the queue after {AGE}: {BUSY}"
        assert re.fullmatch(told, second.line())
        job.end()
        assert second.gpus() == EIGHT
        assert re.fullmatch(told, third.line())
        second.end()
        assert third.gpus() == EIGHT


def test_predicted_starts(launcher: Launcher, wait) -> None:
    """--when says now, never (2), or a range up to the time limits, as does the line at a terminal.

    It takes nothing, and comes after those that wait.
    """
    assert launcher.run(*DGX, "--when", "-n", "4").stdout == "now\n"
    assert launcher.run(*DGX, "--when", "-n", "9").returncode == 2
    with held(launcher, *ALL, "--time-limit", "10m"):
        document = json.loads(launcher.run(*DGX, "--when", "-n", "4", "--json").stdout)
        assert document["decision"] == "wait"
        latest = parse_time(document["predicted_start"]["to"]).timestamp() - time.time()
        assert (0 < latest < 600, waiting(launcher)) == (True, [])
        ours, theirs = pty.openpty()
        waiter = launcher.start(*DGX, "--wait", "--", "true", stderr=theirs)
        os.close(theirs)
        with open(ours) as terminal:
            assert "; starts probably " in terminal.readline()
        waiter.terminate()
        waiter.communicate()
        wait(*ALL, "--wait", "--time-limit", "10m")
        document = json.loads(launcher.run(*DGX, "--when", "-n", "4", "--json").stdout)
        latest = parse_time(document["predicted_start"]["to"]).timestamp() - time.time()
        assert 600 < latest < 1200


def test_a_log_is_told_once_a_minute(
    launcher: Launcher, wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stderr is no terminal, a line tells every minute, or here millisecond, of the wait."""
    with held(launcher, *ALL):
        monkeypatch.setattr(place_in_queue, "MINUTE_S", 0.001)
        one = wait(*ALL, "--wait")
        told = rf"gpulaunch: info: waiting for {AGE} as number 1 in the queue"
        assert [bool(re.fullmatch(told, one.line())) for _ in range(2)] == [True, True]


def test_ctrl_c_at_a_terminal(launcher: Launcher) -> None:
    """Ctrl-C ends a waiter, and a shell's loop around it."""
    with held(launcher, *ALL):
        loop = 'for i in 1 2; do gpulaunch "$@"; echo "went on"; done'
        arguments = ["-c", loop, "bash", *ALL, "--wait", "--", "true"]
        terminal = pexpect.spawn(
            "bash", arguments, env=launcher.environment, encoding="utf-8", timeout=None
        )
        terminal.expect_exact(number(1, BUSY))
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        assert "went on" not in terminal.before
        terminal.close()
        assert terminal.signalstatus == signal.SIGINT
        assert waiting(launcher) == []


@pytest.fixture
def events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters look at no time of their own."""
    for name in ("FIRST_LOOK_S", "LOOK_EVERY_S", "WITHOUT_EVENTS_S"):
        monkeypatch.setattr(place_in_queue, name, 1e6)


@pytest.mark.usefixtures("events_alone")
def test_events_alone_serve_the_queue(launcher: Launcher, wait) -> None:
    """Whoever waits is woken by the end of the one before it, killed or served, with no timer.

    Only the head of the queue follows the leases; the others need no inotify instance.
    """
    with held(launcher, *ALL) as job:
        leases = inodes(launcher, *launcher.records())
        waiters = [wait(*ALL, "--wait") for _ in range(5)]
        waiters[1].process.kill()  # in the middle
        waiters[2].process.send_signal(signal.SIGINT)
        waiters[2].process.wait()
        until(lambda: watched_files(launcher, waiters[0].pid) == leases)
        assert [told_by_kernel(waiter.pid, "inotify") for waiter in waiters[3:]] == [[], []]
        job.kill_all()
        for waiter in (waiters[0], waiters[3], waiters[4]):
            assert waiter.gpus() == EIGHT
            waiter.process.terminate()


def test_a_bell_that_somebody_else_made_changes_nothing(launcher: Launcher, wait) -> None:
    """Without its bell, or with a file in its place, a ticket's end is seen within seconds."""
    with held(launcher, *ALL) as job:
        first = wait(*ALL, "--wait")
        for bell in launcher.state.glob("gpulaunch.bell.*"):
            bell.unlink()
            bell.write_bytes(b"no bell")
        second = wait(*ALL, "--wait")
        for ending, waiter in ((job, first), (first, second)):
            ending.end()
            assert waiter.gpus() == EIGHT


NO_EVENTS = {
    "max_inotify_instances": "too many open files",
    "max_inotify_watches": "no space left on device",
}


@pytest.mark.parametrize(("limit", "reason"), NO_EVENTS.items(), ids=NO_EVENTS)
def test_without_file_events(launcher: Launcher, wait, limit: str, reason: str) -> None:
    """Out of inotify instances or watches the first in the queue says so, and gets its GPUs."""
    unshare = shutil.which("unshare") or "false"
    script = f'echo 0 >/proc/sys/user/{limit} && exec "$@"'
    alone = ("--user", "--map-root-user", "sh", "-c", script, "sh")
    if subprocess.run([unshare, *alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a user namespace with limits of its own")
    with held(launcher, *ALL) as job:
        waiter = wait(*ALL, "--wait", before=(unshare, *alone, launcher.script))
        assert waiter.line() == (
            f"gpulaunch: warning: no file events (inotify: {reason}), so looking every 1 s instead"
        )
        job.end()
        assert waiter.gpus() == EIGHT


def test_a_stopped_waiter_lets_others_pass(launcher: Launcher, wait) -> None:
    """A stopped waiter (Ctrl-Z) bars no launch, is shown as stopped, and is served once woken."""
    with held(launcher, *ALL) as job:
        first, second = wait(*ALL, "--wait"), wait(*DGX, "-n", "7", "--wait")
        os.kill(first.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
        assert [ticket["stopped"] for ticket in status(launcher)["queue"]] == [True, False]
        assert " stopped " in launcher.run("status", *DGX).stdout
        job.end()
        # it looks at whom it waits for every 5 s at least
        assert len(second.gpus().split(",")) == 7
        assert len(launcher.run(*DGX, *SHOW).stdout) == 2  # nor does it bar those who do not wait
        os.kill(first.pid, signal.SIGCONT)
        assert launcher.run(*DGX, *SHOW).returncode == 75
        second.end()
        assert first.gpus() == EIGHT
        assert first.end()[0] == 7


HOUR, MINUTE = ("--time-limit", "1h"), ("--time-limit", "1m")


@pytest.mark.usefixtures("events_alone")
def test_a_request_that_delays_nobody_passes(launcher: Launcher, wait) -> None:
    """What ends before the head of the queue can start passes it, waiting or not; else nobody."""
    with held(launcher, *DGX, "-n", "4", *HOUR) as job:
        big = wait(*ALL, "--wait")
        for options in ((), ("--time-limit", "2h"), (*MINUTE, "-o", "queue=fifo")):
            done = launcher.run(*DGX, "-n", "1", *options, *SHOW)
            reason = "4 of 8 are free, but an earlier request for 8 GPUs waits\n"
            assert (done.returncode, reason in done.stderr) == (75, True)
        with held(launcher, *DGX, "-n", "4", *MINUTE) as small:
            late = wait(*DGX, "-n", "3", *MINUTE, "--wait")
            assert late.said == number(2, "3 GPUs requested: 0 of 8 are free, 8 are leased")
            later = wait(*DGX, "-n", "1", *MINUTE, "--wait")
            small.end()  # the head wakes, and wakes the one, whose end wakes the other
            assert len(late.gpus().split(",")) == 3
            assert len(later.gpus().split(",")) == 1
        late.end()
        later.end()
        job.end()
        assert big.gpus() == EIGHT


def inside(launcher: Launcher, job: Held) -> dict[str, str]:
    """Return what a launch inside a job finds in its environment."""
    lease = next(lease for lease in status(launcher)["leases"] if lease["job_pid"] == job.job_pid)
    return {"GPULAUNCH_LEASE": lease["id"], "CUDA_VISIBLE_DEVICES": job.gpus}


def test_waiting_inside_a_lease(launcher: Launcher, wait) -> None:
    """A launch inside a lease waits for that lease's GPUs only, whoever waits outside."""
    with held(launcher, *DGX, "-n", "2") as job:
        outer = wait(*ALL, "--wait")
        within = inside(launcher, job)
        first = wait("-n", "1", "--wait", variables=within, users=None)  # starts at once
        gpu = first.gpus()
        second = wait("-n", "2", "--wait", variables=within)
        assert second.said == number(2, "2 GPUs requested: 1 of 2 is free, 1 is leased")
        queue = status(launcher)["queue"]
        assert [ticket["within"] for ticket in queue] == [None, within["GPULAUNCH_LEASE"]]
        done = launcher.run("-n", "1", *SHOW, env=launcher.environment | within)
        reason = "1 GPU requested: 1 of 2 is free, but an earlier request for 2 GPUs waits"
        assert (done.returncode, done.stderr.splitlines()[0]) == (75, f"gpulaunch: error: {reason}")
        assert gpu in job.gpus.split(",")
        first.end()
        assert sorted(second.gpus().split(",")) == sorted(job.gpus.split(","))
        second.end()
        job.end()
        assert outer.gpus() == EIGHT


def test_the_lease_around_a_waiter_ends(launcher: Launcher, wait) -> None:
    """A waiter whose lease ends around it says so once, queues anew on its own, and is served."""
    with held(launcher, *DGX, "-n", "2") as job:
        within = inside(launcher, job)
        sibling = wait("-n", "2", variables=within, users=None)
        assert sorted(sibling.gpus().split(",")) == sorted(job.gpus.split(","))
        waiter = wait("-n", "1", "--only", job.gpus, "--wait", variables=within)
        later = wait(*DGX, "-n", "1", "--only", job.gpus, "--wait")
        os.kill(job.process.pid, signal.SIGKILL)
        os.kill(job.job_pid, signal.SIGKILL)
        assert waiter.line() == (
            f"gpulaunch: warning: lease {within['GPULAUNCH_LEASE']} has ended, so the job gets "
            "GPUs outside of it"
        )
        assert waiter.line() == number(2, "1 GPU requested: 0 of 2 admitted are free, 2 are leased")
        until(lambda: [one["within"] for one in status(launcher)["queue"]] == [None, None])
        assert waiting(launcher) == [later.pid, waiter.pid]
        sibling.end()
        assert {later.gpus(), waiter.gpus()} == set(job.gpus.split(","))
        parents = {lease["pid"]: lease["parent"] for lease in status(launcher)["leases"]}
        assert parents == {later.pid: None, waiter.pid: None}


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that no lease knows."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.usefixtures("events_alone")
def test_use_outside_is_waited_for(dgx1_v100, wait, stranger) -> None:
    """A GPU in use outside gpulaunch makes --wait wait, and the end of that process wakes it."""
    dgx1_v100.add(f"process 3 {stranger.pid} 300")
    waiter = wait("-n", "all", "--wait", users=0)
    reason = f"7 of 8 are free, 1 is in use outside gpulaunch (pid {stranger.pid}, {USER})"
    assert waiter.said == number(1, f"8 GPUs requested: {reason}")
    until(lambda: told_by_kernel(waiter.pid, rf"Pid:\t{stranger.pid}$"))
    dgx1_v100.drop("process 3")
    stranger.kill()
    assert waiter.gpus() == EIGHT
    assert waiter.end()[0] == 7


def test_use_that_is_ignored(launcher: Launcher, dgx1_v100, stranger) -> None:
    """Programs named in ignore_programs use no GPU; those that are not named do."""
    dgx1_v100.add(f"process 0 {stranger.pid} 300")
    for ignored, want in (("Xorg,sleeper", 75), ("Xorg,sleep", 0)):
        launcher.environment["GPULAUNCH_IGNORE_PROGRAMS"] = ignored
        assert launcher.run("-n", "all", *SHOW).returncode == want
    states = [gpu["state"] for gpu in json.loads(launcher.run("status", "--json").stdout)["gpus"]]
    assert states == ["free"] * 8


@pytest.mark.parametrize(("machine", "gpus", "launches"), [("nvl72", 8, 9), (DGX[1], 1, 8)])
def test_all_that_fit_start_at_once(
    launcher: Launcher, machine: str, gpus: int, launches: int
) -> None:
    """Launches that fit together all get their GPUs, none twice, though all choose the same."""
    script = 'echo "$CUDA_VISIBLE_DEVICES"; read line'
    words = ("--topology", machine, "-n", str(gpus), "--", "sh", "-c", script)
    crowd = [launcher.start(*words, stdin=subprocess.PIPE) for _ in range(launches)]
    taken = [one.stdout.readline().strip() for one in crowd]
    said = [one.communicate("\n")[1] for one in crowd]
    assert [one.returncode for one in crowd] == [0] * launches, said
    indices = [index for line in taken for index in line.split(",")]
    assert len(indices) == len(set(indices)) == gpus * launches


def test_workers_that_fit_never_queue(launcher: Launcher, caplog: pytest.LogCaptureFixture) -> None:
    """Eight workers that want one of eight GPUs each never find all of them in use."""
    caplog.set_level("INFO", "gpulaunch")

    def work() -> int:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(25):
            gpulaunch.allocate(1, topology=DGX[1], wait=True).release()
        print(caplog.messages)
        return 0

    workers = [launcher.call(work, stdin=subprocess.PIPE) for _ in range(8)]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 8
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    assert [worker.communicate()[0] for worker in workers] == ["[]\n"] * 8
