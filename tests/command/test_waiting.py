"""Waiting for GPUs: who is served when, what it is told, what wakes it, and that it cleans up."""

import fcntl
import json
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pexpect
import pytest
from conftest import DGX, SHOW, Held, Launcher, held

from gpulaunch.process import libc

pytest_plugins = ("fake_nvml",)

USER = pwd.getpwuid(os.getuid()).pw_name
ALL = (*DGX, "-n", "8")
BUSY = "8 GPUs requested: 0 of 8 are free, 8 are leased"
AGE = r"\d+ s"
STARTS = r"(within|in [\d.]+ to) [\d.]+ (s|min|h)"
IN_OPEN = 0x20  # inotify.h


def eventually(look: Callable[[], Any], want: object) -> None:
    """Look at what no event tells until it is as it should be."""
    deadline = time.monotonic() + 30
    while (got := look()) != want and time.monotonic() < deadline:
        time.sleep(0.005)
    assert got == want


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
    """

    def __init__(
        self,
        launcher: Launcher,
        *options: str,
        variables: dict[str, str] | None = None,
        users: int | None = 1,
    ) -> None:
        script = 'echo "$CUDA_VISIBLE_DEVICES $$"; read line; exit 7'
        environment = launcher.environment | (variables or {})
        self.process = launcher.start(
            *options, "--", "sh", "-c", script, stdin=subprocess.PIPE, env=environment
        )
        self.pid = self.process.pid
        if users is not None:
            self.said = self.line()
            expected = users if "as number 1 " in self.said else users + 1
            self.others = [self.line() for _ in range(expected)]

    def line(self) -> str:
        """Return the next line of stderr."""
        return self.process.stderr.readline().removesuffix("\n")

    def gpus(self) -> str:
        """Return the job's GPUs, as soon as it has been served."""
        return self.process.stdout.readline().partition(" ")[0]

    def end(self) -> tuple[int, str]:
        """Let the job end; return its exit status, and what is left of stderr."""
        _, rest = self.process.communicate("\n", timeout=30)
        return self.process.returncode, rest

    def clear_away(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for stream in (
            self.process.stdin,
            self.process.stdout,
            self.process.stderr,
        ):  # which ends its job
            if not stream.closed:
                stream.close()
        self.process.wait()


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


def tickets(launcher: Launcher) -> list[str]:
    """Return the file names of the tickets, in the order of the queue."""
    return [name for name in launcher.records() if name.startswith("gpulaunch.ticket.")]


def status(launcher: Launcher) -> dict:
    return json.loads(launcher.run("status", *DGX, "--json").stdout)


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


def watched_processes(pid: int) -> set[int]:
    """Return the processes whose end a process waits for."""
    return {int(other) for other in told_by_kernel(pid, r"Pid:\t(\d+)")}


def inodes(launcher: Launcher, *names: str) -> set[int]:
    return {os.stat(launcher.state / name).st_ino for name in names}


def stop(pid: int) -> None:
    """Stop a process by SIGSTOP; return when it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0], "T")


def opened(path: Path) -> int:
    """Return a descriptor that can be read once the file or directory has been opened."""
    fd = libc.inotify()
    libc.watch_file(fd, str(path), IN_OPEN)
    return fd


def next_open(fd: int, timeout_s: float = 30) -> bool:
    """Return whether it is opened before the time is up."""
    ready = select.select([fd], [], [], timeout_s)[0]
    libc.file_events(fd)
    return bool(ready)


def next_look(looks: int) -> float:
    """Wait until a waiter has looked; how long that took, in seconds.

    A look opens several files in a row.
    """
    began = time.monotonic()
    assert next_open(looks)
    took_s = time.monotonic() - began
    while next_open(looks, 0.05):
        pass
    return took_s


def until_it_sleeps_for_2_s(looks: int) -> None:
    """Return when a waiter has looked and pauses, which double each time, have come to 2 s.

    Args:
        looks: can be read when it has looked.
    """
    while next_look(looks) < 0.8:  # of the pauses 0.25, 0.5, 1 and 2 s the third
        pass


# ------------------------------------------------------------------------- waiting and being served


def test_waiting_for_gpus(launcher: Launcher, wait) -> None:
    """--wait says once what it waits for and who has it, gets freed GPUs, and leaves nothing."""
    with (
        held(launcher, *DGX, "-n", "6", "--name", "big") as big,
        held(launcher, *DGX, "-n", "2", "-p", "vgg16") as small,
    ):
        waiter = wait(*ALL, "--wait")
        assert waiter.said == number(1, BUSY)
        holders = (
            rf"gpulaunch: info: {USER} has GPUs 0-7 "
            rf"\((big for {AGE}, vgg16 for {AGE}|vgg16 .*, big .*)\)"
        )
        assert [bool(re.fullmatch(holders, line)) for line in waiter.others] == [True]
        assert small.end() == 7  # which wakes it, for too few GPUs
        assert big.end() == 7
        assert waiter.gpus() == "0,1,2,3,4,5,6,7"
        assert tickets(launcher) == []
        status_, last = waiter.end()
        started = rf"gpulaunch: info: started after {AGE} on GPUs 0-7 of dgx1-v100\n"
        assert (status_, bool(re.fullmatch(started, last))) == (7, True)
    assert launcher.records() == []


def test_waiting_quietly(launcher: Launcher, wait) -> None:
    """With -q nothing is said of waiting."""
    with held(launcher, *ALL) as job:
        waiter = wait(*ALL, "--wait", "-q", users=None)
        eventually(lambda: len(tickets(launcher)), 1)
        job.end()
        waiter.gpus()
        assert waiter.end() == (7, "")


def test_the_job_has_the_id_of_its_ticket(launcher: Launcher, wait) -> None:
    """A ticket becomes the lease of the same id."""
    with held(launcher, *ALL) as job:
        waiter = wait(*ALL, "--wait")
        (ticket,) = status(launcher)["queue"]
        job.end()
        waiter.gpus()
        assert [lease["id"] for lease in status(launcher)["leases"]] == [ticket["id"]]
        assert launcher.records() == [f"gpulaunch.lease.{ticket['id']}"]


# ----------------------------------------------------------------------------------------- how long


@pytest.mark.parametrize("options", [("--wait-timeout", "0.1s"), ("--wait", "--wait-timeout=0.1s")])
def test_a_wait_that_takes_too_long(launcher: Launcher, options: tuple[str, ...]) -> None:
    """--wait-timeout, with --wait or alone, ends a wait with 124 and leaves the queue."""
    with held(launcher, *ALL, "--name", "mine"):
        done = launcher.run(*ALL, *options, *SHOW)
        assert (done.returncode, done.stdout) == (124, "")
        first, second, *rest = done.stderr.splitlines()
        assert first == number(1, BUSY)
        assert re.fullmatch(rf"gpulaunch: info: {USER} has GPUs 0-7 \(mine for {AGE}\)", second)
        assert rest == [f"gpulaunch: error: waited 0.1 s: {BUSY}"]
        assert tickets(launcher) == []


def test_a_wait_behind_others_that_takes_too_long(launcher: Launcher, wait) -> None:
    """A wait for one's turn has a limit, too, and says who is in front."""
    with held(launcher, *DGX, "-n", "6"):
        wait(*ALL, "--wait")
        done = launcher.run(*DGX, "-n", "2", "-q", "--wait-timeout", "0.5s", *SHOW)
        reason = "2 GPUs requested: 2 of 8 are free, but an earlier request for 8 GPUs waits"
        assert (done.returncode, done.stderr) == (
            124,
            f"gpulaunch: error: waited 0.5 s: {reason}\n",
        )
        assert len(tickets(launcher)) == 1


# ------------------------------------------------------------------------------ first in, first out


def test_first_in_first_out(launcher: Launcher, wait) -> None:
    """Three waiters are served in the order in which they came, and are told their place."""
    with held(launcher, *ALL) as job:
        first = wait(*ALL, "--wait")
        second = wait(*ALL, "--wait")
        third = wait(*DGX, "-n", "1", "--wait")
        assert (first.said, second.said) == (number(1, BUSY), number(2, BUSY))
        assert third.said == number(3, "1 GPU requested: 0 of 8 are free, 8 are leased")
        assert second.others[1:] == [f"gpulaunch: info: earlier in the queue: {USER} for 8 GPUs"]
        assert third.others[1:] == [
            f"gpulaunch: info: earlier in the queue: {USER} for 8 GPUs, {USER} for 8 GPUs"
        ]
        job.end()
        for count, waiter in ((8, first), (8, second), (1, third)):
            assert len(waiter.gpus().split(",")) == count
            assert len(status(launcher)["leases"]) == 1
            assert waiter.end()[0] == 7
    assert launcher.records() == []


def test_nobody_overtakes_the_queue(launcher: Launcher, wait) -> None:
    """While a launch waits, one that would fit does not start: without --wait it ends with 75."""
    with held(launcher, *DGX, "-n", "6"):
        wait(*DGX, "-n", "3", "--wait")
        reason = "2 GPUs requested: 2 of 8 are free, but an earlier request for 3 GPUs waits"
        done = launcher.run(*DGX, "-n", "2", *SHOW)
        assert (done.returncode, done.stdout) == (75, "")
        assert done.stderr.splitlines()[0] == f"gpulaunch: error: {reason}"
        done = launcher.run(*DGX, "-n", "2", "--dry-run", "--", "x")
        assert (done.returncode, done.stdout.splitlines()[0]) == (75, f"wait: {reason}")
        done = launcher.run(*DGX, "-n", "2", "--dry-run", "--json", "--wait", "--", "x")
        document = json.loads(done.stdout)
        assert (done.returncode, document["decision"], document["reason"]) == (75, "wait", reason)
        wait(*DGX, "-n", "1", "--wait")
        done = launcher.run(*DGX, "-n", "2", *SHOW)
        reason = "2 GPUs requested: 2 of 8 are free, but 2 earlier requests for 4 GPUs wait"
        assert (done.returncode, done.stderr.splitlines()[0]) == (75, f"gpulaunch: error: {reason}")
        assert len(tickets(launcher)) == 2


def test_who_wants_other_gpus_is_not_in_the_way(launcher: Launcher, wait) -> None:
    """A launch whose GPUs are not wanted in the queue starts at once."""
    with held(launcher, *DGX, "-n", "2", "--only", "0,1"):
        wait(*DGX, "-n", "1", "--only", "0,1", "--wait")
        assert launcher.run(*DGX, "-n", "2", "--only", "2,3", *SHOW).stdout == "2,3\n"
        assert launcher.run(*DGX, "-n", "2", "--only", "1,2,3", *SHOW).stdout == "2,3\n"
        assert launcher.run(*DGX, "-n", "3", "--only", "1,2,3", *SHOW).returncode == 75


def test_status_shows_the_queue(launcher: Launcher, wait) -> None:
    """`status` shows the waiting launches in order, with GPUs, since when and what for."""
    with held(launcher, *ALL):
        first = wait(*DGX, "-p", "vgg16", "-n", "3", "--wait", "--name", "mine")
        second = wait(*ALL, "--wait")
        queue = status(launcher)["queue"]
        ids = [ticket.pop("id") for ticket in queue]
        assert tickets(launcher) == [f"gpulaunch.ticket.0000000{i}.{ids[i - 1]}" for i in (1, 2)]
        for ticket in queue:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", ticket.pop("since"))
            assert sorted(ticket.pop("predicted_start")) == ["from", "to"]
        command = ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $$"; read line; exit 7']
        common = {
            "user": USER,
            "command": command,
            "within": None,
            "stopped": False,
            "choosy": False,
        }
        assert queue == [
            common
            | {"gpus": 3, "position": 1, "pid": first.pid, "profile": "vgg16", "name": "mine"},
            common | {"gpus": 8, "position": 2, "pid": second.pid, "profile": None, "name": None},
        ]
        shown = launcher.run("status", *DGX).stdout.splitlines()
        assert shown[0] == "dgx1-v100: 0 of 8 GPUs free (Tesla V100-SXM2-16GB)"
        assert shown[1].split() == ["NAME", "STATE", "USER", "GPUS", "TIME", "STARTS", "COMMAND"]
        rows = [re.split("  +", line) for line in shown[3:]]
        assert [(row[0], row[1], row[3]) for row in rows[1:]] == [
            ("mine", "waiting", "any 3"),
            (ids[1][:4], "waiting", "any 8"),
        ]
        assert all(re.fullmatch(STARTS, row[5]) for row in rows[1:])
        assert all(row[6].startswith("sh -c ") for row in rows[1:])


# -------------------------------------------------------------------------------- leaving the queue


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name
)
def test_a_waiter_that_ends_leaves_the_queue(
    launcher: Launcher, wait, number: signal.Signals
) -> None:
    """Ctrl-C, TERM and KILL end a waiter by that signal, anywhere, and the next is served."""
    with held(launcher, *DGX, "-n", "6") as job:
        first, second = wait(*ALL, "--wait"), wait(*DGX, "-n", "8", "--wait")
        third = wait(*DGX, "-n", "2", "--wait")
        second.process.send_signal(number)
        assert second.process.wait() == -number
        assert [ticket["gpus"] for ticket in status(launcher)["queue"]] == [8, 2]
        first.process.send_signal(number)
        assert first.process.wait() == -number
        assert len(third.gpus().split(",")) == 2
        assert (first.process.stdout.read(), first.process.stderr.read()) == ("", "")
        third.end()
        job.end()
    assert launcher.records() == []


def test_ctrl_c_at_a_terminal(launcher: Launcher) -> None:
    """Ctrl-C ends a waiter, and a shell's loop around it."""
    with held(launcher, *ALL):
        loop = 'for i in 1 2; do gpulaunch "$@"; echo "went on"; done'
        arguments = ["-c", loop, "bash", *ALL, "--wait", "--", "true"]
        terminal = pexpect.spawn(
            "bash", arguments, env=launcher.environment, encoding="utf-8", timeout=30
        )
        terminal.expect_exact(number(1, BUSY))
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        assert "went on" not in terminal.before
        terminal.close()
        assert terminal.signalstatus == signal.SIGINT
        assert status(launcher)["queue"] == []


def test_free_of_a_ticket(launcher: Launcher, wait) -> None:
    """`gpulaunch free TICKET` ends a waiter by TERM, and the next is served."""
    with held(launcher, *DGX, "-n", "6"):
        first, second = wait(*ALL, "--wait"), wait(*DGX, "-n", "2", "--wait")
        ticket = status(launcher)["queue"][0]["id"]
        done = launcher.run("free", *DGX, ticket)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            f"{ticket} has left the queue\n",
            "",
        )
        assert first.process.wait() == -signal.SIGTERM
        assert len(second.gpus().split(",")) == 2
        second.end()
    assert launcher.records() == []


def test_the_death_of_the_holder_wakes_the_waiter(launcher: Launcher, wait) -> None:
    """SIGKILL of all processes of a lease, which release nothing, wakes the waiter by event."""
    with held(launcher, *ALL) as job:
        looks = opened(launcher.state)
        waiter = wait(*ALL, "--wait")
        until_it_sleeps_for_2_s(looks)
        began = time.monotonic()
        job.kill_all()
        waiter.gpus()
        assert time.monotonic() - began < 1.5
        assert [lease["pid"] for lease in status(launcher)["leases"]] == [waiter.pid]
        os.close(looks)


# ----------------------------------------------------------------------------- who is woken by what


def test_only_the_head_follows_the_leases(launcher: Launcher, wait) -> None:
    """A release wakes only the head of the queue; the others need no inotify instance."""
    with held(launcher, *DGX, "-n", "6"), held(launcher, *DGX, "-n", "2"):
        leases = inodes(launcher, *launcher.records())
        waiters = [wait(*DGX, "-n", "7", "--wait") for _ in range(5)]

        def followed() -> list[set[int]]:
            return [watched_files(launcher, waiter.pid) for waiter in waiters]

        eventually(followed, [leases, *[set()] * 4])
        assert [told_by_kernel(waiter.pid, "inotify") for waiter in waiters[1:]] == [[]] * 4
        waiters[0].process.kill()
        waiters[0].process.wait()
        del waiters[0]  # the queue moves up: the second follows the leases now
        eventually(followed, [leases, *[set()] * 3])


def test_each_is_told_when_it_is_first(launcher: Launcher, wait) -> None:
    """Who becomes the first in the queue is told so by the one before it, however that ends."""
    with held(launcher, *ALL) as job:
        first, second, third = [wait(*ALL, "--wait") for _ in range(3)]
        first.process.kill()
        told = rf"gpulaunch: info: first in the queue after {AGE}: {BUSY}"
        assert re.fullmatch(told, second.line())
        job.end()
        assert second.gpus() == "0,1,2,3,4,5,6,7"
        assert re.fullmatch(told, third.line())
        second.end()
        assert third.gpus() == "0,1,2,3,4,5,6,7"


def test_events_alone_serve_the_queue(launcher: Launcher) -> None:
    """Whoever waits is woken by the end of the one before it, killed or served, with no timer."""
    names = "FIRST_LOOK_S", "LOOK_EVERY_S", "WITHOUT_EVENTS_S"
    patch = "; ".join(f"place_in_queue.{name} = 1e6" for name in names)
    patch = f"from gpulaunch.launch import place_in_queue; {patch}"
    script = 'echo "$CUDA_VISIBLE_DEVICES"; exec sleep 60'
    command = [sys.executable, "-c", f"{patch}\nfrom gpulaunch.__main__ import main; main()"]
    command += [*ALL, "--wait", "-q", "--", "sh", "-c", script]
    with held(launcher, *ALL) as job, ExitStack() as stack:
        waiters = []
        for count in range(1, 6):
            waiters.append(stack.enter_context(waiting_process(launcher, command)))
            eventually(lambda: len(tickets(launcher)), count)
        waiters[1].kill()  # in the middle
        waiters[2].send_signal(signal.SIGINT)
        waiters[2].wait()
        job.end()
        for waiter in (waiters[0], waiters[3], waiters[4]):
            assert waiter.stdout.readline() == "0,1,2,3,4,5,6,7\n"
            waiter.terminate()


def test_a_log_is_told_once_a_minute(launcher: Launcher) -> None:
    """Where stderr is no terminal, a line tells every minute, or here millisecond, of the wait."""
    patch = "from gpulaunch.launch import place_in_queue; place_in_queue.MINUTE_S = 0.001"
    command = [sys.executable, "-c", f"{patch}\nfrom gpulaunch.__main__ import main; main()"]
    with held(launcher, *ALL), waiting_process(launcher, [*command, *ALL, "--wait", *SHOW]) as one:
        lines = [one.stderr.readline() for _ in range(4)]
        told = rf"gpulaunch: info: waiting for {AGE} as number 1 in the queue\n"
        assert [bool(re.fullmatch(told, line)) for line in lines] == [False, False, True, True]


@contextmanager
def waiting_process(launcher: Launcher, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command for the length of the block, and kill it then."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=launcher.environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_bell_that_somebody_else_made_changes_nothing(launcher: Launcher, wait) -> None:
    """Without its bell, or with a file in its place, a ticket's end is seen within seconds."""
    with held(launcher, *ALL) as job:
        first, second = [wait(*ALL, "--wait") for _ in range(2)]
        for bell in launcher.state.glob("gpulaunch.bell.*"):
            bell.unlink()
            bell.write_bytes(b"no bell")
        third = wait(*ALL, "--wait")
        for ending, waiter in ((job, first), (first, second), (second, third)):
            ending.end()
            assert waiter.gpus() == "0,1,2,3,4,5,6,7"


def test_who_waits_leaves_the_host_lock_alone(launcher: Launcher, wait) -> None:
    """Waiters that find nothing do not take the host-wide lock, so they hinder no launch."""
    with held(launcher, *DGX, "-n", "6"), held(launcher, *DGX, "-n", "2"):
        leases = launcher.records()
        head, *_ = [wait(*ALL, "--wait") for _ in range(3)]
        eventually(lambda: watched_files(launcher, head.pid), inodes(launcher, *leases))
        lock = os.open(launcher.state, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        looks = opened(launcher.state)
        next_look(looks)  # the head's, now and then
        next_look(looks)
        assert lock_waiters(lock) == 0
        assert len(tickets(launcher)) == 3
        os.close(lock)
        os.close(looks)


def lock_waiters(fd: int) -> int:
    """Return how many wait for the lock on an open directory; /proc/locks marks them with ->."""
    inode = f":{os.fstat(fd).st_ino}"
    with open("/proc/locks") as locks:
        return sum(
            "->" in line and any(field.endswith(inode) for field in line.split()) for line in locks
        )


@contextmanager
def without_file_events(launcher: Launcher, limit: str) -> Iterator[subprocess.Popen[str]]:
    """Start a waiting launch in a user namespace where this limit of inotify is 0."""
    alone = ["unshare", "--user", "--map-root-user"]
    probe = [*alone, "test", "-w", f"/proc/sys/user/{limit}"]
    if (
        not shutil.which("unshare")
        or subprocess.run(probe, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs a user namespace with limits of its own")
    script = f'echo 0 >/proc/sys/user/{limit} && exec gpulaunch "$@"'
    with waiting_process(
        launcher, [*alone, "sh", "-c", script, "sh", *ALL, "--wait", *SHOW]
    ) as one:
        yield one


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("max_inotify_instances", "too many open files"),
        ("max_inotify_watches", "no space left on device"),
    ],
)
def test_without_file_events(launcher: Launcher, limit: str, reason: str) -> None:
    """Out of inotify instances or watches the first in the queue says so, and gets its GPUs."""
    with held(launcher, *ALL) as job, without_file_events(launcher, limit) as waiter:
        lines = [waiter.stderr.readline() for _ in range(3)]
        warning = (
            f"gpulaunch: warning: no file events (inotify: {reason}), so looking every 1 s "
            "instead\n"
        )
        assert [lines[0], lines[2]] == [number(1, BUSY) + "\n", warning]
        job.end()
        output, rest = waiter.communicate(timeout=30)
        assert (output, waiter.returncode) == ("0,1,2,3,4,5,6,7\n", 0)
        assert rest.startswith("gpulaunch: info: started after ")


def test_without_file_events_a_waiter_looks_every_second(launcher: Launcher) -> None:
    """Out of inotify instances, a waiter looks as often as it says."""
    with held(launcher, *ALL), without_file_events(launcher, "max_inotify_instances") as waiter:
        waiter.stderr.readline()
        looks = opened(launcher.state)
        pauses_s = [next_look(looks) for _ in range(4)]
        waiter.kill()
        os.close(looks)
        assert max(pauses_s) > 0.6


def test_a_stopped_waiter_lets_others_pass(launcher: Launcher, wait) -> None:
    """A stopped waiter (Ctrl-Z) bars no launch, is shown as stopped, and is served once woken."""
    with held(launcher, *ALL) as job:
        first, second = wait(*ALL, "--wait"), wait(*DGX, "-n", "7", "--wait")
        stop(first.pid)
        assert [ticket["stopped"] for ticket in status(launcher)["queue"]] == [True, False]
        assert " stopped " in launcher.run("status", *DGX).stdout
        job.end()
        assert (
            len(second.gpus().split(",")) == 7
        )  # it looks at whom it waits for every 5 s at least
        assert len(launcher.run(*DGX, *SHOW).stdout) == 2  # nor does it bar those who do not wait
        os.kill(first.pid, signal.SIGCONT)
        assert launcher.run(*DGX, *SHOW).returncode == 75
        second.end()
        assert first.gpus() == "0,1,2,3,4,5,6,7"
        assert first.end()[0] == 7


# ----------------------------------------------------------------------------------------- backfill


HOUR, MINUTE = ("--time-limit", "1h"), ("--time-limit", "1m")


def test_a_request_that_delays_nobody_passes(launcher: Launcher, wait) -> None:
    """What ends before the head of the queue can start passes it, waiting or not; else nobody."""
    with held(launcher, *DGX, "-n", "4", *HOUR) as job:
        big = wait(*ALL, "--wait")
        assert len(launcher.run(*DGX, "-n", "4", *MINUTE, *SHOW).stdout.split(",")) == 4
        reason = "1 GPU requested: 4 of 8 are free, but an earlier request for 8 GPUs waits"
        for options in ((), ("--time-limit", "2h"), (*MINUTE, "-o", "queue=fifo")):
            done = launcher.run(*DGX, "-n", "1", *options, *SHOW)
            assert done.returncode == 75
            assert done.stderr.splitlines()[0] == f"gpulaunch: error: {reason}"
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
        assert big.gpus() == "0,1,2,3,4,5,6,7"


def test_gpus_that_no_earlier_request_wants(launcher: Launcher, wait) -> None:
    """They are for whoever comes next, without a time limit, too."""
    with held(launcher, *DGX, "-n", "6"), held(launcher, *DGX, "-n", "2") as job:
        big = wait(*DGX, "-n", "4", "--only", "0-3", "--wait")
        free = [gpu for gpu in job.gpus.split(",") if int(gpu) > 3]
        assert free
        waiters = [wait(*DGX, "-n", "1", "--wait") for _ in range(3)]
        job.end()
        served = [waiter.gpus() for waiter in waiters[: len(free)]]
        assert sorted(served) == sorted(free)
        assert [ticket["pid"] for ticket in status(launcher)["queue"]] == [
            waiter.pid for waiter in (big, *waiters[len(free) :])
        ]


def test_who_leaves_the_queue_leaves_its_gpus_to_all(launcher: Launcher, wait) -> None:
    """They are taken within seconds by who sleeps behind a ticket that wants other ones."""
    low, high = ("--only", "0-3"), ("--only", "4-7")
    with held(launcher, *DGX, "-n", "2", "--only", "0,1"), held(launcher, *DGX, "-n", "4", *high):
        waiters = []
        for options in (("-n", "4", *low), ("-n", "4", *high), ("-n", "2")):
            waiters.append(wait(*DGX, *options, "--wait", users=None))
            eventually(lambda: len(tickets(launcher)), len(waiters))
        waiters[0].process.kill()
        assert waiters[2].gpus() == "2,3"
        assert [ticket["pid"] for ticket in status(launcher)["queue"]] == [waiters[1].pid]


def test_who_keeps_the_order_is_not_passed(launcher: Launcher, wait) -> None:
    """With -o queue=fifo, or such a setting, nobody passes a waiter."""
    with held(launcher, *DGX, "-n", "4", *HOUR):
        for options, variables in ((("-o", "queue=fifo"), {}), ((), {"GPULAUNCH_QUEUE": "fifo"})):
            waiter = wait(*ALL, "--wait", *options, variables=variables)
            assert launcher.run(*DGX, "-n", "1", *MINUTE, *SHOW).returncode == 75
            waiter.clear_away()


# ----------------------------------------------------------------------------------- inside a lease


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
        assert outer.gpus() == "0,1,2,3,4,5,6,7"


def test_the_lease_around_a_waiter_ends(launcher: Launcher, wait) -> None:
    """A waiter whose lease ends around it says so once, queues anew on its own, and is served."""
    with held(launcher, *DGX, "-n", "2") as job:
        within = inside(launcher, job)
        sibling = wait("-n", "2", variables=within, users=None)
        assert sorted(sibling.gpus().split(",")) == sorted(job.gpus.split(","))
        waiter = wait("-n", "1", "--only", job.gpus, "--wait", variables=within)
        assert waiter.said == number(1, "1 GPU requested: 0 of 2 are free, 2 are leased")
        later = wait(*DGX, "-n", "1", "--only", job.gpus, "--wait")
        os.kill(job.process.pid, signal.SIGKILL)
        os.kill(job.job_pid, signal.SIGKILL)
        warning = (
            f"gpulaunch: warning: lease {within['GPULAUNCH_LEASE']} has ended, so the job gets "
            "GPUs outside of it"
        )
        assert waiter.line() == warning
        assert waiter.line() == number(2, "1 GPU requested: 0 of 2 admitted are free, 2 are leased")
        eventually(lambda: [ticket["within"] for ticket in status(launcher)["queue"]], [None, None])
        assert [ticket["pid"] for ticket in status(launcher)["queue"]] == [later.pid, waiter.pid]
        sibling.end()
        gpus = {later.gpus(), waiter.gpus()}
        assert gpus == set(job.gpus.split(","))
        parents = {lease["pid"]: lease["parent"] for lease in status(launcher)["leases"]}
        assert parents == {later.pid: None, waiter.pid: None}


# ---------------------------------------------------------------------------- use outside gpulaunch


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that no lease knows."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_use_outside_is_waited_for(launcher: Launcher, dgx1_v100, wait, stranger) -> None:
    """A GPU in use outside gpulaunch makes --wait wait, and the end of that process wakes it."""
    dgx1_v100.add(f"process 3 {stranger.pid} 300")
    looks = opened(launcher.state.parent / "nvml.txt")
    waiter = wait("-n", "all", "--wait", users=0)
    used = (
        f"8 GPUs requested: 7 of 8 are free, 1 is in use outside gpulaunch (pid {stranger.pid}, "
        f"{USER})"
    )
    assert waiter.said == number(1, used)
    eventually(lambda: stranger.pid in watched_processes(waiter.pid), want=True)
    until_it_sleeps_for_2_s(looks)
    began = time.monotonic()
    dgx1_v100.drop("process 3")
    stranger.kill()
    assert waiter.gpus() == "0,1,2,3,4,5,6,7"
    assert time.monotonic() - began < 1.5
    assert waiter.end()[0] == 7
    os.close(looks)


def test_use_that_is_ignored(launcher: Launcher, dgx1_v100, stranger) -> None:
    """Programs named in ignore_programs use no GPU; those that are not named do."""
    dgx1_v100.add(f"process 0 {stranger.pid} 300")
    config = launcher.state.parent / "config" / "gpulaunch" / "config.toml"
    config.parent.mkdir(parents=True)

    def gpus(**variables: str) -> str:
        done = launcher.run(
            "--wait-timeout",
            "0.05s",
            "-q",
            "-n",
            "all",
            *SHOW,
            env=launcher.environment | variables,
        )
        return done.stdout.strip() or str(done.returncode)

    assert gpus() == "124"
    assert gpus(GPULAUNCH_IGNORE_PROGRAMS="Xorg,sleeper") == "124"
    assert gpus(GPULAUNCH_IGNORE_PROGRAMS="Xorg,sleep") == "0,1,2,3,4,5,6,7"
    config.write_text('ignore_programs = ["Xorg", "sleep"]\n')
    assert gpus() == "0,1,2,3,4,5,6,7"
    states = [gpu["state"] for gpu in json.loads(launcher.run("status", "--json").stdout)["gpus"]]
    assert states == ["free"] * 8


def test_outside_use_is_asked_only_where_it_matters(
    launcher: Launcher, dgx1_v100, wait, stranger
) -> None:
    """NVML is not asked for outside use while leases are in the way, nor about leased GPUs."""
    with held(launcher, "-n", "all") as job:
        dgx1_v100.add(f"process 3 {stranger.pid} 300")
        waiter = wait("-n", "all", "--wait")
        assert waiter.said == number(1, BUSY)
        eventually(
            lambda: watched_files(launcher, waiter.pid), inodes(launcher, launcher.records()[0])
        )
        asked, looks = opened(launcher.state.parent / "nvml.txt"), opened(launcher.state)
        next_look(looks)  # at the table, now and then
        next_look(looks)
        assert not next_open(asked, 0)
        job.end()
        assert next_open(asked), "now that no lease is in the way"
        dgx1_v100.drop("process 3")
        stranger.kill()
        assert waiter.gpus() == "0,1,2,3,4,5,6,7"
        os.close(asked)
        os.close(looks)
