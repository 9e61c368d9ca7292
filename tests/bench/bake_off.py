"""How much longer jobs take under each policy than under the default, as tables in Markdown.

All policies replay the same traces: jobs of a mix (tests/mixes.py) come at random times to one
machine, and load it to 80 %. A job's time limit is three times its run time, so that jobs may pass
others. Run times and bandwidths are the cut model's.

Run: python tests/bench/bake_off.py [--machines NAME,...] [--mixes "NAME;..."] [--traces 24]
    [--jobs 100]
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import gpulaunch
from gpulaunch.placement.policies import DEFAULT_POLICY, POLICIES

sys.path.insert(0, str(Path(__file__).parents[1]))

from mixes import MIXES, loaded_mix

MACHINES = (
    "dgx1-v100",
    "summit",
    "dgx1-p100",
    "power8-minsky",
    "pcie-8gpu-workstation",
    "a100-pcie-4gpu",
)
"""Machines of up to 8 GPUs on which sets of GPUs differ."""

LOAD = 0.8
LIMIT = 3.0
"""Time limit of a job as a multiple of its run time; assumed."""

CLEAR = 3.0
"""Standard errors from which a difference counts."""

LEAST_PERCENT = 0.1
"""Difference in percent below which nothing counts, however sure it is."""

FIGURES = ("run time of sensitive jobs", "time from arrival to end of all jobs")


class Gain(NamedTuple):
    """By how much jobs take longer under another policy than under the default."""

    percent: float
    errors: float

    @property
    def counts(self) -> bool:
        """Whether the difference is large and sure enough to be told."""
        return abs(self.errors) >= CLEAR and abs(self.percent) >= LEAST_PERCENT


def gain_of(own: Sequence[float], other: Sequence[float]) -> Gain:
    """Compare figures, where less is better, by their ratio, trace by trace."""
    ratios = [log(b / a) for a, b in zip(own, other, strict=True)]
    mean, spread = fmean(ratios), stdev(ratios)
    errors = mean / spread * len(ratios) ** 0.5 if spread else 0.0
    return Gain(100 * (exp(mean) - 1), errors)


def figures(
    simulator: gpulaunch.Simulator, mix: str, seed: int, jobs: int
) -> dict[str, tuple[float, float]]:
    """Return the figures of one trace by policy."""
    rows = loaded_mix(seed, jobs, len(simulator.topology.gpus), LOAD, MIXES[mix])
    for row in rows:
        row["time_limit"] = f"{LIMIT * row['duration_s']:.3f}s"
    trace = simulator.read_trace({"job": rows})
    found = {}
    for policy in POLICIES:
        done = simulator.replay(trace, policy).jobs
        slowdown = fmean([one.slowdown for one in done if one.sensitive] or [1.0])
        found[policy] = slowdown, fmean(one.turnaround_s for one in done)
    return found


def compared(machine: str, mix: str, traces: int, jobs: int) -> dict[str, list[Gain]]:
    """Return each policy's gain over the default by each of FIGURES."""
    simulator = gpulaunch.Simulator(machine)
    all_figures = [figures(simulator, mix, seed, jobs) for seed in range(traces)]
    found: dict[str, list[Gain]] = {}
    for policy in POLICIES:
        found[policy] = []
        for at in range(len(FIGURES)):
            own = [trace[DEFAULT_POLICY][at] for trace in all_figures]
            other = [trace[policy][at] for trace in all_figures]
            found[policy].append(gain_of(own, other))
    return found


def lines(machines: Sequence[str], mixes: Sequence[str], traces: int, jobs: int) -> Iterator[str]:
    """Yield the tables: percent more time than under the default, in bold where that is clear."""
    cells = {
        (machine, mix): compared(machine, mix, traces, jobs)
        for machine in machines
        for mix in mixes
    }
    others = [policy for policy in POLICIES if policy != DEFAULT_POLICY]
    for at, title in enumerate(FIGURES):
        yield f"**{title}**\n"
        names = [policy.replace("_", "-") for policy in others]
        yield f"| machine | mix | {' | '.join(names)} |"
        yield "|---" * (len(others) + 2) + "|"
        for (machine, mix), by_policy in cells.items():
            texts = []
            for policy in others:
                gain = by_policy[policy][at]
                text = f"{gain.percent:+.1f}"
                texts.append(f"**{text}**" if gain.counts else text)
            yield f"| {machine} | {mix} | {' | '.join(texts)} |"
        yield ""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Compare policies with the default.")
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--mixes", default="uniform 1-5;1, 2, 4;Philly", help="separated by ;")
    parser.add_argument("--traces", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=100)
    options = parser.parse_args()
    machines, mixes = options.machines.split(","), options.mixes.split(";")
    for line in lines(machines, mixes, options.traces, options.jobs):
        print(line)


if __name__ == "__main__":
    main()
