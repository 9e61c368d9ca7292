"""What showing a machine of eight GPUs costs, with what is remembered of it and without.

The GPUs are a fake NVML's (it wants gcc), so a real driver's own time is not in the figures.

Run: python tests/bench/topo.py [REPEATS]
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

from compiled import compiled  # noqa: E402
from fake_nvml import FakeNvml  # noqa: E402

from gpulaunch.machine.catalog import load_described_machine  # noqa: E402

SCRIPT = Path(sysconfig.get_path("scripts")) / "gpulaunch"
CACHE = "gpulaunch.topology.json"


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the seconds that one run of a whole process takes."""
    begin = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def main() -> None:
    """Print a table of medians, the commands interleaved."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        compiled(TESTS / "fake_nvml" / "nvml.c", home / "libnvidia-ml.so.1")
        fake = FakeNvml(home, home / "nvml.txt")
        fake.tell_of(load_described_machine("dgx1-v100")[0])
        environment = {
            **os.environ,
            **fake.environment,
            "XDG_RUNTIME_DIR": name,
            "XDG_CONFIG_HOME": name,
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        rows = {
            "gpulaunch --version": [str(SCRIPT), "--version"],
            "gpulaunch topo, warm": [str(SCRIPT), "topo"],
            "gpulaunch topo --json, warm": [str(SCRIPT), "topo", "--json"],
            "gpulaunch topo, cold": [str(SCRIPT), "topo"],
        }
        times: dict[str, list[float]] = {row: [] for row in rows}
        for _ in range(repeats):
            for row, command in rows.items():
                if row.endswith("cold"):
                    (home / CACHE).unlink(missing_ok=True)
                times[row].append(seconds(command, environment))
    base = statistics.median(times["gpulaunch --version"])
    print(f"{'command':30} {'median, ms':>10} {'x --version':>12}")
    for row, values in times.items():
        median = statistics.median(values)
        print(f"{row:30} {median * 1000:10.1f} {median / base:12.2f}")


if __name__ == "__main__":
    main()
