"""Compare every policy on every described machine by how well it serves bandwidth-sensitive jobs.

Traces: Poisson arrivals, jobs of 1-5 GPUs (as many as the machine has at most), 30, 50 and 70 % of
them sensitive, loads of 0.5, 0.8 and 0.95 of the machine, 30 seeds each; every policy replays the
same traces, first in, first out, and run times follow the bandwidth obtained. Figures are of the
sensitive jobs of two GPUs and more: mean and 25th percentile of effective bandwidth (cut model),
and mean slowdown. What is compared is the difference of two policies, trace by trace.

Run: python tests/bench/bake_off.py [--machines NAME,...] [--policies NAME,...] [--seeds 30] [--jobs
    150]
    [--json FILE: one line for each machine and policy]
"""

import argparse
import json
import sys
import time
from itertools import product
from multiprocessing import Pool
from statistics import fmean, stdev

from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.decide.request import Request
from gpulaunch.machine.find import find_machine
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.simulate.event_loop import Rules, simulate
from gpulaunch.simulate.generate import loaded_mix
from gpulaunch.simulate.machines import Remembered
from gpulaunch.simulate.measures import measure, quartiles
from gpulaunch.simulate.simulated_job import SimulatedJob

MACHINES = (
    "dgx1-v100",
    "dgx1-p100",
    "power8-minsky",
    "summit",
    "torus-2d-16",
    "cube-mesh-16",
    "dgx2",
    "dgx-a100",
    "dgx-h100",
    "a100-pcie-4gpu",
    "pcie-4gpu-workstation",
    "pcie-8gpu-workstation",
    "minsky-cluster",
    "nvl72",
)
TOO_LARGE = ("minsky-cluster", "nvl72")
"""More free GPUs than best-effort takes."""

LOADS = (0.5, 0.8, 0.95)
SENSITIVE = (0.3, 0.5, 0.7)
LARGEST = 5
FIGURES = ("mean GB/s", "25 % GB/s", "slowdown %")

Trace = tuple[float, float, int]
Figures = dict[Trace, tuple[float, float, float]]


def traces(machine, seeds: int, jobs: int) -> dict[Trace, list[SimulatedJob]]:
    """Make all traces for a machine, by load, share of sensitive jobs, and seed."""
    gpus = len(machine.topology.gpus)
    made = {}
    for load, sensitive, seed in product(LOADS, SENSITIVE, range(seeds)):
        rows = loaded_mix(seed, jobs, gpus, load, sensitive, most=min(LARGEST, gpus))
        made[load, sensitive, seed] = [_job(number, row) for number, row in enumerate(rows)]
    return made


def _job(number: int, row: dict) -> SimulatedJob:
    sensitive = row["bandwidth_sensitive"] and row["gpus"] > 1
    request = Request(row["gpus"], PATTERNS["ring"], sensitive, "preserve", "cut")
    return SimulatedJob(number, row["name"], request, row["arrival_s"], row["duration_s"])


def replayed(
    machine_name: str, policy: str, seeds: int, jobs: int
) -> tuple[str, str, Figures, float]:
    """Return what a policy makes of all traces of a machine."""
    machine = find_machine(machine_name, print, "--topology")
    rules = Rules(policy, POLICIES[policy].bandwidth_model, time_models=("bandwidth",))
    remembered, began = Remembered(machine.topology), time.monotonic()
    found: Figures = {}
    for trace, these in traces(machine, seeds, jobs).items():
        replay = measure(
            machine.topology,
            simulate(machine.topology, these, rules, remembered=remembered),
            rules,
            None,
            remembered,
        )
        sensitive = [one for one in replay.jobs if one.sensitive]
        bandwidths = [one.effective_bandwidth for one in sensitive]
        slowdown = fmean(one.slowdown for one in sensitive) - 1
        found[trace] = fmean(bandwidths), quartiles(bandwidths).low, 100 * slowdown
    return machine_name, policy, found, time.monotonic() - began


def replayed_one(work: tuple[str, str, int, int]) -> tuple[str, str, Figures, float]:
    return replayed(*work)


def compared(own: Figures, other: Figures, figure: int) -> tuple[float, float]:
    """Return by how much the first is better, as a mean over all traces, and its standard error."""
    sign = -1 if FIGURES[figure].startswith("slowdown") else 1
    gains = [sign * (own[trace][figure] - other[trace][figure]) for trace in own]
    return fmean(gains), stdev(gains) / len(gains) ** 0.5


def main() -> None:
    """Replay, and print a table for each machine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--default", default=DEFAULT_POLICY)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    names, policies = options.machines.split(","), options.policies.replace("-", "_").split(",")
    work = [
        (name, policy, options.seeds, options.jobs)
        for name, policy in product(names, policies)
        if (policy, name) not in product(["best_effort"], TOO_LARGE)
    ]
    results: dict[str, dict[str, Figures]] = {}
    with Pool(options.workers) as pool:
        for name, policy, found, took_s in pool.imap(replayed_one, work):
            results.setdefault(name, {})[policy] = found
            print(f"{name} {policy}: {took_s:.0f} s", file=sys.stderr)
            if options.json:
                with open(options.json, "a") as file:
                    print(
                        json.dumps(
                            [name, policy, [[*trace, *figures] for trace, figures in found.items()]]
                        ),
                        file=file,
                    )
    worst = 0.0
    for name, of_policy in results.items():
        print(
            f"\n{name:24} "
            + " ".join(f"{figure:>11}" for figure in FIGURES)
            + "   default is better by (standard errors)"
        )
        for policy, found in of_policy.items():
            means = [fmean(figures[i] for figures in found.values()) for i in range(3)]
            line = (
                f"  {policy.replace('_', '-'):22} "
                + " ".join(f"{mean:11.2f}" for mean in means)
                + "  "
            )
            for i in range(3):
                gain, error = compared(of_policy[options.default], found, i)
                errors = gain / error if error else 0.0
                worst = min(worst, errors)
                line += f" {gain:+7.2f} ({errors:+6.1f})"
            print(line)
    print(f"\nworst: {worst:+.1f} standard errors")


if __name__ == "__main__":
    main()
