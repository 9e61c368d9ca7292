"""What gpulaunch adds to `docker run`: wall and CPU time of interleaved runs.

Run: python tests/bench/docker_run.py [RUNS] [IMAGE]

With IMAGE, on the engine that DOCKER_HOST names; else on one that is started for this, with an
image of busybox, which needs root and dockerd on PATH. GPUs are those of the described machine
dgx1-v100, so none has to be there. The CPU is that of all processes of the command, the companion
that waits for the container's end among them; the engine's is not in it.
"""

import ctypes
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

GPULAUNCH = [
    str(Path(sysconfig.get_path("scripts")) / "gpulaunch"),
    "-q",
    "--topology",
    "dgx1-v100",
]
PR_SET_CHILD_SUBREAPER = 36


def cases(image: str) -> dict[str, list[str]]:
    """Return command lines by name; one of gpulaunch's follows the one that it is compared with."""
    run = ["docker", "run", "--rm", image, "true"]
    detached = ["docker", "run", "-d", "--rm", image, "sleep", "1"]
    listed = ["docker", "ps"]
    return {
        "docker run --rm IMAGE true": run,
        "gpulaunch docker run --rm IMAGE true": [*GPULAUNCH, *run],
        "docker run -d --rm IMAGE sleep 1": detached,
        "gpulaunch docker run -d --rm IMAGE sleep 1": [*GPULAUNCH, *detached],
        "docker ps": listed,
        "gpulaunch docker ps": [GPULAUNCH[0], *listed],
    }


def run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its wall time, and the CPU time of all its processes, in ms."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    wall_ms = cpu_ms = 0.0
    while True:
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:  # its last process has ended, too
            return wall_ms, cpu_ms
        cpu_ms += 1000 * (usage.ru_utime + usage.ru_stime)
        if pid == process.pid:
            wall_ms = 1000 * (time.perf_counter() - began)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, command


def measure(runs: int, image: str, environment: dict[str, str]) -> None:
    """Print the table."""
    # Companions then become children of this process, and their CPU is known.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    commands = cases(image)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(runs + 1):  # the first round warms the caches and is dropped
        for name, command in commands.items():
            times[name].append(run(command, environment))
    print(f"{runs} interleaved runs, ms       {'':14} wall: median  min  max   CPU: median  more")
    before = 0.0
    for name, samples in times.items():
        walls, cpus = zip(*samples[1:], strict=True)
        cpu = statistics.median(cpus)
        more = f"{cpu - before:+5.0f}" if name.startswith("gpulaunch") else ""
        print(
            f"{name:40} {statistics.median(walls):13.0f} {min(walls):4.0f} {max(walls):4.0f} "
            f"{cpu:13.0f} {more}"
        )
        before = cpu


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
            # In a process of its own, whose children are not the engine.
            command = [sys.executable, __file__, str(runs), IMAGE]
            subprocess.run(command, env=environment | engine.environment, check=True)
        finally:
            engine.close()


if __name__ == "__main__":
    main()
