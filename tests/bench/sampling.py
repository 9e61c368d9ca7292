"""What measuring costs a job: throughput with and without --record-to, and the cost of a reading.

Run: python tests/bench/sampling.py [RUNS]

The GPUs are a fake NVML's (it wants gcc): eight H100 with GPM and eighteen NVLinks each, all in
use, so a real driver's own time is not in the figures. The job works on all CPUs, so whatever
measuring takes, it takes from the job.
"""

import json
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

GPULAUNCH = str(Path(sysconfig.get_path("scripts")) / "gpulaunch")
JOB_S = 4.0
JOB = f"""\
import os, time
cpus = len(os.sched_getaffinity(0))
read_end, write_end = os.pipe()
began = time.monotonic()
for _ in range(cpus):
    if os.fork() == 0:
        count = 0
        while time.monotonic() < began + {JOB_S}:
            sum(range(1000))
            count += 1
        os.write(write_end, b"%12d" % count)
        os._exit(0)
print(began, sum(int(os.read(read_end, 12)) for _ in range(cpus)))
"""


def machine(home: Path) -> FakeNvml:
    """Make a fake NVML of eight GPUs that report all there is to report."""
    compiled(TESTS / "fake_nvml" / "nvml.c", home / "libnvidia-ml.so.1")
    fake = FakeNvml(home, home / "nvml.txt")
    shape = {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559,
        "cc": "9.0",
        "gen": 5,
        "width": 16,
        "gpm": 1,
    }
    gpus = [{"uuid": f"GPU-{i}", "pci": f"ffff:{i + 1:02x}:00", **shape} for i in range(8)]
    fake.describe(
        gpus,
        (
            f"nvlink {gpu} {link} peer=switch version=6 hopper"
            for gpu in range(8)
            for link in range(18)
        ),
    )
    for gpu in range(8):
        for key in (
            "sm",
            "occupancy",
            "dram",
            "active",
            "memactive",
            "power",
            "capped",
            "pcie_tx",
            "pcie_rx",
        ):
            fake.script(gpu, key, 1)
        for link in range(18):
            fake.script(gpu, f"link:{link}:tx", 1)
            fake.script(gpu, f"link:{link}:rx", 1)
    fake.begin_script()
    return fake


def main() -> None:
    """Print the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "state").mkdir()
        environment = (
            os.environ | machine(home).environment | {"GPULAUNCH_STATE_DIR": str(home / "state")}
        )
        environment |= {"XDG_RUNTIME_DIR": directory}
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # else every launch compiles the package anew
        record = ("-o", f"record_to={home / 'run.json'}")
        done: dict[str, list[float]] = {"without": [], "with": []}
        begins: dict[str, list[float]] = {"without": [], "with": []}
        samples = []
        for _ in range(runs + 1):  # the first round warms the caches and is dropped
            for name, options in (("without", ()), ("with", record)):
                start = time.monotonic()
                command = [GPULAUNCH, "-n", "8", *options, "--", sys.executable, "-c", JOB]
                output = subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                ).stdout
                began, count = output.split()
                done[name].append(int(count) / JOB_S)
                begins[name].append(1000 * (float(began) - start))
            document = json.loads((home / "run.json").read_text())
            samples.append(document["gpus"][0]["samples"])
    print(f"8 GPUs, {runs} interleaved runs of {JOB_S:g} s on {os.cpu_count()} CPUs")
    print(f"{'':22} {'loops/s':>9} {'min':>9} {'max':>9} {'job begins after ms':>20}")
    for name, counts in done.items():
        kept = counts[1:]
        start_ms = statistics.median(begins[name][1:])
        median = statistics.median(kept)
        print(
            f"{name + ' --record-to':22} {median:9.0f} {min(kept):9.0f} {max(kept):9.0f} "
            f"{start_ms:20.0f}"
        )
    loss = 100 * (1 - statistics.median(done["with"][1:]) / statistics.median(done["without"][1:]))
    paired = [100 * (1 - a / b) for a, b in zip(done["with"][1:], done["without"][1:], strict=True)]
    spread = statistics.stdev(paired) / len(paired) ** 0.5 if len(paired) > 1 else float("nan")
    print(
        f"cost to the job: {loss:.2f} %; mean of pairs {statistics.mean(paired):.2f} +/- "
        f"{spread:.2f} %"
    )
    print(f"{statistics.median(samples):.0f} readings a run")


if __name__ == "__main__":
    main()
