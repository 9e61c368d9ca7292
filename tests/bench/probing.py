"""What reading a machine through NVML costs, cold and warm: calls and time.

The GPUs are a stand-in's (it wants a C compiler), so a real driver's own time is not in the
figures. The calls are counted by the stand-in, over all processes of a command.

Run: python tests/bench/probing.py [REPEATS]
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

from compiled import compiled  # noqa: E402
from fake_nvml import FakeNvml  # noqa: E402

from gpulaunch.machine.catalog import load_described_machine  # noqa: E402

SCRIPT = Path(sysconfig.get_path("scripts")) / "gpulaunch"
CACHE = "gpulaunch.topology.json"
MACHINES = ("dgx-h100", "nvl72")
ABOUT_LINKS = ("nvmlDeviceGetNvLink", "nvmlDeviceGetFieldValues")
COMMANDS = {
    "topo, cold": ["topo"],
    "topo, warm": ["topo"],
    "status, warm": ["status"],
    "launch, warm": ["--", "true"],
}


class Bench:
    """A machine of the stand-in, and the commands that meet it.

    Args:
        home: a directory with libnvidia-ml.so.1.
        machine: name of a described machine.
    """

    def __init__(self, home: Path, machine: str) -> None:
        fake = FakeNvml(home, home / "nvml.txt")
        topology = load_described_machine(machine)[0]
        fake.tell_of(topology)
        self.gpus = len(topology.gpus)
        self._cache, self._calls = home / CACHE, home / "calls"
        self._environment = {
            **os.environ,
            **fake.environment,
            "XDG_RUNTIME_DIR": str(home),
            "XDG_CONFIG_HOME": str(home),
            "GPULAUNCH_STATE_DIR": str(home),
        }
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def seconds(self, row: str, environment: dict[str, str] | None = None) -> float:
        """Return the seconds that one run of a whole process takes."""
        if row.endswith("cold"):
            self._cache.unlink(missing_ok=True)
        begin = time.perf_counter()
        subprocess.run(
            [SCRIPT, *COMMANDS[row]],
            env=self._environment | (environment or {}),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - begin

    def calls(self, row: str) -> Counter[str]:
        """Return how often a command calls each of NVML's functions."""
        self._calls.unlink(missing_ok=True)
        self.seconds(row, {"FAKE_NVML_CALLS": str(self._calls)})
        return Counter(line.split()[0] for line in self._calls.read_text().splitlines())


def main() -> None:
    """Print a table, with medians of the times."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f"{'command':16} {'GPUs':>4} {'NVML calls':>10} {'about links':>11} {'median, ms':>10}")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        compiled(TESTS / "fake_nvml" / "nvml.c", home / "libnvidia-ml.so.1")
        for machine in MACHINES:
            bench = Bench(home, machine)
            for row in COMMANDS:
                calls = bench.calls(row)
                links = sum(calls[call] for call in calls if call.startswith(ABOUT_LINKS))
                median = statistics.median(bench.seconds(row) for _ in range(repeats))
                print(
                    f"{row:16} {bench.gpus:4} {calls.total():10} {links:11} {median * 1000:10.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
