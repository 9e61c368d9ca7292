"""A crowd of launchers, some killed with or without their jobs: no GPU has two owners, and none is lost."""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from conftest import DGX, Launcher

LAUNCHERS, ROUNDS, SEED = 24, 8, 20211114

# The job: one line when it has its GPUs, one when it is about to let go of them. Appending a short line is atomic.
JOB = """
import os, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def tell(what):
    os.write(log, f"{time.monotonic_ns()} {what} {os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\\n".encode())
tell("starts")
time.sleep(float(sys.argv[2]))
tell("ends")
"""


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_a_crowd_with_random_deaths(launcher: Launcher, tmp_path: Path) -> None:
    """While 24 launchers at a time want 1 to 4 of 8 GPUs, and SIGKILL hits some, each GPU has one owner at most.

    The owners are read from a log that the jobs write themselves. Afterwards all GPUs are free and no record is left.
    """
    log = tmp_path / "log"
    outcomes: Counter[int] = Counter()
    complaints: list[str] = []
    killed_at: dict[int, int] = {}

    def launch_in_turn(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(ROUNDS):
            count, length = chance.choice(["1", "1", "2", "3", "4"]), f"{chance.random() * 0.05}"
            job = (sys.executable, "-SIc", JOB, str(log), length)
            with launcher.start(*DGX, "-n", count, "--", *job) as process:
                victim = chance.choice(["nobody", "nobody", "nobody", "launcher", "job", "both"])
                delay_s = chance.random() * 0.12
                if victim != "nobody":
                    time.sleep(delay_s)  # any moment between its start and its end
                    jobs = children(process.pid) if victim != "launcher" else []
                    if victim != "job":
                        process.kill()
                    for pid in jobs:
                        killed_at[pid] = time.monotonic_ns()
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                _, errors = process.communicate()
            outcomes[process.returncode] += 1
            complaints.extend(
                line for line in errors.splitlines() if "GPUs requested" not in line and "hint" not in line
            )

    crowd = [threading.Thread(target=launch_in_turn, args=(SEED + i,)) for i in range(LAUNCHERS)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()

    assert [line for line in complaints if "1 GPU requested" not in line] == []
    assert set(outcomes) <= {0, 75, -signal.SIGKILL, 128 + signal.SIGKILL}
    events = [line.split() for line in log.read_text().splitlines()]
    history = [(int(at), what, int(pid), gpus.split(",")) for at, what, pid, gpus in events]
    history += [(at, "ends", pid, []) for pid, at in killed_at.items()]
    owner: dict[str, int] = {}
    for _, what, pid, gpus in sorted(history):
        if what == "starts":
            assert {gpu: owner[gpu] for gpu in gpus if gpu in owner} == {}
            owner |= dict.fromkeys(gpus, pid)
        else:
            owner = {gpu: holder for gpu, holder in owner.items() if holder != pid}
    assert owner == {}
    assert outcomes[0] > LAUNCHERS
    assert launcher.run(*DGX, "-n", "all", "--", "echo", "all").stdout == "all\n"
    assert launcher.records() == []
