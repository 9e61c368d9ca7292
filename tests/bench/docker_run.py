"""What gpulaunch adds to `docker run --rm IMAGE true`: medians of interleaved runs.

Run: python tests/bench/docker_run.py [RUNS] [IMAGE]

With IMAGE, on the engine that DOCKER_HOST names; else on one that is started for this, with an
image of busybox, which needs root and dockerd on PATH. GPUs are those of the described machine
dgx1-v100, so none has to be there.
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from engine import IMAGE, Engine

GPULAUNCH = str(Path(sysconfig.get_path("scripts")) / "gpulaunch")


def cases(image: str) -> dict[str, list[str]]:
    docker = ["docker", "run", "--rm", image, "true"]
    return {
        "docker run --rm IMAGE true": docker,
        "gpulaunch docker run --rm IMAGE true": [
            GPULAUNCH,
            "--topology",
            "dgx1-v100",
            "-q",
            *docker,
        ],
        "gpulaunch -- true": [GPULAUNCH, "--topology", "dgx1-v100", "--", "true"],
    }


def measure(runs: int, image: str, environment: dict[str, str]) -> None:
    """Print the table."""
    commands = cases(image)
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs + 1):  # the first round warms the caches and is dropped
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, env=environment, check=True)
            times[name].append(1000 * (time.perf_counter() - start))
    plain = statistics.median(times["docker run --rm IMAGE true"][1:])
    print(
        f"{'command':40} {'median ms':>9} {'min':>6} {'max':>6} {'more than docker':>17}   ({runs} "
        "interleaved runs)"
    )
    for name, samples in times.items():
        median = statistics.median(samples[1:])
        more = f"{median / plain - 1:+17.0%}" if "docker" in name else ""
        print(f"{name:40} {median:9.1f} {min(samples[1:]):6.1f} {max(samples[1:]):6.1f} {more}")


def main() -> None:
    """Measure on the engine at hand, or on one of our own."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as state:
        environment = os.environ | {"GPULAUNCH_STATE_DIR": state}
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # else every launch compiles the package anew
        if len(sys.argv) > 2:
            measure(runs, sys.argv[2], environment)
            return
        engine = Engine()
        engine.start()
        try:
            measure(runs, IMAGE, environment | engine.environment)
        finally:
            engine.close()


if __name__ == "__main__":
    main()
