"""What `gpulaunch docker` costs beside docker alone: CPU and wall time, interleaved in one run.

Run: python tests/bench/beside_docker.py [--rounds N]

It needs root, to start an engine of its own. The machine is described, so the containers get a
lease and no GPU. CPU is that of the command and of all that it waits for.
"""

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from engine import IMAGE, Engine, why_not

GPULAUNCH = str(Path(sysconfig.get_path("scripts")) / "gpulaunch")
RUN = ("run", "--rm", "--network", "none")


def measure(words: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Run a command to its end; CPU and wall time in milliseconds.

    Raises:
        CalledProcessError: it failed.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * wall_s


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    if reason := why_not():
        sys.exit(reason)
    launch = (GPULAUNCH, "-q", "docker")
    commands = {
        "docker run --rm": ("docker", *RUN, IMAGE, "true"),
        "gpulaunch docker run --rm": (*launch, *RUN, "--gpus", "2", IMAGE, "true"),
        "docker ps": ("docker", "ps"),
        "gpulaunch docker ps": (*launch, "ps"),
        "gpulaunch -- true": (GPULAUNCH, "-q", "-n", "2", "--", "true"),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    engine = Engine()
    try:
        engine.start()
        with tempfile.TemporaryDirectory() as state:
            own = {"GPULAUNCH_STATE_DIR": state, "GPULAUNCH_TOPOLOGY": "dgx1-v100"}
            environment = os.environ | engine.environment | own
            for _ in range(rounds):
                for name, words in commands.items():
                    times[name].append(measure(words, environment))
    finally:
        engine.close()
    print(f"{'ms, least and median of ' + str(rounds):32}{'CPU':>12}{'wall':>16}")
    for name, measured in times.items():
        columns = [(min(one), statistics.median(one)) for one in zip(*measured, strict=True)]
        print(f"{name:28}", *(f"{least:8.1f}{median:8.1f}" for least, median in columns))


if __name__ == "__main__":
    main()
