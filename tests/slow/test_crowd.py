"""A crowd of launchers with random deaths: no GPU has two owners, and all are served in order.

None of this is read from gpulaunch's own words. Who had which GPU when stands in a log that the
jobs write, and who was in the queue when a lease appeared is told by the kernel, which watches the
state directory (inotify). Plain functions judge both; that they find what is wrong is shown with
the host-wide lock, and the order, really broken.
"""

import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import DGX, Launcher, held

from gpulaunch.process import libc

AT_ONCE, SEED = 32, 20211114
LIMIT_S = 300.0
"""Of the whole crowd. It takes 7 s; what hangs is killed then."""

# The job: a line in the log when it has its GPUs, and one when it is about to let go of them, which
# is after so many seconds, or when it reads a line. Appending a short line is atomic.
JOB = """
import os, sys, time
log, launch, length = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def tell(*what):
    os.write(log, " ".join((str(time.monotonic_ns()), *what)).encode() + b"\\n")
job = f"{launch}/{os.getpid()}"
tell("starts", job, os.environ["CUDA_VISIBLE_DEVICES"])
print("runs", flush=True)
time.sleep(float(length)) if length else sys.stdin.readline()
tell("ends", job)
"""


def job(log: Path, launch: str, length_s: float | None = None) -> tuple[str, ...]:
    """Return the job's command line; without a length it runs until it reads a line."""
    return (
        "--",
        sys.executable,
        "-SIc",
        JOB,
        str(log),
        launch,
        "" if length_s is None else str(length_s),
    )


def two_owners(log: Iterable[str]) -> list[str]:
    """Return GPUs that two jobs had at the same time, by the log's lines in any order."""
    starts: dict[str, tuple[int, set[str]]] = {}
    ends: dict[str, int] = {}
    for line in log:
        at, what, name, *gpus = line.split()
        if what == "starts":
            starts[name] = int(at), set(gpus[0].split(","))
        else:  # a job that was killed after its last word has two ends
            ends[name] = min(int(at), ends.get(name, int(at)))
    conflicts = []
    for (a, (a_starts, a_gpus)), (b, (b_starts, b_gpus)) in combinations(starts.items(), 2):
        # one that wrote its first word between our note of its death and its death had its GPUs at
        # that moment
        a_ends, b_ends = (max(ends.get(name, sys.maxsize), starts[name][0]) for name in (a, b))
        if a_gpus & b_gpus and a_starts < b_ends and b_starts < a_ends:
            conflicts.append(f"GPU {','.join(sorted(a_gpus & b_gpus))}: {a} and {b}")
    return conflicts


class Event(NamedTuple):
    """What happened to a launch's ticket or lease, in the kernel's order.

    Attributes:
        what: "waits", "leaves" or "is served": its ticket appears, its ticket vanishes, its lease
            appears; "is killed".
        id: of its ticket and its lease; of a death the launch's name, since a launch has no id
            before it has a record.
        number: of a ticket that appears.
        launch: the name in a ticket that appears; "" if it had vanished before it could be read.
    """

    what: str
    id: str
    number: int = 0
    launch: str = ""


class Serving(NamedTuple):
    """A lease has appeared, or a ticket.

    Attributes:
        event: which.
        number: of the ticket, or infinite for a lease that had none.
        waiting: numbers of the other tickets whose launchers were alive then.
    """

    event: Event
    number: float
    waiting: list[int]


def servings(events: Iterable[Event]) -> Iterator[Serving]:
    """Yield who came into the queue or was served, and who else was waiting then.

    A launch that is served later was certainly alive; another one was alive until it was killed.
    One whose ticket was gone before it could be read, and that was never served, was killed at an
    unknown time: it is left out.
    """
    events = list(events)
    served = {event.id for event in events if event.what == "is served"}
    tickets: dict[str, Event] = {}
    queue: set[str] = set()
    killed = {""}
    for event in events:
        if event.what == "waits":
            tickets[event.id] = event
        if event.what in ("waits", "is served"):
            number = tickets[event.id].number if event.id in tickets else float("inf")
            others = [tickets[other] for other in queue if other != event.id]
            yield Serving(
                event,
                number,
                [t.number for t in others if t.id in served or t.launch not in killed],
            )
        if event.what == "waits":
            queue.add(event.id)
        elif event.what == "is killed":
            killed.add(event.id)
        # with its lease a launch's waiting is over, though its ticket is removed a moment later
        else:
            queue.discard(event.id)


def out_of_order(events: Iterable[Event]) -> list[Serving]:
    """Return leases that passed a live ticket of a smaller number, and tickets not at the end."""
    return [
        serving
        for serving in servings(events)
        if (
            serving.event.what == "is served"
            and min(serving.waiting, default=serving.number) < serving.number
        )
        or (serving.event.what == "waits" and max(serving.waiting, default=0) >= serving.number)
    ]


class Witness:
    """A witness of events in the state directory and of announced deaths, in the kernel's order.

    Attributes:
        events: what has happened.
        strange: what should not have: a queue of the kernel's that ran over.
    """

    def __init__(self, launcher: Launcher) -> None:
        self.events: list[Event] = []
        self.strange: list[str] = []
        self._state = launcher.state
        self._deaths = launcher.state.with_name("deaths")
        self._deaths.mkdir()
        self._fd = libc.inotify()
        for directory in (self._state, self._deaths):
            libc.watch_file(self._fd, str(directory), 0x100 | 0x200)  # IN_CREATE | IN_DELETE
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def note_death(self, launch: str) -> None:
        """Note that a launcher is about to be killed.

        What dies later than that is noted no earlier than this.
        """
        (self._deaths / launch).touch()

    def close(self) -> None:
        """See all that has happened, and no more."""
        (self._deaths / "end").touch()
        self._thread.join()
        os.close(self._fd)

    def _look(self) -> None:
        while True:
            select.select([self._fd], [], [])
            data = os.read(self._fd, 1 << 16)
            while data:
                _, mask, _, size = struct.unpack_from("iIII", data)
                name = data[16 : 16 + size].rstrip(b"\0").decode()
                data = data[16 + size :]
                if name == "end":
                    return
                if mask & 0x4000:  # IN_Q_OVERFLOW
                    self.strange.append("the kernel has lost events")
                self.events.extend(self._event(name, appears=bool(mask & 0x100)))

    def _event(self, name: str, *, appears: bool) -> list[Event]:
        kind, *rest = name.removeprefix("gpulaunch.").split(".")
        if kind == "lease":
            return [Event("is served", rest[0])] if appears else []
        if kind != "ticket":
            return [Event("is killed", name)] if appears else []
        if not appears:
            return [Event("leaves", rest[1])]
        launch = ""
        with suppress(FileNotFoundError):
            launch = json.loads((self._state / name).read_bytes())["name"]
        return [Event("waits", rest[1], int(rest[0]), launch)]


@contextmanager
def witnessed(launcher: Launcher):
    """Yield what the kernel tells for the length of the block."""
    witness = Witness(launcher)
    try:
        yield witness
    finally:
        witness.close()


class Plan(NamedTuple):
    """One launch of the crowd.

    Attributes:
        name: of the launch.
        gpus: how many it wants.
        waits: with --wait.
        length_s: of its job.
        victim: who is killed, if anybody: "launcher", "job" or "both".
        after_start: the delay counts from the job's first word, not from the launcher's start.
        delay_s: until then.
    """

    name: str
    gpus: int
    waits: bool
    length_s: float
    victim: str
    after_start: bool
    delay_s: float


def plans(launches: int) -> list[Plan]:
    """Return plans that are the same at every run."""
    chance = random.Random(SEED)
    made = []
    for number in range(launches):
        victim = chance.choice(["", "", "", "", "", "launcher", "launcher", "job", "job", "both"])
        after_start = victim == "job" or chance.random() < 0.5
        length_s = chance.random() * 0.06
        if victim == "job" and chance.random() < 0.5:
            length_s = (
                60.0  # on a slow machine too, some are still running when they are to be killed
            )
        made.append(
            Plan(
                name=f"launch-{number}",
                gpus=chance.randint(1, 8),
                waits=chance.random() < 0.85,
                length_s=length_s,
                victim=victim,
                after_start=after_start,
                delay_s=chance.random() * (0.04 if after_start else 1.0),
            )
        )
    return made


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


def job_processes(launcher_pid: int) -> dict[int, int]:
    """Return pid and pidfd of what is the launcher's job, or about to be it."""
    found = {}
    for child in children(launcher_pid):
        with suppress(ProcessLookupError):
            found[child] = os.pidfd_open(child)
    for stranger in found.keys() - children(
        launcher_pid
    ):  # it ended, so its number may be another process's by now
        os.close(found.pop(stranger))
    return found


def run(
    plan: Plan, launcher: Launcher, log: Path, witness: Witness, deadline: float
) -> tuple[int, str]:
    """Launch, and kill as planned; return the exit status and what was said."""
    options = (*DGX, "--name", plan.name, "-n", str(plan.gpus), *(["--wait"] if plan.waits else []))
    with launcher.start(*options, *job(log, plan.name, plan.length_s)) as process:
        left_s = max(0.0, deadline - time.monotonic())
        too_long = threading.Timer(
            left_s, process.kill
        )  # which is then an exit status that was not planned
        too_long.start()
        if plan.victim:
            if plan.after_start:
                process.stdout.readline()
            time.sleep(plan.delay_s)  # no event to wait for: this is the random moment
            doomed = job_processes(process.pid) if plan.victim != "launcher" else {}
            if plan.victim != "job":
                witness.note_death(plan.name)
                process.kill()
            for pid, descriptor in doomed.items():
                with log.open("a") as file:
                    file.write(f"{time.monotonic_ns()} ends {plan.name}/{pid}\n")
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                os.close(descriptor)
        _, words = process.communicate()
        too_long.cancel()
    return process.returncode, words


def expected(plan: Plan) -> set[int]:
    """Return the exit statuses that a launch may end with; a waiter left alone is served."""
    return {
        0,
        *({75} if not plan.waits else ()),
        *({-signal.SIGKILL} if plan.victim in ("launcher", "both") else ()),
        *({128 + signal.SIGKILL} if plan.victim in ("job", "both") else ()),
    }


@pytest.mark.parametrize("launches", [100])
def test_a_crowd_with_random_deaths(launcher: Launcher, tmp_path: Path, launches: int) -> None:
    """While 32 launchers at a time want 1 to 8 of 8 GPUs and SIGKILL hits some of them and of their
    jobs, no GPU has two owners, and all who wait are served in order. Afterwards all GPUs are free
    and no record is left.
    """
    log = tmp_path / "log"
    with witnessed(launcher) as witness, ThreadPoolExecutor(AT_ONCE) as crowd:
        deadline = time.monotonic() + LIMIT_S
        outcomes = list(
            crowd.map(lambda plan: run(plan, launcher, log, witness, deadline), plans(launches))
        )
        everything = launcher.run(
            *DGX, "--wait", "-n", "all", *job(log, "all", 0)
        )  # waits for jobs without launcher
    for plan, (status, words) in zip(plans(launches), outcomes, strict=True):
        assert status in expected(plan), (plan, words)
        warnings = [line for line in words.splitlines() if "warning" in line]
        assert [
            line for line in warnings if "no file events" not in line
        ] == []  # of this user, other tests have them
    assert (everything.stdout, everything.returncode) == ("runs\n", 0)
    assert launcher.records() == []
    lines = log.read_text().splitlines()
    assert two_owners(lines) == []
    assert witness.strange == []
    assert out_of_order(witness.events) == []

    # what was judged is worth it: many jobs ran, some were killed, and most came from a queue where
    # others waited
    statuses = Counter(status for status, _ in outcomes)
    started = [line.split()[2] for line in lines if line.split()[1] == "starts"]
    served = [serving for serving in servings(witness.events) if serving.event.what == "is served"]
    assert len(set(started)) == len(started) <= len(served)
    assert len(started) > launches / 4
    assert statuses[-signal.SIGKILL] > launches / 20
    assert statuses[128 + signal.SIGKILL] > launches / 100
    assert len([serving for serving in served if serving.number < float("inf")]) > launches / 4
    assert sum(len(serving.waiting) for serving in served) > launches


# A launcher with something broken. It stops before the host-wide lock, if that is not what is
# broken, and between look
# and write: there it goes to the meeting place, and goes on when it is let go or nobody listens.
BROKEN = """
import socket, sys
from contextlib import suppress
from gpulaunch.__main__ import main
from gpulaunch.decide import decide
from gpulaunch.leases.lease import Lease
from gpulaunch.leases import host_lock, table

broken, place = sys.argv[1:3]
del sys.argv[1:3]
flock, publish = host_lock.lock_in_time, table.LockedTable.publish
places = {"before the lock", "between look and write"}

def meet(where):
    if where in places:
        places.remove(where)
        with socket.socket(socket.AF_UNIX) as meeting, suppress(OSError):
            meeting.connect(place)
            meeting.recv(1)

def meet_and_flock(fd, *others):
    if broken == "the lock":
        return True
    meet("before the lock")
    return flock(fd, *others)

def meet_and_publish(self, draft, record):
    if isinstance(record, Lease):
        meet("between look and write")
    publish(self, draft, record)

host_lock.lock_in_time, table.LockedTable.publish = meet_and_flock, meet_and_publish
if broken == "the order":
    decide.barring = lambda *_: []
main()
"""


@contextmanager
def broken(what: str, launcher: Launcher, *arguments: str):
    """Yield a launcher with broken lock or order, stdout and stderr in one; kill it afterwards."""
    driver = [sys.executable, "-c", BROKEN, what, str(meeting_place(launcher)), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(driver, env=launcher.environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def meeting_place(launcher: Launcher) -> Path:
    return launcher.state.with_name("meeting")


@contextmanager
def two_for_everything(what_is_broken: str, launcher: Launcher, log: Path):
    """Yield two launchers that want all 8 GPUs, and the socket of their meeting place."""
    one, other = (
        [what_is_broken, launcher, *DGX, "-n", "8", "--wait", *job(log, name)]
        for name in ("one", "other")
    )
    with socket.socket(socket.AF_UNIX) as meeting:
        meeting.settimeout(30)
        meeting.bind(str(meeting_place(launcher)))
        meeting.listen()
        with broken(*one) as one_process, broken(*other) as other_process:
            yield [one_process, other_process], meeting


def test_without_the_host_lock_the_log_shows_two_owners(launcher: Launcher, tmp_path: Path) -> None:
    """The log shows two owners of each GPU when two launchers both look before either writes.

    Both stand between look and write until the other is there too, which nothing but the lock would
    prevent.
    """
    log = tmp_path / "log"
    with two_for_everything("the lock", launcher, log) as (both, meeting):
        for here in [meeting.accept()[0], meeting.accept()[0]]:
            here.close()
        assert [process.stdout.readline() for process in both] == ["runs\n", "runs\n"]
        assert [process.communicate("\n")[0] for process in both] == ["", ""]
    (conflict,) = two_owners(log.read_text().splitlines())
    assert conflict.startswith("GPU 0,1,2,3,4,5,6,7: ")


def test_with_the_host_lock_one_runs_at_a_time(launcher: Launcher, tmp_path: Path) -> None:
    """Of two launchers that saw all GPUs free and go for the lock, one runs and one waits.

    One stands between look and write until the other waits for the lock, which the kernel tells.
    """
    log = tmp_path / "log"
    with two_for_everything("nothing", launcher, log) as (both, meeting):
        for here in [meeting.accept()[0], meeting.accept()[0]]:
            here.close()
        first = meeting.accept()[0]
        while not {process.pid for process in both} & waiting_for_locks():
            assert select.select([meeting], [], [], 0.005)[0] == [], (
                "both are between look and write"
            )
            assert [process.poll() for process in both] == [None, None]
        meeting.close()
        first.close()
        first_words = {process.stdout.readline(): process for process in both}
        assert sorted(word[:28] for word in first_words) == [
            "gpulaunch: info: waiting as ",
            "runs\n",
        ]
        runs, waits = (first_words[word] for word in sorted(first_words, reverse=True))
        assert runs.communicate("\n")[0] == ""
        assert waits.communicate("\n")[0].endswith("runs\n")
        assert (runs.returncode, waits.returncode) == (0, 0)
    lines = log.read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["starts", "ends", "starts", "ends"]
    assert two_owners(lines) == []


def waiting_for_locks() -> set[int]:
    """Return pids that wait for some flock, by the lines of /proc/locks."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(fields[5]) for fields in lines if fields[1:3] == ["->", "FLOCK"]}


@pytest.mark.parametrize(
    ("what_is_broken", "status", "passes"), [("nothing", 75, []), ("the order", 0, ["the queue"])]
)
def test_who_passes_the_queue_is_seen(
    launcher: Launcher, what_is_broken: str, status: int, passes: list[str]
) -> None:
    """The kernel's log shows a launch that takes free GPUs while an earlier one waits for more."""
    with witnessed(launcher) as witness, held(launcher, *DGX, "-n", "4"):
        waiting = launcher.start(*DGX, "-n", "8", "--name", "first", "--wait", "--", "true")
        assert waiting.stderr.readline().startswith("gpulaunch: info: waiting as number 1 ")
        with broken(what_is_broken, launcher, *DGX, "-n", "4", "--", "true") as passing:
            passing.communicate()
        assert passing.returncode == status
    with waiting:
        waiting.communicate()
    assert ["the queue" for _ in out_of_order(witness.events)] == passes
