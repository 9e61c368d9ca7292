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

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from live_records import LiveRecords  # noqa: E402
from values import lease, ticket  # noqa: E402

from gpulaunch.machine.catalog import load_described_machine  # noqa: E402
from gpulaunch.machine.topology import TableKey  # noqa: E402
from gpulaunch.process.identity import Process  # noqa: E402
from gpulaunch.process.system import boot_id  # noqa: E402

SCRIPT = Path(sys.executable).with_name("gpulaunch")
MACHINE = "dgx1-v100"
TABLES = {
    "elsewhere": TableKey("elsewhere", "0badc0de", "/profiles/elsewhere.toml"),
    "missing": TableKey(MACHINE, load_described_machine(MACHINE)[0].digest or "", ""),
}
FIRST_USER = 60001
GONE = Process(1 << 22, 1)
ROWS = [(0, 0, 0), (10, 50, 50), (1, 200, 0), (1, 0, 1000), (10, 200, 200), (10, 200, 1000)]
"""Users, leases of each, tickets of each."""
COMMANDS = {
    "launch": ("--topology", MACHINE, "-n", "1", "--", "true"),
    "status": ("status", "--topology", MACHINE, "--json"),
}


def fill(records: LiveRecords, where: str, users: int, leases: int, tickets: int) -> None:
    """Add the records of a row."""
    command = ("python", "train.py", *(f"--option-{number}=0.001" for number in range(12)))
    fields = {"table": TABLES[where], "command": command, "boot_id": boot_id()}
    number = 0
    for user in range(FIRST_USER, FIRST_USER + users):
        for at in range(leases):
            one = lease(f"{user}l{at}", 100, 101, user_id=user, launcher=GONE, job=GONE, **fields)
            records.add(one)
        for at in range(tickets):
            number += 1
            records.add(ticket(number, id=f"{user}t{at}", only=(100, 101), user_id=user, **fields))


def cost(arguments: tuple[str, ...], directory: str) -> str:
    """Run a command; return its CPU seconds (the least of three), peak memory in MB and status."""
    environment = os.environ | {"GPULAUNCH_STATE_DIR": directory, "HOME": directory}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    runs = []
    for _ in range(3):
        process = subprocess.Popen(
            [SCRIPT, *arguments],
            env=environment,
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
                with LiveRecords(Path(directory)) as records:
                    fill(records, where, *row)
                    cells = [cost(arguments, directory) for arguments in COMMANDS.values()]
                counts = "{:5} {:6} {:7}".format(*row)
                print(counts, f"{where:9}", "    ".join(cells), flush=True)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
