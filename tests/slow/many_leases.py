"""Leases by the thousand whose holders are killed, watched from outside: none twice, none lost.

Run: python tests/slow/many_leases.py [--leases N] [--launches N] [--seed N] [--json]

--leases are taken through the Python API by eight processes that a killer ends and replaces,
--launches are made by the command line, eight at a time, with kills of launcher, job, or both. All
want 1 to 4 of the 8 GPUs of a described machine. Every owner of a GPU has a flock that only one can
have (gpu_flocks.py); what it finds taken is an overlap: a GPU with two owners. After each round of
2,000 leases or 150 launches all must be free: no record is alive, `status` says so, and a launch of
the whole machine, which does not wait, runs. GPUs that are not free then are lost. The default is
the short form that the tests run; 0 leaves a part out. The exit status is 1 if anything was wrong.
"""

import argparse
import fcntl
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import gpu_flocks  # noqa: E402
from conftest import DGX, Launcher, children  # noqa: E402
from gpu_flocks import Flocks  # noqa: E402

import gpulaunch  # noqa: E402
from gpulaunch.process.libc import adopt_orphans, end_with_parent  # noqa: E402

AT_ONCE = 8
LEASES, LAUNCHES = 2_000, 150
"""The short form, and a round of a longer one."""

KILL_EVERY_S = 0.02
LIMIT_S = 300
"""Of one round, which takes 10 s or so."""

_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid
MACHINE = DGX[1]


class Site:
    """A table, and the flocks of its GPUs.

    Args:
        home: an empty directory.
    """

    def __init__(self, home: Path) -> None:
        self.launcher = Launcher(home)
        self.flocks = home / "flocks"
        self.flocks.mkdir()

    def job(self, length_s: float) -> tuple[str, ...]:
        """Return the job's command line."""
        return (
            "--",
            sys.executable,
            "-SI",
            gpu_flocks.__file__,
            str(self.flocks),
            f"{length_s:.4f}",
        )

    def overlaps(self) -> int:
        """Return how many GPUs have been found to have another owner."""
        with suppress(FileNotFoundError):
            return len((self.flocks / "overlaps").read_text().splitlines())
        return 0

    def alive(self) -> list[str]:
        """Return the names of the records whose lock somebody holds."""
        question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        names = []
        for name in self.launcher.records():
            if ".bell." in name:  # of one that was killed; to open a FIFO would wait for a writer
                continue
            with suppress(FileNotFoundError), (self.launcher.state / name).open() as file:
                answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, question)
                if struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK:
                    names.append(name)
        return names

    def wrong(self) -> tuple[int, list[str]]:
        """Return how many GPUs are not free, and what else is wrong, once all owners are gone."""
        wrong = [f"{name} is alive" for name in self.alive()]
        status = self.launcher.run("status", *DGX, "--json")
        gpus = json.loads(status.stdout)["gpus"]
        lost = sum(not gpu["free"] for gpu in gpus)
        everything = self.launcher.run(*DGX, "-n", "8", *self.job(0))
        if everything.returncode:
            wrong.append(f"all GPUs: {everything.returncode}: {everything.stderr}")
        return lost, wrong


class Plan(NamedTuple):
    """One launch.

    Attributes:
        gpus: how many it wants.
        waits: with --wait.
        length_s: of its job.
        victim: who is killed: "", "launcher", "job" or "group", which is both.
        late: after the job's first word, else after the launcher's start.
        delay_s: from then to the death.
    """

    gpus: int
    waits: bool
    length_s: float
    victim: str
    late: bool
    delay_s: float


def plan(chance: random.Random) -> Plan:
    """Return a random launch."""
    late = chance.random() < 0.5
    return Plan(
        gpus=chance.randint(1, 4),
        waits=chance.random() < 0.8,
        length_s=chance.random() * 0.06,
        victim=chance.choice(["", "", "launcher", "job", "group"]),
        late=late,
        delay_s=chance.random() * (0.03 if late else 0.4),
    )


def launch(planned: Plan, site: Site) -> tuple[Counter[str], list[str]]:
    """Launch, and kill as planned; return what was counted, and what was wrong."""
    options = (*DGX, "-n", str(planned.gpus), *(["--wait"] if planned.waits else []))
    counted: Counter[str] = Counter()
    with site.launcher.start(
        *options, *site.job(planned.length_s), start_new_session=True
    ) as process:
        words = ""
        if planned.victim:
            if planned.late:
                words = process.stdout.readline()
            time.sleep(planned.delay_s)  # no event to wait for: this is the random moment
            counted["kills"] += kill(planned.victim, process)
            counted["kills of owners"] += bool(words)
        out, complaints = process.communicate()
    counted["leases"] += bool(words + out)
    expected = {
        0,
        *(() if planned.waits else (75,)),
        *((-signal.SIGKILL,) if planned.victim in ("launcher", "group") else ()),
        *((128 + signal.SIGKILL,) if planned.victim == "job" else ()),
    }
    counted["refused"] += process.returncode == 75
    if process.returncode in expected:
        return counted, []
    return counted, [f"{planned}: {process.returncode}: {complaints}"]


def job_processes(launcher_pid: int) -> list[int]:
    """Return pidfds of what is the launcher's job, or about to be it."""
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in children(launcher_pid):
            found[child] = os.pidfd_open(child)
        for stranger in found.keys() - children(launcher_pid):
            # It ended, so its number may be another process's by now.
            os.close(found.pop(stranger))
    return list(found.values())


def kill(victim: str, process: subprocess.Popen[str]) -> bool:
    """Kill a launcher, its job, or both; return whether there was anybody."""
    if victim == "launcher":
        process.kill()
    elif victim == "group":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        doomed = job_processes(process.pid)
        for descriptor in doomed:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        return bool(doomed)
    return True


def launches(count: int, site: Site, chance: random.Random) -> tuple[Counter[str], list[str]]:
    """Make launches, and return once all processes of theirs are gone."""
    with ThreadPoolExecutor(AT_ONCE) as crowd:
        plans = [plan(chance) for _ in range(count)]
        outcomes = list(crowd.map(lambda planned: launch(planned, site), plans))
    with suppress(ChildProcessError):  # jobs of killed launchers are children of this process now
        while True:
            os.waitpid(-1, 0)
    counted = sum((one for one, _ in outcomes), Counter())
    return counted, [problem for _, problems in outcomes for problem in problems]


class Progress:
    """What the workers count, in memory of all, without locks that the killed would keep.

    Attributes:
        leases: of each worker's place; so too the refusals.
        refused: see there.
        owns: whether the worker has a lease now.
        over: whether they are to end.
    """

    def __init__(self) -> None:
        self.leases = multiprocessing.RawArray("q", AT_ONCE)
        self.refused = multiprocessing.RawArray("q", AT_ONCE)
        self.owns = multiprocessing.RawArray("b", AT_ONCE)
        self.over = multiprocessing.RawValue("b", 0)


def work(
    own: int, progress: Progress, flocks: str, seed: int, end_with_program: Callable[[], None]
) -> None:
    """Take and release leases until told to end, or killed."""
    end_with_program()
    chance = random.Random(seed)
    watch = Flocks(flocks)
    while not progress.over.value:
        manner = chance.choice([*3 * [{"wait": True}], {"wait_timeout": 0.005}, {}])
        try:
            lease = gpulaunch.allocate(chance.randint(1, 4), topology=MACHINE, **manner)
        except (gpulaunch.WouldWaitError, gpulaunch.TimedOutError):
            progress.refused[own] += 1
            continue
        progress.owns[own] = 1
        watch.take(lease.gpus)
        progress.leases[own] += 1
        if chance.random() < 0.5:
            time.sleep(chance.random() * 0.02)
        watch.let_go()
        progress.owns[own] = 0
        lease.release()


def leases(count: int, site: Site, chance: random.Random) -> tuple[Counter[str], list[str]]:
    """Let workers take leases and kill them, and return once they are gone."""
    os.environ["GPULAUNCH_STATE_DIR"] = str(site.launcher.state)
    gpulaunch.allocate(topology=MACHINE, wait=True).release()  # imports, so that workers need not
    progress, counted, wrong = Progress(), Counter(), []
    fork = multiprocessing.get_context("fork")

    def start(own: int) -> multiprocessing.Process:
        progress.owns[own] = 0
        arguments = (
            own,
            progress,
            str(site.flocks),
            chance.getrandbits(64),
            end_with_parent(os.getpid()),
        )
        worker = fork.Process(target=work, args=arguments)
        worker.start()
        return worker

    workers = [start(own) for own in range(AT_ONCE)]
    while sum(progress.leases) < count:
        ended = multiprocessing.connection.wait(
            [worker.sentinel for worker in workers], chance.expovariate(1 / KILL_EVERY_S)
        )  # nobody ends unasked: this is the random moment
        if ended:
            wrong.append(f"{len(ended)} workers ended with an error, see above")
            break
        if counted["kills"] > AT_ONCE + sum(progress.leases) // 2:
            continue  # on a busy machine nobody would live long enough for a lease
        owners = [own for own in range(AT_ONCE) if progress.owns[own]]
        own = chance.choice(owners if owners and chance.random() < 0.5 else range(AT_ONCE))
        workers[own].kill()
        workers[own].join()
        counted["kills"] += 1
        counted["kills of owners"] += progress.owns[own]
        workers[own] = start(own)
    progress.over.value = 1
    for worker in workers:
        worker.join()
    counted["leases"], counted["refused"] = sum(progress.leases), sum(progress.refused)
    return counted, wrong


PARTS = {"API": (leases, LEASES), "command line": (launches, LAUNCHES)}
COLUMNS = ("leases", "refused", "kills", "kills of owners", "overlaps", "lost", "wrong", "seconds")


def watched(part: str, count: int, site: Site, chance: random.Random) -> Counter[str]:
    """Make so many leases or launches in rounds, and return what was counted."""
    make, per_round = PARTS[part]
    counted: Counter[str] = Counter()
    overlaps, begin, left = site.overlaps(), time.monotonic(), count
    while left > 0:
        signal.alarm(LIMIT_S)  # what hangs is a failure, too
        found, problems = make(min(left, per_round), site, chance)
        lost, wrong = site.wrong()
        signal.alarm(0)
        left -= found["leases"] if part == "API" else per_round
        counted += found
        counted["lost"] += lost
        counted["wrong"] += len(wrong + problems)
        for problem in wrong + problems:
            print(f"{part}: {problem}", file=sys.stderr, flush=True)
        if problems and not found["leases"]:
            break
    counted["overlaps"] = site.overlaps() - overlaps
    counted["seconds"] = round(time.monotonic() - begin)
    return counted


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leases", type=int, default=LEASES, help="through the Python API")
    parser.add_argument("--launches", type=int, default=LAUNCHES, help="by the command line")
    parser.add_argument("--seed", type=int, default=20211114, help="of plans and deaths")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    options = parser.parse_args()
    adopt_orphans()
    rows = {}
    for part, count in {"API": options.leases, "command line": options.launches}.items():
        if count:
            with tempfile.TemporaryDirectory() as home:
                rows[part] = watched(part, count, Site(Path(home)), random.Random(options.seed))
    if options.json:
        print(
            json.dumps({part: {name: row[name] for name in COLUMNS} for part, row in rows.items()})
        )
    else:
        print(f"{'':12}", *COLUMNS, sep="  ")
        for part, row in rows.items():
            print(f"{part:12}", *(f"{row[name]:{len(name)}}" for name in COLUMNS), sep="  ")
    sys.exit(any(row[name] for row in rows.values() for name in ("overlaps", "lost", "wrong")))


if __name__ == "__main__":
    main()
