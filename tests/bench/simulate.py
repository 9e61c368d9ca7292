"""What the simulator costs as jobs and machines grow tenfold: seconds, events a second, and memory.

Jobs are drawn from topo-aware-sc17's distributions, so close together that a third of the GPUs is
busy, whatever the number of machines; policy topo-aware-p, run times that follow links and
neighbours.

Run: python tests/bench/simulate.py
"""

import resource
import subprocess
import sys
import time

import gpulaunch
from gpulaunch.simulate.event_loop import Rules, simulate

CASES = [
    (100, 10),
    (1_000, 10),
    (1_000, 100),
    (10_000, 100),
    (10_000, 1_000),
    (100_000, 1_000),
    (100_000, 10_000),
]
GPU_SECONDS = 290.0
"""Of a job, mean: 1.78 GPUs for some 160 s."""

BUSY = 1 / 3


def one(jobs: int, machines: int) -> None:
    """Simulate, and print a line."""
    simulator = gpulaunch.Simulator("power8-minsky")
    gap_s = GPU_SECONDS / (BUSY * 4 * machines)
    trace = gpulaunch.generate_trace("poisson", 1, jobs)
    for job in trace["job"]:
        job["arrival_s"] *= gap_s / 10
    read = simulator.read_trace(trace).jobs
    rules = Rules(
        "topo_aware_p", "cut", machines=machines, time_models=("bandwidth", "interference")
    )
    began = time.perf_counter()
    stays = simulate(simulator.topology, read, rules)
    seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wait = sum(stay.started_s - stay.job.arrival_s for stay in stays) / jobs
    print(
        f"{jobs:8} {machines:9} {seconds:8.2f} {2 * jobs / seconds:9.0f} "
        f"{1e6 * seconds / jobs:11.0f} {wait:10.1f} {memory:9.0f}",
        flush=True,
    )


def main() -> None:
    """Run each case in a process of its own, for its memory."""
    if len(sys.argv) == 3:
        one(int(sys.argv[1]), int(sys.argv[2]))
        return
    print("    jobs  machines  seconds  events/s us for a job  mean wait  MiB")
    for jobs, machines in CASES:
        subprocess.run([sys.executable, __file__, str(jobs), str(machines)], check=True)


if __name__ == "__main__":
    main()
