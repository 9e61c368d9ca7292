"""What a partition by curves gains over even shares: a model, not a measurement.

The jobs and how they compete are those of tests/corun.py. Its curves have sharp knees and its
compute-intensive jobs scale linearly, so its gains are larger than those of the paper's simulator;
trends and ratios may be compared.

Run: python tests/bench/partition.py
"""

import statistics
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from corun import BENCHMARKS, Benchmark, Machine, sms_of

from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.partition import partition

PAIRS = list(combinations(BENCHMARKS.values(), 2))
FOURS = list(combinations(BENCHMARKS.values(), 4))
MACHINES = {
    "24 SMs": (Machine(), PAIRS),
    "memory 75 %": (Machine(24, 0.75), PAIRS),
    "memory 150 %": (Machine(24, 1.5), PAIRS),
    "30 SMs": (Machine(30), PAIRS),
    "four jobs": (Machine(), FOURS),
}
PAPER = {
    "24 SMs": ("10.4 (-2.1..62.9)", "22 (..199)"),
    "memory 75 %": ("14.4 (..69)", "26.9 (..229)"),
    "memory 150 %": ("5.9", "15.6"),
    "30 SMs": ("19.4", ""),
    "four jobs": ("6.2 (..42.3)", "14.2"),
}
"""STP and ANTT of performance mode in %, as the text of cd-search-ics18 7.1-7.4 has them."""


def gains(machine: Machine, jobs: Sequence[Benchmark]) -> tuple[float, float]:
    """Return the gains in STP and ANTT, in %, over the same number of SMs for each job."""
    capacity = Capacity(1 << 34, 48, sm_count=machine.sm_count)
    found = partition([machine.demand(job) for job in jobs], capacity)
    sms = sms_of(found.sm_percentages, machine.sm_count)
    even = [machine.sm_count // len(jobs)] * len(jobs)
    return (
        100 * (machine.stp(jobs, sms) / machine.stp(jobs, even) - 1),
        100 * (machine.antt(jobs, even) / machine.antt(jobs, sms) - 1),
    )


def spread(values: Sequence[float]) -> str:
    """Return the mean and range as text."""
    return f"{statistics.mean(values):.1f} ({min(values):.1f}..{max(values):.1f})"


def main() -> None:
    """Print the gains of mixes that have both memory- and compute-intensive jobs."""
    print(f"{'':13}{'STP %':22}{'paper':19}{'ANTT %':22}paper")
    for name, (machine, mixes) in MACHINES.items():
        mixed = [jobs for jobs in mixes if len({job.memory_intensive for job in jobs}) == 2]
        found = [gains(machine, jobs) for jobs in mixed]
        stp, antt = (spread(column) for column in zip(*found, strict=True))
        print(f"{name:13}{stp:22}{PAPER[name][0]:19}{antt:22}{PAPER[name][1]}")


if __name__ == "__main__":
    main()
