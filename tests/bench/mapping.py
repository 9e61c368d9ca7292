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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from mapping_problems import CLUSTERS, PAIRS, problem

from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.cluster_file import load_cluster
from gpulaunch.cluster.mapping import MappingProblem, judge
from gpulaunch.cluster.policies import MAPPING_POLICIES
from gpulaunch.cluster.scotch import find_gmap

QUICK = "--quick" in sys.argv[1:]
SHUFFLES = 2 if QUICK else 20
SCOTCH = "magc_scotch"
SHOWN = ("default", "strategy_2", "strategy_1", "magc", SCOTCH, "multisect", "auto")


class Result(NamedTuple):
    """What a policy made of a problem."""

    ms: float
    congestion: float


def policies() -> list[str]:
    """Return the policies that can be run here."""
    return [name for name in SHOWN if find_gmap() or name != SCOTCH]


def run(name: str, case: MappingProblem) -> Result:
    """Map once."""
    began = cpu_s()
    mapping = MAPPING_POLICIES[name](case)
    ms = 1e3 * (cpu_s() - began)
    return Result(ms, judge(case, mapping).maximum)


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that ended, where Scotch runs."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def ratio(ours: float, theirs: float) -> float:
    """Return how much more congested the worst link is."""
    return ours / theirs if theirs else float(ours == 0) or float("inf")


def cases(cluster: Cluster) -> Iterator[tuple[str, MappingProblem]]:
    """Yield the problems of 64 ranks by the name of their pair."""
    for pair in PAIRS:
        for seed in (None, *range(SHUFFLES)):
            yield pair, problem(cluster, pair, seed=seed)


def quality(name: str, results: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the cells about one policy."""
    own = results[name]
    times = [result.ms for result in own]
    relative = [
        ratio(one.congestion, base.congestion)
        for one, base in zip(own, results["default"], strict=True)
    ]
    cells = [
        f"{statistics.median(times):.1f}",
        f"{max(times):.1f}",
        f"{statistics.mean(relative):.3f}",
    ]
    if SCOTCH in results:
        ratios = [
            ratio(one.congestion, their.congestion)
            for one, their in zip(own, results[SCOTCH], strict=True)
        ]
        share = sum(r <= 1 + 1e-9 for r in ratios) / len(ratios)
        cells += [f"{100 * share:.1f} %", f"{max(ratios):.3f}"]
    return cells


def show_64(name: str) -> None:
    """Print quality and time of all policies on a cluster of the paper."""
    found: dict[str, list[Result]] = {policy: [] for policy in policies()}
    for _, case in cases(load_cluster(name)):
        for policy, results in found.items():
            results.append(run(policy, case))
    print(f"\n{name}, {len(found['default'])} problems of 64 ranks")
    head = ["policy", "ms, median", "ms, max", "congestion / default"]
    head += ["<= magc-scotch", "worst ratio"] if SCOTCH in found else []
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for policy in found:
        print(f"| {' | '.join([policy.replace('_', '-'), *quality(policy, found)])} |")


def main() -> None:
    """Print all tables."""
    for name in policies():
        run(name, problem(load_cluster("magc-b"), "2D-2D"))  # loads what is imported late
    for name in CLUSTERS:
        show_64(name)


if __name__ == "__main__":
    main()
