"""What the search for a partition gains over even shares: a model, not a measurement.

The jobs and how they compete are those of tests/corun.py. Its curves have sharp knees and its
compute-intensive jobs scale linearly, so its gains are larger than those of the paper's simulator;
trends and ratios may be compared.

Run: python tests/bench/partition.py
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from corun import BENCHMARKS, Benchmark, Machine, allocations, sms_of

from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.cd_search import Allocation, Mode, cd_search
from gpulaunch.sharing.curve import keeps
from gpulaunch.sharing.partition import partition

Jobs = tuple[Benchmark, ...]
Search = Callable[[Machine, Jobs], Allocation]

PAIRS = list(combinations(BENCHMARKS.values(), 2))
FOURS = list(combinations(BENCHMARKS.values(), 4))
TRIED_FOURS = 40
"""Mixes of four for which all 1,771 partitions are tried."""

MACHINES = {
    "24 SMs": (Machine(), PAIRS),
    "memory 75 %": (Machine(24, 0.75), PAIRS),
    "memory 125 %": (Machine(24, 1.25), PAIRS),
    "memory 150 %": (Machine(24, 1.5), PAIRS),
    "30 SMs": (Machine(30), PAIRS),
    "four jobs": (Machine(), FOURS),
}
# cd-search-ics18 7.1-7.4: STP and ANTT of performance mode, STP of power mode, in %, as the text
# has them
PAPER = {
    "24 SMs": ("10.4 (-2.1..62.9)", "22 (..199)", "2.2 (-10.3..28.3)"),
    "memory 75 %": ("14.4 (..69)", "26.9 (..229)", ""),
    "memory 150 %": ("5.9", "15.6", ""),
    "30 SMs": ("19.4", "", "19.5"),
    "four jobs": ("6.2 (..42.3)", "14.2", ""),
}


class Outcome(NamedTuple):
    """Of one mix: gains over an even partition, SMs that stay idle, evaluations."""

    mode: str
    stp: float
    antt: float
    idle: float
    evaluations: int


def together(machine: Machine, jobs: Jobs) -> Allocation:
    """Search while the jobs run together, as in the paper."""
    return cd_search(
        [job.memory_intensive for job in jobs], machine.sm_count, machine.performance(jobs)
    )


def by_curves(machine: Machine, jobs: Jobs) -> Allocation:
    """Divide by the curves of each job alone, as gpulaunch does it."""
    capacity = Capacity(1 << 34, 48, sm_count=machine.sm_count)
    found = partition([machine.demand(job) for job in jobs], capacity)
    sms = sms_of(found.sm_percentages, machine.sm_count)
    memory = sum(job.memory_intensive for job in jobs)
    mode: Mode = "even" if not memory else "performance" if memory < len(jobs) else "power"
    return Allocation(mode, tuple(sms), 0)


def as_printed(machine: Machine, jobs: Jobs) -> Allocation:
    """Partition for two jobs by performance mode with the paper's steps alone, written anew."""
    memory = next((i for i, job in enumerate(jobs) if job.memory_intensive), None)
    if memory is None or all(job.memory_intensive for job in jobs):
        return together(machine, jobs)
    half = machine.sm_count // 2
    tried = [
        [n if i == memory else half for i in range(2)]
        for n in range(half, 0, -(machine.sm_count // 12))
    ]
    speeds = [machine.rates(jobs, sms)[memory] for sms in tried]
    lost = next((i for i, speed in enumerate(speeds) if not keeps(speed, speeds[0])), len(tried))
    own = tried[lost - 1][memory]
    sms = tuple(own if i == memory else machine.sm_count - own for i in range(2))
    return Allocation("performance", sms, min(lost + 1, len(tried)))


def even(machine: Machine, jobs: Jobs) -> list[int]:
    """Return the same number of SMs for each job."""
    return [machine.sm_count // len(jobs)] * len(jobs)


def outcome(machine: Machine, jobs: Jobs, search: Search) -> Outcome:
    """Return the outcome of a search beside that of an even partition."""
    found, same = search(machine, jobs), even(machine, jobs)
    return Outcome(
        found.mode,
        100 * (machine.stp(jobs, found.sms) / machine.stp(jobs, same) - 1),
        100 * (machine.antt(jobs, same) / machine.antt(jobs, found.sms) - 1),
        100 * (1 - sum(found.sms) / machine.sm_count),
        found.evaluations,
    )


def spread(values: Sequence[float]) -> str:
    """Return the mean and range as text."""
    low, mean, high = min(values), statistics.mean(values), max(values)
    return f"{mean:.1f} ({low + 0.0:.1f}..{high:.1f})".replace("-0.0", "0.0")


def gains(title: str, search: Search, names: Iterable[str]) -> None:
    """Return a table of gains, with the paper's beside them."""
    print(f"\n{title}\n")
    heads = (
        "performance: STP %",
        "paper",
        "ANTT %",
        "paper",
        "power: STP %",
        "paper",
        "SMs idle %",
    )
    widths = (22, 19, 20, 14, 18, 19, 20)
    print(
        f"{'':13}"
        + "".join(f"{head:{width}}" for head, width in zip(heads, widths, strict=True)).rstrip()
    )
    for name in names:
        machine, mixes = MACHINES[name]
        found = [outcome(machine, jobs, search) for jobs in mixes]
        performance, power = (
            [one for one in found if one.mode == mode] for mode in ("performance", "power")
        )
        stp, antt, power_stp = PAPER.get(name, ("", "", ""))
        cells = (
            spread([one.stp for one in performance]),
            stp,
            spread([one.antt for one in performance]),
            antt,
            spread([one.stp for one in power]),
            power_stp,
            spread([one.idle for one in power]),
        )
        print(
            f"{name:13}"
            + "".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
        )


def best(machine: Machine, jobs: Jobs) -> float:
    """Return the best STP of all partitions of all SMs."""
    return max(
        machine.stp(jobs, sms) for sms in allocations(len(jobs), machine.sm_count, all_used=True)
    )


def beside_all(title: str, machine: Machine, mixes: Sequence[Jobs]) -> None:
    """Print how near the searches come to the best of all partitions, and at which cost."""
    mixed = [jobs for jobs in mixes if len({job.memory_intensive for job in jobs}) == 2]
    tops = {jobs: best(machine, jobs) for jobs in mixed}
    count = len(mixed[0])
    tried = count * sum(1 for _ in allocations(count, machine.sm_count, all_used=True))
    searches = {"together": together, "by curves": by_curves, "even": None} | (
        {"as printed": as_printed} if count == 2 else {}
    )
    for name, search in searches.items():
        found = {jobs: search(machine, jobs) if search else None for jobs in mixed}
        shares = [
            100 * machine.stp(jobs, one.sms if one else even(machine, jobs)) / tops[jobs]
            for jobs, one in found.items()
        ]
        asked = statistics.mean(one.evaluations if one else 0 for one in found.values())
        print(f"{title:13}{name:12}{len(mixed):5}{spread(shares):>22}{asked:12.1f} of {tried}")


def nearness() -> None:
    """Search and trying all, for mixes with both types of jobs."""
    print(
        "\n3. Mixed jobs: STP in % of the best of all partitions, mean (worst..best), and "
        "evaluations\n"
    )
    print(f"{'':13}{'':12}{'mixes':>5}{'% of best STP':>22}{'evaluations':>12}")
    for name in ("24 SMs", "memory 75 %", "memory 150 %", "30 SMs"):
        beside_all(name, MACHINES[name][0], PAIRS)
    beside_all("four jobs", Machine(), random.Random(0).sample(FOURS, TRIED_FOURS))


def decision_time() -> None:
    """Print the time of a whole decision on a GPU of today."""
    machine = Machine(132)
    demands = [machine.demand(BENCHMARKS[name]) for name in ("LBM", "DXTC", "LAVAMD", "CP")]
    capacity = Capacity(1 << 34, 48, sm_count=132)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        partition(demands, capacity)
        times.append(1000 * (time.perf_counter() - start))
    print(
        f"\n4. partition() of four jobs with curves of 132 points: {statistics.median(times):.2f} "
        "ms"
    )


def main() -> None:
    """Print all tables."""
    print(
        "A model, not a measurement. Gains are over an even partition, ANTT as old / new - 1: mean "
        "(worst..best)."
    )
    gains("1. Searched while the jobs run together, as in the paper", together, MACHINES)
    gains(
        "   the same with the paper's steps alone",
        as_printed,
        [name for name in MACHINES if name != "four jobs"],
    )
    gains("2. Divided by what curves of the jobs alone predict, as here", by_curves, MACHINES)
    nearness()
    decision_time()


if __name__ == "__main__":
    main()
