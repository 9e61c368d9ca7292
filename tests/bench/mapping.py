"""How well the mapping policies map, and how long they take.

64 ranks, the 17 pairs of patterns of magc-2016 VI, in order and with ranks numbered anew, on its
two clusters. Times are CPU times, those of Scotch's processes too; imports are left out. The table
is that of docs/explanation/mapping.md.

Run: python tests/bench/mapping.py [--quick]
"""

import resource
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from mapping_problems import CLUSTERS, PAIRS, problem
from rivals import GMAP, map_by_scotch, map_by_strategy_1, map_by_strategy_2

from gpulaunch.lab.cluster.cluster_file import load_cluster
from gpulaunch.lab.cluster.mapping import MappingProblem, judge
from gpulaunch.lab.cluster.policies import MAPPING_POLICIES

SHUFFLES = 2 if "--quick" in sys.argv[1:] else 20
SCOTCH = "magc_scotch"
SHOWN = ("default", "strategy_2", "strategy_1", "magc", SCOTCH, "multisect")
POLICIES = {
    **MAPPING_POLICIES,
    "strategy_1": map_by_strategy_1,
    "strategy_2": map_by_strategy_2,
    SCOTCH: map_by_scotch,
}


class Result(NamedTuple):
    """What a policy made of a problem."""

    ms: float
    congestion: float


def run(name: str, case: MappingProblem) -> Result:
    """Map once."""
    began = cpu_s()
    mapping = POLICIES[name](case)
    ms = 1e3 * (cpu_s() - began)
    return Result(ms, judge(case, mapping).maximum)


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that ended, where Scotch runs."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def ratios(ours: list[Result], theirs: list[Result]) -> list[float]:
    """Return how much more congested the worst link is, problem by problem."""
    pairs = [(a.congestion, b.congestion) for a, b in zip(ours, theirs, strict=True)]
    return [a / b if b else float(a == 0) or float("inf") for a, b in pairs]


def show_64(cluster: str, policies: list[str]) -> None:
    """Print quality and time of all policies on a cluster of the paper."""
    loaded = load_cluster(cluster)
    seeds = (None, *range(SHUFFLES))
    cases = [problem(loaded, pair, seed=seed) for pair in PAIRS for seed in seeds]
    found = {policy: [run(policy, case) for case in cases] for policy in policies}
    print(f"\n{cluster}, {len(cases)} problems of 64 ranks")
    head = ["policy", "ms, median", "ms, max", "congestion / default"]
    head += ["<= magc-scotch", "worst ratio"] if SCOTCH in found else []
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for policy, own in found.items():
        times = [result.ms for result in own]
        beside_default = statistics.mean(ratios(own, found["default"]))
        cells = [f"{statistics.median(times):.1f}", f"{max(times):.1f}", f"{beside_default:.3f}"]
        if SCOTCH in found:
            beside_scotch = ratios(own, found[SCOTCH])
            share = sum(ratio <= 1 + 1e-9 for ratio in beside_scotch) / len(cases)
            cells += [f"{100 * share:.1f} %", f"{max(beside_scotch):.3f}"]
        print(f"| {' | '.join([policy.replace('_', '-'), *cells])} |")


def main() -> None:
    """Print all tables."""
    policies = [name for name in SHOWN if GMAP or name != SCOTCH]
    for name in policies:
        run(name, problem(load_cluster("magc-b"), "2D-2D"))  # loads what is imported late
    for cluster in CLUSTERS:
        show_64(cluster, policies)


if __name__ == "__main__":
    main()
