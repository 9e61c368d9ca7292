"""Whole-process wall time of a launch beside bare Python: medians of interleaved runs.

Run: python tests/bench/start_up.py [RUNS]
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

GPULAUNCH = str(Path(sysconfig.get_path("scripts")) / "gpulaunch")
CASES = {
    "true": ["true"],
    "python -c pass": [sys.executable, "-c", "pass"],
    "gpulaunch --topology dgx1-v100 -n 1 -- true": [
        GPULAUNCH,
        "--topology",
        "dgx1-v100",
        "-n",
        "1",
        "--",
        "true",
    ],
    "gpulaunch --topology dgx1-v100 -p vgg16 -n 3 -- true": [
        *(GPULAUNCH, "--topology", "dgx1-v100", "-p", "vgg16", "-n", "3", "--", "true"),
    ],
    "gpulaunch status --topology dgx1-v100": [GPULAUNCH, "status", "--topology", "dgx1-v100"],
}


def main() -> None:
    """Print the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    times: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as state:
        environment = os.environ | {"GPULAUNCH_STATE_DIR": state}
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # else every launch compiles the package anew
        for _ in range(runs + 1):  # the first round warms the caches and is dropped
            for name, command in CASES.items():
                start = time.perf_counter()
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
                times[name].append(time.perf_counter() - start)
    bare = statistics.median(times["python -c pass"][1:])
    print(
        f"{'command':56} {'median ms':>9} {'min':>6} {'max':>6} {'x bare Python':>14}   ({runs} interleaved runs)"
    )
    for name, samples in times.items():
        kept = [1000 * sample for sample in samples[1:]]
        median = statistics.median(kept)
        print(
            f"{name:56} {median:9.1f} {min(kept):6.1f} {max(kept):6.1f} {median / bare / 1000:14.2f}"
        )


if __name__ == "__main__":
    main()
