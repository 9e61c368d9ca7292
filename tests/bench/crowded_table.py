"""What a table full of live records costs: CPU of a launch and of `status`, and their memory.

Each row is a table in a directory of its own: so many users, each with so many leases and tickets,
all alive, held by this process. Nothing that they name is on the machine of the launch: "elsewhere"
they are those of another described machine, "missing" they name GPUs that this one does not have,
and their launchers and jobs are gone, so that `status` looks for what holds them.

Run as root: python tests/bench/crowded_table.py [--quick]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "command")]

from conftest import DGX, Launcher  # noqa: E402
from test_crowded import ELSEWHERE, GONE, TABLE, LiveRecords  # noqa: E402
from values import lease, ticket  # noqa: E402

from gpulaunch.process.system import boot_id  # noqa: E402

TABLES = {"elsewhere": ELSEWHERE, "missing": TABLE}
FIRST_USER = 60001
ROWS = [(0, 0, 0), (10, 50, 50), (1, 200, 0), (1, 0, 1000), (10, 200, 200), (10, 200, 1000)]
"""Users, leases of each, tickets of each."""
COMMANDS = {"launch": (*DGX, "-n", "1", "--", "true"), "status": ("status", *DGX, "--json")}


def fill(records: LiveRecords, where: str, users: int, leases: int, tickets: int) -> None:
    """Add the records of a row."""
    command = ("python", "train.py", *(f"--option-{number}=0.001" for number in range(12)))
    fields = {"table": TABLES[where], "command": command, "boot_id": boot_id(), "launcher": GONE}
    for user in range(FIRST_USER, FIRST_USER + users):
        for at in range(leases):
            records.add(lease(f"{user}l{at}", 100, 101, user_id=user, job=GONE, **fields))
        for at in range(tickets):
            number = (user - FIRST_USER) * tickets + at + 1
            records.add(ticket(number, id=f"{user}t{at}", only=(100, 101), user_id=user, **fields))


def cost(launcher: Launcher, arguments: tuple[str, ...]) -> str:
    """Run a command; return its CPU seconds (the least of three), peak memory in MB and status."""
    runs = []
    for _ in range(3):
        process = subprocess.Popen(
            [launcher.script, *arguments],
            env=launcher.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        runs.append((usage.ru_utime + usage.ru_stime, usage.ru_maxrss))
    return f"{min(runs)[0]:12.2f} {max(runs)[1] / 1024:4.0f} {process.returncode:4}"


def main(quick: bool) -> None:
    """Print a row for each table."""
    head = " ".join(f"{name + ' CPU s':>13} {'MB':>3} {'exit':>4}" for name in COMMANDS)
    print(f"users leases tickets GPUs      {head}")
    for row in ROWS[:2] if quick else ROWS:
        for where in TABLES:
            with tempfile.TemporaryDirectory() as directory:
                launcher = Launcher(Path(directory))
                with LiveRecords(launcher) as records:
                    fill(records, where, *row)
                    cells = [cost(launcher, arguments) for arguments in COMMANDS.values()]
                counts = "{:5} {:6} {:7}".format(*row)
                print(counts, f"{where:9}", "    ".join(cells), flush=True)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
