"""Leases by the thousand whose holders are killed, watched from outside: none twice, none lost.

Run: python tests/slow/many_leases.py [--leases N]

The leases are taken through the Python API by eight processes that a killer ends and replaces. All
want 1 to 4 of the 8 GPUs of a described machine. Every owner of a GPU has a flock that only one can
have; where somebody else lets go of it meanwhile, that is an overlap: a GPU with two owners. After
each round of 2,000 leases all must be free: `status` says so and shows nobody, and a launch of
the whole machine, which does not wait, runs. GPUs that are not free then are lost. The default is
one round. What was counted is printed as JSON; the exit status is 1 if anything was wrong.
"""

import argparse
import fcntl
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from conftest import DGX, Launcher  # noqa: E402

import gpulaunch  # noqa: E402
from gpulaunch.process.libc import end_with_parent  # noqa: E402

AT_ONCE = 8
LEASES = 2_000
"""A round."""

KILL_EVERY_S = 0.02
MACHINE = DGX[1]


class Flocks:
    """Flocks by which two owners of a GPU meet, apart from all that gpulaunch writes.

    Attributes:
        directory: of their files, one for each GPU, and of the file `overlaps`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fds: dict[int, int] = {}
        self._held: list[int] = []

    def take(self, gpus: tuple[int, ...]) -> None:
        """Take the flocks of GPUs that one has a lease of; note each that somebody else had.

        Who has a flock lets go of it, which it counts in the file, before its lease ends, or is
        killed. The kernel closes the files of a killed process one by one, in any order, so that
        its flock may last a little longer than its lease.
        """
        for gpu in gpus:
            if gpu not in self._fds:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._fds[gpu] = os.open(self.directory / f"gpu-{gpu}", flags)
            fd = self._fds[gpu]
            count = os.pread(fd, 8, 0)
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._held.append(gpu)
            if os.pread(fd, 8, 0) != count:
                with (self.directory / "overlaps").open("a") as file:
                    file.write(f"GPU {gpu}\n")

    def let_go(self) -> None:
        """Let go of all flocks, before the lease of the GPUs is released."""
        while self._held:
            fd = self._fds[self._held.pop()]
            count = int.from_bytes(os.pread(fd, 8, 0), "little") + 1
            os.pwrite(fd, count.to_bytes(8, "little"), 0)
            fcntl.flock(fd, fcntl.LOCK_UN)


class Site:
    """A table, and the flocks of its GPUs.

    Args:
        home: an empty directory.
    """

    def __init__(self, home: Path) -> None:
        self.launcher = Launcher(home)
        self.flocks = home / "flocks"
        self.flocks.mkdir()

    def overlaps(self) -> int:
        """Return how many GPUs have been found to have another owner."""
        with suppress(FileNotFoundError):
            return len((self.flocks / "overlaps").read_text().splitlines())
        return 0

    def wrong(self) -> tuple[int, list[str]]:
        """Return how many GPUs are not free, and what else is wrong, once all owners are gone."""
        status = json.loads(self.launcher.run("status", *DGX, "--json").stdout)
        lost = sum(not gpu["free"] for gpu in status["gpus"])
        wrong = [f"{one['id']} is alive" for one in (*status["leases"], *status["queue"])]
        everything = self.launcher.run(*DGX, "-n", "8", "--", "true")
        if everything.returncode:
            wrong.append(f"all GPUs: {everything.returncode}: {everything.stderr}")
        return lost, wrong


class Progress:
    """What the workers count, in memory of all, without locks that the killed would keep.

    Attributes:
        leases: of each worker's place.
        owns: whether the worker has a lease now.
        over: whether they are to end.
    """

    def __init__(self) -> None:
        self.leases = multiprocessing.RawArray("q", AT_ONCE)
        self.owns = multiprocessing.RawArray("b", AT_ONCE)
        self.over = multiprocessing.RawValue("b", 0)


def work(own: int, progress: Progress, flocks: Path, seed: int, program: int) -> None:
    """Take and release leases until told to end, or killed, or until the program has ended."""
    end_with_parent(program)()
    chance = random.Random(seed)
    watch = Flocks(flocks)
    while not progress.over.value:
        manner = chance.choice([*3 * [{"wait": True}], {"wait_timeout": 0.005}, {}])
        try:
            lease = gpulaunch.allocate(chance.randint(1, 4), topology=MACHINE, **manner)
        except (gpulaunch.WouldWaitError, gpulaunch.TimedOutError):
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
        arguments = (own, progress, site.flocks, chance.getrandbits(64), os.getpid())
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
    counted["leases"] = sum(progress.leases)
    return counted, wrong


def watched(count: int, site: Site) -> Counter[str]:
    """Take so many leases in rounds, and return what was counted."""
    chance, counted, left = random.Random(20211114), Counter(), count
    while left > 0:
        found, problems = leases(min(left, LEASES), site, chance)
        lost, wrong = site.wrong()
        left -= found["leases"]
        counted += found
        counted["lost"] += lost
        counted["wrong"] += len(wrong + problems)
        for problem in wrong + problems:
            print(problem, file=sys.stderr, flush=True)
        if problems:
            break
    counted["overlaps"] = site.overlaps()
    return counted


def main() -> None:
    """Print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leases", type=int, default=LEASES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        counted = watched(options.leases, Site(Path(home)))
    print(json.dumps(counted))
    sys.exit(any(counted[name] for name in ("overlaps", "lost", "wrong")))


if __name__ == "__main__":
    main()
